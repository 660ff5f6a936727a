"""A node whose device plugin shares GPUs, before a reconciler with a clock of the test's own."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from attacks.api_in_memory import MemoryKube
from attacks.scenarios.objects import node, pod

from kopt.cluster.client.prometheus import PrometheusError
from kopt.cluster.client.resources import CONFIG_MAPS, NODES, PODS, Object, Resource
from kopt.controllers.partitions.sharing.live import LiveNodes
from kopt.controllers.partitions.sharing.reading import Measured
from kopt.controllers.partitions.sharing.reconciler import Reconciler, SharingSettings
from kopt.controllers.partitions.views import read_pod
from kopt.core.decision import Mode
from kopt.core.sharing.modes import SharingMode
from kopt.core.sharing.pressure import Pressure
from kopt.core.switches import Owner
from kopt.core.times import stamp
from kopt.formats.sharing_terms import (
    CONFIGURATION_LABEL,
    ReplicaSetting,
    configuration_text,
    read_plugin_configuration,
)

GPUS = 2
WHERE = ("gpu-operator", "device-plugin-config")
OFFERED = {
    "mps-4": ReplicaSetting(SharingMode.MPS, 4),
    "mps-2": ReplicaSetting(SharingMode.MPS, 2),
    "turns-4": ReplicaSetting(SharingMode.TIME_SLICING, 4),
    "whole": ReplicaSetting(SharingMode.EXCLUSIVE),
}
HARD, EASY = Pressure(sm_active=0.99, memory=0.6), Pressure(sm_active=0.4, memory=0.6)
GPU = "nvidia.com/gpu"


def plugin_pass(document: Object, data: Mapping[str, str], *, has_mps: bool = True) -> Object:
    """What plugin and feature discovery make of a node's label; a merge patch of the node."""
    label = document["metadata"]["labels"].get(CONFIGURATION_LABEL, "")
    setting = read_plugin_configuration(yaml.safe_load(data[label])) if label in data else None
    assert setting is not None, f"the config-manager ends without a configuration {label!r}"
    works = setting.mode is not SharingMode.MPS or has_mps
    strategy = "none" if setting.replicas == 1 else str(setting.mode)
    labels = {f"{GPU}.sharing-strategy": strategy, f"{GPU}.replicas": str(setting.replicas), f"{GPU}.count": str(GPUS)}
    amounts = {GPU: str(GPUS * setting.replicas if works else 0)}
    return {"metadata": {"labels": labels}, "status": {"allocatable": amounts, "capacity": amounts}}


class Patching:
    """Writes as a leader's fence lets them through."""

    def __init__(self, kube: MemoryKube) -> None:
        self._kube = kube

    async def patch(self, resource: Resource, document: Object, changes: Object) -> Object:
        version = {"resourceVersion": document["metadata"]["resourceVersion"]}
        changes = {**changes, "metadata": {**changes.get("metadata", {}), **version}}
        return await self._kube.patch(resource, document["metadata"]["name"], changes)


class Gate:
    is_on = True

    def mode(self, feature: str, owner: Owner, mode: Mode) -> Mode:
        assert (feature, owner.plural) == ("sharing", "nodes")
        return mode if self.is_on else Mode.OBSERVE


class SharingBench:
    """``second`` is the time of the clock; ``pressure``: what is measured from now on, None for nothing."""

    def __init__(
        self, label: str = "mps-4", *, without: Sequence[str] = (), measures: bool = True, **settings: Any
    ) -> None:
        """``without``: configurations that the cluster does not offer."""
        self.kube, self.gate, self.now_s = MemoryKube(), Gate(), 1_000_000.0
        self.history: list[tuple[float, Pressure]] = []
        self.pressure: Pressure | None = None
        self.has_mps, self.has_plugin, self.fails = True, True, False
        self.informer_is_late, self._informed = False, frozenset[str]()
        self.events: list[tuple[str, str]] = []
        self.labels: list[str] = []
        self.data = {name: configuration_text(setting, None) for name, setting in OFFERED.items()}
        self.data = {name: text for name, text in self.data.items() if name not in without}
        self.kube.put(CONFIG_MAPS, {"metadata": {"name": WHERE[1], "namespace": WHERE[0]}, "data": self.data})
        self.kube.put(NODES, node("n0", GPUS, **{CONFIGURATION_LABEL: label}))
        self._plugin()
        self.settings, self._measures = SharingSettings(Mode.ENFORCE, **settings), measures
        self.leads_anew()

    def leads_anew(self) -> None:
        """Another replica, which knows what is on objects."""
        measure = self._measure if self._measures else None
        self.reconciler = Reconciler(self.live_nodes(), self.settings, measure, self._event, lambda: self.now_s)

    def live_nodes(self) -> LiveNodes:
        fence: Any = Patching(self.kube)
        kube: Any = self.kube
        gate: Any = self.gate
        return LiveNodes(kube, fence, gate, WHERE, self._pods_on)

    def _pods_on(self, node: str) -> frozenset[str]:
        """As an informer would have them."""
        if not self.informer_is_late:
            read = [read_pod(each) for each in self.kube.all(PODS)]
            self._informed = frozenset(pod.uid for pod in read if pod is not None and pod.node == node)
        return self._informed

    async def _measure(self, now_s: float, window_s: float) -> Measured:
        if self.fails:
            raise PrometheusError("Timeout", "no answer")
        return Measured({"n0": [each for each in self.history if each[0] > now_s - window_s]})

    def _event(self, regarding: Object, reason: str, sentence: str) -> None:
        assert regarding["name"] == "n0"
        self.events.append((reason, sentence))

    @property
    def node(self) -> Object:
        found = self.kube.find(NODES, "n0")
        assert found is not None
        return found

    @property
    def label(self) -> str:
        return str(self.node["metadata"]["labels"].get(CONFIGURATION_LABEL, ""))

    @property
    def is_held(self) -> bool:
        return "kaiwo.ai/held" in self.node["metadata"]["labels"]

    @property
    def is_cordoned(self) -> bool:
        return self.node["spec"].get("unschedulable") is True

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.events]

    def _plugin(self) -> None:
        if not self.labels or self.labels[-1] != self.label:
            self.labels.append(self.label)
        if not self.has_plugin:
            return
        before, change = self.node, plugin_pass(self.node, self.data, has_mps=self.has_mps)
        merged = {
            **before,
            "metadata": {
                **before["metadata"],
                "labels": {**before["metadata"]["labels"], **change["metadata"]["labels"]},
            },
            "status": {**before["status"], **change["status"]},
        }
        self.kube.put(NODES, merged)
        daemon = pod("nvidia-device-plugin-mps-control-daemon-x", "gpu-operator", on="n0", gpus=0)
        daemon["spec"]["containers"][0]["resources"] = {}
        ready = "True" if self.has_mps and self.label.startswith("mps") else "False"
        daemon["status"]["conditions"] = [{"type": "Ready", "status": ready}]
        self.kube.put(PODS, daemon)

    def pod(self, name: str, *, workload_class: str = "", owner: str = "ReplicaSet") -> None:
        made = pod(name, on="n0", gpus=1)
        made["metadata"]["labels"] = {"kaiwo.ai/class": workload_class} if workload_class else {}
        made["status"]["startTime"] = stamp(self.now_s)
        made["metadata"]["ownerReferences"] = [{"kind": owner, "name": "o", "uid": "o", "controller": True}]
        self.kube.put(PODS, made)

    async def ends(self, name: str) -> None:
        await self.kube.delete(PODS, name, "team")

    async def passes(self, span_s: float, every_s: float = 30.0) -> None:
        """Time goes by; the plugin, Prometheus and the reconciler do what they do."""
        until_s = self.now_s + span_s
        while self.now_s < until_s:
            self.now_s += every_s
            if self.pressure is not None:
                self.history.append((self.now_s, self.pressure))
            await self.reconciler.step()
            self._plugin()
            for evicted in [each for each in self.pods() if "deletionTimestamp" in each["metadata"]]:
                await self.ends(evicted["metadata"]["name"])

    def pods(self) -> Sequence[Object]:
        return [each for each in self.kube.all(PODS) if each["metadata"]["namespace"] == "team"]
