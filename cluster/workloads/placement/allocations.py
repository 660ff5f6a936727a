"""What kubelets have given to pods, as node agents report it, beside what the books say."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kopt.cluster.client.resources import Key, Object
from kopt.cluster.objects.custom.node_allocation import node_allocation_of
from kopt.cluster.workloads.placement.pod_state import PodState
from kopt.core.hardware.node_allocation import DeviceAllocation

Slots = tuple[int, ...]


class _Offer(Protocol):
    @property
    def gpus(self) -> int: ...


class _Holding(Protocol):
    @property
    def uid(self) -> str: ...

    @property
    def gpus(self) -> Slots: ...


class Books(Protocol):
    """What allocations ask of the books of a fleet (``policies.placement.fleet.Fleet``)."""

    @property
    def nodes(self) -> Mapping[str, Mapping[str, _Offer]]: ...

    def on_node(self, node: str) -> Iterable[_Holding]: ...

    def reseat(self, uid: str) -> object: ...


class Followed(StrEnum):
    """Whether a pod has the GPUs that were chosen for it. PARTS: it has shares or instances, of which the books keep
    no identity. UNKNOWN: it is not known which GPUs its devices are."""

    FOLLOWED = "followed"
    DIFFERS = "differs"
    PARTS = "parts"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class NodeReport:
    """``observed_at_s`` is by the node's clock, as is the start of its pods; in whole seconds both."""

    observed_at_s: float
    by_pod: Mapping[Key, Mapping[str, DeviceAllocation]]


def allocation_report_of(document: Object) -> NodeReport:
    """Of device plugins; what claims allocate stands in them. Raises as ``node_allocation_of``."""
    reported = node_allocation_of(document)
    by_pod: dict[Key, dict[str, DeviceAllocation]] = {}
    for allocation in reported.allocations:
        if not allocation.claim:
            by_pod.setdefault((allocation.namespace, allocation.pod), {})[allocation.resource] = allocation
    return NodeReport(reported.observed_at_s, by_pod)


@dataclass
class Allocations:
    """Reports by node, and which pods they have confirmed on which GPUs."""

    fleet: Books
    _reports: dict[str, NodeReport] = field(default_factory=dict)
    _confirmed: dict[str, dict[str, Slots]] = field(default_factory=dict)
    """GPUs by uid, by node."""

    def report(self, node: str, report: NodeReport | None) -> None:
        """What a node's agent says now; None when it says nothing any more."""
        if report is None:
            self._reports.pop(node, None)
            self._confirmed.pop(node, None)
        else:
            self._reports[node] = report

    def forget(self, pod: PodState) -> None:
        """A pod is gone."""
        confirmed = self._confirmed.get(pod.node, {})
        confirmed.pop(pod.uid, None)
        if not confirmed:
            self._confirmed.pop(pod.node, None)

    def of(self, pod: PodState) -> DeviceAllocation | None:
        """What the pod's kubelet gave it of the one GPU resource that it asks for; None where that is not known yet.

        A report from before the pod's start may be of an earlier pod of that name.
        """
        report = self._reports.get(pod.node)
        if report is None or pod.started_s is None or report.observed_at_s < pod.started_s or len(pod.ask.units) != 1:
            return None
        return report.by_pod.get(pod.key, {}).get(next(iter(pod.ask.units)))

    def slots(self, pod: PodState) -> Slots | None:
        """The GPUs that a pod is to be booked on; None where any of its node may be.

        Those that its kubelet gave it, else those that its annotation names, if no other pod has one of them.
        """
        allocated = self._allocated_slots(pod)
        if allocated is not None:
            self._confirmed.setdefault(pod.node, {})[pod.uid] = allocated
            return allocated
        if pod.gpus is None or len(pod.ask.units) > 1:
            return None
        confirmed = self._confirmed.get(pod.node, {})
        occupied = {slot for uid, slots in confirmed.items() if uid != pod.uid for slot in slots}
        return pod.gpus if occupied.isdisjoint(pod.gpus) else None

    def confirm(self, pods: Iterable[PodState]) -> None:
        """Note first what kubelets say of all of them, so that nobody is booked on what another one has."""
        for pod in pods:
            self.slots(pod)

    def make_room(self, pod: PodState) -> list[str]:
        """Move pods of which no kubelet has said anything off the GPUs that this one was given; returns their uids.

        Otherwise a GPU would be counted twice, and another once too little: a node with none left would be offered.
        """
        confirmed = self._confirmed.get(pod.node, {})
        occupied = set(confirmed.get(pod.uid, ()))
        moved = [
            holding.uid
            for holding in self.fleet.on_node(pod.node)
            if holding.uid not in confirmed and not occupied.isdisjoint(holding.gpus)
        ]
        for uid in moved:
            self.fleet.reseat(uid)
        return moved

    def followed(self, pod: PodState, selected: Iterable[int]) -> Followed | None:
        """None where the kubelet has said nothing yet."""
        allocation = self.of(pod)
        if allocation is None:
            return None
        if not allocation.whole:
            return Followed.UNKNOWN if allocation.gpus is None else Followed.PARTS
        return Followed.FOLLOWED if set(allocation.gpus or ()) == set(selected) else Followed.DIFFERS

    def _allocated_slots(self, pod: PodState) -> Slots | None:
        """Whole GPUs, as many as were asked for, that the node's books have."""
        allocation = self.of(pod)
        if allocation is None or not allocation.whole or allocation.gpus is None:
            return None
        offer = self.fleet.nodes.get(pod.node, {}).get(allocation.resource)
        fits = offer is not None and all(0 <= gpu < offer.gpus for gpu in allocation.gpus)
        return allocation.gpus if fits and len(set(allocation.gpus)) == pod.ask.units[allocation.resource] else None
