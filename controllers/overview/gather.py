"""Reads everything that says something about one job: once, with the rights of whoever asks.

Kinds that are not installed are left out; kinds that may not be read are named in the answer.
"""

import asyncio
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kopt.cluster.api import ApiError, Forbidden, Kube, NotFound
from kopt.cluster.evictions import entry_of
from kopt.cluster.held import HELD_LABEL, HOLDABLE, queue_of
from kopt.cluster.resources import (
    EVENTS,
    EVICTIONS,
    JOBS,
    KAI_POD_GROUPS,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    LENDING_POOLS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Object,
    Resource,
)
from kopt.cluster.staged_data import STAGED_DATA
from kopt.controllers.audit import served_kinds
from kopt.controllers.overview.documents import pool_of, staged_names, staged_of
from kopt.controllers.overview.facts import Facts, Thing, owner_of
from kopt.controllers.overview.queues import Queued, lines, queued_of
from kopt.controllers.webhook.kinds import BY_KEY, JOB_SETS, RAY_CLUSTERS
from kopt.controllers.webhook.objects import items, text
from kopt.core.evictions import Entry
from kopt.core.overview import PoolState

VOLCANO_POD_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
_BETWEEN = (JOBS, REPLICA_SETS, STATEFUL_SETS, JOB_SETS, RAY_CLUSTERS)
"""Kinds that stand between a workload and its pods."""
_GROUP_NOTES = ("pod-group-name", "scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_WORKLOAD_NOTE = "kueue.x-k8s.io/workload"
_MOST_PODS_EVENTS = 3
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
    """Objects that somebody of ours holds, by uid."""

    @property
    def cluster_queues(self) -> dict[tuple[str, str], str]:
        return {
            (text(one, "metadata", "namespace"), text(one, "metadata", "name")): text(one, "spec", "clusterQueue")
            for one in self.local_queues
        }

    @property
    def owners(self) -> frozenset[str]:
        """uids of what Kueue's Workloads belong to."""
        refs = (ref for one in self.workloads for _, ref in items(one, "metadata", "ownerReferences"))
        return frozenset(text(ref, "uid") for ref in refs)

    def queued(self, pods: Iterable[Object] = (), more: Iterable[Queued] = (), now_s: float = 0.0) -> list[Queued]:
        queues = self.cluster_queues
        found = (queued_of(one, queues, self.held) for one in self.workloads)
        return lines([*(one for one in found if one is not None), *more], self.pools, pods, now_s)


class Reader:
    """Reads for one answer. ``unread`` grows with every kind that is refused."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.unread: dict[str, None] = {}
        self._kinds: list[Resource] = []

    async def kinds(self) -> list[Resource]:
        """Kinds of workloads that are served, in the version that is."""
        if not self._kinds:
            self._kinds = [resource for _, resource in await served_kinds(self._kube)]
        return self._kinds

    async def listed(self, resource: Resource, namespace: str = "", *, selector: str = "", fields: str = "",
                     narrow: str = "") -> list[Object]:  # fmt: skip
        """All of a kind; of the namespace ``narrow`` alone where that is all that may be read."""
        wanted = self._kube.list(resource, namespace, label_selector=selector, field_selector=fields)
        found = await self._tried(resource, wanted, quiet=bool(narrow and not namespace))
        if found is not None:
            return found.items
        if narrow and not namespace:
            return await self.listed(resource, narrow, selector=selector, fields=fields)
        return []

    async def one(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        try:
            return await self._tried(resource, self._kube.get(resource, name, namespace))
        except ValueError:
            # Names come from objects that anybody may have written.
            return None

    async def lines(self, narrow: str = "") -> Lines:
        has_kueue = await self._kube.serves(KUEUE_WORKLOADS)
        workloads, queues, pools, held = await asyncio.gather(
            self._if(has_kueue, KUEUE_WORKLOADS, narrow), self._if(has_kueue, KUEUE_LOCAL_QUEUES, narrow),
            self.listed(LENDING_POOLS), self._held(narrow),
        )  # fmt: skip
        return Lines(workloads, queues, tuple(map(pool_of, pools)), has_kueue, held)

    async def _held(self, narrow: str) -> dict[str, Object]:
        kinds = [one for one in await self.kinds() if one in HOLDABLE]
        lists = await asyncio.gather(*(self.listed(one, selector=HELD_LABEL, narrow=narrow) for one in kinds))
        return {text(one, "metadata", "uid"): one for found in lists for one in found}

    async def ledger(self, narrow: str = "") -> tuple[Entry, ...]:
        found = []
        for document in await self.listed(EVICTIONS, narrow=narrow):
            try:
                found.append(entry_of(document))
            except ValueError:
                continue
        return tuple(found)

    async def _if(self, served: bool, resource: Resource, narrow: str) -> list[Object]:
        return await self.listed(resource, narrow=narrow) if served else []

    async def _tried(self, resource: Resource, asked: Awaitable[T], *, quiet: bool = False) -> T | None:
        """None for what is not there; what may not be read is noted."""
        try:
            return await asked
        except NotFound:
            return None
        except Forbidden:
            if not quiet:
                self.unread[resource.plural] = None
            return None

    async def find(self, wanted: Wanted) -> Thing:
        """The object that a person named. Raises Unknown."""
        kinds = [one for one in (*await self.kinds(), KUEUE_WORKLOADS, KAI_POD_GROUPS) if _is(one, wanted.kind)]
        if not kinds:
            raise Unknown(f"there is no kind {wanted.kind!r} of workloads here; write job, pod, workload, rayjob …")
        found = [one for several in await asyncio.gather(*(self._named(kind, wanted) for kind in kinds))
                 for one in several]  # fmt: skip
        tops = [one for one in found if not owner_of(one.document)] or found
        places = {one.key[0] for one in tops}
        if len(places) > 1:
            several = ", ".join(sorted(f"{place}/{wanted.name}" for place in places))
            raise Unknown(f"{len(places)} namespaces have a {wanted.name}: {several}; name one with -n")
        if len(tops) > 1:
            several = ", ".join(f"{one.resource.kind.lower()}/{wanted.name}" for one in tops)
            raise Unknown(f"several things are called {wanted.name}: {several}; name one of them")
        if not tops:
            raise Unknown(self._nothing(wanted))
        return tops[0]

    def _nothing(self, wanted: Wanted) -> str:
        place = f"in namespace {wanted.namespace}" if wanted.namespace else "in any namespace"
        what = f"{wanted.kind} called {wanted.name}" if wanted.kind else f"workload called {wanted.name}"
        rights = f" that you may read ({', '.join(self.unread)} may not be read)" if self.unread else ""
        return f"there is no {what} {place}{rights}; `kopt queue` lists what waits and runs"

    async def _named(self, resource: Resource, wanted: Wanted) -> list[Thing]:
        if wanted.namespace:
            found = await self.one(resource, wanted.name, wanted.namespace)
            return [Thing(resource, found)] if found else []
        return [Thing(resource, one) for one in await self.listed(resource, fields=f"metadata.name={wanted.name}")]

    async def root(self, thing: Thing) -> list[Thing]:
        """What owns it, the outermost last."""
        known = {(one.group, one.kind): one for one in (*await self.kinds(), REPLICA_SETS, KUEUE_WORKLOADS)}
        above: list[Thing] = []
        while len(above) < _MOST_OWNERS:
            ref = owner_of((above[-1] if above else thing).document)
            group, _, version = text(ref, "apiVersion").rpartition("/")
            resource = known.get((group if version else "", text(ref, "kind")))
            found = await self.one(resource, text(ref, "name"), thing.key[0]) if resource else None
            if resource is None or found is None or text(found, "metadata", "uid") != text(ref, "uid"):
                break
            above.append(Thing(resource, found))
        return above

    async def below(self, root: Thing) -> tuple[list[Thing], list[Object]]:
        """What it has made: objects that stand between, and pods."""
        namespace = root.key[0]
        if root.resource == PODS:
            return [], [root.document]
        between: list[Thing] = []
        selector = f"batch.kubernetes.io/controller-uid={root.uid}" if root.resource == JOBS else ""
        if not selector:
            kinds = [one for one in _BETWEEN if one in await self.kinds() or one == REPLICA_SETS]
            lists = await asyncio.gather(*(self.listed(kind, namespace) for kind in kinds))
            between = [Thing(kind, one) for kind, found in zip(kinds, lists, strict=True) for one in found]
        pods = await self.listed(PODS, namespace, selector=selector)
        uids = _descendants(root.uid, [one.document for one in between] + pods)
        return [one for one in between if one.uid in uids], [
            one for one in pods if text(one, "metadata", "uid") in uids
        ]


async def gather(kube: Kube, wanted: Wanted, now_s: float | None = None) -> Facts:
    """Everything about one job. Raises Unknown for a name that is none, and ApiError."""
    reader = Reader(kube)
    target = await reader.find(wanted)
    namespace = target.key[0]
    above = await reader.root(target)
    root = above[-1] if above else target
    (between, pods), found, ledger = await asyncio.gather(
        reader.below(root), reader.lines(namespace), reader.ledger(namespace)
    )
    between += [one for one in above[:-1] if one.uid not in {other.uid for other in between}]
    things = [root, target, *between, *(Thing(PODS, one) for one in pods)]
    workloads = _own_workloads(found.workloads, things)
    if not pods and target.resource == KUEUE_WORKLOADS:
        pods = await _pods_of_group(reader, target)
    groups = await _groups(reader, things, namespace)
    queue = next((name for one in (*workloads, *(one.document for one in things)) if (name := _queue(one))), "")
    local = next((one for one in found.local_queues if (text(one, "metadata", "namespace"), text(
        one, "metadata", "name")) == (namespace, queue)), None)  # fmt: skip
    name = text(local, "spec", "clusterQueue")
    names = list(dict.fromkeys(name for one in things for name in staged_names(one.document)))
    cluster_queue, staged, events = await asyncio.gather(
        _get(reader, KUEUE_CLUSTER_QUEUES, name), _staged(reader, names, namespace),
        _events(reader, [*things[: 2 + len(between) + _MOST_PODS_EVENTS], *(Thing(KUEUE_WORKLOADS, one)
                                                                            for one in workloads)]),
    )  # fmt: skip
    moment_s = time.time() if now_s is None else now_s
    return Facts(
        moment_s, target, root, tuple(between), tuple(pods), tuple(workloads), tuple(groups), queue, local,
        cluster_queue, tuple(found.queued(pods, now_s=moment_s)), ledger, tuple(names), tuple(map(staged_of, staged)),
        found.pools, tuple(events), found.has_kueue, tuple(reader.unread),
    )  # fmt: skip


def _is(resource: Resource, kind: str) -> bool:
    full = f"{resource.plural}.{resource.group}"
    return not kind or kind.lower() in (resource.kind.lower(), resource.plural, full)


def is_kind(word: str) -> bool:
    """Whether a word before a slash names a kind and not a namespace."""
    kinds = (*(one.resource for one in BY_KEY.values()), KUEUE_WORKLOADS, KAI_POD_GROUPS)
    return bool(word) and any(_is(one, word) for one in kinds)


def _descendants(root: str, documents: Iterable[Object]) -> set[str]:
    children: dict[str, list[str]] = {}
    for one in documents:
        for _, ref in items(one, "metadata", "ownerReferences"):
            children.setdefault(text(ref, "uid"), []).append(text(one, "metadata", "uid"))
    found, left = {root}, [root]
    while left:
        new = [one for one in children.get(left.pop(), ()) if one not in found]
        found.update(new)
        left += new
    return found


def _own_workloads(workloads: Iterable[Object], things: Sequence[Thing]) -> list[Object]:
    uids = {one.uid for one in things}
    named = {(one.key[0], text(one.annotations, _WORKLOAD_NOTE)) for one in things if one.resource == PODS}
    return [
        one for one in workloads
        if text(one, "metadata", "uid") in uids
        or any(text(ref, "uid") in uids for _, ref in items(one, "metadata", "ownerReferences"))
        or (text(one, "metadata", "namespace"), text(one, "metadata", "name")) in named
    ]  # fmt: skip


async def _pods_of_group(reader: Reader, workload: Thing) -> list[Object]:
    """Of a Workload that several pods share."""
    uids = {text(ref, "uid") for _, ref in items(workload.document, "metadata", "ownerReferences")}
    pods = await reader.listed(PODS, workload.key[0])
    return [one for one in pods if text(one, "metadata", "uid") in uids]


async def _groups(reader: Reader, things: Sequence[Thing], namespace: str) -> list[Thing]:
    named = {text(one.annotations, note) for one in things for note in _GROUP_NOTES} - {""}
    uids = {one.uid for one in things}
    found = []
    for kind in (KAI_POD_GROUPS, VOLCANO_POD_GROUPS):
        found += [Thing(kind, one) for one in await reader.listed(kind, namespace)
                  if text(one, "metadata", "name") in named
                  or any(text(ref, "uid") in uids for _, ref in items(one, "metadata", "ownerReferences"))]  # fmt: skip
    return found


async def _get(reader: Reader, resource: Resource, name: str) -> Object | None:
    return await reader.one(resource, name) if name else None


async def _staged(reader: Reader, names: Sequence[str], namespace: str) -> list[Object]:
    found = await asyncio.gather(*(reader.one(STAGED_DATA, name, namespace) for name in names))
    return [one for one in found if one is not None]


async def _events(reader: Reader, things: Iterable[Thing]) -> list[Object]:
    """What components of ours have said about it, the newest first."""
    asked = {one.uid: one.key[0] for one in things if one.uid}
    lists = await asyncio.gather(
        *(reader.listed(EVENTS, namespace, fields=f"regarding.uid={uid}") for uid, namespace in asked.items())
    )
    ours = [one for found in lists for one in found if text(one, "reportingController").startswith("kaiwo.ai/")]
    return sorted(ours, key=event_at, reverse=True)


def event_at(event: Object) -> str:
    """When it was said last."""
    return text(event, "series", "lastObservedTime") or text(event, "eventTime")


def _queue(document: Object) -> str:
    return queue_of(document) or text(document, "spec", "queueName")
