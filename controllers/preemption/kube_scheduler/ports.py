"""Interfaces of the reconciler of plain pods: the observed cluster and fenced writes."""

from typing import Protocol

from kopt.cluster.client.resources import Object
from kopt.controllers.preemption.kube_scheduler.snapshot import ClusterSnapshot, Gang
from kopt.controllers.preemption.kube_scheduler.views import PlainPod


class PlainCluster(Protocol):
    """What informers have seen."""

    def snapshot(self, now_s: float) -> ClusterSnapshot: ...

    def mode(self, pod: PlainPod) -> str:
        """The mode of the pod or its namespace; empty for none."""
        ...


class PlainWriter(Protocol):
    """Fenced writes on pods, each under the condition that the pod is as it was seen."""

    async def patch(self, pod: PlainPod, changes: Object) -> None: ...

    async def promise(self, pod: PlainPod, node: str) -> None:
        """Reserve room on a node for a pending pod."""
        ...

    async def read_pod(self, pod: PlainPod) -> PlainPod | None:
        """The pod of this name as the API server has it now; None for none."""
        ...

    async def evict(self, pod: PlainPod, *, dry_run: bool = False) -> None: ...

    async def outlives(self, gang: Gang) -> bool:
        """Whether its Jobs restart after all of its pods were evicted."""
        ...
