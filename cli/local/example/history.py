"""Half a year of made-up jobs of the example's own pool, which grows too small: what they demanded, and their runs."""

import random
from collections.abc import Iterator
from functools import lru_cache

from kopt.cli.local.example.cluster import NODES
from kopt.cli.local.example.jobs import OWN, QUEUE
from kopt.core.scheduling.queue_demand import HOUR_S, QueueDemandHistory
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.run_time import JobKind, JobRun
from kopt.simulator.what_if.jobs import PastJob
from kopt.simulator.what_if.replay import Order, Pool, replay

WEEKS, RUN_DAYS = 26, 35
GPUS = 8 * (len(NODES) - 1)
"""Of the nodes with H100."""
_SEED = 11
_WEEK_S, _DAY_S = 7 * 86_400.0, 86_400.0
_FIRST_A_DAY, _LAST_A_DAY = 16.0, 30.0
"""Jobs a day, at the beginning and at the end."""
_NAMES = ("llama-3-8b-sft", "mamba-130m-pretrain", "resnet50-imagenet", "clip-embeddings")
_HELD, _LONGEST_HELD_S = 0.15, 3 * 3600.0
"""The share of jobs that something else than GPUs keeps waiting as well."""


def began_s(now_s: float) -> float:
    """When the first job came."""
    return now_s // HOUR_S * HOUR_S - WEEKS * _WEEK_S


def demand_at(now_s: float, since_s: float) -> QueueDemandHistory:
    """As a Prometheus has it that was there all the time."""
    hours, total = int(since_s // HOUR_S), int(WEEKS * _WEEK_S // HOUR_S)
    used, pending = [0.0] * total, [0.0] * total
    for job, start_s in _jobs():
        _add(pending, job.submitted_s, start_s, job.gpus)
        _add(used, start_s, start_s + job.seconds, job.gpus)
    key, first = (QUEUE, OWN), max(0, total - hours)
    series = [tuple(round(WHOLE_GPU * gpus) for gpus in each[first:]) for each in (used, pending)]
    return QueueDemandHistory(began_s(now_s) + first * HOUR_S, {key: series[0]}, {key: series[1]})


def runs_of_pool(now_s: float) -> tuple[JobRun, ...]:
    """Those of the last weeks that have ended."""
    from_s, end_s = began_s(now_s), WEEKS * _WEEK_S
    return tuple(
        JobRun(
            f"history-{number}",
            JobKind(QUEUE, job.gpus, job.user),
            from_s + start_s,
            from_s + start_s + job.seconds,
            False,
            from_s + job.submitted_s,
            OWN,
        )
        for number, (job, start_s) in enumerate(_jobs())
        if job.submitted_s >= end_s - RUN_DAYS * _DAY_S and start_s + job.seconds < end_s
    )


def _add(series: list[float], start_s: float, end_s: float, gpus: int) -> None:
    """GPUs to the mean of every hour."""
    for hour in range(int(start_s // HOUR_S), min(len(series), int(end_s // HOUR_S) + 1)):
        series[hour] += gpus * (min(end_s, (hour + 1) * HOUR_S) - max(start_s, hour * HOUR_S)) / HOUR_S


@lru_cache(maxsize=1)
def _jobs() -> tuple[tuple[PastJob, float], ...]:
    """With the starts that the GPUs of the pool give them, in seconds from the first on."""
    jobs = list(_arrivals())
    starts_s = replay(jobs, Pool(GPUS), Order.BEST_EFFORT)
    return tuple((job, at_s) for job, at_s in zip(jobs, starts_s, strict=True) if at_s is not None)


def _arrivals() -> Iterator[PastJob]:
    rng, at_s, end_s = random.Random(_SEED), 0.0, WEEKS * _WEEK_S
    while True:
        a_day = _FIRST_A_DAY + (_LAST_A_DAY - _FIRST_A_DAY) * at_s / end_s
        at_s += rng.expovariate(a_day / _DAY_S)
        if at_s >= end_s:
            return
        gpus = rng.choices((1, 2, 4, 8), (4, 2, 2, 2))[0]
        seconds = 3600 * min(60.0, rng.lognormvariate(1.6, 0.8))
        held_s = rng.uniform(0, _LONGEST_HELD_S) if rng.random() < _HELD else 0.0
        yield PastJob(QUEUE, rng.choice(_NAMES), OWN, gpus, at_s, seconds, held_s=held_s)
