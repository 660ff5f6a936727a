"""From a pod that waits for a part of an MI300X to a node that is divided for it, on a real scheduler: the node drained
by evictions where that is worth it, divided by a stand-in of AMD's device config manager, compared, and put back."""

import contextlib
import json
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml
from agent_notes import checkpoint_notes
from controlplane.api import Api, Refused
from controlplane.kwok import Kwok, Nodes
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import ControllerProcess, replicas

from .conftest import CRD, Bench
from .test_amd import LABEL, LABELS, MODE, PROFILES, SMALL, STATE, WHOLE

Object = dict[str, Any]
GPUS = 8
AMOUNTS = {"spx": {WHOLE: "8"}, "cpx": {SMALL: "64"}, "dpx": {"amd.com/dpx_nps2": "16"}}
KINDS = {name for amounts in AMOUNTS.values() for name in amounts}
MODES = {"spx": "spx_nps1", "cpx": "cpx_nps4", "dpx": "dpx_nps2"}


class ConfigManager:
    """Plays AMD's device config manager and the device plugin of each node: the manager acts as the label changes, on
    a node that is tainted and empty; the plugin does not tolerate the taint, and offers nothing meanwhile."""

    def __init__(self, plane: ControlPlane, nodes: Nodes) -> None:
        self._api, self._nodes = Api(plane.kubeconfig), nodes
        self.modes = dict.fromkeys(nodes, "spx")
        self._label = dict.fromkeys(nodes, "")
        self.divided: list[tuple[str, str, int]] = []
        """Node, profile, and pods with GPUs that were on it."""
        self.lies = ""
        """A profile of which the manager says that it is there although the GPUs stay as they are."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._api.http.close()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            for name in self._nodes:
                with contextlib.suppress(Refused):
                    self._look(name)

    def _look(self, name: str) -> None:
        node = self._api.get("v1", "Node", name)
        tainted = any(taint["key"] == "amd-dcm" for taint in node["spec"].get("taints", ()))
        wanted = node["metadata"]["labels"].get(LABEL, "")
        if wanted and wanted != self._label[name]:
            self._label[name] = wanted
            pods = [pod for pod in self._api.list("v1", "Pod") if pod["spec"].get("nodeName") == name]
            self.divided.append((name, wanted, len(pods)))
            works = tainted and not pods and wanted in AMOUNTS
            if works and wanted != self.lies:
                self.modes[name] = wanted
            self._patch(name, {"metadata": {"labels": {STATE: "success" if works else "failure"}}})
        amounts = dict.fromkeys(KINDS, "0") | ({} if tainted else AMOUNTS[self.modes[name]])
        if any(str(node["status"].get("allocatable", {}).get(key, "0")) != value for key, value in amounts.items()):
            status = {"status": {"capacity": amounts, "allocatable": amounts}}
            self._api.patch("v1", "Node", name, status, subresource="status")
            if not tainted:
                self._patch(name, {"metadata": {"labels": {MODE: MODES[self.modes[name]]}}})

    def _patch(self, name: str, change: Object) -> None:
        self._api.patch("v1", "Node", name, change)


class AmdBench(Bench):
    """Nodes of eight MI300X each."""

    def __init__(self, plane: ControlPlane, nodes: Nodes) -> None:
        super().__init__(plane, nodes)
        profiles = {name: {"profiles": parts} for name, parts in PROFILES.items()}
        text = json.dumps({"gpu-config-profiles": profiles})
        metadata = {"name": "dcm", "namespace": self.space}
        self.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"config.json": text}})


@pytest.fixture
def amd(control_plane: ControlPlane, kwok: Kwok) -> Iterator[AmdBench]:
    control_plane.apply_crd(yaml.safe_load(CRD.read_text()))
    control_plane.api.namespace("kopt-system")
    with kwok.nodes(2, gpus=GPUS, resource=WHOLE, labels=LABELS, prefix="amd") as nodes:
        result = AmdBench(control_plane, nodes)
        yield result
        result.close()


@pytest.mark.long
@pytest.mark.cluster
def test_a_pod_that_waits_for_a_part_of_a_gpu_gets_it_and_what_fails_is_put_back(amd: AmdBench) -> None:
    manager = ConfigManager(amd.plane, amd.nodes)
    options = [
        f"--namespace={amd.space}",
        f"--profiles={amd.space}/dcm",
        "--settle=1s",
        "--verify-within=4s",
        "--drain",
    ]
    first, second = amd.nodes
    shares = {"cpx_nps4": "70%", "spx_nps1": "30%"}
    try:
        # Jobs run on both nodes; nothing is idle.
        notes = checkpoint_notes("TRAIN", True, 60, -5.0)
        amd.pod("cheap", WHOLE, 1, first, **notes)
        amd.pod("unknown", WHOLE, 1, second)
        assert (amd.bound("cheap"), amd.bound("unknown")) == (first, second)
        with replicas(partial(ControllerProcess, amd.plane, "partitions", "--drain", *options)) as start:
            strategy = amd.strategy("amd", shares, rebalanceInterval="4h")
            start("--mode=enforce")
            amd.pod("share", SMALL, 40)
            assert amd.bound("share") == first
            wait_for(lambda: amd.row(strategy, first).get("actual") == {"cpx_nps4": 64}, what="its status")
            assert manager.divided == [(first, "cpx", 0)]
            assert amd.api.find("v1", "Pod", "cheap", amd.space) is None
            assert amd.where("unknown") == second
            labels = amd.node(first)["metadata"]["labels"]
            assert (labels[LABEL], labels[MODE], labels["kaiwo.ai/held"]) == ("cpx", "cpx_nps4", "partitions")
            assert not amd.node(first)["spec"].get("taints")
            # The other is idle now and would have the mode as well, but its manager only says that it has.
            manager.lies = "cpx"
            amd.ends("unknown")
            amd.pod("more", SMALL, 40)
            wait_for(lambda: amd.row(strategy, second).get("reason") == "FailedLately", what="it is put back")
            assert [(name, profile) for name, profile, _ in manager.divided[1:]] == [(second, "cpx"), (second, "spx")]
            assert manager.modes == {first: "cpx", second: "spx"}
            assert not amd.node(second)["spec"].get("unschedulable")
            assert not amd.node(second)["spec"].get("taints")
            amd.pod("whole", WHOLE, 8)
            assert amd.bound("whole") == second
            assert amd.where("more") == ""
    finally:
        manager.stop()
