"""What is known of one job, and what is found in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.resources import KUEUE_WORKLOADS, PODS, Object, Resource, key_of
from kopt.controllers.overview.queues import Queued
from kopt.controllers.webhook.objects import at, items, mapping, text
from kopt.core.evictions import Entry
from kopt.core.overview import PoolState, StagedState


@dataclass(frozen=True)
class Thing:
    """An object and what it is: items of a list do not say."""

    resource: Resource
    document: Object = field(repr=False)

    @property
    def key(self) -> tuple[str, str]:
        return key_of(self.document)

    @property
    def uid(self) -> str:
        return text(self.document, "metadata", "uid")

    @property
    def label(self) -> str:
        """``Job research/train``."""
        return f"{self.resource.kind} {'/'.join(self.key)}"

    @property
    def annotations(self) -> Mapping[str, Any]:
        return mapping(self.document, "metadata", "annotations")

    @property
    def labels(self) -> Mapping[str, Any]:
        return mapping(self.document, "metadata", "labels")


@dataclass(frozen=True)
class Facts:
    """Everything that was read about a job. ``target`` was asked about, ``root`` is what owns it in the end.

    ``queued``: every GPU workload of Kueue's that could be read, in order; ``local_queue`` is None where the queue that
    it names does not exist, ``queue`` is that name. ``unread``: kinds that may not be read with these rights.
    """

    now_s: float
    target: Thing
    root: Thing
    between: tuple[Thing, ...] = ()
    pods: tuple[Object, ...] = ()
    workloads: tuple[Object, ...] = ()
    groups: tuple[Thing, ...] = ()
    queue: str = ""
    local_queue: Object | None = None
    cluster_queue: Object | None = None
    queued: tuple[Queued, ...] = ()
    ledger: tuple[Entry, ...] = ()
    asks_for_data: tuple[str, ...] = ()
    staged: tuple[StagedState, ...] = ()
    pools: tuple[PoolState, ...] = ()
    events: tuple[Object, ...] = ()
    has_kueue: bool = False
    unread: tuple[str, ...] = ()

    @property
    def things(self) -> Iterator[Thing]:
        """The job from its root to its pods, its Workloads among them; each once."""
        found = (self.root, self.target, *self.between, *(Thing(KUEUE_WORKLOADS, one) for one in self.workloads),
                 *self.groups, *(Thing(PODS, one) for one in self.pods))  # fmt: skip
        seen: set[str] = set()
        for one in found:
            if one.uid not in seen:
                seen.add(one.uid)
                yield one

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(one.uid for one in self.things)

    @property
    def own(self) -> tuple[Queued, ...]:
        """Its lines in the queue."""
        return tuple(one for one in self.queued if one.uid in self.uids)

    @property
    def lines(self) -> tuple[Entry, ...]:
        """Of the ledger, about this job, the newest first."""
        names = {(one.resource.kind, *one.key) for one in (self.root, *self.between)}
        found = [one for one in self.ledger if one.eviction.workload.uid in self.uids or (
            one.eviction.workload.kind, one.eviction.namespace, one.eviction.workload.name) in names]  # fmt: skip
        return tuple(sorted(found, key=lambda one: -one.eviction.evicted_at_s))

    @property
    def names(self) -> frozenset[str]:
        """``namespace/name`` of the job and its Workloads, as others name it."""
        return frozenset("/".join(one.key) for one in self.things)


@dataclass(frozen=True)
class Finding:
    """One sentence about a job. ``code`` is stable; ``about`` is the object that says so; ``next`` is what a person can
    do, empty where nothing has to be done. Smaller ``rank`` goes first: see ``ranks``."""

    rank: int
    code: str
    message: str
    about: str = ""
    since_s: float | None = None
    next: str = ""


def annotated(facts: Facts, name: str) -> Iterator[tuple[Thing, str]]:
    """Things of the job that carry an annotation, with its text."""
    for one in facts.things:
        if found := text(one.annotations, name):
            yield one, found


def owner_of(document: Object) -> Mapping[str, Any]:
    """The reference to what controls an object; empty where nothing does."""
    found = items(document, "metadata", "ownerReferences")
    return next((one for _, one in found if at(one, "controller") is True), {})


def among(values: Sequence[str]) -> frozenset[str]:
    return frozenset(one for one in values if one)
