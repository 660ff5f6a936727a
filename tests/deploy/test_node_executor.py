"""Plan, signature, object, executor, driver, report: the whole way on a real API server, with the chart's account."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from controlplane.api import Api, Refused, kubeconfig
from controlplane.plane import ControlPlane
from controlplane.processes import Server, free_port, run_kopt, wait_for
from controlplane.warm import KOPT
from nvml_standin.devices import Devices

KIND = ("kaiwo.ai/v1alpha1", "NodePlan")
NODE, OTHER = "gpu-executor", "gpu-executor-other"
SPACE = ACCOUNT = "kopt-node-executor"
Object = dict[str, Any]


class Served:
    """A node of the cluster, its stand-in GPUs, and the executor that serves it with the token of its pod."""

    def __init__(self, plane: ControlPlane, folder: Path, objects: list[Object]) -> None:
        self.plane, self.api, self.folder = plane, plane.api, folder
        self.devices = Devices(folder / "devices")
        self.keys = folder / "keys"
        (folder / "trusted").mkdir()
        self._objects = objects
        self._servers: list[Server] = []

    def kopt(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """With the rights of whoever administers the cluster."""
        return run_kopt(*arguments)

    def trust(self) -> str:
        """The public key that ``kopt nodes keys`` prints."""
        done = self.kopt("nodes", "keys", "--keys", self.keys)
        assert done.returncode == 0, done.stderr
        (self.folder / "trusted" / "alice.pub").write_text(done.stdout)
        return done.stdout + done.stderr

    def start(self, credentials: Path) -> Server:
        """As the chart's DaemonSet does, with the keys and the journal of this test."""
        daemons = next(one for one in self._objects if (one["kind"], one["metadata"]["name"]) == ("DaemonSet", ACCOUNT))
        (container,) = daemons["spec"]["template"]["spec"]["containers"]
        own = ("--host", "--port", "--keys", "--journal", "--interval")
        arguments = [one for one in container["args"] if not one.startswith(own)]
        arguments += [f"--keys={self.folder / 'trusted'}", f"--journal={self.folder / 'journal'}", "--interval=0.5"]
        env = {"KUBECONFIG": str(credentials), "NODE_NAME": NODE, **self.devices.environment}
        self._servers.append(
            self.plane.start_server("node-executor", [*KOPT, *arguments, f"--port={free_port()}"], env)
        )
        return self._servers[-1]

    def token_of_a_pod_on(self, node: str) -> Path:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"executor-{node}", "namespace": SPACE},
            "spec": {
                "nodeName": node,
                "serviceAccountName": ACCOUNT,
                "automountServiceAccountToken": False,
                "containers": [{"name": "node-executor", "image": "agent"}],
            },
        }
        made = self.api.create(pod)["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": made["name"], "uid": made["uid"]}
        spec = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
        path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/{ACCOUNT}/token"
        token = self.api.request("POST", path, json=spec).json()["status"]["token"]
        return kubeconfig(self.folder / f"{node}.kubeconfig", self.plane.url, self.plane.ca, {"token": token})

    def status(self, check: Callable[[Object], object] = bool) -> Object:
        return dict(self.api.wait(*KIND, NODE, lambda one: check(one.get("status") or {}), "")["status"])

    def signed(self, layout: str, name: str) -> Path:
        plan = self.folder / name
        cluster = ("--kubeconfig", self.plane.kubeconfig)
        made = self.kopt("nodes", "plan", NODE, "--layout", layout, "--out", plan, *cluster)
        assert made.returncode == 0, made.stderr
        done = self.kopt("nodes", "sign", plan, "--keys", self.keys)
        assert done.returncode == 0, done.stderr
        return self.folder / f"{name}.signed"

    def apply(self, signed: Path) -> subprocess.CompletedProcess[str]:
        return self.kopt("nodes", "apply", signed, "--wait", "30s", "--kubeconfig", self.plane.kubeconfig)

    def end(self) -> None:
        for server in self._servers:
            server.stop()


@pytest.fixture(scope="module")
def served(
    control_plane: ControlPlane,
    charts: Any,
    install: Callable[..., None],
    uninstall: Callable[[], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    values = {"nodeExecutor": {"enabled": True, "keysConfigMap": "keys"}, "webhook": {"enabled": False}}
    install(values)
    for node in (NODE, OTHER):
        control_plane.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    found = Served(control_plane, tmp_path_factory.mktemp("executor"), charts.render(values))
    yield found
    found.end()
    uninstall()
    control_plane.api.delete("v1", "Pod", f"executor-{NODE}", SPACE, gracePeriodSeconds=0)
    for node in (NODE, OTHER):
        control_plane.api.delete("v1", "Node", node, "")


@pytest.fixture(scope="module")
def server(served: Served) -> Server:
    assert "PRIVATE" not in served.trust()
    return served.start(served.token_of_a_pod_on(NODE))


@pytest.fixture(scope="module")
def halved(served: Served, server: Server) -> Object:
    """The status after a first plan."""
    served.status(lambda status: status.get("state"))
    done = served.apply(served.signed("0=3g.40gb@4,2x1g.10gb", "first"))
    assert done.returncode == 0, done.stdout + done.stderr
    return served.status(lambda status: status.get("phase") == "Applied")


def test_a_signed_plan_changes_the_device_and_is_reported(served: Served, halved: Object) -> None:
    assert served.devices.layout(0) == [("1g.10gb", 0, True), ("1g.10gb", 1, True), ("3g.40gb", 4, True)]
    assert (halved["reason"], halved["sequence"]) == ("NODE_PLAN_APPLIED", 1)
    instances = halved["state"]["gpus"][0]["instances"]
    assert [(one["profile"], one["start"]) for one in instances] == [("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4)]
    shown = served.kopt("nodes", "status", NODE, "--kubeconfig", served.plane.kubeconfig, "-o", "json")
    rows = json.loads(shown.stdout)["nodes"]
    assert rows[0]["layout"] == "1g.10gb@0,1g.10gb@1,3g.40gb@4"
    assert rows[1]["layout"] == "off"


def test_a_plan_waits_while_processes_use_the_device(served: Served, halved: Object) -> None:
    signed = served.signed("0=3g.40gb@4", "second")
    gpu = served.devices.state.gpus[0]
    gpu.process, gpu.process_instance = 4711, next(each.id for each in gpu.instances if each.used and each.start == 1)
    refused = served.apply(signed)
    assert refused.returncode == 1
    assert "NODE_PLAN_IN_USE" in refused.stderr
    gpu.process = 0
    served.status(lambda status: (status.get("phase"), status["sequence"]) == ("Applied", 2))
    assert served.devices.layout(0) == [("3g.40gb", 4, True)]


def test_a_plan_that_was_applied_before_is_refused_as_a_replay(served: Served, halved: Object) -> None:
    old = served.apply(served.folder / "first.signed")
    assert old.returncode == 1
    assert "NODE_PLAN_REPLAYED" in old.stderr


def test_a_plan_of_a_stranger_is_refused(served: Served, halved: Object) -> None:
    plan = served.folder / "third"
    served.kopt("nodes", "plan", NODE, "--layout", "1=7g.80gb", "--out", plan, "--kubeconfig", served.plane.kubeconfig)
    strange = served.folder / "strange"
    served.kopt("nodes", "keys", "--keys", strange)
    assert served.kopt("nodes", "sign", plan, "--keys", strange).returncode == 0
    done = served.apply(served.folder / "third.signed")
    assert "NODE_PLAN_UNKNOWN_KEY" in done.stderr
    assert served.devices.layout(1) == []


def test_killed_in_the_middle_it_goes_on_when_it_is_started_again(
    served: Served, halved: Object, server: Server
) -> None:
    signed = served.signed("1=2x3g.40gb", "fourth")
    served.devices.reset_faults()
    served.devices.state.kill_after = 3
    envelope = json.loads(signed.read_text())
    served.api.patch(*KIND, NODE, {"spec": {"envelope": envelope}}, "")
    wait_for(lambda: not server.alive, what="the executor is killed")
    assert len(served.devices.layout(1)) == 1
    served.devices.reset_faults()
    served.start(served.folder / f"{NODE}.kubeconfig")
    served.status(lambda status: status.get("phase") == "Applied" and status["sequence"] > halved["sequence"] + 1)
    assert served.devices.layout(1) == [("3g.40gb", 0, True), ("3g.40gb", 4, True)]


def test_its_token_reports_on_its_own_node_and_puts_no_plan_anywhere(served: Served, halved: Object) -> None:
    own = Api(served.folder / f"{NODE}.kubeconfig")
    with pytest.raises(Refused, match="only its own node"):
        own.create({"apiVersion": KIND[0], "kind": KIND[1], "metadata": {"name": OTHER}, "spec": {}})
    with pytest.raises(Refused, match="forbidden"):
        own.patch(*KIND, NODE, {"spec": {"envelope": None}}, "")
    with pytest.raises(Refused, match="forbidden"):
        own.patch("v1", "Node", NODE, {"spec": {"unschedulable": True}}, "")


def test_it_was_refused_nothing_and_used_every_right(served: Served, halved: Object) -> None:
    asked = [one for one in served.plane.audit_entries(ACCOUNT) if one.get("userAgent") == "kopt-node-executor"]
    assert [one for one in asked if one.get("responseStatus", {}).get("code") == 403] == []
    used = {
        (one["verb"], "/".join(filter(None, (one["objectRef"]["resource"], one["objectRef"].get("subresource")))))
        for one in asked
    }
    reads = {(verb, kind) for verb in ("list", "watch") for kind in ("nodes", "nodeplans")}
    assert used == reads | {("create", "nodeplans"), ("patch", "nodeplans/status")}
