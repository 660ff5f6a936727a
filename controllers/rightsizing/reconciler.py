"""One pass: changes that are open go on or end, and where there is room the next one is begun.

The record on the pods is written before each change. What a leader that dies leaves open the next one takes back: it
cannot show that steps are as fast as before. What was kept on some pods already is kept on all.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from kopt.cluster.client.errors import ApiError, Forbidden, Invalid
from kopt.cluster.client.prometheus import PrometheusError
from kopt.cluster.client.resources import PODS, Object
from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.resize_history import resizes_of
from kopt.cluster.runtime.events import EmitEvent
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.runtime.retry import Pauses, Retrying
from kopt.cluster.workloads.resizing.pods import ResizedPods
from kopt.cluster.workloads.resizing.use import Use
from kopt.controllers.rightsizing.candidates import Candidate, RunningWorkload, candidates_of
from kopt.controllers.rightsizing.owners import Above
from kopt.controllers.rightsizing.views import ObservedPod, read_pod, reference_of
from kopt.controllers.rightsizing.watching import Watch, is_writing, restarts_before
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.switches import Owner
from kopt.core.untrusted import printable
from kopt.core.workload.rightsizing import Outcome, Resize, ResizeRecord
from kopt.policies.rightsizing.cool_down import cooling_down
from kopt.policies.rightsizing.step_times import Marks
from kopt.policies.rightsizing.watch import WatchSettings, too_few_steps

Pods = Sequence[ObservedPod]
_RECENT_S = 180.0
"""Without a step for so long nothing is begun."""
_REFUSED_S = 3600.0
_LONGEST = 300
_REMEMBERED = 1024
ReadUse = Callable[[], Awaitable[Use]]
"""Raises PrometheusError."""


@dataclass(frozen=True)
class RightsizingSettings:
    """Times in seconds."""

    mode: Mode = Mode.OBSERVE
    most_open: int = 2
    """Changes at a time, of the whole cluster."""
    interval_s: float = 300.0
    """How often use is read and changes are proposed."""
    poll_s: float = 10.0
    """While a change is open."""
    accept_s: float = 60.0
    """For the kubelets to make the change."""
    # The log agent writes progress once a minute: twelve observations take longer than the command's ten minutes.
    watch: WatchSettings = field(default_factory=lambda: WatchSettings(baseline_s=1800.0))
    workload_may_lower: bool | None = None

    @property
    def keep_s(self) -> float:
        """How much of the past of each workload's steps is needed."""
        return self.watch.baseline_s + self.watch.deadline_s + 2 * self.accept_s


class Cluster(Protocol):
    """What informers have seen, and this term's writes."""

    def workloads(self) -> Mapping[Owner, Pods]: ...

    def marks(self, owner: Owner) -> Marks: ...

    def mode(self, owner: Owner, own: str) -> Mode: ...

    def idle_uids(self) -> frozenset[str]: ...

    async def above(self, pods: Pods) -> Above: ...

    def resized(
        self, documents: Sequence[Object], resize: Resize, clock: Callable[[], float], began_s: float = 0.0
    ) -> ResizedPods: ...


class Reconciler(Retrying):
    """``step`` does what there is to do."""

    def __init__(
        self,
        cluster: Cluster,
        settings: RightsizingSettings,
        read_use: ReadUse,
        emit_event: EmitEvent,
        clock: Callable[[], float] = time.time,
        isolation: Isolation | None = None,
    ) -> None:
        super().__init__(isolation or Isolation("rightsizing"), Pauses(changed_s=1.0, failed_s=5.0))
        self._cluster, self._settings, self._read_use = cluster, settings, read_use
        self._emit_event, self._clock = emit_event, clock
        self._watches: dict[Owner, Watch] = {}
        self._proposed: dict[Owner, Resize] = {}
        self._refused_s: dict[tuple[Owner, Resize], float] = {}
        """When the API server has refused a change: it is asked again after a while, as quotas may be free then."""
        self._ended: deque[tuple[Owner, float]] = deque(maxlen=_REMEMBERED)
        """Changes that ended in this term: informers may still show them as open."""
        self._proposed_at_s = float("-inf")
        self.measured = 0
        """1 while use is read."""

    @property
    def open(self) -> int:
        return len(self._watches)

    @property
    def proposed(self) -> int:
        """Workloads that would be changed."""
        return len(self._proposed)

    async def step(self) -> float:
        """In how many seconds to run again if nothing changes before. Raises Deposed."""
        workloads, again_s = self._cluster.workloads(), [self._settings.interval_s]
        left = [owner for owner, pods in workloads.items() if any(pod.open for pod in pods)]
        for owner in {*left, *self._watches}:
            pods = workloads.get(owner, ())
            again_s.append(await self._tried(partial(self._go_on, owner, pods), _subject(pods)))
        if self._clock() - self._proposed_at_s >= self._settings.interval_s:
            self._proposed_at_s = self._clock()
            await self._propose_all(workloads)
        if self._watches:
            again_s.append(self._settings.poll_s)
        return min([*again_s, max(0.0, self._proposed_at_s + self._settings.interval_s - self._clock())])

    # --- Changes that are open

    async def _go_on(self, owner: Owner, pods: Pods) -> float:
        watch = self._watches.get(owner) or await self._adopted(owner, pods)
        if watch is None:
            return self._settings.interval_s
        self._watches[owner] = watch
        if not pods:
            watch.end(Outcome.KEPT, Reason("WORKLOAD_ENDED", "The workload ended."))
        elif watch.ending is None:
            above = await self._cluster.above(pods)
            if self._cluster.mode(owner, above.mode) is not Mode.ENFORCE:
                watch.end(Outcome.UNDONE, Reason("SWITCHED_OFF", "It may not be changed any more (mode, or switch)."))
            elif above.why_not is not None:
                watch.end(Outcome.UNDONE, above.why_not)
            else:
                settings = self._settings
                watch.update(pods, self._cluster.marks(owner), self._clock(), settings.watch, settings.accept_s)
        if watch.ending is not None:
            await self._end(watch, *watch.ending)
            del self._watches[owner]
            self._ended.append((owner, watch.applied_s))
        return self._settings.poll_s

    async def _adopted(self, owner: Owner, pods: Pods) -> Watch | None:
        """What another term left open, to be ended; None where it has ended, and informers have yet to show that."""
        record = next((pod.open for pod in pods if pod.open is not None), None)
        if record is None or (owner, record.at_s) in self._ended:
            return None
        documents = [pod.document for pod in pods if pod.open == record]
        seen = await self._cluster.resized(documents, record.resize, self._clock, record.at_s).read()
        bearing = [pod for document in seen if (pod := read_pod(document)) is not None and pod.open == record]
        if not bearing:
            return None
        documents = [pod.document for pod in bearing]
        resized = self._cluster.resized(documents, record.resize, self._clock, record.at_s)
        watch = Watch(resized, reference_of(pods), record.at_s, restarts_before(bearing))
        if any(_has_kept(pod, record) for pod in pods):
            watch.end(Outcome.KEPT, Reason("STEPS_NOT_SLOWER", "Steps are not slower."))
        else:
            text = "The controller that made the change ended before it was decided."
            watch.end(Outcome.UNDONE, Reason("INTERRUPTED", text))
        return watch

    async def _end(self, watch: Watch, outcome: Outcome, reason: Reason) -> None:
        left = []
        if outcome is Outcome.KEPT:
            await watch.pods.finish(outcome, reason.message)
        else:
            left = [f" {each.name} was left as it is: {each.why}." for each in await watch.pods.restore(reason.message)]
        text = f"{watch.pods.resize.text}, {outcome}. {reason.message}{''.join(left)}"
        self._emit_event(watch.reference, "ResizeKept" if outcome is Outcome.KEPT else "ResizeUndone", text)

    # --- The next ones

    async def _propose_all(self, workloads: Mapping[Owner, Pods]) -> None:
        try:
            use = await self._read_use()
        except PrometheusError:
            self.errors += 1
            self.measured = 0
            return
        self.measured = 1
        idle = self._cluster.idle_uids()
        best = {
            owner: change
            for owner, pods in workloads.items()
            if owner not in self._watches and (change := self._best(owner, pods, use, idle)) is not None
        }
        self._proposed = {owner: resize for owner, resize in self._proposed.items() if owner in best}
        for owner, candidate in sorted(best.items(), key=lambda item: -item[1].freed_share):
            await self._tried(partial(self._propose, owner, workloads[owner], candidate), _subject(workloads[owner]))

    def _best(self, owner: Owner, pods: Pods, use: Use, idle: frozenset[str]) -> Candidate | None:
        """The change of a workload that gives back the largest share; None where none is possible."""
        uids = {pod.uid for pod in pods} | {pod.controller.uid for pod in pods if pod.controller is not None}
        workload = RunningWorkload(
            owner.namespace,
            f"{owner.plural}/{owner.name}",
            reference_of(pods),
            opts_out=any(pod.opts_out for pod in pods),
            ended_by_kaiwo=bool(uids & idle),
        )
        with self._isolation.guard(Subject.of(PODS, pods[0].document)):
            candidates = candidates_of(workload, [pod.document for pod in pods], use, self._clock())
            changes = [each for each in candidates if each.resize is not None]
            return max(changes, key=lambda each: each.freed_share, default=None)
        return None

    async def _propose(self, owner: Owner, pods: Pods, candidate: Candidate) -> float:
        assert candidate.resize is not None
        above = await self._cluster.above(pods)
        if above.why_not is not None or above.uids & self._cluster.idle_uids():
            self._proposed.pop(owner, None)
            return self._settings.interval_s
        if self._proposed.get(owner) != candidate.resize:
            self._proposed[owner] = candidate.resize
            self._emit_event(candidate.workload.reference, "ResizeProposed", f"{candidate.resize.text}.")
        resting = cooling_down(above.widths, candidate.resize.subject, self._clock())
        if resting is None and self._may_begin(owner, pods, above):
            await self._begin(owner, pods, candidate.resize)
        return self._settings.interval_s

    def _may_begin(self, owner: Owner, pods: Pods, above: Above) -> bool:
        """Room, the mode, steps to compare with, and no checkpoint under way."""
        if len(self._watches) >= self._settings.most_open or self._cluster.mode(owner, above.mode) is not Mode.ENFORCE:
            return False
        now_s, watch = self._clock(), self._settings.watch
        marks = self._cluster.marks(owner)
        if marks.last_s is None or now_s - marks.last_s > _RECENT_S:
            return False
        times = marks.times(watch.sample_s)
        recent = [each.seconds for each in times if each.start_s >= now_s - watch.baseline_s]
        return too_few_steps(recent, watch) is None and not is_writing(pods, now_s)

    async def _is_accepted(self, owner: Owner, pods: Pods, resized: ResizedPods) -> bool:
        """Whether the API server would take it: quotas, limits of the namespace, kubelets that cannot resize."""
        self._refused_s = {key: at_s for key, at_s in self._refused_s.items() if self._clock() - at_s < _REFUSED_S}
        if (owner, resized.resize) in self._refused_s:
            return False
        try:
            await resized.check()
        except (Forbidden, Invalid) as error:
            self._refused_s[owner, resized.resize] = self._clock()
            text = f"{resized.resize.text}: the API server refuses it: {printable(error.message, _LONGEST)}"
            self._emit_event(reference_of(pods), "ResizeRefused", text)
            return False
        return True

    async def _begin(self, owner: Owner, pods: Pods, resize: Resize) -> None:
        applied_s = float(int(self._clock()))
        resized = self._cluster.resized([pod.document for pod in pods], resize, self._clock)
        if not await self._is_accepted(owner, pods, resized):
            return
        await resized.open(applied_s)
        watch = Watch(resized, reference_of(pods), applied_s, restarts_before(pods))
        self._watches[owner] = watch
        self._proposed.pop(owner, None)
        try:
            await resized.apply()
        except ApiError as error:
            watch.end(Outcome.UNDONE, Reason("INTERRUPTED", f"The API server did not take it: {error}."))
            raise
        self._emit_event(watch.reference, "ResizeApplied", f"{resize.text}, and watched.")


def _has_kept(pod: ObservedPod, record: ResizeRecord) -> bool:
    try:
        history = resizes_of(pod.document)
    except AnnotationError:
        return False
    return any((each.resize, each.at_s, each.outcome) == (record.resize, record.at_s, Outcome.KEPT) for each in history)


def _subject(pods: Pods) -> Subject | None:
    return Subject.of(PODS, pods[0].document) if pods else None
