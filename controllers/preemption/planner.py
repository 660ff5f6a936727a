"""Decides what to do about a pending Workload, from the current state of the cluster; writes nothing.

The planner keeps the state of the policy: checkpoint rhythms are learned at every reconcile, and evictions are read
from the Workloads, so that a new leader knows them too.
"""

from dataclasses import dataclass, replace

from kopt.cluster.workloads.kueue.objects import HOLDER, KueueWorkload
from kopt.controllers.preemption.observer import NO_QUEUE, QueueObserver
from kopt.controllers.preemption.ports import Cluster, ControllerSettings
from kopt.controllers.preemption.snapshot import (
    QueueSnapshot,
    differs,
    lacking,
    refusal,
    snapshot_for,
    to_shield,
    too_little,
    would_preempt,
)
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.policies.preemption import PreemptionAction, PreemptionDecision, PreemptionState, decide, observe
from kopt.policies.preemption.evidence import outlook
from kopt.policies.preemption.native import gangs_to_guard
from kopt.policies.preemption.state import Eviction

LAPSED = "lapsed"
"""The outcome for a Workload whose victims did not suffice."""
_NEXT_S, _SKEW_S = 1.0, 60.0


@dataclass(frozen=True)
class Evaluation:
    """A decision with its snapshot. ``decision`` is None if the policy was not called; ``reason`` says why.
    ``guarded`` are the Workloads to shield where the choice is left to Kueue."""

    snapshot: QueueSnapshot
    reason: Reason
    decision: PreemptionDecision | None = None
    state: PreemptionState | None = None
    guarded: tuple[KueueWorkload, ...] = ()

    @property
    def victims(self) -> list[KueueWorkload]:
        names = self.decision.victims if self.decision else ()
        return [workload for workload in self.snapshot.workloads if workload.name in names]


class Planner:
    """Call ``learn`` at every reconcile, then ``evaluate``, and ``applied`` once a decision was carried out."""

    def __init__(self, cluster: Cluster, settings: ControllerSettings, observer: QueueObserver) -> None:
        self._cluster, self._settings, self._observer = cluster, settings, observer
        self._state = PreemptionState()

    def learn(self, now_s: float) -> None:
        """Learn the current statuses, and evictions, including those of the previous leader."""
        workloads = self._cluster.workloads()
        running = {workload.name: workload for workload in workloads if workload.running}
        pending = {workload.name: workload for workload in workloads if workload.pending}
        # Only evictions under way count for running workloads; one that was kept can be a victim again.
        earlier = {
            eviction
            for eviction in self._state.evictions
            if eviction.gang not in running or (running[eviction.gang].reserved_s or 0.0) > eviction.at_s
        }
        evicted = {
            Eviction(workload.evicting.at_s, workload.name, workload.evicting.preemptor)
            for workload in workloads
            if workload.evicting
            and (not workload.running or self._is_under_way(pending.get(workload.evicting.preemptor), now_s))
        }
        # Annotations are written to the millisecond.
        new = {
            eviction
            for eviction in evicted
            if not any(eviction.gang == two.gang and abs(eviction.at_s - two.at_s) < 1 for two in earlier)
        }
        evictions = tuple(sorted(earlier | new, key=lambda eviction: (eviction.at_s, eviction.gang)))
        gangs = [gang for workload in running.values() if (gang := self._observer.gang(workload, now_s))]
        self._state = observe(replace(self._state, evictions=evictions), gangs, now_s)
        self._observer.remember(now_s)

    def evaluate(self, preemptor: KueueWorkload, now_s: float, mode: Mode = Mode.ENFORCE) -> Evaluation:
        """The policy's decision, or why it is not called."""
        if other := self._other_under_way(preemptor, now_s):
            # First, as it is cheap: hundreds of Workloads may be held at once.
            next_ = Reason(
                "NEXT", f"Room is being made for {other.name} in the same queue or cohort; {preemptor.name} is next."
            )
            wait = PreemptionDecision(PreemptionAction.WAIT, (next_,), (), until_s=now_s + _NEXT_S)
            return Evaluation(QueueSnapshot(now_s, NO_QUEUE, ()), next_, wait)
        snapshot = (
            self._observer.snapshot(preemptor, now_s)
            if mode is Mode.ENFORCE
            else self._observer.past_snapshot(preemptor, now_s)
        )
        if reason := self._unasked(preemptor, snapshot, mode):
            return Evaluation(snapshot, reason)
        if saving := self._still_saving(preemptor, snapshot):
            guarded = self._guarded(preemptor, snapshot)
            return Evaluation(snapshot, saving.reasons[0], saving, guarded=guarded)
        decision, state = decide(
            snapshot_for(preemptor, snapshot, self._settings.budget_s), self._state, self._settings.policy
        )
        evaluation = Evaluation(snapshot, decision.reasons[0], decision, state)
        if decision.action is PreemptionAction.FITS and (missing := lacking(preemptor, snapshot)):
            return Evaluation(snapshot, too_little(preemptor, missing))
        if decision.action is PreemptionAction.PREEMPT and (why := differs(preemptor, snapshot, evaluation.victims)):
            return Evaluation(snapshot, why)
        if decision.action is PreemptionAction.PREEMPT:
            return evaluation
        return replace(evaluation, guarded=self._guarded(preemptor, snapshot))

    def would_preempt(self, preemptor: KueueWorkload, now_s: float) -> bool:
        """Whether Kueue would preempt for a Workload now, and the mode is enforce."""
        return self.mode_of(preemptor) is Mode.ENFORCE and would_preempt(
            preemptor, self._observer.snapshot(preemptor, now_s)
        )

    def did_preempt(self, preemptor: KueueWorkload, now_s: float) -> list[str] | None:
        """Kueue's victims for a Workload that we do not hold; None if it fits without preemption."""
        snapshot = self._observer.past_snapshot(preemptor, now_s)
        if not would_preempt(preemptor, snapshot):
            return None
        by_uid = {workload.uid: workload for workload in self._cluster.workloads()}
        return [
            workload.name
            for workload in snapshot.workloads
            if workload.uid not in by_uid or not by_uid[workload.uid].running
        ]

    def applied(self, evaluation: Evaluation) -> None:
        if evaluation.state is not None:
            self._state = evaluation.state

    def _guarded(self, preemptor: KueueWorkload, snapshot: QueueSnapshot) -> tuple[KueueWorkload, ...]:
        """Workloads that are or may be writing, of all that Kueue could preempt: if one is shielded, Kueue preempts
        the next one, which may not have been a candidate."""
        rhythms, policy = {rhythm.gang: rhythm for rhythm in self._state.rhythms}, self._settings.policy
        gangs = {
            workload.name: (workload, gang)
            for workload in to_shield(preemptor, snapshot, ())
            if (gang := self._observer.gang(workload, snapshot.now_s))
        }
        outlooks = [outlook(gang, rhythms.get(name), snapshot.now_s, policy) for name, (_, gang) in gangs.items()]
        return tuple(gangs[name][0] for name in gangs_to_guard(outlooks, self._state, snapshot.now_s, policy)[0])

    def mode_of(self, workload: KueueWorkload) -> Mode:
        mode = self._cluster.mode(workload)
        return Mode(mode) if mode in tuple(Mode) else self._settings.mode

    def _unasked(self, preemptor: KueueWorkload, snapshot: QueueSnapshot, mode: Mode) -> Reason | None:
        if not snapshot.queue.name:
            return Reason("NO_QUEUE", f"{preemptor.name} is in no known queue.")
        if mode is Mode.ENFORCE and self.mode_of(preemptor) is not Mode.ENFORCE:
            return Reason("MODE", f"The mode for {preemptor.name} is no longer enforce.")
        if reason := refusal(preemptor, snapshot):
            return reason
        for workload in to_shield(preemptor, snapshot, ()):
            if workload.holder not in ("", HOLDER):
                text = f"{workload.name} is held for {workload.holder} and cannot be shielded."
                return Reason("HELD_BY_OTHERS", text)
        return None

    def _still_saving(self, preemptor: KueueWorkload, snapshot: QueueSnapshot) -> PreemptionDecision | None:
        """A decision to wait while gangs save a checkpoint for it, without another search. Pods that were not asked yet
        are asked now."""
        saving = {
            workload.name: result
            for workload in snapshot.workloads
            if workload.running and (result := snapshot.saving(workload)).is_for(preemptor.name)
        }
        if not saving:
            return None
        until_s = max(item.request.until_s for item in saving.values() if item.request)
        text = (
            f"{', '.join(saving)} {'was' if len(saving) == 1 else 'were'} asked to save; {preemptor.name} waits for "
            f"the checkpoint for {until_s - snapshot.now_s:.0f} s more at most."
        )
        return PreemptionDecision(
            PreemptionAction.WAIT,
            (Reason("SAVING", text),),
            (),
            until_s=until_s,
            save_requests=tuple(name for name, item in saving.items() if item.unasked_pods),
        )

    def _other_under_way(self, preemptor: KueueWorkload, now_s: float) -> KueueWorkload | None:
        under_way = [
            workload
            for workload in self._cluster.workloads()
            if workload.uid != preemptor.uid and self._is_under_way(workload, now_s)
        ]
        own = self._cluster.queue_of(preemptor)
        if own is None or not under_way:
            return None
        names = {queue.name for queue in self._observer.members(own)}
        return next(
            (
                workload
                for workload in under_way
                if (queue := self._cluster.queue_of(workload)) is not None and queue.name in names
            ),
            None,
        )

    def _is_under_way(self, workload: KueueWorkload | None, now_s: float) -> bool:
        return workload is not None and is_under_way(workload, now_s, self._settings.shield_s)


def is_under_way(workload: KueueWorkload, now_s: float, shield_s: float) -> bool:
    """Whether it was decided and released, and Kueue has not reserved quota for it yet. A deadline beyond the lifetime
    of shields comes from another clock, or is not ours."""
    decision = workload.decision
    return (
        workload.pending
        and workload.active
        and decision is not None
        and 0 < decision.until_s - now_s <= shield_s + _SKEW_S
    )


def is_lapsed(workload: KueueWorkload) -> bool:
    return workload.decision is not None and workload.decision.action == LAPSED
