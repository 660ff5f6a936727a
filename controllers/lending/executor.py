"""Applies a plan for a pool: quotas, requests to save, stops and returns."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator, Sequence

from kopt.cluster.checkpoints.status import members_of
from kopt.cluster.client.errors import ApiError, Forbidden, Invalid
from kopt.cluster.client.resources import LENDING_POOLS, PODS, Object
from kopt.cluster.holds.checkpoint_request import request_patch
from kopt.cluster.holds.hold import HoldError
from kopt.cluster.runtime.events import EmitEvent
from kopt.controllers.lending.patches import advised, quota, returned, stop
from kopt.controllers.lending.plan import Outcome, PoolPlan, QueuePlan
from kopt.controllers.lending.ports import Errors, Writer
from kopt.controllers.lending.views import ADVICE_ANNOTATION, MINE, Borrowing, BorrowingQueue, ObservedPod, Pool
from kopt.core.decision import Mode
from kopt.core.times import stamp
from kopt.core.units import counted
from kopt.core.workload.save_state import USUAL_S, SaveState, unasked
from kopt.policies.lending import Choice, VictimAction

_LOG = logging.getLogger(__name__)
_IDLE_S, _SOON_S, _ORDER_LASTS_S = 30.0, 1.0, 60.0
_LONGEST = 900
_REQUEUED_WITHIN_S = 10.0
"""A queueing system that is stopped requeues no workload; others are not kept waiting for it longer than that."""


class Executor:
    """``stale_s``: how long the checkpoint status of a pod counts."""

    def __init__(self, writer: Writer, emit_event: EmitEvent, stale_s: float) -> None:
        self._writer, self._emit_event, self._stale_s = writer, emit_event, stale_s
        self._reported: dict[str, str] = {}
        self._ordered: dict[tuple[str, str], float] = {}
        self._requeueing_s: dict[str, float] = {}

    async def apply(self, pool: Pool, plan: PoolPlan) -> Outcome:
        """What became of it; with a Conflict when an object has changed since it was seen."""
        outcome = Outcome()
        try:
            await self._apply(pool, plan, outcome)
        except ApiError as error:
            outcome.error = error
        return outcome

    async def _apply(self, pool: Pool, plan: PoolPlan, outcome: Outcome) -> None:
        if plan.evaluation.pool.mode is not Mode.ENFORCE:
            if plan.choice is not None:
                await self._advise(pool, plan, plan.choice)
                outcome.again_s = _again_s(plan.choice, plan)
            return
        for queue_plan in plan.queues:
            await self._settle(queue_plan.queue, plan.evaluation.now_s)
        errors, open_ = Errors(), set()
        for queue_plan in plan.queues:
            if queue_plan.lowers_quota:
                open_.add(queue_plan.queue.name)
                with errors.kept():
                    await self._lower(queue_plan, outcome)
                    open_.remove(queue_plan.queue.name)
        if plan.choice is None:
            await self._give(pool, plan, outcome)
        else:
            # No workload is admitted or returns before all is taken back. What comes free in a queue whose quota could
            # not be lowered would be used again.
            victims = [
                borrowing
                for borrowing in plan.victims
                if not borrowing.candidate or borrowing.candidate.gang.queue not in open_
            ]
            await self._reclaim(pool, plan, plan.choice, victims, outcome)
        errors.raise_first()

    async def _give(self, pool: Pool, plan: PoolPlan, outcome: Outcome) -> None:
        """Let held workloads return, and raise quotas."""
        errors = Errors()
        for queue_plan in plan.queues:
            with errors.kept():
                await self._let_return(pool, plan, queue_plan, outcome)
        for queue_plan in plan.queues:
            if queue_plan.returning or self._awaits_requeue(queue_plan.queue, plan.evaluation.now_s):
                outcome.again_s = _SOON_S
            elif queue_plan.raises_quota:
                with errors.kept():
                    await self._set(queue_plan)
        errors.raise_first()

    def _awaits_requeue(self, queue: BorrowingQueue, now_s: float) -> bool:
        """Returned workloads are requeued first, ahead of younger ones; then the quota rises."""
        if not queue.requeueing:
            self._requeueing_s.pop(queue.name, None)
            return False
        return 0 <= now_s - self._requeueing_s.setdefault(queue.name, now_s) < _REQUEUED_WITHIN_S

    async def _settle(self, queue: BorrowingQueue, now_s: float) -> None:
        """Write missing Commands for marked Jobs, and remove marks whose Command was carried out."""
        for action, borrowing in queue.due:
            summary = (borrowing.name, action)
            if action and now_s - self._ordered.get(summary, float("-inf")) > _ORDER_LASTS_S:
                await self._writer.order(borrowing.document, action, f"Lending to {queue.borrower.queue}.")
                self._ordered[summary] = now_s
            elif not action:
                self._ordered = {key: at_s for key, at_s in self._ordered.items() if key[0] != borrowing.name}
                await self._writer.give_back(borrowing.resource, borrowing.document)

    async def _set(self, queue_plan: QueuePlan) -> None:
        queue, lent = queue_plan.queue, queue_plan.lent
        assert queue.document is not None
        await self._writer.patch(queue.resource, queue.document, quota(queue, lent))
        gpus = counted(queue.own + lent, "GPU")
        _LOG.info("%s %s may use %s, %d of them lent", queue.resource.kind, queue.borrower.queue, gpus, lent)

    async def _lower(self, queue_plan: QueuePlan, outcome: Outcome) -> None:
        try:
            await self._set(queue_plan)
        except (Forbidden, Invalid):
            # Workloads of other queues give back instead.
            outcome.refused += [borrowing.name for borrowing in queue_plan.running]
            raise

    async def _reclaim(
        self, pool: Pool, plan: PoolPlan, choice: Choice, victims: Sequence[Borrowing], outcome: Outcome
    ) -> None:
        if choice.action is VictimAction.STOP:
            outcome.again_s = _SOON_S
            await self._stop(pool, plan, choice, victims, outcome)
            return
        if choice.action is VictimAction.REQUEST_SAVE:
            await self._request_save(pool, plan, choice, victims)
        self._once(pool, f"{choice.action} {choice.reason.code}", "ReclaimWaits", choice)
        outcome.again_s = _again_s(choice, plan)

    async def _stop(
        self, pool: Pool, plan: PoolPlan, choice: Choice, victims: Sequence[Borrowing], outcome: Outcome
    ) -> None:
        evaluation, errors = plan.evaluation, Errors()
        for borrowing in victims:
            if not await self._is_still_safe(borrowing, evaluation.now_s):
                continue
            why = f"{evaluation.needy} needs the GPUs that were lent. {choice.reason.message}"
            try:
                changes = stop(borrowing, evaluation.now_s, evaluation.needy, why)
            except HoldError as error:
                _LOG.info("%s is not stopped: %s", borrowing.name, error)
                continue
            with errors.kept(), self._allowed(pool, borrowing, outcome):
                await self._writer.patch(borrowing.resource, borrowing.document, changes)
                outcome.victims.append(borrowing.name)
                if borrowing.candidate and borrowing.candidate.save is SaveState.SAVED:
                    outcome.saves_s.append(max(map(_took_s, borrowing.pods)))
                self._emit_event(_reference(borrowing), "LentGpusReclaimed", why)
                self._emit_event(_about(pool), "Reclaimed", f"{borrowing.name}: {choice.reason.message}")
        errors.raise_first()

    async def _is_still_safe(self, borrowing: Borrowing, now_s: float) -> bool:
        """By what the API server has now, immediately before the stop. A workload that runs nothing loses nothing."""
        if borrowing.candidate is None or borrowing.candidate.idle:
            return True
        fresh = await asyncio.gather(*(self._writer.read_pod(pod) for pod in borrowing.pods))
        views = [
            new.gpu_pod
            for old, new in zip(borrowing.pods, fresh, strict=True)
            if new and new.gpu_pod.uid == old.gpu_pod.uid
        ]
        if len(views) != len(borrowing.pods):
            return False
        members = members_of(borrowing.gpus, views, now_s, self._stale_s)
        return all(member.status is not None and member.status.safe for member in members)

    @contextlib.contextmanager
    def _allowed(self, pool: Pool, borrowing: Borrowing, outcome: Outcome) -> Iterator[None]:
        """A workload whose change an admission plugin refuses is skipped for a while; others go on."""
        try:
            yield
        except (Forbidden, Invalid) as error:
            outcome.refused.append(borrowing.name)
            self._emit_event(
                _about(pool), "Refused", f"{borrowing.name} may not be changed: {error.message}"[:_LONGEST]
            )

    async def _request_save(self, pool: Pool, plan: PoolPlan, choice: Choice, victims: Sequence[Borrowing]) -> None:
        evaluation = plan.evaluation
        until_s = min(plan.by_s, evaluation.now_s + USUAL_S)
        for borrowing in victims:
            due = unasked([pod.saving for pod in borrowing.pods], borrowing.since_s)
            requested = [pod for pod, is_due in zip(borrowing.pods, due, strict=True) if is_due]
            for pod in requested:
                patch = request_patch(
                    MINE, choice.reason.message, evaluation.now_s, until_s, evaluation.needy, uid=pod.gpu_pod.uid
                )
                await self._writer.patch(PODS, pod.document, patch)
            if requested:
                self._emit_event(_about(pool), "SaveRequested", f"{borrowing.name}: {choice.reason.message}")

    async def _let_return(self, pool: Pool, plan: PoolPlan, queue_plan: QueuePlan, outcome: Outcome) -> None:
        queue, errors = queue_plan.queue, Errors()
        for borrowing in queue_plan.returning:
            gpus = counted(queue.own + queue_plan.share, "GPU")
            text = f"{borrowing.name} resumes: {queue.borrower.queue} may use {gpus}."
            with errors.kept(), self._allowed(pool, borrowing, outcome):
                await self._writer.patch(borrowing.resource, borrowing.document, returned(borrowing))
                self._emit_event(_reference(borrowing), "Returned", text)
                self._emit_event(_about(pool), "Returned", text)
        errors.raise_first()

    async def _advise(self, pool: Pool, plan: PoolPlan, choice: Choice) -> None:
        """Report what would be done; in annotate on the workloads that would be stopped, too."""
        news = self._once(pool, f"{choice.action} {choice.victims}", "ReclaimAdvised", choice)
        for borrowing in plan.victims if news and plan.evaluation.pool.mode is Mode.ANNOTATE else ():
            advice = {
                "verdict": "advice",
                "at": stamp(plan.evaluation.now_s),
                "pool": pool.name,
                "reason": choice.reason.message,
            }
            if ADVICE_ANNOTATION not in (borrowing.document["metadata"].get("annotations") or {}):
                await self._writer.patch(
                    borrowing.resource, borrowing.document, advised(json.dumps(advice, ensure_ascii=False))
                )

    def _once(self, pool: Pool, summary: str, reason: str, choice: Choice) -> bool:
        if self._reported.get(pool.uid) == summary:
            return False
        self._reported[pool.uid] = summary
        self._emit_event(_about(pool), reason, choice.reason.message)
        return True


def _again_s(choice: Choice, plan: PoolPlan) -> float:
    return _IDLE_S if choice.until_s is None else max(_SOON_S, choice.until_s - plan.evaluation.now_s)


def _took_s(pod: ObservedPod) -> float:
    return max(0.0, (pod.saving.last_durable_at_s or 0.0) - (pod.saving.requested_at_s or 0.0))


def _about(pool: Pool) -> Object:
    return LENDING_POOLS.reference("", pool.name, pool.uid)


def _reference(borrowing: Borrowing) -> Object:
    metadata = borrowing.document["metadata"]
    return borrowing.resource.reference(metadata["namespace"], metadata["name"], metadata["uid"])
