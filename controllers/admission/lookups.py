"""The objects that a review is about: as they are, as they were, and what else belongs to them."""

import asyncio
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from kopt.cluster.admission.review import Review
from kopt.cluster.client.resources import Object
from kopt.cluster.workloads.frameworks import written_queue
from kopt.cluster.workloads.requests.external import ObjectRef, completed, stands_elsewhere
from kopt.cluster.workloads.workload import NamespaceDefaults, Workload, read_workload
from kopt.controllers.admission.evaluation import ClusterState
from kopt.controllers.admission.makers import Stated, maker_of, stated_by
from kopt.core.scheduling.submission import Framework

LOOKUP_S = 0.3
"""A namespace that the informer has not brought yet, or objects that have GPUs of a workload, are asked for, for so
long."""
T = TypeVar("T")


class Reader(Protocol):
    """Asks the API server for what the view does not hold; None and empty where there is no answer."""

    async def read_namespace(self, name: str) -> NamespaceDefaults | None: ...

    async def read(self, location: ObjectRef) -> Object | None: ...


class Lookups:
    """Of a cluster as the informers show it; ``reader`` finds what is too new or too rare to be in there."""

    def __init__(self, cluster: ClusterState, reader: Reader | None = None) -> None:
        self._cluster, self._reader = cluster, reader

    async def namespace(self, workload: Workload) -> NamespaceDefaults | None:
        """None when the namespace cannot be known in time: unsure means hands off."""
        namespace = self._cluster.namespace(workload.namespace)
        if namespace is None and self._reader is not None:
            namespace = await in_time(self._reader.read_namespace(workload.namespace))
        return namespace

    async def workload(self, review: Review) -> Workload | None:
        workload = read(review)
        return None if workload is None else await self.completed(workload)

    async def completed(self, workload: Workload) -> Workload:
        """With the GPUs that stand in other objects; as it is when these cannot be had in time."""
        if not stands_elsewhere(workload):
            return workload
        read = self._reader.read if self._reader is not None else None
        return await in_time(completed(workload, self._cluster.find, read)) or workload

    async def find(self, location: ObjectRef) -> Object | None:
        """None for what is not there, and where that is not known in time."""
        result = self._cluster.find(location)
        if result is None and self._reader is not None:
            result = await in_time(self._reader.read(location))
        return result

    async def stated(self, review: Review, workload: Workload) -> Stated:
        """What is said for a new workload on the object that it was made of; nothing where that is not known in
        time."""
        maker = maker_of(workload) if review.operation == "CREATE" else None
        if maker is None or self._reader is None:
            return {}
        return stated_by(await in_time(self._reader.read(maker)), workload, self._cluster.policy.queues.framework)


def read(review: Review) -> Workload | None:
    return read_workload(review.object, review.group, review.kind, review.namespace, review.name)


def before_change(review: Review) -> Workload | None:
    """The workload as it was before the change."""
    if review.old is None:
        return None
    return read_workload(review.old, review.group, review.kind, review.namespace, review.name)


def was_out(review: Review, workload: Workload, framework: Framework) -> bool:
    """Whether a change finds the workload opted out, and in no queue that it leaves: who did that had the right to."""
    before = before_change(review)
    if before is None or not before.opts_out:
        return False
    old, new = (written_queue(framework, item.kind, item.document, item.pod_sets) for item in (before, workload))
    return bool(new) or not old


async def in_time(reading: Awaitable[T], budget_s: float = LOOKUP_S) -> T | None:
    try:
        async with asyncio.timeout(budget_s):
            return await reading
    except TimeoutError:
        return None
