"""``kopt controller evictions``: one replica, from start to the end."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.client.api import ApiError, Kube, KubeSettings, NotFound, connect
from kopt.cluster.client.resources import (
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
from kopt.cluster.objects.eviction import EVICTING_ANNOTATION
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.objects.kaiwo_workloads import GPU_WORKLOADS, GpuWorkload, read_gpu_workload
from kopt.cluster.runtime.annotation_checks import checks
from kopt.cluster.runtime.backoff import Backoff
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.tracing import SpanExport
from kopt.cluster.workloads.tracked_pod import TrackedPod, read_pod
from kopt.controllers.evictions.observations import Evicted, Observed
from kopt.controllers.evictions.recorder import Recorder
from kopt.controllers.evictions.spans import LifeSpans
from kopt.controllers.evictions.store import EvictionStore, StoredEviction
from kopt.controllers.evictions.views import (
    TrackedJob,
    TrackedPodGroup,
    TrackedWorkload,
    read_job,
    read_pod_group,
    read_workload,
)
from kopt.core.scheduling.eviction import Eviction
from kopt.core.times import seconds
from kopt.policies.evictions import Keeping

_LOG = logging.getLogger(__name__)
NAME = "ledger"
_GATHER_S = 0.02
"""Changes within this time are handled together."""
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
        served = await kube.served(KUEUE_WORKLOADS)
        await run_until(ending, Replica(kube, settings, served))


class Replica(LedReplica):
    """The parts of one process, put together. Every replica observes; the leader writes."""

    action = "Recording"
    reads_seals = True
    annotation_checks = checks(EVICTING_ANNOTATION)

    def __init__(self, kube: Kube, settings: ProcessSettings, workloads: Resource = KUEUE_WORKLOADS) -> None:
        self._kube, self._keeping = kube, settings.keeping
        self.observed, self.store = Observed(time.monotonic), EvictionStore(kube)
        self._changed = asyncio.Event()
        pods: Informer[TrackedPod] = Informer(kube, PODS, keep=read_pod)
        jobs: Informer[TrackedJob] = Informer(kube, JOBS, keep=read_job)
        kueue: Informer[TrackedWorkload] = Informer(kube, workloads, keep=_named(workloads, read_workload))
        groups: Informer[TrackedPodGroup] = Informer(kube, KAI_POD_GROUPS, keep=_named(KAI_POD_GROUPS, read_pod_group))
        evict_events: Informer[tuple[Key, Evicted]] = Informer(
            kube, EVENTS, keep=evict_event, field_selector="reason=Evict"
        )
        kaiwo: Informer[GpuWorkload] = Informer(kube, GPU_WORKLOADS, keep=read_gpu_workload)
        self.spans = SpanExport("kopt-evictions")
        self.lives = LifeSpans(self.observed, self.spans, lambda: self._leader.leading, time.time)
        kaiwo.subscribe(self._to(self.observed.kaiwo))
        pods.subscribe(self._to(self.observed.pod))
        jobs.subscribe(self._to(self.observed.job))
        kueue.subscribe(self._to(self.observed.workload))
        pods.subscribe(self._to(self.lives.pod))
        kueue.subscribe(self._to(self.lives.workload))
        groups.subscribe(self._to(self.observed.group))
        evict_events.subscribe(self._to(self._group_evicted))
        self.store.informer.subscribe(self._eviction_changed)
        super().__init__(kube, NAME, settings, (pods, jobs, kueue, groups, evict_events, kaiwo, self.store.informer))
        self.gauge("lines", "Evictions in the ledger.", lambda: len(self.store.entries()))
        self.gauge("waiting", "Evicted workloads that have not resumed.", self._pending_count)
        self.gauge("errors", "Writes that failed and are retried.", lambda: self.errors)

    async def stop(self) -> None:
        await super().stop()
        await asyncio.to_thread(self.spans.close)

    async def lead(self, fence: Fence) -> None:
        # Beside the records, which wait for no collector.
        sending = asyncio.create_task(self.lives.send_all())
        try:
            await self._record(fence)
        finally:
            sending.cancel()

    async def _record(self, fence: Fence) -> None:
        await self._read_evictions()
        recorder = Recorder(
            self.observed, self.store, fence, self._emit_event, self._keeping, time.monotonic, time.time, self.isolation
        )
        self.observed.dirty |= self.observed.everything() | set(self.store.workloads())
        await self.step_through(recorder, self._changed, _GATHER_S)

    async def _read_evictions(self) -> None:
        """What the previous leader has written: the watch may not have delivered its last records yet."""
        backoff = Backoff(0.2, 10.0)
        while True:
            try:
                async for page in self._kube.pages(EVICTIONS):
                    for document in page.items:
                        self.store.record(document)
                return
            except NotFound:
                _LOG.warning("evictions.kaiwo.ai are not served here: nothing can be written before they are installed")
                return
            except ApiError as error:
                _LOG.warning("evictions cannot be read: %s", error)
                await asyncio.sleep(backoff.next_s())

    def _to(self, handle: Callable[[Any, Any], None]) -> Callable[[Change[Any]], None]:
        def handler(change: Change[Any]) -> None:
            if change.old != change.new:
                handle(change.old, change.new)
                self._changed.set()

        return handler

    def _eviction_changed(self, change: Change[StoredEviction]) -> None:
        self.observed.dirty.update(stored.workload_uid for stored in (change.old, change.new) if stored is not None)
        self._changed.set()

    def _group_evicted(self, old: tuple[Key, Evicted] | None, new: tuple[Key, Evicted] | None) -> None:
        if new is not None:
            self.observed.group_evicted(*new)

    def _pending_count(self) -> int:
        return sum(entry.outcome.phase == "Waiting" for entry in self.store.entries())

    def _emit_event(self, eviction: Eviction, reason: str, sentence: str) -> None:
        workload_ref = eviction.workload
        regarding = {
            "apiVersion": workload_ref.api_version,
            "kind": workload_ref.kind,
            "namespace": eviction.namespace,
            "name": workload_ref.name,
            "uid": workload_ref.uid,
        }
        self.emit_event(regarding, reason, sentence)


def evict_event(event: Object) -> tuple[Key, Evicted] | None:
    """KAI's event about an evicted gang; None for other events."""
    regarding, annotations = mapping(event, "regarding"), mapping(event, "metadata", "annotations")
    if text(regarding, "kind") != "PodGroup":
        return None
    name = text(annotations, _PREEMPTOR_NAME)
    time_text = (
        text(event, "series", "lastObservedTime")
        or text(event, "deprecatedLastTimestamp")
        or text(event, "eventTime")
        or text(event, "metadata", "creationTimestamp")
    )
    for_whom = f"{text(annotations, _PREEMPTOR_SPACE)}/{name}" if name else ""
    return (text(regarding, "namespace"), text(regarding, "name")), Evicted(
        seconds(time_text), for_whom, text(event, "note")
    )


def _named(resource: Resource, read: Callable[[Object], Any]) -> Callable[[Object], Any]:
    """Items of a list carry no kind."""
    return lambda document: read({"apiVersion": resource.api_version, **document})
