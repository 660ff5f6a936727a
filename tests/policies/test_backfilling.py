"""Backfilling: what starts fits, nobody is delayed whose GPUs are held, and estimates that are true make it a gain."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.run_time import JobKind, JobRun
from kopt.policies.backfilling import Holding, PendingJob, conservative, easy, fifo
from kopt.simulator.backfilling import Started, replay

GPUS = 8
_JOBS = st.lists(st.tuples(st.integers(1, GPUS), st.integers(1, 50)), max_size=12)
_QUEUE = _JOBS.map(lambda jobs: [PendingJob(gpus, float(seconds)) for gpus, seconds in jobs])
_TRACE = st.lists(st.tuples(st.integers(0, 60), st.integers(1, GPUS), st.integers(1, 40)), min_size=1, max_size=30)


@st.composite
def states(draw: st.DrawFn) -> tuple[int, list[PendingJob], list[Holding]]:
    running = []
    free = GPUS
    for gpus, seconds in draw(_JOBS):
        if gpus <= free:
            running.append(Holding(gpus, float(seconds)))
            free -= gpus
    return free, draw(_QUEUE), running


@given(state=states())
def test_what_starts_fits_and_the_front_of_the_queue_goes_first(state: Any) -> None:
    free, queue, running = state
    shortest = easy(free, queue, running, 0.0, shortest_first=True)
    for chosen in (easy(free, queue, running, 0.0), shortest, conservative(free, queue, running, 0.0)):
        assert len(set(chosen)) == len(chosen)
        assert sum(queue[index].gpus for index in chosen) <= free
        assert set(fifo(free, queue)) <= set(chosen)


def earliest(gpus: int, free: int, running: list[Holding]) -> float:
    """When so many GPUs are free if nothing else starts: by going through all ends."""
    for until_s in sorted({0.0, *(holding.until_s for holding in running)}):
        if free + sum(holding.gpus for holding in running if holding.until_s <= until_s) >= gpus:
            return until_s
    raise AssertionError("never")


@given(state=states())
def test_easy_does_not_delay_the_first_that_waits(state: Any) -> None:
    free, queue, running = state
    alone = fifo(free, queue)
    if len(alone) == len(queue):
        return
    first = queue[len(alone)]

    def start_s(chosen: list[int]) -> float:
        holders = [*running, *(Holding(queue[index].gpus, queue[index].seconds) for index in chosen)]
        return earliest(first.gpus, free - sum(queue[index].gpus for index in chosen), holders)

    for shortest_first in (False, True):
        assert start_s(easy(free, queue, running, 0.0, shortest_first=shortest_first)) <= start_s(alone)


class Known:
    """Perfect knowledge, or a multiple of it."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def whole(self, job: JobRun, now_s: float) -> float:
        return self.factor * (job.duration_seconds or 0.0)

    def remaining(self, job: JobRun, elapsed_s: float, now_s: float) -> float:
        return elapsed_s

    def started(self, job: JobRun, now_s: float) -> None: ...

    def ended(self, job: JobRun, started_s: float, now_s: float) -> None: ...


def jobs_of(trace: list[tuple[int, int, int]]) -> list[JobRun]:
    return [
        JobRun(f"{at}", JobKind("q", gpus), float(since), float(since + seconds))
        for at, (since, gpus, seconds) in enumerate(trace)
    ]


def in_turn(free: int, queue: Any, running: Any, now_s: float) -> list[int]:
    return fifo(free, queue)


def busy(started: list[Started], at_s: float) -> int:
    return sum(
        item.job.kind.gpus
        for item in started
        if item.start_s <= at_s < item.start_s + (item.job.duration_seconds or 0.0)
    )


@given(trace=_TRACE, factor=st.sampled_from([0.3, 1.0, 4.0]))
def test_everything_runs_once_and_the_pool_is_never_overfull(trace: Any, factor: float) -> None:
    jobs = jobs_of(trace)
    for choose in (in_turn, easy, conservative):
        started = replay(jobs, GPUS, choose, Known(factor))
        assert sorted(item.job.job for item in started) == sorted(job.job for job in jobs)
        assert all(item.wait_s >= 0 for item in started)
        assert all(busy(started, item.start_s) <= GPUS for item in started)


@given(trace=_TRACE)
def test_with_perfect_knowledge_conservative_delays_nobody(trace: Any) -> None:
    jobs = jobs_of(trace)
    before = {item.job.job: item.start_s for item in replay(jobs, GPUS, in_turn, Known())}
    for item in replay(jobs, GPUS, conservative, Known()):
        assert item.start_s <= before[item.job.job]


def test_a_short_job_passes_a_large_one_that_waits() -> None:
    jobs = jobs_of([(0, 6, 100), (1, 8, 50), (2, 2, 20), (3, 2, 200)])
    starts = {item.job.job: item.start_s for item in replay(jobs, GPUS, easy, Known())}
    assert starts == {"0": 0, "1": 100, "2": 2, "3": 150}
    queue = [PendingJob(8, 50), PendingJob(2, 90), PendingJob(2, 20)]
    assert easy(2, queue, [Holding(6, 100)], 0.0) == [1]
    assert easy(2, queue, [Holding(6, 100)], 0.0, shortest_first=True) == [2]
    in_order = {item.job.job: item.start_s for item in replay(jobs, GPUS, in_turn, Known())}
    assert in_order == {"0": 0, "1": 100, "2": 150, "3": 150}
