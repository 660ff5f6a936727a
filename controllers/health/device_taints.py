"""GPUs at fault that are allocated by claims: kept free one by one, by DeviceTaintRules, where the cluster has them."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from kopt.cluster.client.resources import Object
from kopt.cluster.holds.device_taint import TaintedDevice, rule_of
from kopt.cluster.objects.custom.node_health import HealthRecord
from kopt.controllers.health.devices import UNKNOWN, DevicesByGpu
from kopt.controllers.health.views import ObservedNode
from kopt.core.decision import Mode
from kopt.core.hardware.health import NODE, Grade
from kopt.policies.health import Candidate, kept_free

_ANSWER_S = 30.0
"""kube-controller-manager answers a rule at once; else its feature gate is off, and the scheduler's too."""
NOT_SERVED = "DeviceTaintRules (resource.k8s.io/v1beta2) are not served"
NOT_ANSWERED = "kube-controller-manager ignores DeviceTaintRules (feature gate DRADeviceTaintRules)"
UNIDENTIFIED = "its ResourceSlices do not say which device that GPU is"
Gpu = tuple[str, str]
"""Node and index."""


class Cluster(Protocol):
    """What the rules need of it."""

    @property
    def serves_rules(self) -> bool: ...

    def devices(self) -> Mapping[str, DevicesByGpu]: ...

    def rules(self) -> list[TaintedDevice]: ...

    async def create_rule(self, body: Object) -> None: ...

    async def delete_rule(self, rule: TaintedDevice) -> None: ...


class DeviceTaints:
    """``closed``: GPUs to keep free. ``capped``: condemned ones that the share of their pool leaves open."""

    def __init__(self, cluster: Cluster, most_share: float) -> None:
        self._cluster, self._most_share = cluster, most_share
        self.closed: frozenset[Gpu] = frozenset()
        self.capped: frozenset[Gpu] = frozenset()

    def choose(self, nodes: Mapping[str, ObservedNode], records: Mapping[str, HealthRecord]) -> None:
        """The worst, and never more than the share of their pool's GPUs."""
        tainted = {(rule.node, self._gpu_of(rule)) for rule in self._cluster.rules()}
        candidates: dict[str, tuple[Gpu, Candidate]] = {}
        for name, devices in self._cluster.devices().items():
            if name not in nodes or not self._cluster.serves_rules:
                continue
            node, record = nodes[name], records[name]
            for gpu, parts in devices.items():
                key = f"{name} {gpu}"
                candidate = Candidate(
                    key,
                    node.pool,
                    gpu != UNKNOWN and gpu in enforced_gpus(record),
                    (name, gpu) in tainted,
                    node.unavailable or any(part.taints for part in parts if part.is_whole),
                    record.health.loads.get(gpu, 0.0),
                )
                candidates[key] = (name, gpu), candidate
        names = kept_free((candidate for _, candidate in candidates.values()), self._most_share)
        self.closed = frozenset(gpu for key, (gpu, _) in candidates.items() if key in names)
        self.capped = frozenset(
            gpu
            for gpu, candidate in candidates.values()
            if candidate.condemned and not candidate.unavailable and gpu not in self.closed
        )

    def why_not(self, node: ObservedNode, record: HealthRecord, now_s: float) -> str:
        """Why the taints of its devices do not do for a node, so that it has to be tainted itself; empty where they
        do."""
        gpus = enforced_gpus(record)
        if not node.by_claims or NODE in gpus:
            return "it is not about single devices of claims"
        if not self._cluster.serves_rules:
            return NOT_SERVED
        devices = self._cluster.devices().get(node.name, {})
        # What is offered no more, once all devices are known, nobody can have.
        if UNKNOWN in devices and gpus - devices.keys():
            return UNIDENTIFIED
        late = [rule for rule in self._of(node) if not rule.is_answered and now_s - rule.created_s > _ANSWER_S]
        return NOT_ANSWERED if late else ""

    async def write(self, node: ObservedNode, record: HealthRecord) -> tuple[list[str], list[str]]:
        """GPUs that are kept free from now on, and those that are given back."""
        rules = self._of(node)
        tainted = {rule.name for rule in rules}
        devices = self._cluster.devices().get(node.name, {})
        closed = {gpu for name, gpu in self.closed if name == node.name}
        added, removed = dict[str, None](), dict[str, None]()
        for gpu in sorted(closed):
            for device in devices[gpu]:
                if device.name not in tainted:
                    await self._cluster.create_rule(rule_of(device.name, node.name, gpu, worst(record, gpu)))
                    added[gpu] = None
        enforced = enforced_gpus(record)
        for rule in rules:
            gpu = self._gpu_of(rule)
            # A driver that starts anew publishes nothing for a moment: the rule stays as long as the verdict does.
            if gpu not in closed and (gpu in devices or gpu not in enforced):
                await self._cluster.delete_rule(rule)
                removed[gpu] = None
        return list(added), list(removed)

    def without_node(self, nodes: Mapping[str, ObservedNode]) -> Iterable[TaintedDevice]:
        """Rules that nobody would take away any more."""
        return [rule for rule in self._cluster.rules() if rule.node not in nodes]

    def _of(self, node: ObservedNode) -> list[TaintedDevice]:
        return [rule for rule in self._cluster.rules() if rule.node == node.name]

    def _gpu_of(self, rule: TaintedDevice) -> str:
        """What a device is part of now; while it is not published, what it was part of."""
        for gpu, parts in self._cluster.devices().get(rule.node, {}).items():
            if any(part.name == rule.name for part in parts):
                return gpu
        return rule.gpu


def enforced_gpus(record: HealthRecord) -> set[str]:
    """Condemned GPUs, and the node itself, where that has consequences."""
    if record.mode is not Mode.ENFORCE:
        return set()
    return {gpu for gpu, grade in record.health.gpus.items() if grade is Grade.CONDEMNED}


def worst(record: HealthRecord, gpu: str | None = None) -> str:
    """The heaviest code, against one GPU or any, as the value of a taint."""
    entries = [entry for entry in record.entries.values() if gpu is None or entry.gpu == gpu]
    entries.sort(key=lambda entry: (-entry.load, entry.code))
    return entries[0].code[:63] if entries else "unknown"
