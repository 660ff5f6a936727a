"""One reconcile of all Workloads, from their annotations: nothing that matters is only in memory.

A Workload that Kueue would preempt for is held (``active: false``) from its creation on, or from when another holder
releases it. While it is held, the policy is called at every change; gangs that can save on request are asked to, and
waited for. Then, in this order: all Workloads that must not be preempted are shielded (a priority above the
preemptor's), the victims get a notice, and the Workload is released: Kueue finds no other victims. Shields end when it
has quota, or is gone, or after ``shield_s``. If a step fails, the next reconcile continues or undoes it. Until Kueue
has decided, a victim that begins to write is shielded as well.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from kopt.cluster.checkpoints.status import grounds
from kopt.cluster.client.resources import KUEUE_WORKLOADS, Object
from kopt.cluster.holds.hold import release
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.runtime.retry import SOON_S
from kopt.cluster.workloads.kueue.objects import HOLDER, MINE, GpuPod, KueueWorkload
from kopt.controllers.preemption.base_reconciler import BaseReconciler
from kopt.controllers.preemption.observer import QueueObserver
from kopt.controllers.preemption.patches import (
    advised,
    decision_document,
    eviction_notice,
    held,
    no_eviction_notice,
    outcome_document,
    released,
    save_request,
    shielded,
    stamp,
)
from kopt.controllers.preemption.planner import LAPSED, Evaluation, Planner, is_lapsed, is_under_way
from kopt.controllers.preemption.ports import Cluster, ControllerSettings, EmitEvent, Writer
from kopt.controllers.preemption.snapshot import QueueSnapshot, to_shield
from kopt.core.decision import Mode
from kopt.core.workload.checkpoint_request import SaveRequest
from kopt.policies.preemption import PreemptionAction, PreemptionDecision

_LOG = logging.getLogger(__name__)
DECISIONS = logging.getLogger("kopt.decisions")
_IDLE_S, _NEW_S = 30.0, 30.0
_OWN_RULES = "The selected victims did not make enough room; Kueue applies its own rules."


class Reconciler(BaseReconciler):
    """``step`` reconciles and returns the seconds until the next one if nothing changes before."""

    def __init__(
        self,
        cluster: Cluster,
        writer: Writer,
        settings: ControllerSettings,
        emit_event: EmitEvent,
        clock: Callable[[], float] = time.time,
        isolation: Isolation | None = None,
    ) -> None:
        super().__init__(isolation)
        self._cluster, self._writer, self._settings, self._emit_event, self._clock = (
            cluster,
            writer,
            settings,
            emit_event,
            clock,
        )
        self._observer = QueueObserver(cluster, settings)
        self._planner = Planner(cluster, settings, self._observer)
        self._reported: dict[str, str] = {}

    async def _step(self) -> float:
        now_s = self._clock()
        again_s = [
            await self._tried(partial(self._lapse, workload, now_s), _about(workload))
            for workload in self._cluster.workloads()
        ]
        for work in (self._remove_shields, self._remove_notices, self._learn):
            again_s.append(await self._tried(partial(work, now_s)))
        self._forget()
        for workload in sorted(
            self._cluster.workloads(), key=lambda workload: (-workload.priority, workload.created_s, workload.key)
        ):
            if workload.held:
                again_s.append(await self._handle_within_budget(workload))
            elif is_under_way(workload, now_s, self._settings.shield_s):
                again_s.append(await self._tried(partial(self._keep, workload, now_s), _about(workload)))
            elif (
                now_s - workload.created_s < _NEW_S and workload.decision is None and workload.uid not in self._reported
            ):
                again_s.append(await self._tried(partial(self._advise, workload, now_s), _about(workload)))
        return min([_IDLE_S, *again_s])

    async def _learn(self, now_s: float) -> float:
        self._planner.learn(now_s)
        return _IDLE_S

    async def _lapse(self, preemptor: KueueWorkload, now_s: float) -> float:
        """If shields ended and it still waits: Kueue reconsiders it once it has left its queue and returned."""
        decision = preemptor.decision
        if (
            decision is None
            or not decision.until_s
            or not preemptor.pending
            or not preemptor.active
            or is_lapsed(preemptor)
        ):
            return _IDLE_S
        if is_under_way(preemptor, now_s, self._settings.shield_s):
            return decision.until_s - now_s
        if any(workload.terminating and workload.name in decision.victims for workload in self._cluster.workloads()):
            # The victims are still terminating; leaving the queue now would give their room to others.
            return _IDLE_S
        if not preemptor.holder and any(
            workload.shield and workload.shield.for_uid == preemptor.uid for workload in self._cluster.workloads()
        ):
            outcome = outcome_document(LAPSED, now_s, "LAPSED", _OWN_RULES)
            await self._writer.patch(preemptor, held({"active": True}, preemptor.uid, outcome))
        return _IDLE_S

    def _preemptor_ids(self, now_s: float) -> set[str]:
        """Uids and names of Workloads that shields and eviction notices may exist for."""
        return {
            key
            for workload in self._cluster.workloads()
            if workload.pending and (_is_held(workload) or is_under_way(workload, now_s, self._settings.shield_s))
            for key in (workload.uid, workload.name)
        }

    async def _remove_shields(self, now_s: float) -> float:
        """Remove shields and marks that no longer have a reason."""
        preemptor_ids, changes = self._preemptor_ids(now_s), list[tuple[KueueWorkload, Object]]()
        for workload in self._cluster.workloads():
            stray = workload.holder == HOLDER and not workload.shield and workload.active
            if stray or (workload.shield and not (workload.running and workload.shield.for_uid in preemptor_ids)):
                changes.append((workload, release(KUEUE_WORKLOADS, workload.document)))
        await self._writer.patch_all(changes)
        return _IDLE_S

    async def _remove_notices(self, now_s: float) -> float:
        preemptor_ids = self._preemptor_ids(now_s)
        await self._writer.patch_all(
            [
                (workload, no_eviction_notice())
                for workload in self._cluster.workloads()
                if workload.evicting and workload.running and workload.evicting.preemptor not in preemptor_ids
            ]
        )
        return _IDLE_S

    async def _handle_within_budget(self, preemptor: KueueWorkload) -> float:
        """Release it shortly after its budget, whatever goes wrong."""
        before, failed = self.errors, self._isolation.waits_s(_about(preemptor)) > 0
        again_s = await self._tried(partial(self._handle, preemptor), _about(preemptor))
        if (self.errors == before and not failed) or self._clock() < self._ends_s(preemptor):
            return again_s
        overdue = outcome_document(
            "leave", self._clock(), "OVERDUE", "No victims were found within the budget; Kueue applies its own rules."
        )
        return await self._tried(partial(self._release, preemptor, overdue))

    async def _handle(self, preemptor: KueueWorkload) -> float:
        """A held Workload: release it, select victims for it, or let it wait."""
        now_s = self._clock()
        if is_lapsed(preemptor):
            return await self._let_go(preemptor, outcome_document(LAPSED, now_s, "LAPSED", _OWN_RULES))
        # A large search must not hold up the Lease and the reviews.
        evaluation = await asyncio.to_thread(self._planner.evaluate, preemptor, now_s)
        if evaluation.decision is None:
            return await self._let_go(
                preemptor, outcome_document("leave", now_s, evaluation.reason.code, evaluation.reason.message)
            )
        self._emit(preemptor, evaluation.decision, Mode.ENFORCE)
        ends_s = self._ends_s(preemptor)
        if evaluation.decision.action is PreemptionAction.WAIT and now_s < ends_s:
            await self._shield(preemptor, [], (), now_s)
            await self._request_saves(preemptor, evaluation, evaluation.decision)
            until_s = min(evaluation.decision.until_s or now_s, ends_s)
            return max(SOON_S, until_s - now_s)
        if evaluation.decision.action is PreemptionAction.PREEMPT:
            return await self._choose(preemptor, evaluation, evaluation.decision)
        return await self._leave(preemptor, evaluation, evaluation.decision)

    async def _request_saves(
        self, preemptor: KueueWorkload, evaluation: Evaluation, decision: PreemptionDecision
    ) -> None:
        """Ask the gangs that the plan counts on for a checkpoint; all pods of a gang get the same request."""
        snapshot, ends_s = evaluation.snapshot, preemptor.came_s + self._settings.budget_s
        for workload in [workload for workload in snapshot.workloads if workload.name in decision.save_requests]:
            saving = snapshot.saving(workload)
            why = f"{workload.name} is to make room for {preemptor.name}."
            wanted = saving.request or SaveRequest.of(MINE, why, self._clock(), ends_s, preemptor.name)
            for pod in saving.unasked_pods:
                await self._writer.ask(pod, save_request(pod.uid, wanted))
            self._emit_event(workload, "SaveRequested", why)

    async def _choose(self, preemptor: KueueWorkload, evaluation: Evaluation, decision: PreemptionDecision) -> float:
        """Write the decision, shield the others, notify the victims, let Kueue preempt."""
        now_s, victims = evaluation.snapshot.now_s, evaluation.victims
        uids = {workload.uid for workload in victims}
        models = {_grounds(evaluation.snapshot, workload)["model"] for workload in victims}
        if preemptor.decision is None or preemptor.decision.victims != decision.victims:
            await self._writer.patch(
                self._newest(preemptor), advised(preemptor.uid, decision_document(decision, now_s, 0.0, models))
            )
        await self._shield(preemptor, to_shield(preemptor, evaluation.snapshot, uids), uids, now_s)
        for victim in victims:
            why, more = _why(victim, decision), _grounds(evaluation.snapshot, victim)
            await self._writer.patch(
                self._newest(victim), eviction_notice(victim.uid, preemptor.name, now_s, why, more)
            )
        # Its priority may have changed meanwhile.
        if not await self._may_go(self._newest(preemptor), victims, uids):
            return SOON_S
        await self._release(preemptor, decision_document(decision, now_s, now_s + self._settings.shield_s, models))
        self._planner.applied(evaluation)
        self._emit_event(preemptor, "PreemptionChosen", decision.reasons[0].message)
        for victim in victims:
            self._emit_event(victim, "Preempting", _why(victim, decision))
        return self._settings.shield_s

    async def _may_go(self, preemptor: KueueWorkload, victims: list[KueueWorkload], uids: Collection[str]) -> bool:
        """The last check: the victims are still safe to kill, also by the API server, and all others are shielded."""
        fresh = {workload.uid: await self._read_pods(workload) for workload in victims}
        now_s = self._clock()
        if not self._observer.still_safe(victims, now_s, fresh):
            return False
        open_to_it = to_shield(preemptor, self._observer.snapshot(preemptor, now_s), uids)
        return self._observer.still_safe(victims, now_s) and all(
            workload.is_shielded_from(preemptor) for workload in open_to_it
        )

    async def _read_pods(self, victim: KueueWorkload) -> list[GpuPod]:
        """Its pods as the API server has them, without replacements of the same name."""
        pods = self._cluster.pods_of(victim)
        fresh = await asyncio.gather(*(self._writer.read_pod(pod) for pod in pods))
        return [new for old, new in zip(pods, fresh, strict=True) if new is not None and new.uid == old.uid]

    async def _keep(self, preemptor: KueueWorkload, now_s: float) -> float:
        """It was released and Kueue has not decided yet: shield new Workloads, and victims that are no longer safe.
        In the latter case decide again: Kueue does not retry a Workload without victims by itself."""
        decision, snapshot = preemptor.decision, self._observer.snapshot(preemptor, now_s)
        if decision is None or not decision.victims:
            return _IDLE_S
        victims = [
            workload for workload in snapshot.workloads if workload.running and workload.name in decision.victims
        ]
        safe = {workload.uid for workload in victims if self._observer.still_safe([workload], now_s)}
        await self._shield(
            preemptor, to_shield(preemptor, snapshot, safe), {workload.uid for workload in victims}, now_s
        )
        if len(safe) < len(victims) == len(decision.victims):
            undo = {"active": True, "since": stamp(preemptor.came_s)}
            await self._writer.patch(self._newest(preemptor), held(undo))
            return SOON_S
        return _IDLE_S

    async def _leave(self, preemptor: KueueWorkload, evaluation: Evaluation, decision: PreemptionDecision) -> float:
        """Leave it to Kueue's own rules; gangs that are writing stay shielded for a while."""
        now_s = evaluation.snapshot.now_s
        await self._shield(preemptor, evaluation.guarded, (), now_s)
        until_s = now_s + self._settings.shield_s if evaluation.guarded else 0.0
        await self._release(preemptor, decision_document(decision, now_s, until_s, ()))
        self._emit_event(preemptor, "PreemptionLeft", decision.reasons[0].message)
        return SOON_S

    async def _let_go(self, preemptor: KueueWorkload, document: Mapping[str, Any]) -> float:
        """Release it without a decision of ours, and without shields."""
        await self._shield(preemptor, [], (), self._clock())
        await self._release(preemptor, document)
        self._emit_event(preemptor, "PreemptionLeft", str(document["reason"]))
        return SOON_S

    async def _release(self, preemptor: KueueWorkload, document: Mapping[str, Any]) -> float:
        since = {} if preemptor.let_go_s is None else {"since": stamp(preemptor.let_go_s)}
        await self._writer.patch(self._newest(preemptor), released(preemptor.uid, {**document, **since}))
        return SOON_S

    def _ends_s(self, preemptor: KueueWorkload) -> float:
        return preemptor.came_s + self._settings.budget_s + self._settings.overdue_s

    async def _shield(
        self, preemptor: KueueWorkload, wanted: Iterable[KueueWorkload], victim_uids: Collection[str], now_s: float
    ) -> None:
        """Shield exactly the ``wanted`` Workloads for it, and withdraw notices from all but the victims."""
        uids, until_s = {workload.uid for workload in wanted}, now_s + self._settings.shield_s
        changes: list[tuple[KueueWorkload, Object]] = []
        for workload in self._cluster.workloads():
            ours = workload.shield is not None and workload.shield.for_uid == preemptor.uid
            if workload.uid in uids and not workload.is_shielded_from(preemptor):
                changes.append((workload, shielded(workload, preemptor, until_s)))
            elif ours and workload.uid not in uids:
                changes.append((workload, release(KUEUE_WORKLOADS, workload.document)))
        await self._writer.patch_all(changes)
        for workload in self._cluster.workloads():
            notice = workload.evicting is not None and workload.evicting.preemptor == preemptor.name
            if notice and workload.running and workload.uid not in victim_uids:
                await self._writer.patch(workload, no_eviction_notice())

    async def _advise(self, preemptor: KueueWorkload, now_s: float) -> float:
        """A new Workload that is not held: report Kueue's own victims, and those that would lose least."""
        mode = self._planner.mode_of(preemptor)
        native = None if mode is Mode.ENFORCE else self._planner.did_preempt(preemptor, now_s)
        evaluation = None if native is None else self._planner.evaluate(preemptor, now_s, mode)
        if evaluation is None or evaluation.decision is None:
            return _IDLE_S
        # Before it counts as reported: Kueue is writing the same Workload, and a conflict is retried.
        if mode is Mode.ANNOTATE:
            models = {_grounds(evaluation.snapshot, workload)["model"] for workload in evaluation.victims}
            document = decision_document(evaluation.decision, now_s, 0.0, models) | {
                "verdict": "advice",
                "native": native,
            }
            await self._writer.patch(preemptor, advised(preemptor.uid, document))
        self._emit(preemptor, evaluation.decision, mode)
        text = f"Kueue preempts {', '.join(native)} by its own rule. " if native else ""
        self._emit_event(preemptor, "PreemptionAdvised", f"{text}{evaluation.reason.message}")
        return _IDLE_S

    def _emit(self, preemptor: KueueWorkload, decision: PreemptionDecision, mode: Mode) -> None:
        """Report once for each action and reason, not at every reconcile."""
        summary = f"{decision.action} {decision.reasons[0].code} {decision.victims}"
        if self._reported.get(preemptor.uid) == summary:
            return
        self._reported[preemptor.uid] = summary
        about = {**decision.as_decision(mode).to_dict(), **decision.to_dict(), "waiting": preemptor.name}
        DECISIONS.info("Workload %s/%s", *preemptor.key, extra={"decision": about})
        if decision.action is PreemptionAction.WAIT and mode is Mode.ENFORCE:
            self._emit_event(preemptor, "PreemptionWaits", decision.reasons[0].message)

    def _newest(self, old: KueueWorkload) -> KueueWorkload:
        """Its newest version; not a replacement of the same name."""
        workload = self._cluster.workload(old.key)
        return workload if workload is not None and workload.uid == old.uid else old

    def _forget(self) -> None:
        uids = {workload.uid for workload in self._cluster.workloads()}
        self._reported = {uid: summary for uid, summary in self._reported.items() if uid in uids}


def _about(workload: KueueWorkload) -> Subject:
    return Subject.of(KUEUE_WORKLOADS, workload.document)


def _is_held(workload: KueueWorkload) -> bool:
    return workload.held and not is_lapsed(workload)


def _why(victim: KueueWorkload, decision: PreemptionDecision) -> str:
    candidate = next(item for item in decision.candidates if item.gang == victim.name)
    return f"{candidate.reason.message} {decision.reasons[0].message}"


def _grounds(snapshot: QueueSnapshot, victim: KueueWorkload) -> dict[str, str]:
    return grounds(pod.annotations for pod in snapshot.pods.get(victim.uid, ()))
