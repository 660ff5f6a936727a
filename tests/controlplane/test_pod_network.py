"""Pods with a network of their own: addresses, ports and processes apart, and names of Services as in a cluster."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane.api import Object
from controlplane.kubelet import Kubelet, PodNetwork
from controlplane.kubelet.network import lacking
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking() or "there is a network")
SERVER = """
import http.server, os, pathlib
pathlib.Path("name").write_text(f"{os.environ['HOSTNAME']} {os.getpid()}")
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
API_SERVER = "https://kubernetes.default.svc:$KUBERNETES_SERVICE_PORT/version"


@pytest.fixture
def network(control_plane: ControlPlane, tmp_path: Path) -> Iterator[PodNetwork]:
    running = PodNetwork(control_plane.api, tmp_path)
    yield running
    running.close()


def pod(name: str, space: str, node: Kubelet, command: list[str], **container: object) -> Object:
    main = {"name": "main", "image": "none", "command": command, **container}
    spec = {"nodeSelector": node.selector, "terminationGracePeriodSeconds": 1, "containers": [main]}
    meta = {"name": name, "namespace": space, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def test_pods_have_ports_processes_and_names_of_their_own(control_plane: ControlPlane, network: PodNetwork) -> None:
    api, space = control_plane.api, control_plane.api.space("network")
    # The same port on the same loopback address, and each finds itself there.
    probe = {"exec": {"command": ["sh", "-c", "wget -qO- http://localhost:8000/name | grep $HOSTNAME"]}}
    with Kubelet(control_plane, network=network) as node:
        for name in ("first", "second"):
            api.create(pod(name, space, node, [sys.executable, "-I", "-c", SERVER], readinessProbe=probe))
            spec = {"selector": {"app": name}, "ports": [{"port": 8000}], "clusterIP": "None"}
            meta = {"name": name, "namespace": space}
            api.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec})
        for name in ("first", "second"):
            wait_for(lambda name=name: network.names.addresses(f"{name}.{space}.svc"), what=f"{name} is ready")  # type: ignore[misc]
        script = f"""
            wget -qO- http://first.{space}.svc.cluster.local:8000/name; echo
            wget -qO- http://second:8000/name; echo
            wget -qO /dev/null http://no-such-service:8000 || echo unknown
            wget -qO- --no-check-certificate {API_SERVER} | grep -c gitVersion
            cat /proc/1/comm; sleep 600"""
        api.create(pod("client", space, node, ["sh", "-c", script]))
        api.wait("v1", "Pod", "client", lambda client: client["status"].get("phase") == "Running", space)
        path = f"/api/v1/namespaces/{space}/pods/client/log"
        lines = lambda: api.request("GET", path).text.splitlines()  # noqa: E731
        answers = wait_for(lambda: lines()[4:] and lines(), what="it has asked everything")
    assert answers == ["first 1", "second 1", "unknown", "1", "sh"]
