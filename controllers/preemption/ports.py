"""Interfaces of the reconciler: the observed cluster, fenced writes, settings."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kopt.cluster.client.api import Kube
from kopt.cluster.client.errors import NotFound
from kopt.cluster.client.resources import KUEUE_WORKLOADS, PODS, Key, Object
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.workloads.kueue.objects import ClusterQueue, Flavor, GpuPod, KueueWorkload
from kopt.cluster.workloads.kueue.reading import read_gpu_pod
from kopt.core.decision import Mode
from kopt.core.scheduling.quota import QuotaNode
from kopt.policies.preemption import PreemptionSettings

_AT_ONCE = 16
"""Writes that do not wait for each other."""
EmitEvent = Callable[[KueueWorkload, str, str], None]
"""An event on a Workload: reason, sentence."""


@dataclass(frozen=True)
class ControllerSettings:
    """Times in seconds."""

    mode: Mode = Mode.OBSERVE
    """For workloads and namespaces without a mode of their own."""
    budget_s: float = 300.0
    """A workload waits at most this long for a cheaper time."""
    shield_s: float = 60.0
    """Time that Kueue has to preempt the victims after a decision; then it applies its own rules."""
    overdue_s: float = 15.0
    """A Workload is released this long after its budget, whatever the policy says."""
    policy: PreemptionSettings = field(default_factory=lambda: PreemptionSettings(stale_s=75.0, search_steps=2_000))
    """Statuses that have not changed are written every minute. The search must not hold up the Lease."""
    workload_may_lower: bool | None = None
    """As ``policies.admission.mode.effective_mode`` takes it."""


class Cluster(Protocol):
    """The state observed by informers, with our own writes applied."""

    def workloads(self) -> Sequence[KueueWorkload]: ...

    def workload(self, key: Key) -> KueueWorkload | None: ...

    def queue_of(self, workload: KueueWorkload) -> ClusterQueue | None:
        """The ClusterQueue that a Workload waits or runs in."""
        ...

    def queues(self) -> Sequence[ClusterQueue]: ...

    def cohorts(self) -> Sequence[QuotaNode]: ...

    def flavors(self) -> Mapping[str, Flavor] | None:
        """The ResourceFlavors by name; None if they are not told apart."""
        ...

    def pods_of(self, workload: KueueWorkload) -> Sequence[GpuPod]: ...

    def preemptions(self, since_s: float) -> Mapping[str, int]:
        """Evictions since then by the Workload's or its owner's uid, as far as they are recorded."""
        ...

    def mode(self, workload: KueueWorkload) -> str:
        """The mode of the workload or its namespace; empty if neither sets one."""
        ...

    def noted(self, document: Object) -> None:
        """Apply a write of ours that informers do not show yet."""
        ...


class Writer:
    """Fenced writes. The cluster's view learns at once of those on Workloads: informers may come later."""

    def __init__(self, fence: Fence, cluster: Cluster, kube: Kube) -> None:
        self._fence, self._cluster, self._kube = fence, cluster, kube

    async def read_pod(self, pod: GpuPod) -> GpuPod | None:
        """The pod as the API server has it now; None where it is gone."""
        try:
            return read_gpu_pod(await self._kube.get(PODS, pod.key[1], pod.key[0]))
        except NotFound:
            return None

    async def patch(self, workload: KueueWorkload, changes: Object) -> None:
        """Raises Conflict when the Workload has changed since it was seen."""
        self._cluster.noted(await self._fence.patch(KUEUE_WORKLOADS, workload.document, changes))

    async def patch_all(self, changes: Sequence[tuple[KueueWorkload, Object]]) -> None:
        """Several, in no order; all are tried. Raises what the first of them failed with."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def write(workload: KueueWorkload, change: Object) -> None:
            async with turns:
                await self.patch(workload, change)

        for result in await asyncio.gather(*(write(*each) for each in changes), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def ask(self, pod: GpuPod, changes: Object) -> None:
        """Raises Conflict if the pod has changed since it was observed, so that no pod is asked twice."""
        metadata = {
            "namespace": pod.key[0],
            "name": pod.key[1],
            "resourceVersion": pod.version,
            "annotations": dict(pod.annotations),
        }
        await self._fence.patch(PODS, {"metadata": metadata}, changes)
