"""What is known of one job, and what is found in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.client.resources import KUEUE_WORKLOADS, PODS, Object, Resource, key_of
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.core.scheduling.eviction import Entry
from kopt.core.scheduling.overview import PoolState, StagedState
from kopt.core.scheduling.queued import Queued
from kopt.core.workload.checkpoint import Source


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
class JobSnapshot:
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
    evictions: tuple[Entry, ...] = ()
    requested_data: tuple[str, ...] = ()
    staged: tuple[StagedState, ...] = ()
    pools: tuple[PoolState, ...] = ()
    events: tuple[Object, ...] = ()
    has_kueue: bool = False
    unread: tuple[str, ...] = ()

    @property
    def things(self) -> Iterator[Thing]:
        """The job from its root to its pods, its Workloads among them; each once."""
        things = (
            self.root,
            self.target,
            *self.between,
            *(Thing(KUEUE_WORKLOADS, workload) for workload in self.workloads),
            *self.groups,
            *(Thing(PODS, pod) for pod in self.pods),
        )
        yielded: set[str] = set()
        for thing in things:
            if thing.uid not in yielded:
                yielded.add(thing.uid)
                yield thing

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(thing.uid for thing in self.things)

    @property
    def own(self) -> tuple[Queued, ...]:
        """Its lines in the queue."""
        uids = self.uids
        return tuple(queued for queued in self.queued if queued.uid in uids)

    @property
    def own_evictions(self) -> tuple[Entry, ...]:
        """Evictions of this job, the newest first."""
        names = {(thing.resource.kind, *thing.key) for thing in (self.root, *self.between)}
        entries = [
            entry
            for entry in self.evictions
            if entry.eviction.workload.uid in self.uids
            or (entry.eviction.workload.kind, entry.eviction.namespace, entry.eviction.workload.name) in names
        ]
        return tuple(sorted(entries, key=lambda entry: -entry.eviction.evicted_at_s))

    @property
    def names(self) -> frozenset[str]:
        """``namespace/name`` of the job and its Workloads, as others name it."""
        return frozenset("/".join(thing.key) for thing in self.things)


@dataclass(frozen=True)
class Finding:
    """One sentence about a job. ``code`` is stable; ``about`` is the object that says so; ``next`` is what a person can
    do, empty where nothing has to be done. Smaller ``rank`` goes first: see ``ranks``. ``source``: whose word about
    checkpoints it repeats, None where it repeats none."""

    rank: int
    code: str
    message: str
    about: str = ""
    since_s: float | None = None
    next: str = ""
    source: Source | None = None


def annotated(job: JobSnapshot, name: str) -> Iterator[tuple[Thing, str]]:
    """Things of the job that carry an annotation, with its text."""
    for thing in job.things:
        if result := text(thing.annotations, name):
            yield thing, result


def owner_of(document: Object) -> Mapping[str, Any]:
    """The reference to what controls an object; empty where nothing does."""
    result = items(document, "metadata", "ownerReferences")
    return next((item for _, item in result if at(item, "controller") is True), {})


def among(values: Sequence[str]) -> frozenset[str]:
    return frozenset(value for value in values if value)
