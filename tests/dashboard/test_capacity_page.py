"""The page of capacity: advice in words, replays in the background, and what is not to be trusted says so."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kopt.core.cost.prices import Price
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.pools import ClusterPools, PoolSize
from kopt.core.scheduling.queue_demand import QueueDemandHistory
from kopt.core.workload.run_time import JobRun
from kopt.dashboard.data.access import ALL_NAMESPACES, Right, pods_in
from kopt.dashboard.data.costs import Recorded
from kopt.dashboard.data.gpu_hours import GpuHoursError
from kopt.dashboard.data.records import Records
from kopt.dashboard.pages.capacity.data import (
    CAPACITY,
    REPLAY_EVERY_S,
    Capacity,
    CapacityReader,
    PoolNeed,
    Replayed,
    questions_of,
)
from kopt.dashboard.pages.capacity.view import DISTRUSTED, capacity_page
from kopt.serving.client.transport import EndpointFailure
from kopt.serving.contract.runtime_answers import RunOut, RunsResponse
from kopt.simulator.what_if.answer import WhatIf
from kopt.simulator.what_if.jobs import WhatIfError
from kopt.simulator.what_if.purchase import PurchaseQuestion
from tests.capacity.made_capacity import END_S, NEEDS, answered, need, runs, state
from tests.conformance.test_pages import ADDRESS, answer

WEEK_S = 7 * 86_400.0
STEADY = (20.0,) * 10


def capacity(*pools: PoolNeed, **more: Any) -> Capacity:
    return Capacity(pools, END_S, configured=True, cluster=True, ready=True, **more)


def test_each_pool_says_what_to_buy_or_why_nothing_and_the_dearest_comes_first() -> None:
    page = capacity_page(
        capacity(
            need("steady", 64, STEADY),
            need("new", 8, (None, 3.0)),
            need("unknown", 0, STEADY),
            need("short"),
            need("big", 40, tuple(3 * (each or 3.0) for each in NEEDS)),
        )
    )
    assert [card.name for card in page.cards[:2]] == ["big", "short"]
    cards = {card.name: card for card in page.cards}
    assert {name: card.reason.code for name, card in cards.items()} == {
        "big": "CAPACITY_SHORT",
        "short": "CAPACITY_SHORT",
        "steady": "CAPACITY_ENOUGH",
        "new": "CAPACITY_HISTORY_TOO_SHORT",
        "unknown": "CAPACITY_SIZE_UNKNOWN",
    }
    assert [bool(cards[name].buy) for name in ("short", "steady", "new", "unknown")] == [True, False, False, False]
    assert [bool(cards[name].needed) for name in ("short", "steady", "new", "unknown")] == [True, True, False, True]
    bought = sum(int(card.buy or 0) for card in page.cards)
    assert (page.buy, page.month) == (f"{bought}", f"{bought * 2.0 * 730:,.0f}")
    names = {name: [trace.name for trace in card.figure.data] for name, card in cards.items()}
    assert names["steady"] == ["needed", "5–95 %", "25–75 %", "median", "64 GPUs"]
    assert names["short"][-1] == f"{16 + int(cards['short'].buy)} GPUs with the purchase"
    assert names["unknown"][-1] == "median"


def test_a_longer_delivery_orders_earlier_and_buys_the_same() -> None:
    need_later = need(gpus=28, needs=(18.0,) * 12)
    pages = {weeks: capacity_page(capacity(need_later), weeks) for weeks in (0, 4)}
    at_once, later = (pages[weeks].cards[0] for weeks in (0, 4))
    assert at_once.buy == later.buy
    assert at_once.short_s == later.short_s is not None
    assert at_once.order_s is not None
    assert later.order_s is not None
    assert at_once.order_s > later.order_s


def test_the_chart_steps_up_when_the_purchase_can_be_there() -> None:
    (card,) = capacity_page(capacity(need()), 8).cards
    steps = card.figure.data[-1]
    assert steps.y[0] == 16
    assert steps.x[0] == 1000 * (END_S + 7 * WEEK_S)


def replayed(question: PurchaseQuestion, result: WhatIf | None = None, **more: Any) -> dict[str, Replayed]:
    return {question.pool: Replayed(question, END_S - 600, result or answered(question), **more)}


async def text_of(data: Capacity) -> str:
    return (await answer({CAPACITY: data}, f"{ADDRESS}/capacity")).text  # type: ignore[arg-type]


async def test_as_it_is_and_as_it_would_be_stand_side_by_side_with_when_it_was_computed() -> None:
    data = state("h100")
    text = await text_of(data)
    question = questions_of(data.pools)["h100"]
    assert f"What {question.buy_gpus} more GPUs would have changed" in text
    for cell in answered(question, "h100").figure("mean wait").cells():
        assert f">{cell}<" in text
    assert "WHAT_IF_REPLAY_HOLDS" in text
    assert "Do not trust" not in text
    assert '<time datetime="2030-03-17' in text.partition("Replayed in the background")[2]
    for code in DISTRUSTED:
        assert f'<code class="code">{code}</code>' in text


def distrusted(code: str) -> WhatIf:
    question = questions_of((need(),))["h100"]
    result = answered(question)
    reason = replace(result.check.reason, code=code, message="Because of a reason.")
    return replace(result, check=replace(result.check, reason=reason))


@pytest.mark.parametrize("code", DISTRUSTED)
async def test_a_replay_that_does_not_hold_warns_says_what_to_do_and_marks_waits_alone(code: str) -> None:
    data = capacity(need(), replayed=replayed(questions_of((need(),))["h100"], distrusted(code)))
    (card,) = capacity_page(data).cards
    assert card.what_if is not None
    marked = {row.cells[0] for row in card.what_if.rows if row.is_doubtful}
    assert marked == {"median wait", "mean wait", "95 % wait up to"}
    text = await text_of(data)
    warning = text.partition("Do not trust the changes of waits.")[2].partition("</div>")[0]
    assert code in warning
    assert "Because of a reason." in warning
    assert card.what_if.do.split()[0] in warning
    assert ("holds all the same" in warning) == (code != "WHAT_IF_POOL_TOO_SMALL")


async def test_what_is_not_replayed_yet_and_what_cannot_be_is_said() -> None:
    assert "are being replayed" in await text_of(capacity(need(), replaying="h100"))
    assert "will be replayed next" in await text_of(capacity(need(), need("a100"), replaying="a100"))
    question = questions_of((need(),))["h100"]
    failed = {"h100": Replayed(question, END_S, problem="No job is recorded.")}
    assert "No answer: No job is recorded." in await text_of(capacity(need(), replayed=failed))
    old = replayed(replace(question, buy_gpus=8, gpus=8), answered(question))
    assert "Another purchase is advised by now" in await text_of(capacity(need(), replayed=old))


async def test_who_may_not_list_all_pods_sees_no_pool() -> None:
    def restricted(*held: Right) -> Capacity:
        return CAPACITY.restrict(state("secret-of-a"), lambda right: right in held)

    assert restricted(pods_in(ALL_NAMESPACES)) == state("secret-of-a")
    text = await text_of(restricted(pods_in("team-a")))
    assert "secret-of-a" not in text
    assert "list the pods of every namespace" in text


class Source:
    """Weeks of one queue in two pools, one of which is short, or of one of them."""

    def __init__(self) -> None:
        self.problem, self.scale, self.names = "", 1000, tuple[str, ...](("h100", "l4"))
        self.reads = 0

    def queue_demand(self, since_s: float) -> QueueDemandHistory:
        self.reads += 1
        if self.problem:
            raise GpuHoursError(self.problem)
        short = [round(self.scale * (each or 9.0)) for each in NEEDS for _ in range(168)]
        both = {"h100": tuple(short), "l4": (2000,) * len(short)}
        used = {("research", name): both[name] for name in self.names}
        return QueueDemandHistory(END_S - len(short) * 3600, used, {key: (0,) * len(short) for key in used})


class Client:
    """An endpoint with the runs of the made-up pool, two to a page, that can be away."""

    def __init__(self, listed: Sequence[JobRun]) -> None:
        self.listed, self.is_away, self.clusters = listed, False, list[str]()

    async def runs(self, cluster: str = "", after: int = 0, *, deadline_s: float | None = None) -> RunsResponse:
        self.clusters.append(cluster)
        if self.is_away:
            raise EndpointFailure("ENDPOINT_UNREACHABLE", "Connection refused.")
        page = self.listed[after : after + 200]
        return RunsResponse(runs=tuple(map(RunOut.of, page)), last=after + len(page))


class Cluster:
    def __init__(self) -> None:
        size = PoolSize(16, 8, "NVIDIA-H100-80GB-HBM3")
        self.now = ClusterPools({"h100": size, "l4": PoolSize(8, 4, "NVIDIA-L4")}, ready=True)

    async def pools(self) -> ClusterPools:
        return self.now


class Costs:
    def __init__(self, prices: Collection[Price]) -> None:
        self.prices = tuple(prices)

    def recorded(self) -> Recorded:
        return Recorded(frozenset(), 0, self.prices)


class Platform:
    """A reader over all of these; ``asked`` are the purchases that were replayed."""

    def __init__(self) -> None:
        self.source, self.client, self.cluster = Source(), Client(runs()), Cluster()
        self.now_s, self.questions, self.error = END_S, list[PurchaseQuestion](), ""
        self.gate: asyncio.Event | None = None
        self.jobs: Sequence[JobRun] = ()
        connections: Any = type("Made", (), {})()
        connections.client, connections.cluster = self.client, self.cluster
        connections.records = Records(gpu_hours=self.source)
        connections.cluster_name, connections.clock = "west", lambda: self.now_s
        self.connections = connections
        self.reader = CapacityReader(connections, self.replay)

    async def replay(self, jobs: Sequence[JobRun], question: PurchaseQuestion) -> WhatIf:
        self.questions.append(question)
        self.jobs = jobs
        if self.gate is not None:
            await self.gate.wait()
        if self.error:
            raise WhatIfError(self.error)
        return answered(question)

    async def after(self, seconds: float = 0.0) -> Capacity:
        """What the page has once all of it was read, so much later."""
        self.now_s += seconds
        await self.reader.refresh()
        assert self.reader.background.task is not None
        await self.reader.background.task
        return await self.reader.latest()


async def test_the_advised_purchase_is_replayed_on_the_jobs_of_the_endpoint_and_not_again_soon() -> None:
    platform = Platform()
    data = await platform.after()
    (question,) = platform.questions
    assert (question.pool, question.gpus, question.is_only) == ("h100", 16, False)
    assert question.buy_gpus == questions_of(data.pools)["h100"].buy_gpus
    assert (len(platform.jobs), set(platform.client.clusters)) == (len(runs()), {"west"})
    assert data.replayed["h100"].answer == answered(question)
    assert data.replayed["h100"].at_s == END_S
    assert [pool.pool for pool in data.pools] == ["h100", "l4"]
    await platform.after(3600)
    assert len(platform.questions) == 1
    await platform.after(REPLAY_EVERY_S)
    assert len(platform.questions) == 2


async def test_jobs_that_name_no_pool_count_only_where_there_is_no_other() -> None:
    platform = Platform()
    platform.source.names = ("h100",)
    await platform.after()
    platform.cluster.now = replace(platform.cluster.now, sizes={"h100": platform.cluster.now.sizes["h100"]})
    await platform.after(3600)
    assert [each.is_only for each in platform.questions] == [False, True]


async def test_another_advice_is_replayed_at_once_and_what_is_not_advised_any_more_is_forgotten() -> None:
    platform = Platform()
    await platform.after()
    platform.source.scale = 2000
    data = await platform.after(3600)
    assert [each.buy_gpus for each in platform.questions] == sorted({each.buy_gpus for each in platform.questions})
    assert len(platform.questions) == 2
    assert data.replayed["h100"].question == platform.questions[-1]
    platform.source.scale = 100
    assert not (await platform.after(3600)).replayed


async def test_jobs_of_pools_that_nothing_is_bought_of_are_not_kept() -> None:
    platform = Platform()
    platform.client.listed = [*runs(), *(replace(run, pool="l4", job=f"l4-{run.job}") for run in runs())]
    await platform.after()
    assert {run.pool for run in platform.jobs} == {"h100"}


async def test_a_page_is_answered_while_jobs_are_replayed() -> None:
    platform = Platform()
    platform.gate = asyncio.Event()
    await platform.reader.refresh()
    async with asyncio.timeout(10):
        while not platform.questions:
            await asyncio.sleep(0.01)
    data = await platform.reader.latest()
    assert (data.replaying, data.ready, len(data.pools)) == ("h100", True, 2)
    platform.gate.set()
    assert (await platform.after()).replaying == ""


async def test_an_endpoint_that_is_away_is_asked_again_soon_and_a_wrong_question_is_not() -> None:
    platform = Platform()
    platform.client.is_away = True
    data = await platform.after()
    assert data.replayed["h100"].problem == "The jobs that ran cannot be read now: Connection refused."
    platform.client.is_away, platform.error = False, "no job ran in h100"
    data = await platform.after(61)
    assert data.replayed["h100"].problem == "No job ran in h100."
    assert len(platform.questions) == 1
    await platform.after(3600)
    assert len(platform.questions) == 1


async def test_a_prometheus_that_fails_leaves_what_was_known_and_is_read_again() -> None:
    platform = Platform()
    before = await platform.after()
    platform.source.problem = "What queues demanded cannot be read: no answer"
    data = await platform.after(3600)
    assert data.problems == (platform.source.problem,)
    assert data.pools == before.pools
    platform.source.problem = ""
    assert not (await platform.after(61)).problems


async def test_before_the_cluster_is_read_nothing_is_advised() -> None:
    platform = Platform()
    platform.cluster.now = ClusterPools(problems=("The cluster does not answer.",))
    data = await platform.after()
    assert (data.ready, data.problems, platform.source.reads) == (False, ("The cluster does not answer.",), 0)
    assert "It takes a moment the first time" in await text_of(data)


async def test_prices_are_those_of_the_meters_book_where_it_is_read() -> None:
    platform = Platform()
    public = {pool.pool: pool.price for pool in (await platform.after()).pools}
    assert public["h100"] is not None
    own = Price(find_gpu("NVIDIA-H100-80GB-HBM3").name, "own", "", "on-demand", 7_000_000, "USD", 0, "")
    platform = Platform()
    platform.connections.records = Records(Costs([own]), platform.source)
    assert {pool.pool: pool.price for pool in (await platform.after()).pools} == {"h100": 7.0, "l4": None}
