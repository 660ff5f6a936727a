"""The spans of traced pods and Workloads after the webhook's and the extender's (O6): from queue to the end of the run.

Every span follows from times on the objects, and its id from the object's uid and the phase. So what is sent again,
after a restart or by the next leader, is the same span. The leader alone sends.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from kopt.cluster.runtime.tracing import Span, SpanExport, TraceContext, derived_context
from kopt.cluster.workloads.traced import TracedPod, TracedWorkload
from kopt.cluster.workloads.tracked_pod import TrackedPod
from kopt.controllers.evictions.observations import FORGOTTEN_AFTER_S, Observed
from kopt.controllers.evictions.views import TrackedWorkload

WAIT_FOR_NODE, START, BECOME_READY, RUN = "wait for node", "start containers", "become ready", "run pod"
WAIT_FOR_QUOTA, PASS_CHECKS, HOLD_QUOTA = "wait for quota", "pass admission checks", "hold quota"
_AT_ONCE = 100
"""Pods, of at most four spans, that are sent before the collector has to have taken them; OpenTelemetry keeps 2,048."""
_MOST_UNSENT = 10_000
T = TypeVar("T")
_NEVER_BOUND, _NEVER_RAN = "it was never bound to a node", "it never ran"


@dataclass(eq=False)
class _Gang:
    """Pods of a workload that were given their quota at once; it lives as long as one of them does."""

    first: tuple[float, str]
    """When the first of them was created, and its name."""
    start: TraceContext
    """The start of the first one's containers."""
    waited: TraceContext | None
    """The wait for their quota."""


class _Wait(NamedTuple):
    """The last wait for quota of a workload that has ended."""

    workload_uid: str
    until_s: float
    context: TraceContext


class LifeSpans:
    """Subscribe ``pod`` and ``workload`` after ``observed``; ``send_all`` as a term begins. ``clock``: Unix seconds."""

    def __init__(
        self, observed: Observed, export: SpanExport, leads: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self._observed, self._export, self._leads, self._clock = observed, export, leads, clock
        self._sent: dict[str, set[str]] = {}
        self._unsent: deque[tuple[float, Span]] = deque(maxlen=_MOST_UNSENT)
        """Of what had gone while another replica led, with that time: its leader may not have sent them."""
        self._started: dict[str, TracedPod] = {}
        """Pods as they were when their containers had first started; a status forgets it after two more starts."""
        self._before: dict[str, TracedWorkload] = {}
        """Of each Workload what its conditions have said last of its quota, which they forget at an eviction."""
        self._waits: dict[str, _Wait] = {}
        """By root."""
        self._gang_of: dict[str, _Gang] = {}
        """By the pod's uid."""
        self._gangs: WeakValueDictionary[tuple[str, TraceContext | None], _Gang] = WeakValueDictionary()

    def pod(self, old: TrackedPod | None, new: TrackedPod | None) -> None:
        pod = new or old
        if pod is None or not self._export.wanted:
            return
        if pod.traced is not None:
            if pod.traced.started_s is not None:
                self._started.setdefault(pod.uid, pod.traced)
            self._join(pod, pod.traced)
            self._send_pod(pod, pod.traced, gone=new is None)
        if new is None:
            # Also of what has lost its annotation since.
            for kept in (self._sent, self._gang_of, self._started):
                kept.pop(pod.uid, None)

    def workload(self, old: TrackedWorkload | None, new: TrackedWorkload | None) -> None:
        workload = new or old
        if workload is None or not self._export.wanted:
            return
        if workload.traced is not None:
            self._send_workload(workload, workload.traced, gone=new is None)
            self._before[workload.uid] = _remembered(workload.traced, self._before.get(workload.uid))
        if new is None:
            self._before.pop(workload.uid, None)
            self._sent.pop(workload.uid, None)
            root = _root_of(workload)
            if root in self._waits and self._waits[root].workload_uid == workload.uid:
                del self._waits[root]

    async def send_all(self) -> None:
        """What has happened before this replica led, no faster than the collector takes it."""
        if not self._export.wanted:
            return
        since_s, unsent = self._clock() - FORGOTTEN_AFTER_S, list(self._unsent)
        self._unsent.clear()
        async for gone_s, span in self._paced(unsent):
            if gone_s >= since_s and self._leads():
                self._export.record(span)
        async for workload in self._paced([each for each in self._observed.workloads.values() if each.traced]):
            if workload.traced is not None:
                self._send_workload(workload, workload.traced)
        pods = [pod for pod in self._observed.pods.values() if pod.traced is not None]
        for pod in pods:
            if pod.traced is not None:
                self._join(pod, pod.traced)
        async for pod in self._paced(pods):
            if pod.traced is not None and pod.uid in self._observed.pods:
                self._send_pod(pod, pod.traced)

    async def _paced(self, items: Sequence[T]) -> AsyncIterator[T]:
        for number, item in enumerate(items, 1):
            yield item
            if number % _AT_ONCE == 0:
                await asyncio.to_thread(self._export.flush)

    def _send_pod(self, pod: TrackedPod, traced: TracedPod, *, gone: bool = False) -> None:
        if (first := self._started.get(pod.uid)) is not None:
            traced = replace(traced, started_s=first.started_s, ready_s=_first(first.ready_s, traced.ready_s))
        gone_s = self._clock() if gone else None
        self._send(pod.uid, pod_spans(pod.uid, traced, gone_s, self._links(pod.uid, traced)), gone_s)

    def _send_workload(self, workload: TrackedWorkload, traced: TracedWorkload, *, gone: bool = False) -> None:
        gone_s = self._clock() if gone else None
        spans = list(workload_spans(workload.uid, traced, self._before.get(workload.uid), gone_s))
        for span in spans:
            if span.name == WAIT_FOR_QUOTA and not span.error and traced.reserved_s is not None:
                self._waits[_root_of(workload)] = _Wait(workload.uid, traced.reserved_s, span.context)
        self._send(workload.uid, spans, gone_s)

    def _send(self, uid: str, spans: Iterable[Span], gone_s: float | None) -> None:
        leads = self._leads()
        if not leads and gone_s is None:
            return  # It is still there when this replica leads.
        sent = self._sent.setdefault(uid, set())
        for span in spans:
            if span.context.span_id in sent:
                continue
            sent.add(span.context.span_id)
            if leads:
                self._export.record(span)
            elif gone_s is not None:
                self._unsent.append((gone_s, span))

    def _join(self, pod: TrackedPod, traced: TracedPod) -> None:
        """Count a pod to its gang. Gangs are kept up with, not looked for: 1,000 pods would each go through 1,000."""
        # Workloads of groups without an owner are not traced, and are looked for among all.
        root = self._observed.root_of(pod).uid if pod.owner is not None else pod.anchor
        wait = self._waits.get(root)
        if wait is not None and wait.until_s > traced.created_s:
            if pod.uid in self._gang_of:
                return  # It was made after an earlier wait.
            wait = None
        waited = None if wait is None else wait.context
        first, start = (traced.created_s, traced.name), _start_of(pod.uid, traced)
        gang = self._gangs.get((root, waited))
        if gang is None:
            gang = self._gangs[root, waited] = _Gang(first, start, waited)
        elif first < gang.first:
            gang.first, gang.start = first, start
        self._gang_of[pod.uid] = gang

    def _links(self, uid: str, traced: TracedPod) -> tuple[TraceContext, ...]:
        """The first pod of its gang, where that is another, and the wait for the quota that all were given at once."""
        gang = self._gang_of.get(uid)
        if gang is None:
            return ()
        links = () if gang.start == _start_of(uid, traced) else (gang.start,)
        return links if gang.waited is None else (*links, gang.waited)


def pod_spans(
    uid: str, pod: TracedPod, gone_s: float | None = None, links: tuple[TraceContext, ...] = ()
) -> Iterator[Span]:
    """What has ended of a pod's life. ``gone_s``: when its object had gone, None while it is there. A phase that its
    end cut off ends with it, as an error."""
    about = {"k8s.namespace.name": pod.namespace, "k8s.pod.name": pod.name, "k8s.pod.uid": uid}
    about |= {"k8s.node.name": pod.node} if pod.node else {}
    end_s = _first(pod.ended_s, None if gone_s is None else _first(pod.deleted_s, gone_s))
    cut = pod.failed or ("" if pod.ended_s is not None else "deleted")

    def span(name: str, start_s: float, until_s: float, error: str = "") -> Span:
        context = _start_of(uid, pod) if name == START else derived_context(pod.context, uid, name)
        joined = links if name in (START, RUN) else ()
        return Span(name, context, _ns(start_s), _ns(max(start_s, until_s)), about, error, joined)

    if pod.bound_s is None:
        if end_s is not None:
            yield span(WAIT_FOR_NODE, pod.created_s, end_s, f"{cut}: {_NEVER_BOUND}")
        return
    yield span(WAIT_FOR_NODE, pod.created_s, pod.bound_s)
    if pod.started_s is None:
        if end_s is not None and not pod.restarted:
            yield span(START, pod.bound_s, end_s, f"{cut}: {_NEVER_RAN}")
        return
    yield span(START, pod.bound_s, pod.started_s)
    if pod.ready_s is not None:
        yield span(BECOME_READY, pod.started_s, pod.ready_s)
    if end_s is not None:
        yield span(RUN, pod.started_s, end_s, cut)


def workload_spans(
    uid: str, workload: TracedWorkload, before: TracedWorkload | None = None, gone_s: float | None = None
) -> Iterator[Span]:
    """What has ended of a Workload's way through its queue. ``before``: what was remembered of it; ``gone_s``: when its
    object had gone. After an eviction it waits anew; since when is only known to who has seen the eviction."""
    about = {"k8s.namespace.name": workload.namespace, "kueue.workload.name": workload.name}
    about |= {"kueue.queue.name": workload.queue} if workload.queue else {}
    end_s = _first(workload.finished_s, None if gone_s is None else _first(workload.deleted_s, gone_s))

    def span(name: str, start_s: float, until_s: float, error: str = "") -> Span:
        context = derived_context(workload.context, uid, name, _ns(start_s))
        return Span(name, context, _ns(start_s), _ns(max(start_s, until_s)), about, error)

    if workload.evicted_s is not None:
        waited_from_s: float | None = workload.evicted_s
    else:
        waited_from_s = workload.created_s if not workload.was_evicted else before.evicted_s if before else None
    if waited_from_s is not None:
        if workload.evicted_s is None and workload.reserved_s is not None:
            yield span(WAIT_FOR_QUOTA, waited_from_s, workload.reserved_s)
        elif end_s is not None:
            yield span(WAIT_FOR_QUOTA, waited_from_s, end_s, workload.failed or "deleted: it was never admitted")
    if workload.checked and workload.reserved_s is not None and workload.admitted_s is not None:
        yield span(PASS_CHECKS, workload.reserved_s, workload.admitted_s)
    admitted_s = _first(workload.admitted_s, before.admitted_s if before else None)
    ended_s = _first(workload.evicted_s, end_s)
    if admitted_s is not None and ended_s is not None and admitted_s <= ended_s:
        yield span(HOLD_QUOTA, admitted_s, ended_s, workload.failed or ("" if workload.finished_s else "deleted"))


def _remembered(now: TracedWorkload, before: TracedWorkload | None) -> TracedWorkload:
    """Its admission until it has waited anew, and its last eviction."""
    if before is None:
        return now
    waits_anew = now.evicted_s is None and now.admitted_s is None and before.evicted_s is not None
    admitted_s = None if waits_anew else _first(now.admitted_s, before.admitted_s)
    return replace(now, admitted_s=admitted_s, evicted_s=_first(now.evicted_s, before.evicted_s))


def _start_of(uid: str, pod: TracedPod) -> TraceContext:
    return derived_context(pod.context, uid, START)


def _root_of(workload: TrackedWorkload) -> str:
    return (workload.owner or workload.ref).uid


def _first(*times_s: float | None) -> float | None:
    return next((at_s for at_s in times_s if at_s is not None), None)


def _ns(at_s: float) -> int:
    return round(at_s * 1e9)
