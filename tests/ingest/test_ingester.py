"""What is measured arrives, once, whatever comes late, is restated, is missing, or fails on the way."""

import asyncio
import logging
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.client.prometheus import PrometheusError
from kopt.controllers.ingest.demand_source import DemandSource
from kopt.controllers.ingest.ingester import Followed, Ingester, IngestSettings, SourceState
from kopt.controllers.ingest.prometheus import Buckets
from kopt.features.live import Record, merged
from kopt.serving.client.transport import EndpointFailure
from kopt.serving.contract.live_answers import PushedDemand

GRID_S = 300
START = 5_668_000
"""A bucket of 2023."""
CHAT = DemandSource("ml/chat", "sum(increase(x[$step]))")
SETTINGS = IngestSettings(backfill_s=20 * GRID_S, reread_s=6 * GRID_S)


class World:
    """Prometheus, the endpoint and the clock. ``store`` is the endpoint's real merge."""

    def __init__(self) -> None:
        self.now_s = float(START * GRID_S)
        self.measured: dict[str, Buckets] = {}
        self.store: dict[str, Record] = {}
        self.down: set[str] = set()
        self.endpoint_down = False
        self.reads: list[tuple[str, int, int]] = []
        self.pushes: list[tuple[str, int]] = []
        self.hanging = asyncio.Event()

    async def read(self, source: DemandSource, first: int, last: int) -> Buckets:
        self.reads.append((source.series, first, last))
        if source.series in self.down:
            raise PrometheusError("Timeout", "no answer within 10 s")
        if source.series.startswith("hangs"):
            await self.hanging.wait()
        return {b: v for b, v in self.measured.get(source.series, {}).items() if first <= b <= last}

    async def push(self, service: str, t: Sequence[float], value: Sequence[float | None]) -> PushedDemand:
        if self.endpoint_down:
            raise EndpointFailure("ENDPOINT_UNREACHABLE", "no connection")
        assert all(time_s + GRID_S <= self.now_s for time_s in t), "only complete buckets"
        assert list(t) == sorted(set(t))
        buckets = np.array([int(time_s) // GRID_S for time_s in t])
        after, changed = merged(self.store.get(service), "", buckets, np.array(value, dtype=float))
        assert after is not None
        self.store[service] = after
        self.pushes.append((service, len(t)))
        known = int(np.isfinite(after.value).sum())
        return PushedDemand(service, changed, known, (after.newest + 1.0) * GRID_S)

    def known(self, service: str = "ml/chat") -> Buckets:
        record = self.store.get(service)
        if record is None:
            return {}
        return {record.first + int(i): float(record.value[i]) for i in np.flatnonzero(np.isfinite(record.value))}

    def ingester(self, settings: IngestSettings = SETTINGS) -> Ingester:
        return Ingester(self.read, self.push, settings, clock=lambda: self.now_s)


@pytest.fixture
def world() -> World:
    return World()


async def steps(world: World, buckets: int, followed: Followed, ingester: Ingester) -> None:
    for _ in range(buckets):
        world.now_s += GRID_S
        await ingester._attempt(followed)


samples = st.dictionaries(st.integers(0, 30), st.integers(0, 50).map(float), max_size=30)
# When each bucket's value arrives after its end, and when, if ever, it is restated, both within what is read again.
late = st.lists(st.integers(0, 4), min_size=31, max_size=31)
restated = st.dictionaries(st.integers(0, 30), st.tuples(st.integers(0, 4), st.integers(0, 50).map(float)), max_size=6)
outages = st.sets(st.integers(0, 30), max_size=8)


@given(samples, late, restated, outages, outages)
def test_after_any_late_restated_and_missing_samples_the_store_is_what_was_measured(
    truth: Buckets,
    delays: list[int],
    corrections: dict[int, tuple[int, float]],
    prometheus_down: set[int],
    endpoint_down: set[int],
) -> None:
    async def run() -> None:
        world = World()
        ingester, followed = world.ingester(IngestSettings(backfill_s=60 * GRID_S, reread_s=6 * GRID_S)), Followed(CHAT)
        expected: Buckets = {}
        for now in range(37):
            world.now_s = (START + now) * GRID_S + 3.0
            for bucket, value in truth.items():
                arrives = bucket + 1 + delays[bucket]
                if arrives == now:
                    expected[START + bucket] = value
                if (
                    bucket in corrections
                    and bucket + 1 + delays[bucket] + min(corrections[bucket][0], 4 - delays[bucket]) == now
                ):
                    expected[START + bucket] = corrections[bucket][1]
            world.measured["ml/chat"] = dict(expected)
            world.down = {"ml/chat"} if now in prometheus_down else set()
            world.endpoint_down = now in endpoint_down
            await ingester._attempt(followed)
        assert world.known() == expected, "late, restated and missing samples"
        world.pushes.clear()
        await ingester._attempt(followed)
        assert not world.pushes, "what is known is not pushed again"

    asyncio.run(run())


async def test_the_first_pass_fills_in_and_later_ones_read_a_short_window(world: World) -> None:
    world.measured["ml/chat"] = {START - i: float(i) for i in range(1, 100)}
    ingester, followed = world.ingester(), Followed(CHAT)
    world.now_s += 5
    await ingester._attempt(followed)
    assert world.reads[0] == ("ml/chat", START - 19, START - 1)
    assert len(world.known()) == 19
    assert followed.state is SourceState.CURRENT
    world.measured["ml/chat"][START] = 7.0
    await steps(world, 1, followed, ingester)
    assert world.reads[1] == ("ml/chat", START - 6, START)
    assert world.pushes[-1] == ("ml/chat", 1)


async def test_after_an_outage_everything_since_is_read(world: World) -> None:
    world.measured["ml/chat"] = {START + i: float(i) for i in range(-10, 40)}
    ingester, followed = world.ingester(), Followed(CHAT)
    await steps(world, 1, followed, ingester)
    world.down = {"ml/chat"}
    await steps(world, 12, followed, ingester)
    assert followed.failures == 12
    world.down = set()
    await steps(world, 1, followed, ingester)
    assert world.reads[-1][1:] == (START - 6, START + 12)
    assert set(range(START, START + 13)) <= set(world.known())


async def test_a_bucket_is_read_only_after_it_has_settled(world: World) -> None:
    ingester, followed = world.ingester(), Followed(CHAT)
    world.measured["ml/chat"] = {START - 2: 1.0, START - 1: 9.0}
    world.now_s += 1.9
    await ingester._attempt(followed)
    assert max(world.known()) == START - 2
    world.now_s += 0.2
    await ingester._attempt(followed)
    assert max(world.known()) == START - 1


async def test_an_endpoint_that_lost_its_history_gets_it_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.measured["ml/chat"] = {START + i: float(i) for i in range(-15, 40)}
    ingester, followed = world.ingester(), Followed(CHAT)
    await steps(world, 1, followed, ingester)
    before = len(world.known())
    world.store.clear()
    await steps(world, 1, followed, ingester)
    assert len(world.known()) >= before
    assert "lost its history" in caplog.text


async def test_a_failing_source_costs_the_others_nothing_and_is_said_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    names = [f"ml/s{i}" for i in range(20)]
    for name in names:
        world.measured[name] = {START - 1: 1.0}
    world.now_s += 5
    world.down = {"ml/down"}
    ingester = world.ingester(IngestSettings(at_once=2, failed_at_once=1))
    reported: list[Followed] = []
    ingester._report = reported.append
    ingester.follow(DemandSource(name, "q") for name in ["ml/down", *names])
    await asyncio.sleep(0.05)
    assert set(world.store) == set(names)
    states = {followed.source.series: followed.state for followed in ingester.followed}
    assert states["ml/down"] is SourceState.FAILING
    assert {followed.source.series for followed in reported} == {"ml/down", *names}
    await ingester.stop()
    followed = Followed(DemandSource("ml/down", "q"))
    await steps(world, 3, followed, ingester)
    assert caplog.text.count("Timeout: no answer within 10 s") == 2, "once for each Followed, not for each attempt"
    world.down = set()
    await steps(world, 1, followed, ingester)
    assert "measured again after 3 failures" in caplog.text


async def test_sources_that_hang_after_a_failure_leave_room_for_the_rest(world: World) -> None:
    ingester = world.ingester(IngestSettings(at_once=2, failed_at_once=1))
    hanging = [Followed(DemandSource(f"hangs-{i}", "q"), SourceState.FAILING) for i in range(5)]
    tasks = [asyncio.create_task(ingester._attempt(followed)) for followed in hanging]
    await asyncio.sleep(0)
    world.measured["ml/chat"] = {START - 1: 1.0}
    world.now_s += 5
    async with asyncio.timeout(1):
        await ingester._attempt(Followed(CHAT))
    assert world.known()
    world.hanging.set()
    await asyncio.gather(*tasks)


async def test_following_ends_and_begins_with_the_list(world: World) -> None:
    ingester = world.ingester()
    other = DemandSource("ml/chat", "another query")
    ingester.follow([CHAT, DemandSource("ml/search", "q")])
    kept = ingester.followed[0]
    ingester.follow([CHAT])
    assert ingester.followed == (kept,)
    ingester.follow([other])
    assert ingester.followed[0].source is other
    await ingester.stop()
    assert ingester.followed == ()


async def test_a_bucket_that_ends_while_the_one_before_is_read_is_not_missed(world: World) -> None:
    """Seen with a timer that woke a hundredth of a second too early: the newest bucket came five minutes late."""
    world.measured["ml/chat"] = {START - 1: 1.0, START: 2.0}
    end_s = (START + 1.0) * GRID_S + SETTINGS.settle_s
    world.now_s = end_s - 0.01

    async def slow(source: DemandSource, first: int, last: int) -> Buckets:
        result = await world.read(source, first, last)
        world.now_s = end_s + 0.05
        return result

    ingester = Ingester(slow, world.push, SETTINGS, clock=lambda: world.now_s)
    ingester.follow([CHAT])
    async with asyncio.timeout(5):
        while START not in world.known():
            await asyncio.sleep(0.01)
    await ingester.stop()
