"""Sharing that adapts unattended, as the chart installs it: a contended node is drained, changed and given back, with
the controller's own token and its fence, before a real scheduler and a real Prometheus."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from controlplane.api import Api, Refused
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from partitions_controller.sharing_bench import GPU, GPUS, OFFERED, plugin_pass

from kopt.cluster.client.resources import NODES
from kopt.cluster.holds.hold import release
from kopt.formats.sharing_terms import CONFIGURATION_LABEL, configuration_text
from tests.gpu_history import Metric, history
from tests.prometheus_server import RunningPrometheus

from .rights import assert_refused_nothing, audited, leading, used

pytestmark = [pytest.mark.cluster, pytest.mark.services, pytest.mark.long]
ACCOUNT = "kopt-partitions"
VALUES = {
    "partitions": {
        "enabled": True,
        "mode": "enforce",
        "settle": "1s",
        "sharing": {"enabled": True, "drain": True, "configurations": {"name": "plugin"}},
    },
    "webhook": {"enabled": False},
    "sizing": {"enabled": False},
    "extender": {"enabled": False},
}
DATA = {name: configuration_text(setting, None) for name, setting in OFFERED.items()}
Object = dict[str, Any]


@pytest.fixture
def kwok(control_plane: ControlPlane) -> Iterator[Kwok]:
    """Of this folder's control plane: the shared fixtures are of the other."""
    result = Kwok(control_plane)
    yield result
    result.stop()


@contextlib.contextmanager
def plugin(plane: ControlPlane, node: str) -> Iterator[None]:
    """What plugin and feature discovery do on a node, as its label changes."""
    api, ended = Api(plane.kubeconfig), threading.Event()

    def follow() -> None:
        while not ended.wait(0.1):
            with contextlib.suppress(Refused):
                document = api.get("v1", "Node", node, "")
                change = plugin_pass(document, DATA)
                amounts, wanted = document["status"]["allocatable"], change["status"]["allocatable"]
                if amounts.get(GPU) != wanted[GPU]:
                    api.patch("v1", "Node", node, {"status": change["status"]}, subresource="status")
                    api.patch("v1", "Node", node, {"metadata": change["metadata"]})

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        api.http.close()


def replica_set(space: str, node: str) -> Object:
    limits = {"resources": {"limits": {GPU: "1"}}}
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "team/batch:1", **limits}],
    }
    template = {"metadata": {"labels": {"app": "batch"}}, "spec": spec}
    body = {"replicas": 2, "selector": {"matchLabels": {"app": "batch"}}, "template": template}
    metadata = {"name": "batch", "namespace": space}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": body}


def test_a_contended_node_is_drained_changed_and_given_back(
    control_plane: ControlPlane, charts: Any, install: Callable[..., None], kwok: Kwok, tmp_path: Path
) -> None:
    install(VALUES)
    api, space, started = control_plane.api, control_plane.api.space("sharing"), datetime.now(UTC)
    api.patch("v1", "Namespace", space, {"metadata": {"labels": {"kaiwo.ai/managed": "true"}}})
    metadata = {"name": "plugin", "namespace": space}
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": DATA})
    labels = {CONFIGURATION_LABEL: "mps-4", f"{GPU}.count": str(GPUS)}
    with contextlib.ExitStack() as parts:
        (node,) = parts.enter_context(kwok.nodes(1, gpus=GPUS, labels=labels, prefix="shared"))
        parts.enter_context(plugin(control_plane, node))
        daemon = {"nodeName": node, "containers": [{"name": "main", "image": "nvidia/mps"}]}
        metadata = {"name": "nvidia-device-plugin-mps-control-daemon-x", "namespace": space}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": daemon})
        wait_for(lambda: _state(api, node) == ("mps-4", str(4 * GPUS), False), what="the plugin offers replicas")
        api.create(replica_set(space, node))
        before = wait_for(lambda: _bound(api, space, node), what="its pods run on the node")
        series = {"node": node, "gpu": "0"}
        measured = [
            Metric("kopt_gpu_sm_active_ratio", series, 0.99, 3600.0),
            Metric("kopt_gpu_memory_used_bytes", series, 4e10, 3600.0),
            Metric("kopt_gpu_memory_total_bytes", series, 8e10, 3600.0),
        ]
        prometheus = RunningPrometheus(tmp_path, history(*measured))
        parts.callback(prometheus.stop)
        options = [f"--prometheus={prometheus.url}", f"--share-configurations={space}/plugin"]
        with leading(control_plane, charts, VALUES, ACCOUNT, options) as server:
            # A minute of contention since its pods began, asked about once a minute: up to two, and the change.
            changed = ("mps-2", str(2 * GPUS), False)
            server.wait_until(lambda: _state(api, node) == changed, timeout_s=240.0, what="it is changed")
            after = wait_for(lambda: _bound(api, space, node), what="its pods are back")
            assert not before & after
            held = api.get("v1", "Node", node, "")
            assert held["metadata"]["labels"]["kaiwo.ai/held"] == "sharing"
        seen = audited(control_plane, ACCOUNT, started)
        _nothing_else_of_the_node(control_plane, node)
        # `kopt off`, with its own rights and fence.
        changes = release(NODES, api.get("v1", "Node", node, ""))
        del changes["metadata"]["resourceVersion"]
        off = Api(Path(control_plane.kubeconfig_for("kopt-off", "kopt-system")))
        parts.callback(off.http.close)
        released = off.patch("v1", "Node", node, changes, "")["metadata"]["labels"]
        assert (released[CONFIGURATION_LABEL], "kaiwo.ai/held" in released) == ("mps-4", False)
        api.delete("apps/v1", "ReplicaSet", "batch", space)
        # Other tests of this account want to see that it makes its own.
        api.delete("coordination.k8s.io/v1", "Lease", ACCOUNT, "kopt-system")
    assert_refused_nothing(seen)
    assert {("create", "", "pods/eviction"), ("patch", "", "nodes")} <= used(seen)


def _state(api: Api, node: str) -> tuple[str, str, bool]:
    document = api.get("v1", "Node", node, "")
    label = document["metadata"]["labels"].get(CONFIGURATION_LABEL, "")
    return label, str(document["status"]["allocatable"].get(GPU, "0")), bool(document["spec"].get("unschedulable"))


def _bound(api: Api, space: str, node: str) -> set[str]:
    """Uids of the set's pods, once both of them are on the node."""
    pods = [pod for pod in api.list("v1", "Pod", space) if pod["metadata"].get("labels", {}).get("app") == "batch"]
    uids = {pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName") == node}
    return uids if len(uids) == len(pods) == 2 else set()


def _nothing_else_of_the_node(plane: ControlPlane, node: str) -> None:
    """Whoever has its token: the label only with the mark of a hold, and no other label."""
    stolen = Api(Path(plane.kubeconfig_for(ACCOUNT, "kopt-system")))
    for name in ("nvidia.com/gpu.count", "node-role.kubernetes.io/control-plane"):
        with pytest.raises(Refused, match="only labels and annotations of ours"):
            stolen.patch("v1", "Node", node, {"metadata": {"labels": {name: "9"}}}, "")
    stolen.http.close()
