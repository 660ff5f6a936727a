"""Carries out what was decided about a pool: quotas, requests to save, stops and returns."""

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kopt.cluster.client.errors import Forbidden, Invalid
from kopt.cluster.client.resources import (
    JOBS,
    KAI_QUEUES,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_WORKLOADS,
    LENDING_POOLS,
    PODS,
    VOLCANO_JOBS,
    VOLCANO_QUEUES,
    Object,
    Resource,
    key_of,
)
from kopt.cluster.holds.checkpoint_request import request_patch
from kopt.cluster.holds.hold import HoldError, holder_of, undo_of
from kopt.cluster.holds.quota_loan import Place, noted
from kopt.cluster.objects.fields import at
from kopt.cluster.objects.node_bandwidth import stamp
from kopt.cluster.runtime.events import EmitEvent
from kopt.controllers.lending.patches import advised, given_back, quota, returned, told
from kopt.controllers.lending.planner import Deciding, Evaluation
from kopt.controllers.lending.ports import Errors, Writer
from kopt.controllers.lending.state import LiveCluster, kai_queue, volcano_queue
from kopt.controllers.lending.views import ADVICE_ANNOTATION, HOLDER, MINE, Borrowing, Pool, QueueView, SeenPod
from kopt.core.decision import Mode
from kopt.core.scheduling.eviction import System
from kopt.core.units import WHOLE_GPU
from kopt.policies.checkpoint_request import USUAL_S, SaveState, unasked
from kopt.policies.lending import Choice, Turn, VictimAction

_LOG = logging.getLogger(__name__)
_IDLE_S, _SOON_S, _ORDER_LASTS_S = 30.0, 1.0, 60.0
_LONGEST = 900
_COMES_S = 10.0
"""A queueing system that is stopped takes notice of nobody; others are not kept waiting for it longer than that."""
_SYSTEMS = ((KUEUE_CLUSTER_QUEUES, System.KUEUE), (KAI_QUEUES, System.KAI), (VOLCANO_QUEUES, System.VOLCANO))


@dataclass(frozen=True)
class Carried:
    """What became of it: who was told to go now, and in how many seconds to look again."""

    victims: tuple[str, ...] = ()
    again_s: float = _IDLE_S


class Acting:
    """All methods raise Conflict when an object has changed since it was seen."""

    def __init__(self, cluster: LiveCluster, writer: Writer, deciding: Deciding, emit_event: EmitEvent) -> None:
        self._cluster, self._writer, self._deciding, self._emit_event = cluster, writer, deciding, emit_event
        self._reported: dict[str, str] = {}
        self._ordered: dict[tuple[str, str], float] = {}
        self._coming: dict[str, float] = {}

    async def carry_out(self, pool: Pool, evaluation: Evaluation, by_s: float) -> Carried:
        choice, victims = self._deciding.victims(evaluation, by_s) if evaluation.missing else (None, list[Borrowing]())
        if evaluation.pool.mode is not Mode.ENFORCE:
            return Carried() if choice is None else await self._advise(pool, evaluation, choice, victims)
        after = evaluation.after(choice.victims) if choice and choice.action is VictimAction.STOP else evaluation
        turns = {index: after.turn(index) for index, queue in enumerate(after.queues) if queue.problem is None}
        for index in turns:
            await self._settle(after.queues[index], evaluation.now_s)
        falling = [index for index in turns if _lent(after, index, turns) < _stands(after, index)]
        errors, fallen = Errors(), set()
        for index in falling:
            with errors.kept():
                await self._fall(after, index, turns, evaluation.queues[index].running)
                fallen.add(after.queues[index].name)
        if choice is not None:
            # Nobody new, and nobody who gave back, comes before all is taken back. What comes free in a queue that
            # may still use it would be used again.
            open_ = {after.queues[index].name for index in falling} - fallen
            victims = [
                borrowing
                for borrowing in victims
                if not borrowing.candidate or borrowing.candidate.gang.queue not in open_
            ]
            carried = await self._take_back(pool, evaluation, choice, victims, by_s)
        else:
            carried = await self._give(pool, after, turns, [index for index in turns if index not in falling])
        errors.raise_first()
        return carried

    async def _give(
        self, pool: Pool, evaluation: Evaluation, turns: Mapping[int, Turn], indexes: Sequence[int]
    ) -> Carried:
        """Who may return does, and of the queues in ``indexes`` those may use more that are to."""
        again_s, errors = _IDLE_S, Errors()
        for index, turn in turns.items():
            with errors.kept():
                await self._let_return(pool, evaluation, index, turn)
        for index, turn in turns.items():
            if turn.names or self._somebody_comes(evaluation.queues[index], evaluation.now_s):
                again_s = _SOON_S
            elif index in indexes and _is_due(evaluation, index, turns):
                with errors.kept():
                    await self._set(evaluation, index, turns)
        errors.raise_first()
        return Carried(again_s=again_s)

    def _somebody_comes(self, queue: QueueView, now_s: float) -> bool:
        """First they are in the queue, where they are older than others; then there is room."""
        if not queue.coming:
            self._coming.pop(queue.name, None)
            return False
        return 0 <= now_s - self._coming.setdefault(queue.name, now_s) < _COMES_S

    def strays(self, named: Collection[tuple[System, str]]) -> Iterator[tuple[Resource, str, Object]]:
        """Workloads that we hold of queues that are not ``named``, and those that others let run."""
        for workload in self._cluster.workloads():
            queue = (System.KUEUE, self._cluster.cluster_queue_of(workload))
            if workload.holder == HOLDER and (queue not in named or workload.active):
                yield KUEUE_WORKLOADS, workload.name, workload.document
        for job in self._cluster.jobs():
            runs = at(job, "spec", "suspend") is not True
            if holder_of(job) == HOLDER and (runs or (System.KAI, kai_queue(job)) not in named):
                yield JOBS, "/".join(key_of(job)), job
        for job in self._cluster.volcano_jobs():
            if holder_of(job) == HOLDER and (System.VOLCANO, volcano_queue(job)) not in named:
                yield VOLCANO_JOBS, "/".join(key_of(job)), job

    def too_much(self, lent: Collection[tuple[System, str, Place]]) -> Iterator[tuple[Resource, str, Object, Object]]:
        """Queues with marks for other places than those of ``lent``, and the patches that give these back."""
        for resource, system in _SYSTEMS:
            for name, document in self._cluster.queues(resource).items():
                known = noted(undo_of(document))
                over = [index for index in known if (system, name, index) not in lent]
                if holder_of(document) == HOLDER and (over or not known):
                    yield resource, name, document, given_back(resource, document, over)

    async def _settle(self, queue: QueueView, now_s: float) -> None:
        """Marks whose Command was not written yet, or was carried out. Volcano gets a while for each."""
        for action, borrowing in queue.due:
            summary = (borrowing.name, action)
            if action and now_s - self._ordered.get(summary, float("-inf")) > _ORDER_LASTS_S:
                await self._writer.order(borrowing.document, action, f"Lending to {queue.borrower.queue}.")
                self._ordered[summary] = now_s
            elif not action:
                self._ordered = {key: at_s for key, at_s in self._ordered.items() if key[0] != borrowing.name}
                await self._writer.give_back(borrowing.resource, borrowing.document)

    async def _set(self, evaluation: Evaluation, index: int, turns: Mapping[int, Turn]) -> None:
        queue, lent = evaluation.queues[index], _lent(evaluation, index, turns)
        assert queue.document is not None
        await self._writer.patch(queue.resource, queue.document, quota(queue, lent))
        _LOG.info(
            "%s %s may use %d GPUs, %d of them lent", queue.resource.kind, queue.borrower.queue, queue.own + lent, lent
        )

    async def _fall(
        self, evaluation: Evaluation, index: int, turns: Mapping[int, Turn], running: Sequence[Borrowing]
    ) -> None:
        try:
            await self._set(evaluation, index, turns)
        except (Forbidden, Invalid):
            # Others give back instead of those in it.
            for borrowing in running:
                self._deciding.refused(borrowing.name, evaluation.now_s)
            raise

    async def _take_back(
        self, pool: Pool, evaluation: Evaluation, choice: Choice, victims: list[Borrowing], by_s: float
    ) -> Carried:
        if choice.action is VictimAction.REQUEST_SAVE:
            await self._ask(pool, evaluation, choice, victims, by_s)
        elif choice.action is VictimAction.STOP:
            return Carried(await self._stop(pool, evaluation, choice, victims), _SOON_S)
        self._once(pool, f"{choice.action} {choice.reason.code}", "ReclaimWaits", choice)
        return Carried((), _again_s(choice, evaluation))

    async def _stop(
        self, pool: Pool, evaluation: Evaluation, choice: Choice, victims: list[Borrowing]
    ) -> tuple[str, ...]:
        gone, errors = [], Errors()
        for borrowing in victims:
            if not await self._is_still_safe(borrowing, evaluation.now_s):
                continue
            why = f"{evaluation.needy} needs the GPUs that were lent. {choice.reason.message}"
            try:
                changes = told(borrowing, evaluation.now_s, evaluation.needy, why)
            except HoldError as error:
                _LOG.info("%s is not stopped: %s", borrowing.name, error)
                continue
            with errors.kept(), self._allowed(pool, borrowing, evaluation.now_s):
                await self._writer.patch(borrowing.resource, borrowing.document, changes)
                gone.append(borrowing.name)
                if borrowing.candidate and borrowing.candidate.save is SaveState.SAVED:
                    self._deciding.saved(pool, max(map(_took_s, borrowing.pods)))
                self._emit_event(_reference(borrowing), "LentGpusReclaimed", why)
                self._emit_event(_about(pool), "Reclaimed", f"{borrowing.name}: {choice.reason.message}")
        errors.raise_first()
        return tuple(gone)

    async def _is_still_safe(self, borrowing: Borrowing, now_s: float) -> bool:
        """The last look, at what the API server has now. Who runs nothing, loses nothing."""
        if borrowing.candidate is None or borrowing.candidate.idle:
            return True
        fresh = await asyncio.gather(*(self._writer.look(pod) for pod in borrowing.pods))
        views = [
            new.view for old, new in zip(borrowing.pods, fresh, strict=True) if new and new.view.uid == old.view.uid
        ]
        return len(views) == len(borrowing.pods) and self._deciding.is_safe(borrowing, views, now_s)

    @contextlib.contextmanager
    def _allowed(self, pool: Pool, one: Borrowing, now_s: float) -> Iterator[None]:
        """What an admission plugin does not let be changed is left alone for a while; others are not kept by it."""
        try:
            yield
        except (Forbidden, Invalid) as error:
            self._deciding.refused(one.name, now_s)
            self._emit_event(_about(pool), "Refused", f"{one.name} may not be changed: {error.message}"[:_LONGEST])

    async def _ask(
        self, pool: Pool, evaluation: Evaluation, choice: Choice, victims: list[Borrowing], by_s: float
    ) -> None:
        until_s = min(by_s, evaluation.now_s + USUAL_S)
        for borrowing in victims:
            due = unasked([pod.saving for pod in borrowing.pods], borrowing.since_s)
            asked = [pod for pod, is_due in zip(borrowing.pods, due, strict=True) if is_due]
            for pod in asked:
                patch = request_patch(
                    MINE, choice.reason.message, evaluation.now_s, until_s, evaluation.needy, uid=pod.view.uid
                )
                await self._writer.patch(PODS, pod.document, patch)
            if asked:
                self._emit_event(_about(pool), "SaveRequested", f"{borrowing.name}: {choice.reason.message}")

    async def _let_return(self, pool: Pool, evaluation: Evaluation, index: int, turn: Turn) -> None:
        queue = evaluation.queues[index]
        by_name, errors = {borrowing.name: borrowing for borrowing in queue.held}, Errors()
        for name in turn.names:
            borrowing = by_name[name]
            text = f"{name} goes on: {queue.own + evaluation.shares[index]} GPUs may be used in {queue.borrower.queue}."
            with errors.kept(), self._allowed(pool, borrowing, evaluation.now_s):
                await self._writer.patch(borrowing.resource, borrowing.document, returned(borrowing))
                self._emit_event(_reference(borrowing), "Returned", text)
                self._emit_event(_about(pool), "Returned", text)
        errors.raise_first()

    async def _advise(self, pool: Pool, evaluation: Evaluation, choice: Choice, victims: list[Borrowing]) -> Carried:
        """Say what would be done; in annotate on those who would be stopped, too."""
        summary = f"{choice.action} {choice.victims}"
        news = self._once(pool, summary, "ReclaimAdvised", choice)
        for borrowing in victims if news and evaluation.pool.mode is Mode.ANNOTATE else ():
            word = {
                "verdict": "advice",
                "at": stamp(evaluation.now_s),
                "pool": pool.name,
                "reason": choice.reason.message,
            }
            if ADVICE_ANNOTATION not in (borrowing.document["metadata"].get("annotations") or {}):
                await self._writer.patch(
                    borrowing.resource, borrowing.document, advised(json.dumps(word, ensure_ascii=False))
                )
        return Carried((), _again_s(choice, evaluation))

    def _once(self, pool: Pool, summary: str, reason: str, choice: Choice) -> bool:
        if self._reported.get(pool.uid) == summary:
            return False
        self._reported[pool.uid] = summary
        self._emit_event(_about(pool), reason, choice.reason.message)
        return True


def _lent(evaluation: Evaluation, index: int, turns: Mapping[int, Turn]) -> int:
    """GPUs that the queue is to be able to use beyond its own."""
    return math.ceil(turns[index].open / WHOLE_GPU) - evaluation.queues[index].own


def _stands(evaluation: Evaluation, index: int) -> int:
    return evaluation.queues[index].stands - evaluation.queues[index].own


def _is_due(evaluation: Evaluation, index: int, turns: Mapping[int, Turn]) -> bool:
    """It is to be able to use more, or has marks although nothing is lent to it."""
    lent = _lent(evaluation, index, turns)
    return lent > _stands(evaluation, index) or (evaluation.queues[index].marked and lent == 0)


def _again_s(choice: Choice, evaluation: Evaluation) -> float:
    return _IDLE_S if choice.until_s is None else max(_SOON_S, choice.until_s - evaluation.now_s)


def _took_s(pod: SeenPod) -> float:
    return max(0.0, (pod.saving.last_durable_at_s or 0.0) - (pod.saving.asked_at_s or 0.0))


def _about(pool: Pool) -> Object:
    return LENDING_POOLS.reference("", pool.name, pool.uid)


def _reference(borrowing: Borrowing) -> Object:
    metadata = borrowing.document["metadata"]
    return borrowing.resource.reference(metadata["namespace"], metadata["name"], metadata["uid"])
