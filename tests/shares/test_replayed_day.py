"""The accounting of replayed days, on days small enough to be reckoned by hand."""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from benchmarked import benchmark_module

ledgers = benchmark_module("shares.ledger")
program = benchmark_module("shares.__main__")
replays = benchmark_module("shares.replay")
TraceJob = benchmark_module("shares.day").TraceJob
TraceClock = benchmark_module("shares.clock").TraceClock
QUOTAS = {"a": 4, "b": 4}
DAY = {"quotas": QUOTAS, "capacity": 8}


def test_a_share_is_integrated_between_events_and_by_hour() -> None:
    ledger = ledgers.Ledger(**DAY)
    ledger.appears("borrows", "a", 8, 0)
    ledger.holds("borrows", 0)
    # b wants its four GPUs for the second half of the first hour and the first tenth of the second.
    ledger.appears("owns", "b", 4, 1800)
    ledger.lets_go("borrows", 3960)
    ledger.holds("owns", 3960)
    ledger.advance(7200)
    first, second = ledger.hours[0], ledger.hours[1]
    assert (first.seconds, second.seconds) == (3600, 3600)
    assert first.error == {"a": pytest.approx(0.5 * 1800), "b": pytest.approx(-0.5 * 1800)}
    assert first.share_error == pytest.approx(0.25)
    assert first.broken_s == pytest.approx(1800)
    # Whole jobs: with a job of eight and one of four, either a has eight or none.
    assert first.whole_jobs_error == pytest.approx(0.25)
    assert second.broken_s == pytest.approx(360 + 3240)
    assert second.error["b"] == pytest.approx(-0.5 * 360)
    assert second.error["a"] == pytest.approx(0.5 * 360 - 0.5 * 3240)
    assert second.misallocated == pytest.approx(0.5 * 3600)


def test_in_place_a_queue_does_not_stop_its_own_jobs_for_others_of_its_own() -> None:
    ledger = ledgers.Ledger(**DAY)
    for number in range(6):
        ledger.appears(f"small-{number}", "a", 1, 0)
        ledger.holds(f"small-{number}", 0)
    ledger.appears("large", "b", 4, 0)
    ledger.appears("one", "b", 1, 0)
    ledger.holds("one", 0)
    ledger.advance(3600)
    hour = ledger.hours[0]
    # Ideal are 4 and 4. Nearest are 4 and 4, with one stopped for large; in place 4 and 1 or 3 and 5.
    assert (hour.whole_jobs_error, hour.in_place_error) == (0, pytest.approx(1 / 8))
    assert hour.share_error == pytest.approx(3 / 8)
    assert hour.contended_s == 3600


def test_a_job_that_has_ended_counts_until_its_quota_is_free() -> None:
    ledger = ledgers.Ledger(**DAY)
    ledger.appears("first", "a", 8, 0)
    ledger.holds("first", 0)
    ledger.appears("next", "a", 8, 0)
    ledger.leaves("first", 600)
    ledger.holds("next", 900)
    ledger.advance(3600)
    # Both jobs are demand of a: it lacks eight GPUs between the two, and nothing before or after.
    assert ledger.hours[0].error == {"a": pytest.approx(-300), "b": 0}
    assert ledger.waits_s() == [0, 900]


def test_waits_are_all_times_without_gpus() -> None:
    ledger = ledgers.Ledger(**DAY)
    ledger.appears("job", "a", 1, 10)
    ledger.holds("job", 30)
    ledger.holds("job", 40)
    ledger.lets_go("job", 100)
    ledger.lets_go("job", 110)
    ledger.holds("job", 150)
    ledger.leaves("job", 200)
    assert ledger.waits_s() == [20 + 50]
    assert ledger.jobs["job"].evicted_s == [100]
    with pytest.raises(ValueError, match="no job job"):
        ledger.holds("job", 210)
    with pytest.raises(ValueError, match="after one of"):
        ledger.advance(1)


@pytest.mark.parametrize(
    ("ideal", "sizes", "nearest"),
    [
        ({"a": 4.0, "b": 4.0}, {"a": [1] * 8, "b": [2] * 4}, {"a": 4, "b": 4}),
        ({"a": 4.5, "b": 3.5}, {"a": [1] * 8, "b": [1] * 8}, {"a": 4, "b": 3}),
        ({"a": 5.0, "b": 3.0}, {"a": [1, 8], "b": [2, 2]}, {"a": 8, "b": 0}),
        ({"a": 0.0, "b": 3.0}, {"b": [2, 2]}, {"a": 0, "b": 4}),
    ],
)
def test_the_nearest_division_is_of_whole_jobs_within_the_capacity(
    ideal: dict[str, float], sizes: dict[str, list[int]], nearest: dict[str, int]
) -> None:
    result = ledgers.nearest_division(ideal, {name: ledgers.subset_sums(sizes.get(name, ())) for name in ideal}, 8)
    assert sum(result.values()) <= 8
    worst = max(abs(result[name] - ideal[name]) for name in ideal)
    assert worst == max(abs(nearest[name] - ideal[name]) for name in ideal)


def test_the_clock_is_the_worlds_while_an_engine_works() -> None:
    clock = TraceClock(100.0, speed=60, quiet_s=0.5)
    assert clock.advance(101.0, due_s=1000) == 60
    assert clock.advance(102.0, due_s=70) == 70
    clock.touch(102.0)
    assert clock.advance(102.25, due_s=1000) == pytest.approx(70.25)
    assert clock.advance(103.5, due_s=1000) == pytest.approx(70.5 + 60)
    # What is due has come already: nothing passes but what the engine takes.
    clock.touch(103.5)
    assert clock.advance(104.0, due_s=100) == pytest.approx(131)
    clock.touch(104.0)
    clock.settle()
    assert clock.advance(104.1, due_s=1000) == pytest.approx(137)
    # A job took five seconds to be sent: the engine heard of it after them.
    clock.touch(109.1)
    assert clock.advance(109.6, due_s=1000) == pytest.approx(142.5)


class World:
    """Its time passes while somebody sleeps."""

    now_s = 0.0

    def wall(self) -> float:
        return self.now_s

    def sleep(self, span_s: float) -> None:
        self.now_s += span_s


class OneQueue:
    """With room for one job, which it stops ``evict_at_s``; each step takes ``delay_s`` of the world."""

    def __init__(self, world: World, delay_s: float, evict_at_s: float = float("inf")) -> None:
        self._world, self._delay_s, self._evict_at_s = world, delay_s, evict_at_s
        self._queue: list[str] = []
        self._news: list[tuple[float, object]] = []

    def submit(self, job: object) -> None:
        self._say(replays.JobState(job.name), 0.0)  # type: ignore[attr-defined]
        self._queue.append(job.name)  # type: ignore[attr-defined]
        if len(self._queue) == 1:
            self._start()

    def end(self, name: str) -> None:
        self._queue.remove(name)
        self._say(replays.JobState(name, holds=True, gone=True), self._delay_s)
        self._start()

    def states(self) -> Sequence[object]:
        if self._world.now_s >= self._evict_at_s:
            self._evict_at_s = float("inf")
            name = self._queue[0]
            self._say(replays.JobState(name, holds=True, cause="reclaimed"), 0.0)
            self._say(replays.JobState(name), self._delay_s)
            self._start()
        due = [state for at_s, state in self._news if at_s <= self._world.now_s]
        self._news = [item for item in self._news if item[0] > self._world.now_s]
        return due

    def _start(self) -> None:
        if self._queue:
            self._say(replays.JobState(self._queue[0], holds=True, runs=True), 2 * self._delay_s)

    def _say(self, state: object, delay_s: float) -> None:
        self._news.append((self._world.now_s + delay_s, state))


def test_a_replay_counts_what_an_engine_takes_as_long_as_it_is() -> None:
    world, ledger = World(), ledgers.Ledger({"a": 4}, 4)
    jobs = [TraceJob("first", "a", 60, 4, 600), TraceJob("second", "a", 120, 4, 600)]
    engine = OneQueue(world, 0.1)
    replay = replays.Replay(engine, ledger, jobs, speed=600, quiet_s=0.5, wall=world.wall, sleep=world.sleep)
    replay.run(7200)
    assert (replay.ended, dict(replay.causes)) == (2, {})
    # The first waits for a step of 0.2 s, the second for what is left of the first, and for two steps.
    assert ledger.waits_s() == [pytest.approx(0.2, abs=0.1), pytest.approx(540, abs=2)]
    assert ledger.hours[0].share_error * 3600 == pytest.approx(0.5, abs=0.4)
    assert world.now_s < 20


@pytest.mark.parametrize("delay_s", [0.1, 3.0])
def test_a_slow_engine_costs_the_seconds_that_it_takes(delay_s: float) -> None:
    world, ledger = World(), ledgers.Ledger({"a": 4}, 4)
    jobs = [TraceJob("first", "a", 60, 4, 600), TraceJob("second", "a", 120, 4, 600)]
    engine = OneQueue(world, delay_s)
    replays.Replay(engine, ledger, jobs, speed=600, quiet_s=0.5, wall=world.wall, sleep=world.sleep).run(7200)
    assert ledger.waits_s()[0] == pytest.approx(2 * delay_s, abs=0.1)
    assert ledger.waits_s()[1] == pytest.approx(540 + 4 * delay_s, abs=2)


def test_a_second_of_an_engine_counts_as_the_scale_says_without_a_controller_too() -> None:
    world, ledger = World(), ledgers.Ledger({"a": 4}, 4)
    jobs = [TraceJob("first", "a", 60, 4, 600), TraceJob("second", "a", 120, 4, 600)]
    options = {"speed": 600, "quiet_s": 0.5, "scale": 10.0, "wall": world.wall, "sleep": world.sleep}
    replays.Replay(OneQueue(world, 0.1), ledger, jobs, **options).run(7200)
    assert ledger.waits_s() == [pytest.approx(2, abs=1), pytest.approx(540, abs=10)]
    assert world.now_s < 20, "while the second waits for the first to end time is idle"


@pytest.mark.parametrize("scale", ["0", "-1", "0.5", "nan", "inf", "fast"])
def test_a_scale_is_a_number_from_one(scale: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="from 1"):
        program.scale_of(scale)


def test_an_evicted_job_goes_on_from_where_it_was() -> None:
    world, ledger = World(), ledgers.Ledger({"a": 4}, 4)
    engine = OneQueue(world, 0.1, evict_at_s=1.0)
    job = TraceJob("job", "a", 60, 4, 1200)
    replay = replays.Replay(engine, ledger, [job], speed=600, quiet_s=0.5, wall=world.wall, sleep=world.sleep)
    replay.run(3600)
    record = ledger.jobs["job"]
    assert (replay.ended, dict(replay.causes), len(record.evicted_s)) == (1, {"reclaimed": 1}, 1)
    assert record.left_s is not None
    assert record.left_s - record.appeared_s == pytest.approx(1200, abs=2)
    assert record.held_s == pytest.approx(1200, abs=1)


class InTurns(OneQueue):
    """With two jobs in turns: it evicts the one that runs when the other has waited for ``pause_s`` of the world."""

    def __init__(self, world: World, pause_s: float) -> None:
        super().__init__(world, 0.1)
        self._pause_s, self._since_s = pause_s, 0.0

    def states(self) -> Sequence[object]:
        if len(self._queue) == 2 and self._world.now_s >= self._since_s + self._pause_s:
            first = self._queue.pop(0)
            self._say(replays.JobState(first, holds=True, cause="turn"), 0.0)
            self._say(replays.JobState(first), self._delay_s)
            self._queue.append(first)
            self._since_s = self._world.now_s
            self._start()
        return super().states()


@pytest.mark.parametrize("scale", [20.0, 60.0])
def test_pauses_of_a_controller_are_as_long_as_meant_in_the_day(scale: float) -> None:
    """Ten minutes are 600 / scale seconds of the world, and 600 of the day again."""
    world, ledger = World(), ledgers.Ledger({"a": 4}, 4)
    jobs = [TraceJob("first", "a", 60, 4, 7200), TraceJob("second", "a", 61, 4, 7200)]
    engine, wall, sleep = InTurns(world, 600 / scale), world.wall, world.sleep
    options = {"speed": 600, "quiet_s": 0.5, "scale": scale, "paced": True}
    replays.Replay(engine, ledger, jobs, **options, wall=wall, sleep=sleep).run(4200)
    at_s = sorted(each for job in ledger.jobs.values() for each in job.evicted_s)
    spans = [after - before for before, after in itertools.pairwise(at_s)]
    assert len(spans) >= 5
    assert spans == [pytest.approx(600, abs=20)] * len(spans)


def test_a_job_that_an_engine_loses_ends_the_replay() -> None:
    world, ledger = World(), ledgers.Ledger({"a": 4}, 4)

    class Loses(OneQueue):
        def submit(self, job: object) -> None:
            super().submit(job)
            self._say(replays.JobState(job.name, gone=True), 0.1)  # type: ignore[attr-defined]

    job = replace(TraceJob("job", "a", 60, 4, 1200), name="lost")
    engine = Loses(world, 0.1)
    replay = replays.Replay(engine, ledger, [job], speed=600, quiet_s=0.5, wall=world.wall, sleep=world.sleep)
    with pytest.raises(RuntimeError, match="lost is gone"):
        replay.run(3600)


def test_each_hour_is_reported_once_it_is_over() -> None:
    world, ledger, hours = World(), ledgers.Ledger({"a": 4}, 4), list[tuple[int, float]]()
    engine = OneQueue(world, 0.1)
    replay = replays.Replay(
        engine,
        ledger,
        [TraceJob("job", "a", 3599.9, 4, 3600)],
        speed=600,
        quiet_s=0.5,
        wall=world.wall,
        sleep=world.sleep,
        each_hour=lambda hour: hours.append((hour, ledger.hours[hour].seconds)),
    )
    replay.run(3 * 3600)
    assert hours == [(0, 3600), (1, 3600)]
