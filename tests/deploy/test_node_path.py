"""From pods that wait for a part of a GPU to a node that is cut for them and back, once for each vendor: planned by
the partitions controller, signed by a person, drained, applied and read back by the node executor, with the accounts
that the chart makes.

The devices are the stand-in for NVML and a program that prints what ``amd-smi`` printed; a thread stands for the device
plugin, which offers what the devices are. The scheduler, admission policies and accounts are real.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from controlplane.api import Api, Refused, kubeconfig
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import free_port, wait_for
from controlplane.warm import KOPT
from node_executor.test_amd import Mi300x
from nvml_standin.devices import Devices
from partitions_controller.conftest import NODE_LABELS, Bench
from partitions_controller.test_amd import LABELS as AMD_LABELS
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry

from .rights import leading

pytestmark = [pytest.mark.cluster, pytest.mark.long]
SPACE = EXECUTOR = "kopt-node-executor"
VALUES = {
    "nodeExecutor": {"enabled": True, "keysConfigMap": "keys"},
    "partitions": {"enabled": True, "mode": "enforce", "configurations": {"name": "mig-parted"}},
    "webhook": {"enabled": False},
    "sizing": {"enabled": False},
    "extender": {"enabled": False},
}
MIG_LABELS = {name: value for name, value in NODE_LABELS.items() if "manager" not in name and "state" not in name}
PLAN = re.compile(r"`kopt (nodes plan [^`]+)`")
Object = dict[str, Any]
Offered = Callable[[], Mapping[str, int]]


@pytest.fixture
def kwok(control_plane: ControlPlane) -> Iterator[Kwok]:
    """Of this folder's control plane: the shared fixtures are of the other."""
    result = Kwok(control_plane)
    yield result
    result.stop()


@contextlib.contextmanager
def plugin(plane: ControlPlane, node: str, kinds: frozenset[str], offered: Offered) -> Iterator[None]:
    """What the vendor's device plugin does: the node offers what the devices are."""
    api, ended = Api(plane.kubeconfig), threading.Event()

    def follow() -> None:
        while not ended.wait(0.2):
            amounts = dict.fromkeys(kinds, "0") | {name: str(count) for name, count in offered().items()}
            with contextlib.suppress(Refused):
                before = api.get("v1", "Node", node, "")["status"]["allocatable"]
                if any(before.get(name, "0") != amount for name, amount in amounts.items()):
                    change = {"status": {"allocatable": amounts, "capacity": amounts}}
                    api.patch("v1", "Node", node, change, subresource="status")

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        api.http.close()


class NodePath:
    """The people, processes and pods of one node."""

    def __init__(self, plane: ControlPlane, bench: Bench, folder: Path, strategy: str) -> None:
        self.plane, self.api, self.bench, self.folder, self.strategy = plane, plane.api, bench, folder, strategy
        (self.node,) = bench.nodes
        self._plans = 0

    def kopt(self, *words: str | Path) -> Any:
        """As whoever administers the cluster."""
        return CliRunner().invoke(app, [*map(str, words)])

    def cluster(self, *words: str | Path) -> Any:
        return self.kopt(*words, "--kubeconfig", self.plane.kubeconfig)

    def ordered(self) -> str:
        """The command that the strategy's status names for the node, once it does."""

        def command() -> str:
            row = self.bench.row(self.strategy, self.node)
            match = PLAN.search(row.get("message", ""))
            return match[1] if row.get("reason") == "AwaitsSignature" and match else ""

        return str(wait_for(command, what=f"a plan; {self.bench.status(self.strategy)}"))

    def signed(self) -> Path:
        self._plans += 1
        plan = self.folder / f"plan-{self._plans}"
        made = self.cluster(*self.ordered().split(), "--out", plan)
        assert made.exit_code == 0, made.output
        done = self.kopt("nodes", "sign", plan, "--keys", self.folder / "keys")
        assert done.exit_code == 0, done.output
        return plan.with_name(f"{plan.name}.signed")

    def apply(self, signed: Path) -> Any:
        return self.cluster("nodes", "apply", signed, "--drain", "--wait", "60s")

    def is_cordoned(self) -> bool:
        return bool(self.bench.node(self.node)["spec"].get("unschedulable"))

    def jobs(self, resource: str) -> None:
        """A pod that is made anew wherever it is evicted."""
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": self.node},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "team/a:1", "resources": {"limits": {resource: "1"}}}],
        }
        template = {"metadata": {"labels": {"app": "whole"}}, "spec": spec}
        body = {"replicas": 1, "selector": {"matchLabels": {"app": "whole"}}, "template": template}
        metadata = {"name": "whole", "namespace": self.bench.space}
        self.api.create({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": body})

    def job(self) -> tuple[str, str]:
        """Uid and node of its pod; empty while there is none."""
        for pod in self.api.list("v1", "Pod", self.bench.space):
            if pod["metadata"].get("labels", {}).get("app") == "whole" and "deletionTimestamp" not in pod["metadata"]:
                return pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        return "", ""


@contextlib.contextmanager
def executor(path: NodePath, *options: str, **environment: str) -> Iterator[None]:
    """The agent of the node with the token of its pod, and a person's key that it trusts."""
    done = path.kopt("nodes", "keys", "--keys", path.folder / "keys")
    assert done.exit_code == 0, done.output
    (path.folder / "trusted").mkdir()
    (path.folder / "trusted" / "alice.pub").write_text(done.output)
    name = f"executor-{path.node}"
    container = {"name": "node-executor", "image": "agent"}
    spec = {"nodeName": path.node, "serviceAccountName": EXECUTOR, "automountServiceAccountToken": False}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SPACE}}
    made = path.api.create(pod | {"spec": spec | {"containers": [container]}})["metadata"]
    bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": made["uid"]}
    where = f"/api/v1/namespaces/{SPACE}/serviceaccounts/{EXECUTOR}/token"
    request = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
    token = path.api.request("POST", where, json=request).json()["status"]["token"]
    own = kubeconfig(path.folder / "executor.kubeconfig", path.plane.url, path.plane.ca, {"token": token})
    words = [f"--keys={path.folder / 'trusted'}", f"--journal={path.folder / 'journal'}", "--interval=0.5"]
    env = {"KUBECONFIG": str(own), "NODE_NAME": path.node, **environment}
    command = [*KOPT, "agent", "node-executor", *words, *options, f"--port={free_port()}"]
    server = path.plane.start_server(name, command, env)
    try:
        yield
    finally:
        server.stop()
        path.api.delete("v1", "Pod", name, SPACE, gracePeriodSeconds=0)


def walk(path: NodePath, whole: str, part: str, cut: Callable[[], None], as_before: Callable[[], None]) -> None:
    """``cut`` and ``as_before`` compare the devices."""
    bench = path.bench
    for number in range(3):
        bench.pod(f"part-{number}", part)
    signed = path.signed()
    assert wait_for(lambda: bench.accepted(path.strategy) == "AwaitsSignature", what="its status says so")
    # Until it is applied others use the node: one of them nobody would start anew.
    path.jobs(whole)
    uid, _ = wait_for(lambda: path.job() if path.job()[1] == path.node else None, what="a pod has a whole GPU")
    bench.pod("notebook", whole)
    assert bench.bound("notebook") == path.node
    refused = path.apply(signed)
    assert refused.exit_code == 1
    assert "notebook (nothing would create it anew)" in refused.output
    assert (path.job(), path.is_cordoned()) == ((uid, path.node), False)
    as_before()
    bench.ends("notebook")
    applied = path.apply(signed)
    assert applied.exit_code == 0, applied.output
    cut()
    assert not path.is_cordoned()
    assert {bench.bound(f"part-{number}") for number in range(3)} == {path.node}
    assert path.job()[0] != uid
    # What waits now is the whole GPU that was evicted; the parts are no longer wanted.
    for number in range(3):
        bench.ends(f"part-{number}")
    back = path.apply(path.signed())
    assert back.exit_code == 0, back.output
    as_before()
    assert not path.is_cordoned()
    wait_for(lambda: path.job()[1] == path.node, what="the evicted pod has its GPU again")


@contextlib.contextmanager
def begun(
    plane: ControlPlane, charts: Any, kwok: Kwok, folder: Path, shares: Mapping[str, str], **nodes: Any
) -> Iterator[NodePath]:
    """One node, its strategy, and the controller."""
    with kwok.nodes(1, **nodes) as made:
        bench = Bench(plane, made)
        options = [f"--configurations={bench.space}/mig-parted"]
        with leading(plane, charts, VALUES, "kopt-partitions", options):
            strategy = bench.strategy("path", shares, rebalanceInterval="1s")
            try:
                yield NodePath(plane, bench, folder, strategy)
            finally:
                bench.close()
                plane.api.delete("apps/v1", "ReplicaSet", "whole", bench.space)
    plane.api.delete("coordination.k8s.io/v1", "Lease", "kopt-partitions", "kopt-system")


def test_an_h100_is_cut_for_what_waits_and_whole_again(
    control_plane: ControlPlane, charts: Any, install: Callable[..., None], kwok: Kwok, tmp_path: Path
) -> None:
    install(VALUES)
    devices, before = Devices(tmp_path / "devices"), [[], []]
    starts = {profile.name: set(profile.starts) for profile in mig_geometry(find_gpu("h100-80gb")).profiles}

    def offered() -> Mapping[str, int]:
        result: dict[str, int] = {}
        for at in range(2):
            names = [f"mig-{profile}" for profile, _, _ in devices.layout(at)]
            for name in names if devices.state.gpus[at].mode else ["gpu"]:
                result[f"nvidia.com/{name}"] = result.get(f"nvidia.com/{name}", 0) + 1
        return result

    def cut() -> None:
        for at in range(2):
            assert [profile for profile, _, _ in devices.layout(at)] == ["1g.10gb"] * 7
            assert all(start in starts[profile] and computes for profile, start, computes in devices.layout(at))

    def as_before() -> None:
        assert [devices.layout(at) for at in range(2)] == before
        assert not any(devices.state.gpus[at].mode for at in range(2))

    kinds = frozenset({"nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"})
    nodes = {"gpus": 2, "labels": MIG_LABELS, "prefix": "mig-path"}
    with (
        begun(control_plane, charts, kwok, tmp_path, {"1g.10gb": "100%"}, **nodes) as path,
        plugin(control_plane, path.node, kinds, offered),
        executor(path, **devices.environment),
    ):
        walk(path, "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", cut, as_before)


def test_an_mi300x_is_divided_for_what_waits_and_whole_again(
    control_plane: ControlPlane, charts: Any, install: Callable[..., None], kwok: Kwok, tmp_path: Path
) -> None:
    install(VALUES)
    devices = Mi300x(tmp_path)
    parts = {"SPX": 1, "CPX": 8}

    def offered() -> Mapping[str, int]:
        (compute, *_), memory = devices.modes()
        return {f"amd.com/{compute}_{memory}".lower(): 2 * parts[compute]} if len(set(devices.modes()[0])) == 1 else {}

    def cut() -> None:
        assert devices.modes() == (["CPX", "CPX"], "NPS4")

    def as_before() -> None:
        assert devices.modes() == (["SPX", "SPX"], "NPS1")

    kinds = frozenset({"amd.com/spx_nps1", "amd.com/cpx_nps4", "amd.com/cpx_nps1"})
    nodes = {"gpus": 2, "resource": "amd.com/spx_nps1", "labels": AMD_LABELS, "prefix": "amd-path"}
    shares = {"cpx_nps4": "50%", "spx_nps1": "50%"}
    tools = ("--vendor=amd", f"--tools={tmp_path / 'bin'}")
    with (
        begun(control_plane, charts, kwok, tmp_path, shares, **nodes) as path,
        plugin(control_plane, path.node, kinds, offered),
        executor(path, *tools),
    ):
        walk(path, "amd.com/spx_nps1", "amd.com/cpx_nps4", cut, as_before)
