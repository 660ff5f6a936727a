"""How the objects of a job, and of every line in the queues, are read."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kopt.cluster.client.api import ApiError, Forbidden, Kube, NotFound
from kopt.cluster.client.resources import (
    DEPLOYMENTS,
    EVICTIONS,
    JOBS,
    KAI_POD_GROUPS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    LENDING_POOLS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Key,
    Object,
    Resource,
)
from kopt.cluster.holds.hold import HELD_LABEL, HOLDABLE
from kopt.cluster.objects.custom.staged_data import STAGED_DATA
from kopt.cluster.objects.eviction import entry_of
from kopt.cluster.objects.fields import items, text
from kopt.cluster.objects.kaiwo_workloads import MAKERS
from kopt.cluster.workloads.kinds import BY_KEY, INFERENCE_SERVICES, JOB_SETS, RAY_CLUSTERS
from kopt.cluster.workloads.served import served_kinds
from kopt.controllers.overview.documents import pool_of, staged_of
from kopt.controllers.overview.job import Thing, owner_of
from kopt.controllers.overview.queues import lines, queued_of, unqueued
from kopt.core.scheduling.eviction import Entry
from kopt.core.scheduling.overview import PoolState, StagedState
from kopt.core.scheduling.queued import Queued

_BETWEEN = (JOBS, REPLICA_SETS, DEPLOYMENTS, STATEFUL_SETS, JOB_SETS, RAY_CLUSTERS, INFERENCE_SERVICES)
"""Kinds that stand between a workload and its pods."""
_MOST_OWNERS = 8
T = TypeVar("T")


class Unknown(ApiError):
    """No object, or several, have the name that was asked for; the message says what to write."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unknown", message)


@dataclass(frozen=True)
class Wanted:
    """What a person named: empty ``namespace`` means any, empty ``kind`` any."""

    name: str
    namespace: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Lines:
    """What both ``kopt why`` and ``kopt queue`` read. ``local_queues`` and ``pools`` are whole."""

    workloads: Sequence[Object] = ()
    local_queues: Sequence[Object] = ()
    pools: tuple[PoolState, ...] = ()
    has_kueue: bool = False
    held: Mapping[str, Object] = field(default_factory=dict)
    """Objects that one of our controllers holds, by uid."""

    @property
    def cluster_queues(self) -> dict[tuple[str, str], str]:
        return {
            (text(local_queue, "metadata", "namespace"), text(local_queue, "metadata", "name")): text(
                local_queue, "spec", "clusterQueue"
            )
            for local_queue in self.local_queues
        }

    @property
    def owners(self) -> frozenset[str]:
        """uids of what Kueue's Workloads belong to."""
        refs = (ref for workload in self.workloads for _, ref in items(workload, "metadata", "ownerReferences"))
        return frozenset(text(ref, "uid") for ref in refs)

    def workloads_of(self, uids: Collection[str], names: Collection[Key]) -> list[Object]:
        """Kueue's Workloads with such a uid, owner or key."""
        return [
            workload
            for workload in self.workloads
            if text(workload, "metadata", "uid") in uids
            or any(text(ref, "uid") in uids for _, ref in items(workload, "metadata", "ownerReferences"))
            or (text(workload, "metadata", "namespace"), text(workload, "metadata", "name")) in names
        ]

    def queued(self, pods: Iterable[Object] = (), more: Iterable[Queued] = (), now_s: float = 0.0) -> list[Queued]:
        queues = self.cluster_queues
        result = (queued_of(workload, queues, self.held) for workload in self.workloads)
        return lines([*(queued for queued in result if queued is not None), *more], self.pools, pods, now_s)

    def everything(self, pods: Sequence[Object], now_s: float) -> list[Queued]:
        """Kueue's lines, and gangs and pods with GPUs outside of it, as ``kopt queue`` lists them."""
        return self.queued(pods, unqueued(pods, now_s, self.owners), now_s)


class Reading(ABC):
    """Reads for one answer. ``unread`` grows with every kind that may not be read."""

    def __init__(self) -> None:
        self.unread: dict[str, None] = {}

    @abstractmethod
    async def kinds(self) -> list[Resource]:
        """Kinds of workloads that are served, in the version that is."""

    @abstractmethod
    async def listed(
        self, resource: Resource, namespace: str = "", *, selector: str = "", fields: str = "", narrow: str = ""
    ) -> list[Object]:
        """All of a kind; of the namespace ``narrow`` alone where that is all that may be read."""

    @abstractmethod
    async def read(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        """An object; None for one that is not there."""

    @abstractmethod
    async def lines(self, narrow: str = "") -> Lines:
        """What stands in queues, of ``narrow`` alone where that is all that may be read."""

    @abstractmethod
    async def evictions(self, narrow: str = "") -> tuple[Entry, ...]:
        """The ledger."""

    @abstractmethod
    async def staged(self, names: Sequence[str], namespace: str) -> tuple[StagedState, ...]:
        """The StagedData of these names that there are."""

    async def root(self, thing: Thing) -> list[Thing]:
        """What owns it, the outermost last."""
        kinds = {(item.group, item.kind): item for item in (*await self.kinds(), REPLICA_SETS, KUEUE_WORKLOADS)}
        above: list[Thing] = []
        while len(above) < _MOST_OWNERS:
            ref = owner_of((above[-1] if above else thing).document)
            group, _, version = text(ref, "apiVersion").rpartition("/")
            resource = kinds.get((group if version else "", text(ref, "kind")))
            result = await self.read(resource, text(ref, "name"), thing.key[0]) if resource else None
            if resource is None or result is None or text(result, "metadata", "uid") != text(ref, "uid"):
                break
            above.append(Thing(resource, result))
        return above

    async def below(self, root: Thing) -> tuple[list[Thing], list[Object]]:
        """What it has made: objects that stand between, and pods."""
        namespace = root.key[0]
        if root.resource == PODS:
            return [], [root.document]
        between: list[Thing] = []
        selector = f"batch.kubernetes.io/controller-uid={root.uid}" if root.resource == JOBS else ""
        if not selector:
            kinds = [resource for resource in _BETWEEN if resource in await self.kinds() or resource == REPLICA_SETS]
            lists = await asyncio.gather(*(self.listed(kind, namespace) for kind in kinds))
            between = [Thing(kind, item) for kind, result in zip(kinds, lists, strict=True) for item in result]
        pods = await self.listed(PODS, namespace, selector=selector)
        uids = _descendants(root.uid, [thing.document for thing in between] + pods)
        return [thing for thing in between if thing.uid in uids], [
            pod for pod in pods if text(pod, "metadata", "uid") in uids
        ]


class Reader(Reading):
    """Asks the API server."""

    def __init__(self, kube: Kube) -> None:
        super().__init__()
        self._kube = kube
        self._kinds: list[Resource] = []

    async def kinds(self) -> list[Resource]:
        if not self._kinds:
            above = [kind for kind in MAKERS if await self._kube.serves(kind)]
            self._kinds = [*(resource for _, resource in await served_kinds(self._kube)), *above]
        return self._kinds

    async def listed(
        self, resource: Resource, namespace: str = "", *, selector: str = "", fields: str = "", narrow: str = ""
    ) -> list[Object]:
        wanted = self._kube.list(resource, namespace, label_selector=selector, field_selector=fields)
        result = await self._tried(resource, wanted, quiet=bool(narrow and not namespace))
        if result is not None:
            return result.items
        if narrow and not namespace:
            return await self.listed(resource, narrow, selector=selector, fields=fields)
        return []

    async def read(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        try:
            return await self._tried(resource, self._kube.get(resource, name, namespace))
        except ValueError:
            # Names come from untrusted objects.
            return None

    async def lines(self, narrow: str = "") -> Lines:
        has_kueue = await self._kube.serves(KUEUE_WORKLOADS)
        workloads, queues, pools, held = await asyncio.gather(
            self._if(has_kueue, KUEUE_WORKLOADS, narrow),
            self._if(has_kueue, KUEUE_LOCAL_QUEUES, narrow),
            self.listed(LENDING_POOLS),
            self._held(narrow),
        )
        return Lines(workloads, queues, tuple(map(pool_of, pools)), has_kueue, held)

    async def _held(self, narrow: str) -> dict[str, Object]:
        kinds = [resource for resource in await self.kinds() if resource in HOLDABLE]
        lists = await asyncio.gather(*(self.listed(resource, selector=HELD_LABEL, narrow=narrow) for resource in kinds))
        return {text(item, "metadata", "uid"): item for result in lists for item in result}

    async def evictions(self, narrow: str = "") -> tuple[Entry, ...]:
        entries = []
        for document in await self.listed(EVICTIONS, narrow=narrow):
            try:
                entries.append(entry_of(document))
            except ValueError:
                continue
        return tuple(entries)

    async def staged(self, names: Sequence[str], namespace: str) -> tuple[StagedState, ...]:
        result = await asyncio.gather(*(self.read(STAGED_DATA, name, namespace) for name in names))
        return tuple(staged_of(item) for item in result if item is not None)

    async def _if(self, served: bool, resource: Resource, narrow: str) -> list[Object]:
        return await self.listed(resource, narrow=narrow) if served else []

    async def _tried(self, resource: Resource, reading: Awaitable[T], *, quiet: bool = False) -> T | None:
        """None for what is not there; what may not be read is noted."""
        try:
            return await reading
        except NotFound:
            return None
        except Forbidden:
            if not quiet:
                self.unread[resource.plural] = None
            return None

    async def find(self, wanted: Wanted) -> Thing:
        """The object that a person named. Raises Unknown."""
        kinds = [
            resource
            for resource in (*await self.kinds(), KUEUE_WORKLOADS, KAI_POD_GROUPS)
            if _is(resource, wanted.kind)
        ]
        if not kinds:
            raise Unknown(f"there is no kind {wanted.kind!r} of workloads here; write job, pod, workload, rayjob …")
        things = [
            thing
            for several in await asyncio.gather(*(self._named(kind, wanted) for kind in kinds))
            for thing in several
        ]
        tops = [thing for thing in things if not owner_of(thing.document)] or things
        namespaces = {thing.key[0] for thing in tops}
        if len(namespaces) > 1:
            several = ", ".join(sorted(f"{namespace}/{wanted.name}" for namespace in namespaces))
            raise Unknown(f"{len(namespaces)} namespaces have a {wanted.name}: {several}; name one with -n")
        if len(tops) > 1:
            several = ", ".join(f"{thing.resource.kind.lower()}/{wanted.name}" for thing in tops)
            raise Unknown(f"several things are called {wanted.name}: {several}; name one of them")
        if not tops:
            raise Unknown(self._nothing(wanted))
        return tops[0]

    def _nothing(self, wanted: Wanted) -> str:
        where = f"in namespace {wanted.namespace}" if wanted.namespace else "in any namespace"
        what = f"{wanted.kind} called {wanted.name}" if wanted.kind else f"workload called {wanted.name}"
        rights = f" that you may read ({', '.join(self.unread)} may not be read)" if self.unread else ""
        return f"there is no {what} {where}{rights}; `kopt queue` lists what waits and runs"

    async def _named(self, resource: Resource, wanted: Wanted) -> list[Thing]:
        if wanted.namespace:
            result = await self.read(resource, wanted.name, wanted.namespace)
            return [Thing(resource, result)] if result else []
        return [Thing(resource, item) for item in await self.listed(resource, fields=f"metadata.name={wanted.name}")]


def _is(resource: Resource, kind: str) -> bool:
    full = f"{resource.plural}.{resource.group}"
    return not kind or kind.lower() in (resource.kind.lower(), resource.plural, full)


def is_kind(word: str) -> bool:
    """Whether a word before a slash names a kind and not a namespace."""
    workloads = (workload_kind.resource for workload_kind in BY_KEY.values())
    kinds = (*workloads, *MAKERS, KUEUE_WORKLOADS, KAI_POD_GROUPS)
    return bool(word) and any(_is(resource, word) for resource in kinds)


def _descendants(root: str, documents: Iterable[Object]) -> set[str]:
    children: dict[str, list[str]] = {}
    for document in documents:
        for _, ref in items(document, "metadata", "ownerReferences"):
            children.setdefault(text(ref, "uid"), []).append(text(document, "metadata", "uid"))
    descendants, pending = {root}, [root]
    while pending:
        new = [name for name in children.get(pending.pop(), ()) if name not in descendants]
        descendants.update(new)
        pending += new
    return descendants
