"""What the parts of the controller are given: the observed cluster and a writer."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from kopt.cluster.client.resources import Key, Object, Resource
from kopt.cluster.runtime.lease import Fence
from kopt.controllers.pairwise.views import ObservedNode, ObservedPod


class Cluster(Protocol):
    """The observed state of the cluster, with our own latest writes."""

    def benchmarks(self) -> list[Object]: ...

    def jobs(self) -> list[Object]:
        """Of tests."""
        ...

    def pods(self) -> Iterable[ObservedPod]: ...

    def pods_of(self, job: Key) -> list[ObservedPod]: ...

    def nodes(self) -> Mapping[str, ObservedNode]: ...

    def bandwidths(self) -> dict[str, Object]:
        """NodeBandwidths by node."""
        ...

    def priority(self, name: str) -> int:
        """Of pods of a PriorityClass; empty names the cluster's default."""
        ...

    def changed_verdicts(self) -> bool:
        """Whether nodes or NodeBandwidths have changed since this was last asked."""
        ...

    async def log(self, pod: Key) -> str: ...

    def noted(self, resource: Resource, document: Object) -> None:
        """Record a write of our own."""
        ...

    def removed(self, resource: Resource, document: Object) -> None: ...


class Writer:
    """Fenced writes that the cluster's view learns of at once: informers may come later."""

    def __init__(self, fence: Fence, cluster: Cluster) -> None:
        self._fence, self._cluster = fence, cluster

    async def create(self, resource: Resource, body: Object) -> None:
        self._cluster.noted(resource, await self._fence.create(resource, body))

    async def patch(self, resource: Resource, document: Object, changes: Object) -> None:
        self._cluster.noted(resource, await self._fence.patch(resource, document, changes))

    async def replace_status(self, resource: Resource, body: Object) -> None:
        self._cluster.noted(resource, await self._fence.replace(resource, body, subresource="status"))

    async def delete(self, resource: Resource, document: Object) -> None:
        await self._fence.delete(resource, document)
        self._cluster.removed(resource, document)
