"""What pools needed week by week, and what the advised purchase of each would have changed, as their reader may see it.

All of it is read and computed in the background: a replay takes seconds, in a process of its own.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kopt.core.cost.prices import PriceBook, shipped_prices
from kopt.core.hardware.pools import ClusterPools, PoolSize
from kopt.core.workload.run_time import JobRun, RunTimeError
from kopt.dashboard.data.access import ALL_NAMESPACES, Holds, pods_in
from kopt.dashboard.data.feed import FAILURES, Background, Connections, Feed, sentence
from kopt.dashboard.data.gpu_hours import GpuHoursError, GpuHourSource
from kopt.dashboard.pages.capacity.questions import Answered, PoolOffer, Questions
from kopt.policies.capacity.advice import advise, needs_of
from kopt.serving.base.database.interface import DatabaseError
from kopt.simulator.what_if.answer import WhatIf
from kopt.simulator.what_if.jobs import WhatIfError
from kopt.simulator.what_if.purchase import PurchaseQuestion, ReplayEnded, in_process, purchase_what_if

SINCE_S = 26 * 7 * 86_400.0
"""As ``kopt capacity`` goes by."""
_EVERY_S, _AGAIN_S, _UNREAD_S = 600.0, 60.0, 2.0
REPLAY_EVERY_S, REPLAY_LIMIT_S = 6 * 3600.0, 300.0
_DEADLINE_S, _MOST_RUNS = 30.0, 100_000
_NO_ANSWER = (WhatIfError, RunTimeError, ReplayEnded)
Replay = Callable[[Sequence[JobRun], PurchaseQuestion], Awaitable[WhatIf]]


@dataclass(frozen=True)
class PoolNeed:
    """``needs`` are of whole weeks, the oldest first; ``price`` is of a GPU-hour, None without one. ``is_only``:
    there is no other pool with GPUs, so jobs that name none ran in it."""

    pool: str
    needs: tuple[float | None, ...]
    size: PoolSize
    price: float | None = None
    is_only: bool = False


@dataclass(frozen=True)
class Replayed:
    """What came of a purchase at ``at_s``; ``problem`` says why there is no ``answer``. It is 0 where the endpoint did
    not answer: it is asked again soon."""

    question: PurchaseQuestion
    at_s: float
    answer: WhatIf | None = None
    problem: str = ""


@dataclass(frozen=True)
class Capacity:
    """``end_s``: when the last week ended, in Unix seconds. ``replayed`` is by pool, ``replaying`` the pool of now.
    ``configured`` is False where these pages know no Prometheus, ``cluster`` where they have none; ``hides`` is True
    for who may not list all pods."""

    pools: tuple[PoolNeed, ...] = ()
    end_s: float = 0.0
    replayed: Mapping[str, Replayed] = field(default_factory=dict)
    replaying: str = ""
    configured: bool = False
    cluster: bool = False
    ready: bool = False
    hides: bool = False
    problems: tuple[str, ...] = ()
    questions: Questions | None = None
    """Where readers ask their own; None for those who may not."""

    @property
    def offers(self) -> tuple[PoolOffer, ...]:
        """Pools whose size is known."""
        return tuple(
            PoolOffer(each.pool, each.size.gpus, each.size.model, each.price, each.is_only)
            for each in self.pools
            if each.size.gpus
        )


async def replay_apart(runs: Sequence[JobRun], question: PurchaseQuestion) -> WhatIf:
    """Raises WhatIfError and ReplayEnded."""
    return await in_process(REPLAY_LIMIT_S, purchase_what_if, runs, question)


class CapacityReader:
    """Asks a Prometheus and the cluster's watch now and then, and the endpoint when there is something to replay."""

    def __init__(self, connections: Connections, replay: Replay = replay_apart) -> None:
        self._from, self._replay = connections, replay
        self._replay_lock = asyncio.Lock()
        self._latest = Capacity(
            configured=connections.records.gpu_hours is not None,
            cluster=connections.cluster is not None,
            questions=Questions(self._answer, connections.clock),
        )
        self.background = Background(self._read, connections.clock)

    async def refresh(self) -> None:
        if self._from.records.gpu_hours is not None:
            self.background.begin()

    async def latest(self) -> Capacity:
        return self._latest

    async def _read(self) -> float:
        assert self._from.records.gpu_hours is not None
        pools = ClusterPools(ready=True) if self._from.cluster is None else await self._from.cluster.pools()
        if not pools.ready:
            self._latest = replace(self._latest, problems=pools.problems)
            return _UNREAD_S
        try:
            needs, end_s = await self._needs(self._from.records.gpu_hours, pools)
        except GpuHoursError as error:
            self._latest = replace(self._latest, ready=True, problems=(*pools.problems, f"{error}"))
            return _AGAIN_S
        self._latest = replace(self._latest, pools=needs, end_s=end_s, ready=True, problems=pools.problems)
        await self._replay_purchases()
        return _EVERY_S if all(each.at_s for each in self._latest.replayed.values()) else _AGAIN_S

    async def _needs(self, source: GpuHourSource, pools: ClusterPools) -> tuple[tuple[PoolNeed, ...], float]:
        book = await self._prices()
        now_ms = int(self._from.clock() * 1000)

        def read() -> tuple[tuple[PoolNeed, ...], float]:
            history = source.queue_demand(SINCE_S)
            names = sorted({pool for _, pool in history.used})
            others = {name for name, size in pools.sizes.items() if size.gpus}.union(names)
            needs = []
            for name in names:
                size = pools.sizes.get(name, PoolSize())
                weeks = tuple(needs_of(history.of_pool(name)))
                needs.append(PoolNeed(name, weeks, size, book.on_demand(size.model, now_ms), others == {name}))
            return tuple(needs), history.end_s

        return await asyncio.to_thread(read)

    async def _prices(self) -> PriceBook:
        """Those of the meter's book where the pages read its database, else the public ones."""
        if self._from.records.costs is not None:
            try:
                recorded = await asyncio.to_thread(self._from.records.costs.recorded)
            except DatabaseError:
                recorded = None
            if recorded is not None and recorded.prices:
                return PriceBook(recorded.prices)
        return shipped_prices()

    async def _replay_purchases(self) -> None:
        """One after the other, each that is new or old; what is no longer advised is forgotten."""
        questions = questions_of(self._latest.pools)
        kept = {name: each for name, each in self._latest.replayed.items() if name in questions}
        self._latest = replace(self._latest, replayed=kept)
        due = [each for each in questions.values() if self._is_due(each)]
        runs: Sequence[JobRun] | None = None
        for question in due:
            self._latest = replace(self._latest, replaying=question.pool)
            try:
                runs = await self._runs(questions) if runs is None else runs
                async with self._replay_lock:
                    answer = await self._replay(runs, question)
                result = Replayed(question, self._from.clock(), answer)
            except FAILURES as error:
                result = Replayed(question, 0.0, problem=_unread(error))
            except _NO_ANSWER as error:
                result = Replayed(question, self._from.clock(), problem=_no_answer(error))
            finally:
                self._latest = replace(self._latest, replaying="")
            self._latest = replace(self._latest, replayed={**self._latest.replayed, question.pool: result})

    async def _answer(self, question: PurchaseQuestion) -> Answered:
        """A reader's own; after an advised purchase that is being replayed."""
        try:
            async with self._replay_lock:
                return await self._replay(await self._runs({question.pool}), question), ""
        except FAILURES as error:
            return None, _unread(error)
        except _NO_ANSWER as error:
            return None, _no_answer(error)

    def _is_due(self, question: PurchaseQuestion) -> bool:
        before = self._latest.replayed.get(question.pool)
        return before is None or before.question != question or self._from.clock() >= before.at_s + REPLAY_EVERY_S

    async def _runs(self, pools: Collection[str]) -> Sequence[JobRun]:
        """The last that the endpoint was sent of the cluster, in these pools or none. Raises FAILURES, RunTimeError."""
        runs: deque[JobRun] = deque(maxlen=_MOST_RUNS)
        last = 0
        while True:
            page = await self._from.client.runs(self._from.cluster_name, last, deadline_s=_DEADLINE_S)
            if not page.runs:
                return runs
            runs += (item.run for item in page.runs if item.gpus and (not item.pool or item.pool in pools))
            last = page.last


def _unread(error: Exception) -> str:
    return f"The jobs that ran cannot be read now: {sentence(error)}"


def _no_answer(error: Exception) -> str:
    text = f"{error}"
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def questions_of(pools: Sequence[PoolNeed]) -> dict[str, PurchaseQuestion]:
    """By pool for which GPUs are advised to be bought."""
    advised = ((each, advise(each.needs, each.size).buy_gpus) for each in pools)
    return {
        each.pool: PurchaseQuestion(each.pool, each.size.gpus, buy_gpus, each.price, each.is_only)
        for each, buy_gpus in advised
        if buy_gpus
    }


def _restrict(capacity: Capacity, holds: Holds) -> Capacity:
    """Pools are everybody's together: who may list the pods of all namespaces sees them."""
    if holds(pods_in(ALL_NAMESPACES)):
        return capacity
    return Capacity(configured=capacity.configured, cluster=capacity.cluster, ready=capacity.ready, hides=True)


CAPACITY: Feed[Capacity] = Feed("capacity", Capacity, CapacityReader, _restrict)
