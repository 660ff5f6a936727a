"""What-if answers: an identical cluster gives identical figures, GPU-hours stay, and what is not trusted says so."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kopt
from kopt.core.workload.run_time import JobKind, JobRun
from kopt.simulator.what_if.answer import Figure, Unit
from kopt.simulator.what_if.jobs import History, PastJob, WhatIfError
from kopt.simulator.what_if.outcome import Days, Waits, drawn_days
from kopt.simulator.what_if.replay import Order, Pool, replay
from kopt.simulator.what_if.study import Cluster, changed, study

DAY_S = 86_400.0
POOL, GPUS = "h100", 16


@cache
def busy(days: int = 12) -> History:
    """Two queues that want about 85 % of 16 GPUs, with the waits that best effort gives them."""
    rng = np.random.default_rng(1)
    at_s = np.sort(rng.uniform(0, days * DAY_S, 30 * days))
    jobs = [
        PastJob("ab"[number % 2], "", "", int(rng.choice([1, 2, 4, 8])), float(time_s), float(rng.exponential(10_800)))
        for number, time_s in enumerate(at_s)
    ]
    starts = replay(jobs, Pool(GPUS), Order.BEST_EFFORT)
    return recorded(jobs, [at_s or 0.0 for at_s in starts])


def recorded(jobs: Sequence[PastJob], starts_s: Sequence[float]) -> History:
    listed = [replace(job, waited_s=at_s - job.submitted_s) for job, at_s in zip(jobs, starts_s, strict=True)]
    return History(tuple(listed), max(at_s + job.seconds for job, at_s in zip(jobs, starts_s, strict=True)))


AS_IS = Cluster({POOL: Pool(GPUS)}, prices={POOL: 2.0})


def test_the_cluster_as_it_is_gives_the_recorded_waits_and_more_gpus_shorten_them() -> None:
    answer = study(busy(), AS_IS, changed(AS_IS, add={POOL.upper(): 4}))
    wait = answer.figure("mean wait")
    assert wait.recorded == pytest.approx(wait.as_is)
    assert wait.what_if < wait.as_is
    assert wait.change_interval is not None
    assert wait.change_interval[0] <= wait.change <= wait.change_interval[1] < 0
    assert (answer.check.order, answer.check.error, answer.check.held_share) == ("best-effort", 0, pytest.approx(0))
    assert answer.check.is_trusted
    assert {figure.of for figure in answer.figures if figure.what == "median wait"} == {"all", "a", "b"}


@pytest.mark.parametrize("order", [None, *Order])
def test_an_identical_cluster_gives_identical_figures(order: Order | None) -> None:
    answer = study(busy(), AS_IS, changed(AS_IS, add={}), order=order)
    assert answer.figures
    for figure in answer.figures:
        assert figure.change == 0, figure
        assert figure.change_interval in (None, (0, 0))


@given(st.integers(8, 40), st.sampled_from(list(Order)))
def test_gpu_hours_of_jobs_are_the_same_in_every_cluster(gpus: int, order: Order) -> None:
    jobs = busy(3).jobs
    days = Days(0.0, 60)
    start_s = np.array([at_s if at_s is not None else math.nan for at_s in replay(jobs, Pool(gpus), order)])
    hours = days.gpu_hours(
        np.array([float(job.gpus) for job in jobs]), start_s, np.array([job.seconds for job in jobs])
    )
    assert hours.sum() == pytest.approx(sum(job.gpus * job.seconds for job in jobs) / 3600)
    assert (hours <= 24 * gpus + 1e-6).all()


def test_figures_of_the_pool_are_those_of_its_gpus_and_its_price() -> None:
    answer = study(busy(), AS_IS, changed(AS_IS, add={POOL: 16}))
    gpus, use = answer.figure("GPUs", POOL), answer.figure("utilisation", POOL)
    assert (gpus.as_is, gpus.what_if) == (16, 32)
    hours = answer.figure("GPU-hours used", POOL)
    assert use.as_is == pytest.approx(hours.as_is / (16 * 24 * answer.check.days))
    assert use.what_if == pytest.approx(use.as_is / 2, rel=0.1)
    assert use.recorded == pytest.approx(use.as_is)
    assert answer.figure("a month", POOL).change == pytest.approx(16 * 2.0 * 730)
    each = answer.figure("per GPU-hour used", POOL)
    assert each.as_is == pytest.approx(2.0 / use.as_is)


def test_jobs_that_never_fit_are_counted_with_their_gpu_hours() -> None:
    answer = study(busy(), AS_IS, changed(AS_IS, remove={POOL: 10}))
    large = [job for job in busy().jobs if job.gpus > 6]
    never = answer.figure("never fit")
    assert (never.as_is, never.what_if) == (0, len(large))
    lost = answer.figure("GPU-hours that never fit").what_if
    assert lost == pytest.approx(sum(job.gpus * job.seconds for job in large) / 3600)


def test_a_pool_can_go_and_its_jobs_run_in_another_one() -> None:
    jobs = tuple(replace(job, pool=("h100", "a100")[number % 2]) for number, job in enumerate(busy().jobs))
    as_is = Cluster({"h100": Pool(8), "a100": Pool(8)})
    would_be = changed(as_is, remove={"a100": 8}, add={"h100": 24}, moves={"a100": "h100"})
    history = History(tuple(replace(job, waited_s=None) for job in jobs), busy().end_s)
    answer = study(history, as_is, would_be)
    assert answer.figure("GPU-hours used", "a100").what_if == 0
    both = sum(answer.figure("GPU-hours used", name).as_is for name in ("h100", "a100"))
    assert answer.figure("GPU-hours used", "h100").what_if == pytest.approx(both, rel=0.05)
    assert answer.figure("never fit").what_if == 0
    alone = study(history, as_is, changed(as_is, remove={"a100": 8}))
    assert alone.figure("never fit").what_if == len(jobs) // 2


def test_a_quota_makes_its_queue_wait() -> None:
    answer = study(busy(), AS_IS, changed(AS_IS, quotas={"a": 8}))
    assert answer.figure("95 % wait up to", "a").change > 0
    assert answer.figure("median wait", "a").change > 0


def code(history: History, gpus: int = GPUS) -> str:
    as_is = Cluster({POOL: Pool(gpus)})
    return study(history, as_is, changed(as_is, add={POOL: 4})).check.reason.code


def test_what_is_not_to_be_trusted_says_why() -> None:
    jobs = busy().jobs
    assert code(busy()) == "WHAT_IF_REPLAY_HOLDS"
    assert code(busy(), 12) == "WHAT_IF_POOL_TOO_SMALL"
    assert code(History(tuple(replace(job, waited_s=None) for job in jobs), busy().end_s)) == "WHAT_IF_WAITS_UNKNOWN"
    assert code(busy(3)) == "WHAT_IF_TOO_FEW_WAITS"
    held = recorded(jobs, [job.submitted_s + 7_200 for job in jobs])
    assert code(held, 200) == "WHAT_IF_WAITS_NOT_FOR_GPUS"


def test_another_scheduler_than_those_that_are_replayed_is_not_trusted() -> None:
    """The newest first: the same GPUs are in use, and others wait."""
    jobs = list(busy().jobs)
    start_s: dict[int, float] = {}
    running: list[tuple[float, int]] = []
    pending: list[int] = []
    free, events = GPUS, sorted(range(len(jobs)), key=lambda number: jobs[number].submitted_s)
    while events or running:
        now_s = min([jobs[events[0]].submitted_s] if events else [math.inf], default=math.inf)
        now_s = min([now_s, *(end_s for end_s, _ in running)])
        free += sum(jobs[number].gpus for end_s, number in running if end_s <= now_s)
        running = [item for item in running if item[0] > now_s]
        while events and jobs[events[0]].submitted_s <= now_s:
            pending.append(events.pop(0))
        for number in sorted(pending, reverse=True):
            if jobs[number].gpus <= free:
                free -= jobs[number].gpus
                pending.remove(number)
                start_s[number] = now_s
                running.append((now_s + jobs[number].seconds, number))
    history = recorded(jobs, [start_s[number] for number in range(len(jobs))])
    assert code(history) == "WHAT_IF_REPLAY_OFF"


def test_intervals_need_a_week_and_come_of_the_same_days() -> None:
    short = study(busy(5), AS_IS, changed(AS_IS, add={POOL: 4}))
    assert all(figure.change_interval is None for figure in short.figures)
    drawn = drawn_days(30, 50)
    assert drawn.shape == (51, 30)
    assert (drawn[0] == 1).all()
    assert (drawn.sum(axis=1) == 30).all()
    assert (drawn[1:] != 1).any()


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=30), st.floats(0.01, 0.99))
def test_weighted_quantiles_of_whole_weights_are_those_of_repeated_waits(values: list[float], level: float) -> None:
    days = np.arange(len(values)) % 3
    weights = np.array([[1.0, 2.0, 0.0], [1.0, 1.0, 1.0]])
    waits = Waits(np.array(values), days)
    for row, got, mean in zip(weights, waits.quantile(level, weights), waits.mean(weights), strict=True):
        repeated = sorted(value for value, day in zip(values, days, strict=True) for _ in range(int(row[day])))
        assert got == repeated[max(0, math.ceil(round(level * len(repeated), 9)) - 1)]
        assert mean == pytest.approx(np.mean(repeated))


def test_the_answer_is_json_and_a_table_that_nothing_can_inject_into() -> None:
    history = History(tuple(replace(job, queue="<b>q</b>") for job in busy().jobs), busy().end_s)
    answer = study(history, AS_IS, changed(AS_IS, add={POOL: 4}))
    document = json.loads(json.dumps(answer.to_dict(), allow_nan=False))
    assert document["check"]["trusted"] is True
    assert {figure["unit"] for figure in document["figures"]} <= {unit.value for unit in Unit}
    other = replace(answer, figures=(Figure("median wait", "<b>q</b>", Unit.SECONDS, None, 1.0, 2.0),))
    assert "<b>" not in other._repr_html_()
    assert "Trusted" in other._repr_html_()


def test_python_gives_what_a_study_gives() -> None:
    runs = [run_of(number, job) for number, job in enumerate(busy().jobs)]
    answer = kopt.what_if(runs, gpus={POOL: GPUS}, add_gpus={POOL: 4})
    again = study(busy(), Cluster({POOL: Pool(GPUS)}), Cluster({POOL: Pool(GPUS + 4)}))
    assert answer.figure("mean wait").what_if == pytest.approx(again.figure("mean wait").what_if, rel=1e-3)


def run_of(number: int, job: PastJob) -> JobRun:
    start_s = job.submitted_s + (job.waited_s or 0.0)
    return JobRun(
        f"j{number}", JobKind(job.queue, job.gpus), start_s, start_s + job.seconds, submitted_s=job.submitted_s
    )


def test_questions_that_cannot_be_are_refused() -> None:
    with pytest.raises(WhatIfError, match="no pool 'l4'; there are h100"):
        changed(AS_IS, add={"l4": 4})
    with pytest.raises(WhatIfError, match="16 GPUs, so 17 cannot go"):
        changed(AS_IS, remove={POOL: 17})
    with pytest.raises(WhatIfError, match="a day is the least"):
        study(History(busy().jobs[:3], busy().jobs[3].submitted_s), AS_IS, AS_IS)
    named = History(tuple(replace(job, pool="mi300x") for job in busy().jobs), busy().end_s)
    with pytest.raises(WhatIfError, match="no job ran in h100; there are mi300x"):
        study(named, AS_IS, AS_IS)
