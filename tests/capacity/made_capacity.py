"""Pools of a made-up cluster as the page of capacity has them: one is short, and its purchase is replayed."""

from functools import cache

import numpy as np

from kopt.core.hardware.pools import PoolSize
from kopt.core.workload.run_time import JobKind, JobRun
from kopt.dashboard.pages.capacity.data import Capacity, PoolNeed, Replayed, questions_of
from kopt.simulator.what_if.answer import WhatIf
from kopt.simulator.what_if.jobs import PastJob
from kopt.simulator.what_if.purchase import PurchaseQuestion, purchase_what_if
from kopt.simulator.what_if.replay import Order, Pool, replay

DAY_S = 86_400.0
END_S = 1_900_000_800.0
GPUS = 16
NEEDS = (None, 9.0, 10.0, 11.5, 12.0, 12.5, 14.0, 15.5, 16.0, 17.0)


@cache
def runs(days: int = 12, pool: str = "h100", queue: str = "research") -> tuple[JobRun, ...]:
    """Jobs that want most of 16 GPUs, with the waits that best effort gives them."""
    rng = np.random.default_rng(1)
    at_s = END_S - days * DAY_S + np.sort(rng.uniform(0, days * DAY_S, 30 * days))
    jobs = [
        PastJob(queue, "", "", int(rng.choice([1, 2, 4, 8])), float(time_s), float(rng.exponential(10_800)))
        for time_s in at_s
    ]
    starts_s = replay(jobs, Pool(GPUS), Order.BEST_EFFORT)
    return tuple(
        JobRun(str(number), JobKind(queue, job.gpus), at, at + job.seconds, False, job.submitted_s, pool)
        for number, (job, at) in enumerate(zip(jobs, starts_s, strict=True))
        if at is not None
    )


def need(pool: str = "h100", gpus: int = GPUS, needs: tuple[float | None, ...] = NEEDS) -> PoolNeed:
    return PoolNeed(pool, needs, PoolSize(gpus, 8, "NVIDIA-H100-80GB-HBM3"), 2.0)


@cache
def answered(question: PurchaseQuestion, queue: str = "research") -> WhatIf:
    return purchase_what_if(runs(pool=question.pool, queue=queue), question)


def state(name: str) -> Capacity:
    """What the page has, with ``name`` wherever something comes from outside."""
    pools = (need(name),)
    question = questions_of(pools)[name]
    replayed = {name: Replayed(question, END_S - 600, answered(question, name))}
    return Capacity(pools, END_S, replayed, configured=True, cluster=True, ready=True, problems=(name,))
