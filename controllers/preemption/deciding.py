"""What to do about a waiting Workload, from what the cluster shows now; writes nothing.

The state of the policy is kept here: rhythms of checkpoints are learned at every look, and who was told to go is read
off the Workloads, so that a new leader knows it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kopt.controllers.preemption.given import Cluster, ControllerSettings
from kopt.controllers.preemption.scene import (
    Facts,
    freed_by,
    gang_of,
    lacking,
    refusal,
    scene_of,
    to_cover,
    too_little,
    would_preempt,
)
from kopt.controllers.preemption.views import HOLDER, ClusterQueueView, PodView, WorkloadView
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.policies.preemption import PreemptionDecision, PreemptionState, RunningGang, Verdict, decide, observe
from kopt.policies.preemption.evidence import outlook
from kopt.policies.preemption.native import kept_from_it
from kopt.policies.preemption.state import Eviction

LAPSED = "lapsed"
"""The verdict on a Workload for which the chosen alone did not suffice."""
_DAY_S, _LOOKS_BACK_S = 86_400.0, 60.0
_NEXT_S, _SKEW_S = 1.0, 60.0
_NO_QUEUE = ClusterQueueView("", {}, "Never", "", False)


@dataclass(frozen=True)
class Judged:
    """A decision with what it rests on. ``decision`` is None where the policy is not asked, ``reason`` says why."""

    facts: Facts
    reason: Reason
    decision: PreemptionDecision | None = None
    state: PreemptionState | None = None

    @property
    def victims(self) -> list[WorkloadView]:
        names = self.decision.victims if self.decision else ()
        return [one for one in self.facts.workloads if one.name in names]


class Deciding:
    """``learn`` at every look, then ``judge``; ``applied`` once a decision was carried out."""

    def __init__(self, cluster: Cluster, settings: ControllerSettings) -> None:
        self._cluster, self._settings = cluster, settings
        self._state = PreemptionState()
        self._ran: dict[str, tuple[WorkloadView, Sequence[PodView]]] = {}

    def learn(self, now_s: float) -> None:
        """What statuses say now, and who was told to go and did, also by the leader before."""
        views = self._cluster.workloads()
        running = {one.name: one for one in views if one.running}
        waiting = {one.name: one for one in views if one.pending}
        # Who runs was told of nothing but what is under way; who was and stayed can be chosen again.
        kept = {one for one in self._state.evictions
                if one.gang not in running or (running[one.gang].reserved_s or 0.0) > one.at_s}  # fmt: skip
        told = {Eviction(one.evicting.at_s, one.name, one.evicting.waiting) for one in views if one.evicting and (
            not one.running or self._is_under_way(waiting.get(one.evicting.waiting), now_s)
        )}  # fmt: skip
        # Annotations are written to the millisecond.
        new = {one for one in told if not any(one.gang == two.gang and abs(one.at_s - two.at_s) < 1 for two in kept)}
        evictions = tuple(sorted(kept | new, key=lambda one: (one.at_s, one.gang)))
        gangs = [gang for one in running.values() if (gang := self._gang(one, now_s))]
        self._state = observe(replace(self._state, evictions=evictions), gangs, now_s)
        there = {one.uid: one for one in views}
        self._ran = {uid: known for uid, known in self._ran.items()
                     if uid in there and now_s - (there[uid].evicted_at_s or now_s) < _LOOKS_BACK_S}  # fmt: skip
        self._ran |= {one.uid: (one, self._cluster.pods_of(one)) for one in running.values()}

    def judge(self, waiting: WorkloadView, now_s: float, mode: Mode = Mode.ENFORCE) -> Judged:
        """What the policy says, or why it is not asked."""
        if other := self._other_under_way(waiting, now_s):
            # First, as it costs next to nothing: hundreds may be held at once.
            next_ = Reason("NEXT", f"Room is being made for {other.name} in the same queue; {waiting.name} is next.")
            wait = PreemptionDecision(Verdict.WAIT, (next_,), (), until_s=now_s + _NEXT_S)
            return Judged(Facts(now_s, _NO_QUEUE, ()), next_, wait)
        facts = self.facts(waiting, now_s) if mode is Mode.ENFORCE else self.looked_back(waiting, now_s)
        if reason := self._unasked(waiting, facts, mode):
            return Judged(facts, reason)
        if saving := self._still_saving(waiting, facts):
            return Judged(facts, saving.reasons[0], saving)
        decision, state = decide(scene_of(waiting, facts, self._settings.budget_s), self._state, self._settings.policy)
        judged = Judged(facts, decision.reasons[0], decision, state)
        if decision.verdict in (Verdict.PREEMPT, Verdict.FITS) and (
            missing := lacking(waiting, facts, freed_by(judged.victims))
        ):
            return Judged(facts, too_little(waiting, missing))
        return judged

    def would_preempt(self, waiting: WorkloadView, now_s: float) -> bool:
        """Whether Kueue would make room for a Workload now, and we are to choose."""
        return self.mode_of(waiting) is Mode.ENFORCE and would_preempt(waiting, self.facts(waiting, now_s))

    def did_preempt(self, waiting: WorkloadView, now_s: float) -> list[str] | None:
        """Whom Kueue took for a Workload that is not ours to hold; None where it needs nobody's room."""
        facts = self.looked_back(waiting, now_s)
        if not would_preempt(waiting, facts):
            return None
        there = {one.uid: one for one in self._cluster.workloads()}
        return [one.name for one in facts.workloads if one.uid not in there or not there[one.uid].running]

    def applied(self, judged: Judged) -> None:
        if judged.state is not None:
            self._state = judged.state

    def still_safe(self, victims: Sequence[WorkloadView], now_s: float) -> bool:
        """The last look before the chosen can be taken."""
        gangs = [self._gang(one, now_s) for one in victims]
        return all(gang and all(one.status and one.status.safe for one in gang.members) for gang in gangs)

    def guarded(self, waiting: WorkloadView, facts: Facts) -> list[WorkloadView]:
        """Who is or may be in a write, of all whom Kueue could take: where one is kept from it, it takes the next, and
        that one may not have been weighed."""
        rhythms, policy = {one.gang: one for one in self._state.rhythms}, self._settings.policy
        gangs = {
            one.name: (one, gang) for one in to_cover(waiting, facts, ()) if (gang := self._gang(one, facts.now_s))
        }
        outlooks = [outlook(gang, rhythms.get(name), facts.now_s, policy) for name, (_, gang) in gangs.items()]
        return [gangs[name][0] for name in kept_from_it(outlooks, self._state, facts.now_s, policy)[0]]

    def facts(self, view: WorkloadView, now_s: float) -> Facts:
        """The ClusterQueue of a Workload now."""
        queue = self._cluster.queue_of(view) or _NO_QUEUE
        own = [one for one in self._cluster.workloads() if one.cluster_queue == queue.name and not one.pending]
        counts = self._cluster.preemptions(now_s - _DAY_S)
        return Facts(
            now_s, queue, own, {one.uid: self._cluster.pods_of(one) for one in own if one.running},
            {one.uid: max(counts.get(one.uid, 0), counts.get(one.owner_uid, 0)) for one in own},
            self._settings.policy.stale_s, view.came_s,
        )  # fmt: skip

    def looked_back(self, waiting: WorkloadView, now_s: float) -> Facts:
        """Its ClusterQueue as it was when a Workload came: Kueue does not wait for us where we only look on."""
        queue = self._cluster.queue_of(waiting) or _NO_QUEUE
        own = {view.uid: (view, pods) for view, pods in self._ran.values() if view.cluster_queue == queue.name
               and view.uid != waiting.uid and (view.reserved_s or 0.0) <= waiting.created_s}  # fmt: skip
        return Facts(now_s, queue, [view for view, _ in own.values()], {uid: pods for uid, (_, pods) in own.items()},
                     stale_s=self._settings.policy.stale_s)  # fmt: skip

    def mode_of(self, view: WorkloadView) -> Mode:
        said = self._cluster.mode(view)
        return Mode(said) if said in tuple(Mode) else self._settings.mode

    def _unasked(self, waiting: WorkloadView, facts: Facts, mode: Mode) -> Reason | None:
        if not facts.queue.name:
            return Reason("NO_QUEUE", f"{waiting.name} is in no queue that is known.")
        if mode is Mode.ENFORCE and self.mode_of(waiting) is not Mode.ENFORCE:
            return Reason("MODE", f"The mode for {waiting.name} is no longer enforce.")
        if reason := refusal(waiting, facts):
            return reason
        for one in to_cover(waiting, facts, ()):
            if one.holder not in ("", HOLDER):
                return Reason("HELD_BY_OTHERS", f"{one.name} is held for {one.holder} and cannot be covered.")
        return None

    def _gang(self, view: WorkloadView, now_s: float) -> RunningGang | None:
        place = next((one for one in view.uses if one[1] == view.gpu_resource), None)
        queue = self._cluster.queue_of(view)
        if place is None or queue is None:
            return None
        facts = Facts(now_s, queue, (), {view.uid: self._cluster.pods_of(view)}, {}, self._settings.policy.stale_s)
        return gang_of(view, place, facts)

    def _still_saving(self, waiting: WorkloadView, facts: Facts) -> PreemptionDecision | None:
        """Who was asked to save for it is waited for: whom else to take is not asked meanwhile. Pods that were not
        reached are asked now."""
        saving = {one.name: found for one in facts.workloads
                  if one.running and (found := facts.saving(one)).is_for(waiting.name)}  # fmt: skip
        if not saving:
            return None
        until_s = max(one.request.until_s for one in saving.values() if one.request)
        text = (f"{', '.join(saving)} {'was' if len(saving) == 1 else 'were'} asked to save; {waiting.name} waits for "
                f"the checkpoint for {until_s - facts.now_s:.0f} s more at most.")  # fmt: skip
        return PreemptionDecision(Verdict.WAIT, (Reason("SAVING", text),), (), until_s=until_s,
                                  asks=tuple(name for name, one in saving.items() if one.left))  # fmt: skip

    def _other_under_way(self, waiting: WorkloadView, now_s: float) -> WorkloadView | None:
        own = self._cluster.queue_of(waiting)
        return next((one for one in self._cluster.workloads() if one.uid != waiting.uid and own is not None
                     and self._is_under_way(one, now_s) and self._cluster.queue_of(one) == own), None)  # fmt: skip

    def _is_under_way(self, view: WorkloadView | None, now_s: float) -> bool:
        return view is not None and is_under_way(view, now_s, self._settings.cover_s)


def is_under_way(view: WorkloadView, now_s: float, cover_s: float) -> bool:
    """Decided and let go, and Kueue has not given it quota yet. What is to last longer than covers do is of another
    clock, or not ours."""
    verdict = view.verdict
    return view.pending and view.active and verdict is not None and 0 < verdict.until_s - now_s <= cover_s + _SKEW_S


def is_lapsed(view: WorkloadView) -> bool:
    return view.verdict is not None and view.verdict.word == LAPSED
