"""Jobs replayed through a pool: what must hold whatever the jobs are, and which waits GPUs cannot shorten."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.run_time import JobKind, JobRun
from kopt.simulator.what_if.jobs import PastJob, Record, WhatIfError, history_of
from kopt.simulator.what_if.replay import Order, Pool, replay

GPUS = 8


def job(submitted_s: float, seconds: float, gpus: int = 1, queue: str = "a", waited_s: float | None = None) -> PastJob:
    return PastJob(queue, "", "", gpus, submitted_s, seconds, waited_s)


def jobs_of(most_gpus: int) -> st.SearchStrategy[list[PastJob]]:
    one = st.builds(
        job, st.integers(0, 500), st.integers(1, 200), st.integers(1, most_gpus), st.sampled_from(["a", "b"])
    )
    return st.lists(one, max_size=40).map(lambda jobs: sorted(jobs, key=lambda each: each.submitted_s))


ORDERS = st.sampled_from(list(Order))


def waits(jobs: Sequence[PastJob], starts: Sequence[float | None]) -> list[float]:
    return [at_s - each.submitted_s for each, at_s in zip(jobs, starts, strict=True) if at_s is not None]


@given(jobs_of(GPUS), ORDERS)
def test_every_job_that_fits_starts_after_it_came_and_no_gpu_is_used_twice(jobs: list[PastJob], order: Order) -> None:
    starts = replay(jobs, Pool(GPUS), order)
    changes: Counter[float] = Counter()
    for each, at_s in zip(jobs, starts, strict=True):
        assert at_s is not None
        assert at_s >= each.submitted_s
        changes[at_s] += each.gpus
        changes[at_s + each.seconds] -= each.gpus
    used = 0
    for at_s in sorted(changes):
        used += changes[at_s]
        assert used <= GPUS


@given(jobs_of(1), st.integers(1, GPUS), st.integers(1, GPUS))
def test_more_gpus_let_no_job_of_one_gpu_start_later_in_order(jobs: list[PastJob], gpus: int, more: int) -> None:
    before, after = (replay(jobs, Pool(size), Order.FIFO) for size in (gpus, gpus + more))
    assert all(late is not None and soon is not None and soon <= late for soon, late in zip(after, before, strict=True))
    assert sum(waits(jobs, after)) <= sum(waits(jobs, before))


@given(jobs_of(GPUS), ORDERS)
def test_with_gpus_for_all_at_once_nobody_waits(jobs: list[PastJob], order: Order) -> None:
    assert not any(waits(jobs, replay(jobs, Pool(40 * GPUS), order)))


@given(jobs_of(GPUS), st.integers(1, GPUS), ORDERS)
def test_what_is_larger_than_pool_or_quota_never_starts_and_all_else_does(
    jobs: list[PastJob], quota: int, order: Order
) -> None:
    pool = Pool(GPUS - 2, {"a": quota})
    for each, at_s in zip(jobs, replay(jobs, pool, order), strict=True):
        assert (at_s is None) == (each.gpus > GPUS - 2 or (each.queue == "a" and each.gpus > quota))


def test_orders_differ_as_their_names_say() -> None:
    # Eight GPUs are busy until 100; then a large job, a small one that is short, and a small one that is long.
    jobs = [job(0, 100, 6), job(1, 50, 8), job(2, 50, 2), job(3, 500, 1)]
    assert replay(jobs, Pool(8), Order.FIFO) == [0, 100, 150, 150]
    assert replay(jobs, Pool(8), Order.BEST_EFFORT) == [0, 552, 2, 52]
    assert replay(jobs, Pool(8), Order.BACKFILL) == [0, 100, 2, 150]


def test_the_fair_order_starts_the_queue_that_uses_least() -> None:
    jobs = [job(0, 100, 6), job(1, 300, 2, "b"), job(2, 10, 4), job(3, 10, 4, "b"), job(3, 10, 4)]
    # Queue b has 2 GPUs at 100 and at 110, and a has none.
    assert replay(jobs, Pool(8), Order.FAIR) == [0, 1, 100, 120, 110]
    assert replay(jobs, Pool(8), Order.BEST_EFFORT) == [0, 1, 100, 110, 120]
    jobs = [job(0, 100, 8), job(1, 10, 4), job(2, 10, 4), job(3, 10, 4, "b")]
    assert replay(jobs, Pool(8), Order.FAIR) == [0, 100, 110, 100]
    assert replay(jobs, Pool(8), Order.BEST_EFFORT) == [0, 100, 100, 110]


def test_a_quota_holds_back_its_queue_alone() -> None:
    jobs = [job(0, 100, 4), job(1, 10, 1), job(2, 10, 1, "b")]
    assert replay(jobs, Pool(8, {"a": 4}), Order.FIFO) == [0, 100, 2]


def test_a_wait_with_enough_gpus_free_is_held_and_stays() -> None:
    # Of eight GPUs four are used until 100; it starts at 160 though it had fitted from the beginning.
    idle = [job(0, 100, 4, waited_s=0), job(10, 50, 4, waited_s=150)]
    held = Record(idle, GPUS).with_holds()
    assert [each.held_s for each in held] == [0, 150]
    assert replay(held, Pool(100), Order.FIFO) == [0, 160]
    # One of eight GPUs had to wait until 100, and was held from then on.
    large = [job(0, 100, 4, waited_s=0), job(10, 50, 8, waited_s=150)]
    held = Record(large, GPUS).with_holds()
    assert held[1].held_s == 60
    # What held it passes first: from 70 on it is replayed as one that lacks GPUs.
    assert replay(held, Pool(GPUS), Order.FIFO)[1] == 100
    assert replay(held, Pool(100), Order.FIFO)[1] == 70


def test_one_gpu_that_is_free_holds_only_the_first_that_waits() -> None:
    busy = [
        job(0, 100, 7, waited_s=0),
        job(1, 10, 1, waited_s=49),
        job(2, 10, 1, waited_s=58),
        job(3, 10, 8, waited_s=97),
    ]
    assert [each.held_s for each in Record(busy, GPUS).with_holds()] == [0, 49, 0, 0]
    # Behind a large job that lacks GPUs a small one waits in order, though it would fit.
    strict = [job(0, 100, 7, waited_s=0), job(1, 10, 8, waited_s=99), job(2, 10, 1, waited_s=108)]
    assert [each.held_s for each in Record(strict, GPUS).with_holds()] == [0, 0, 0]


@given(jobs_of(GPUS), ORDERS)
def test_what_a_pool_alone_decided_holds_nothing(jobs: list[PastJob], order: Order) -> None:
    starts = replay(jobs, Pool(GPUS), order)
    recorded = [
        PastJob(each.queue, "", "", each.gpus, each.submitted_s, each.seconds, (at_s or 0.0) - each.submitted_s)
        for each, at_s in zip(jobs, starts, strict=True)
    ]
    record = Record(recorded, GPUS)
    assert [each.held_s for each in record.with_holds()] == [0] * len(jobs)
    assert record.excess() == 0


def test_a_pool_that_is_said_to_be_too_small_is_noticed() -> None:
    record = Record([job(0, 100, 8, waited_s=0), job(0, 100, 2, waited_s=0)], GPUS)
    assert record.excess() == pytest.approx(0.2)


def test_jobs_of_runs_have_waits_where_both_times_are_recorded() -> None:
    kind = JobKind("research", 4, user="ada")
    runs = [JobRun("b", kind, 100.0, 160.0, submitted_s=40.0, pool="h100"), JobRun("a", kind, 10.0)]
    history = history_of([*runs, JobRun("cpu", JobKind("research", 0), 0.0, 900.0)])
    assert history.jobs == (
        PastJob("research", "ada", "", 4, 10.0, 150.0),
        PastJob("research", "ada", "h100", 4, 40.0, 60.0, 60.0),
    )
    assert (history.end_s, history.unended) == (160.0, 1)
    with pytest.raises(WhatIfError, match="no run on a GPU"):
        history_of([])
