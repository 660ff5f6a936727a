"""What the reconciler is given: the cluster as it shows, fenced writes, settings."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kopt.cluster.lease import Fence
from kopt.cluster.resources import KUEUE_WORKLOADS, PODS, Key, Object
from kopt.controllers.preemption.views import ClusterQueueView, PodView, WorkloadView
from kopt.core.decision import Mode
from kopt.policies.preemption import PreemptionSettings

_AT_ONCE = 16
"""Writes that do not wait for each other."""
Tell = Callable[[WorkloadView, str, str], None]
"""An event on a Workload: reason, sentence."""


@dataclass(frozen=True)
class ControllerSettings:
    """Times in seconds."""

    mode: Mode = Mode.OBSERVE
    """For workloads and namespaces that say nothing."""
    budget_s: float = 300.0
    """A workload waits at most so long for a better moment."""
    cover_s: float = 60.0
    """After a decision Kueue has so long to take the chosen; then it goes by its own rules."""
    overdue_s: float = 15.0
    """Whatever the policy says, a Workload is let go so long after its budget."""
    policy: PreemptionSettings = field(default_factory=lambda: PreemptionSettings(stale_s=75.0, search_steps=2_000))
    """Statuses that have not changed are written every minute. The search must not hold up the Lease."""


class Cluster(Protocol):
    """What informers have seen, with own writes on top."""

    def workloads(self) -> Sequence[WorkloadView]: ...

    def workload(self, key: Key) -> WorkloadView | None: ...

    def queue_of(self, workload: WorkloadView) -> ClusterQueueView | None:
        """The ClusterQueue that a Workload waits or runs in."""
        ...

    def pods_of(self, workload: WorkloadView) -> Sequence[PodView]: ...

    def preemptions(self, since_s: float) -> Mapping[str, int]:
        """Evictions since then by the Workload's or its owner's uid, as far as there is a ledger."""
        ...

    def mode(self, workload: WorkloadView) -> str:
        """What the workload or its namespace says; empty for nothing."""
        ...

    def noted(self, document: Object) -> None:
        """This was written just now."""
        ...


class Writer:
    """Fenced writes. The cluster's view learns at once of those on Workloads: informers may come later."""

    def __init__(self, fence: Fence, cluster: Cluster) -> None:
        self._fence, self._cluster = fence, cluster

    async def patch(self, workload: WorkloadView, changes: Object) -> None:
        """Raises Conflict when the Workload has changed since it was seen."""
        self._cluster.noted(await self._fence.patch(KUEUE_WORKLOADS, workload.document, changes))

    async def patch_all(self, changes: Sequence[tuple[WorkloadView, Object]]) -> None:
        """Several, in no order; all are tried. Raises what the first of them failed with."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(view: WorkloadView, change: Object) -> None:
            async with turns:
                await self.patch(view, change)

        for found in await asyncio.gather(*(one(*each) for each in changes), return_exceptions=True):
            if isinstance(found, BaseException):
                raise found

    async def ask(self, pod: PodView, changes: Object) -> None:
        """Raises Conflict when the pod has changed since it was seen: nobody is asked twice by what came too late."""
        metadata = {"namespace": pod.key[0], "name": pod.key[1], "resourceVersion": pod.version,
                    "annotations": dict(pod.notes)}  # fmt: skip
        await self._fence.patch(PODS, {"metadata": metadata}, changes)
