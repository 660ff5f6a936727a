"""Carries out what was decided about a pool: quotas, requests to save, stops and returns."""

import contextlib
import json
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kopt.cluster.errors import Forbidden, Invalid
from kopt.cluster.held import HoldError, holder_of, undo_of
from kopt.cluster.node_bandwidths import stamp
from kopt.cluster.quotas import Place, noted
from kopt.cluster.resources import (
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
from kopt.cluster.saving import request_patch
from kopt.controllers.reallocation.deciding import Deciding, Judged
from kopt.controllers.reallocation.given import Errors, Tell, Writer
from kopt.controllers.reallocation.live import LiveCluster, kai_queue, volcano_queue
from kopt.controllers.reallocation.marks import advised, given_back, quota, returned, told
from kopt.controllers.reallocation.views import ADVICE_ANNOTATION, HOLDER, MINE, Borrowing, Pool, QueueView, SeenPod
from kopt.controllers.webhook.objects import at
from kopt.core.decision import Mode
from kopt.core.evictions import System
from kopt.core.units import WHOLE_GPU
from kopt.policies.reallocation import Choice, Turn, Verdict
from kopt.policies.saving import USUAL_S, SaveState, unasked

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

    def __init__(self, cluster: LiveCluster, writer: Writer, deciding: Deciding, tell: Tell) -> None:
        self._cluster, self._writer, self._deciding, self._tell = cluster, writer, deciding, tell
        self._said: dict[str, str] = {}
        self._ordered: dict[tuple[str, str], float] = {}
        self._coming: dict[str, float] = {}

    async def carry_out(self, pool: Pool, judged: Judged, by_s: float) -> Carried:
        choice, chosen = self._deciding.victims(judged, by_s) if judged.missing else (None, list[Borrowing]())
        if judged.pool.mode is not Mode.ENFORCE:
            return Carried() if choice is None else await self._advise(pool, judged, choice, chosen)
        after = judged.after(choice.victims) if choice and choice.verdict is Verdict.TAKE else judged
        turns = {place: after.turn(place) for place, queue in enumerate(after.queues) if queue.problem is None}
        for place in turns:
            await self._settle(after.queues[place], judged.now_s)
        falling = [place for place in turns if _lent(after, place, turns) < _stands(after, place)]
        errors, fallen = Errors(), set()
        for place in falling:
            with errors.kept():
                await self._fall(after, place, turns, judged.queues[place].running)
                fallen.add(after.queues[place].name)
        if choice is not None:
            # Nobody new, and nobody who gave back, comes before all is taken back. What comes free in a queue that
            # may still use it would be used again.
            open_ = {after.queues[place].name for place in falling} - fallen
            chosen = [one for one in chosen if not one.candidate or one.candidate.gang.queue not in open_]
            carried = await self._take_back(pool, judged, choice, chosen, by_s)
        else:
            carried = await self._give(pool, after, turns, [place for place in turns if place not in falling])
        errors.raise_first()
        return carried

    async def _give(self, pool: Pool, judged: Judged, turns: Mapping[int, Turn], places: Sequence[int]) -> Carried:
        """Who may return does, and of the queues in ``places`` those may use more that are to."""
        again_s, errors = _IDLE_S, Errors()
        for place, one in turns.items():
            with errors.kept():
                await self._let_return(pool, judged, place, one)
        for place, one in turns.items():
            if one.names or self._somebody_comes(judged.queues[place], judged.now_s):
                again_s = _SOON_S
            elif place in places and _is_due(judged, place, turns):
                with errors.kept():
                    await self._set(judged, place, turns)
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
        for view in self._cluster.workloads():
            queue = (System.KUEUE, self._cluster.cluster_queue_of(view))
            if view.holder == HOLDER and (queue not in named or view.active):
                yield KUEUE_WORKLOADS, view.name, view.document
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
                over = [place for place in known if (system, name, place) not in lent]
                if holder_of(document) == HOLDER and (over or not known):
                    yield resource, name, document, given_back(resource, document, over)

    async def _settle(self, queue: QueueView, now_s: float) -> None:
        """Marks whose Command was not written yet, or was carried out. Volcano gets a while for each."""
        for action, one in queue.due:
            said = (one.name, action)
            if action and now_s - self._ordered.get(said, float("-inf")) > _ORDER_LASTS_S:
                await self._writer.order(one.document, action, f"Lending to {queue.borrower.queue}.")
                self._ordered[said] = now_s
            elif not action:
                self._ordered = {key: at_s for key, at_s in self._ordered.items() if key[0] != one.name}
                await self._writer.give_back(one.resource, one.document)

    async def _set(self, judged: Judged, place: int, turns: Mapping[int, Turn]) -> None:
        queue, lent = judged.queues[place], _lent(judged, place, turns)
        assert queue.document is not None
        await self._writer.patch(queue.resource, queue.document, quota(queue, lent))
        _LOG.info("%s %s may use %d GPUs, %d of them lent", queue.resource.kind, queue.borrower.queue,
                  queue.own + lent, lent)  # fmt: skip

    async def _fall(self, judged: Judged, place: int, turns: Mapping[int, Turn], running: Sequence[Borrowing]) -> None:
        try:
            await self._set(judged, place, turns)
        except (Forbidden, Invalid):
            # Others give back instead of those in it.
            for one in running:
                self._deciding.refused(one.name, judged.now_s)
            raise

    async def _take_back(self, pool: Pool, judged: Judged, choice: Choice, chosen: list[Borrowing],
                         by_s: float) -> Carried:  # fmt: skip
        if choice.verdict is Verdict.ASK:
            await self._ask(pool, judged, choice, chosen, by_s)
        elif choice.verdict is Verdict.TAKE:
            return Carried(await self._stop(pool, judged, choice, chosen), _SOON_S)
        self._once(pool, f"{choice.verdict} {choice.reason.code}", "ReclaimWaits", choice)
        return Carried((), _again_s(choice, judged))

    async def _stop(self, pool: Pool, judged: Judged, choice: Choice, chosen: list[Borrowing]) -> tuple[str, ...]:
        gone, errors = [], Errors()
        for one in chosen:
            why = f"{judged.needy} needs the GPUs that were lent. {choice.reason.message}"
            try:
                changes = told(one, judged.now_s, judged.needy, why)
            except HoldError as error:
                _LOG.info("%s is not stopped: %s", one.name, error)
                continue
            with errors.kept(), self._allowed(pool, one, judged.now_s):
                await self._writer.patch(one.resource, one.document, changes)
                gone.append(one.name)
                if one.candidate and one.candidate.save is SaveState.SAVED:
                    self._deciding.saved(pool, max(map(_took_s, one.pods)))
                self._tell(_reference(one), "LentGpusReclaimed", why)
                self._tell(_about(pool), "Reclaimed", f"{one.name}: {choice.reason.message}")
        errors.raise_first()
        return tuple(gone)

    @contextlib.contextmanager
    def _allowed(self, pool: Pool, one: Borrowing, now_s: float) -> Iterator[None]:
        """What an admission plugin does not let be changed is left alone for a while; others are not kept by it."""
        try:
            yield
        except (Forbidden, Invalid) as error:
            self._deciding.refused(one.name, now_s)
            self._tell(_about(pool), "Refused", f"{one.name} may not be changed: {error.message}"[:_LONGEST])

    async def _ask(self, pool: Pool, judged: Judged, choice: Choice, chosen: list[Borrowing], by_s: float) -> None:
        until_s = min(by_s, judged.now_s + USUAL_S)
        for one in chosen:
            due = unasked([pod.saving for pod in one.pods], one.since_s)
            asked = [pod for pod, is_due in zip(one.pods, due, strict=True) if is_due]
            for pod in asked:
                patch = request_patch(MINE, choice.reason.message, judged.now_s, until_s, judged.needy)
                await self._writer.patch(PODS, pod.document, patch)
            if asked:
                self._tell(_about(pool), "SaveRequested", f"{one.name}: {choice.reason.message}")

    async def _let_return(self, pool: Pool, judged: Judged, place: int, turn: Turn) -> None:
        queue = judged.queues[place]
        by_name, errors = {one.name: one for one in queue.held}, Errors()
        for name in turn.names:
            one = by_name[name]
            text = f"{name} goes on: {queue.own + judged.shares[place]} GPUs may be used in {queue.borrower.queue}."
            with errors.kept(), self._allowed(pool, one, judged.now_s):
                await self._writer.patch(one.resource, one.document, returned(one))
                self._tell(_reference(one), "Returned", text)
                self._tell(_about(pool), "Returned", text)
        errors.raise_first()

    async def _advise(self, pool: Pool, judged: Judged, choice: Choice, chosen: list[Borrowing]) -> Carried:
        """Say what would be done; in annotate on those who would be stopped, too."""
        said = f"{choice.verdict} {choice.victims}"
        news = self._once(pool, said, "ReclaimAdvised", choice)
        for one in chosen if news and judged.pool.mode is Mode.ANNOTATE else ():
            word = {"verdict": "advice", "at": stamp(judged.now_s), "pool": pool.name, "reason": choice.reason.message}
            if ADVICE_ANNOTATION not in (one.document["metadata"].get("annotations") or {}):
                await self._writer.patch(one.resource, one.document, advised(json.dumps(word, ensure_ascii=False)))
        return Carried((), _again_s(choice, judged))

    def _once(self, pool: Pool, said: str, reason: str, choice: Choice) -> bool:
        if self._said.get(pool.uid) == said:
            return False
        self._said[pool.uid] = said
        self._tell(_about(pool), reason, choice.reason.message)
        return True


def _lent(judged: Judged, place: int, turns: Mapping[int, Turn]) -> int:
    """GPUs that the queue is to be able to use beyond its own."""
    return math.ceil(turns[place].open / WHOLE_GPU) - judged.queues[place].own


def _stands(judged: Judged, place: int) -> int:
    return judged.queues[place].stands - judged.queues[place].own


def _is_due(judged: Judged, place: int, turns: Mapping[int, Turn]) -> bool:
    """It is to be able to use more, or has marks although nothing is lent to it."""
    lent = _lent(judged, place, turns)
    return lent > _stands(judged, place) or (judged.queues[place].marked and lent == 0)


def _again_s(choice: Choice, judged: Judged) -> float:
    return _IDLE_S if choice.until_s is None else max(_SOON_S, choice.until_s - judged.now_s)


def _took_s(pod: SeenPod) -> float:
    return max(0.0, (pod.saving.last_durable_at_s or 0.0) - (pod.saving.asked_at_s or 0.0))


def _about(pool: Pool) -> Object:
    return LENDING_POOLS.reference("", pool.name, pool.uid)


def _reference(one: Borrowing) -> Object:
    metadata = one.document["metadata"]
    return one.resource.reference(metadata["namespace"], metadata["name"], metadata["uid"])
