"""``kopt controller ledger``: one replica, from start to the end."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.api import ApiError, Kube, KubeSettings, NotFound, connect
from kopt.cluster.backoff import Backoff
from kopt.cluster.informer import Change, Informer
from kopt.cluster.lease import Fence
from kopt.cluster.node_bandwidths import seconds
from kopt.cluster.resources import (
    EVENTS,
    EVICTIONS,
    JOBS,
    KAI_POD_GROUPS,
    KUEUE_WORKLOADS,
    PODS,
    Key,
    Object,
    Resource,
)
from kopt.controllers.ledger.lines import Lines
from kopt.controllers.ledger.recorder import Recorder
from kopt.controllers.ledger.seen import Evicted, Seen
from kopt.controllers.ledger.views import (
    GroupView,
    JobView,
    KueueView,
    PodView,
    group_view,
    job_view,
    kueue_view,
    pod_view,
)
from kopt.controllers.lifetime import end_signals, run_until
from kopt.controllers.replica import LedReplica, ReplicaSettings
from kopt.controllers.webhook.objects import mapping, text
from kopt.core.evictions import Eviction
from kopt.policies.evictions import Keeping

_LOG = logging.getLogger(__name__)
NAME = "ledger"
_GATHER_S = 0.02
"""What comes together is looked at once."""
_PREEMPTOR_NAME, _PREEMPTOR_SPACE = "evictor-pod-group-name", "evictor-pod-group-namespace"


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica."""

    keeping: Keeping = field(default_factory=Keeping)
    port: int = 9452


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with connect(settings.kubeconfig, KubeSettings(user_agent="kopt-ledger")) as kube:
        served = await _served(kube, KUEUE_WORKLOADS)
        await run_until(ending, Replica(kube, settings, served))


async def _served(kube: Kube, known: Resource) -> Resource:
    """An API group may have left the version behind that this was written against; it may also come later."""
    with contextlib.suppress(ApiError):
        if not await kube.serves(known):
            return await kube.preferred(known) or known
    return known


class Replica(LedReplica):
    """The parts of one process, put together. Every replica remembers what it saw; the one that leads writes it."""

    def __init__(self, kube: Kube, settings: ProcessSettings, workloads: Resource = KUEUE_WORKLOADS) -> None:
        self._kube, self._keeping = kube, settings.keeping
        self.seen, self.lines = Seen(time.monotonic), Lines()
        self._changed = asyncio.Event()
        pods: Informer[PodView] = Informer(kube, PODS, keep=pod_view)
        jobs: Informer[JobView] = Informer(kube, JOBS, keep=job_view)
        kueue: Informer[KueueView] = Informer(kube, workloads, keep=_named(workloads, kueue_view))
        groups: Informer[GroupView] = Informer(kube, KAI_POD_GROUPS, keep=_named(KAI_POD_GROUPS, group_view))
        told: Informer[tuple[Key, Evicted]] = Informer(kube, EVENTS, keep=evict_event, field_selector="reason=Evict")
        lines: Informer[Object] = Informer(kube, EVICTIONS, keep=_slim)
        pods.subscribe(self._to(self.seen.pod))
        jobs.subscribe(self._to(self.seen.job))
        kueue.subscribe(self._to(self.seen.workload))
        groups.subscribe(self._to(self.seen.group))
        told.subscribe(self._to(self._group_evicted))
        lines.subscribe(self._line)
        super().__init__(kube, NAME, settings, (pods, jobs, kueue, groups, told, lines))
        self.gauge("lines", "Evictions in the ledger.", lambda: len(self.lines.entries))
        self.gauge("waiting", "Evicted workloads that are not back.", self._waiting)
        self.gauge("errors", "Writes that failed and are tried again.", lambda: self.troubles)

    async def lead(self, fence: Fence) -> None:
        await self._read_lines()
        recorder = Recorder(self.seen, self.lines, fence, self._tell, self._keeping, time.monotonic, time.time)
        self.seen.dirty |= self.seen.everything() | set(self.lines.roots)
        await self.step_through(recorder, self._changed, _GATHER_S)

    async def _read_lines(self) -> None:
        """Whatever the leader before has written: the watch may not have brought its last lines yet."""
        backoff = Backoff(0.2, 10.0)
        while True:
            try:
                async for page in self._kube.pages(EVICTIONS):
                    for document in page.items:
                        self.lines.put(_slim(document))
                return
            except NotFound:
                _LOG.warning("evictions.kaiwo.ai are not served here: nothing can be written before they are installed")
                return
            except ApiError as error:
                _LOG.warning("the ledger cannot be read: %s", error)
                await asyncio.sleep(backoff.next_s())

    def _to(self, take: Callable[[Any, Any], None]) -> Callable[[Change[Any]], None]:
        def handler(change: Change[Any]) -> None:
            if change.old != change.new:
                take(change.old, change.new)
                self._changed.set()

        return handler

    def _line(self, change: Change[Object]) -> None:
        if root := self.lines.changed(change):
            self.seen.dirty.add(root)
            self._changed.set()

    def _group_evicted(self, old: tuple[Key, Evicted] | None, new: tuple[Key, Evicted] | None) -> None:
        if new is not None:
            self.seen.group_evicted(*new)

    def _waiting(self) -> int:
        return sum(one.outcome.phase == "Waiting" for one in self.lines.entries.values())

    def _tell(self, eviction: Eviction, reason: str, sentence: str) -> None:
        one = eviction.workload
        regarding = {"apiVersion": one.api_version, "kind": one.kind, "namespace": eviction.namespace, "name": one.name,
                     "uid": one.uid}  # fmt: skip
        self.tell(regarding, reason, "Recording", sentence)


def evict_event(event: Object) -> tuple[Key, Evicted] | None:
    """What KAI says as it takes a gang's GPUs; None for others' events."""
    regarding, notes = mapping(event, "regarding"), mapping(event, "metadata", "annotations")
    if text(regarding, "kind") != "PodGroup":
        return None
    name = text(notes, _PREEMPTOR_NAME)
    moment = (
        text(event, "series", "lastObservedTime") or text(event, "deprecatedLastTimestamp") or text(event, "eventTime")
        or text(event, "metadata", "creationTimestamp")
    )  # fmt: skip
    for_whom = f"{text(notes, _PREEMPTOR_SPACE)}/{name}" if name else ""
    return (text(regarding, "namespace"), text(regarding, "name")), Evicted(
        seconds(moment), for_whom, text(event, "note")
    )


def _named(resource: Resource, view: Callable[[Object], Any]) -> Callable[[Object], Any]:
    """Items of a list do not say what they are."""
    return lambda document: view({"apiVersion": resource.api_version, **document})


def _slim(document: Object) -> Object:
    document["metadata"].pop("managedFields", None)
    return document
