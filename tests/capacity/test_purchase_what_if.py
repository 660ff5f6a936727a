"""What an advised purchase would have changed, for the jobs of its pool alone and in a process of its own."""

import os
import time
from dataclasses import replace

import numpy as np
import pytest

from kopt.core.workload.run_time import JobKind, JobRun
from kopt.simulator.what_if import purchase
from kopt.simulator.what_if.jobs import PastJob, WhatIfError
from kopt.simulator.what_if.purchase import PurchaseQuestion, ReplayEnded, in_process, purchase_what_if
from kopt.simulator.what_if.replay import Order, Pool, replay

DAY_S = 86_400.0
QUESTION = PurchaseQuestion("h100", 16, 8, 2.0)


def runs(days: int = 12, pool: str = "h100") -> list[JobRun]:
    """Jobs that want most of 16 GPUs, with the waits that best effort gives them."""
    rng = np.random.default_rng(1)
    at_s = np.sort(rng.uniform(0, days * DAY_S, 30 * days))
    jobs = [
        PastJob("q", "", "", int(rng.choice([1, 2, 4, 8])), float(time_s), float(rng.exponential(10_800)))
        for time_s in at_s
    ]
    starts_s = replay(jobs, Pool(16), Order.BEST_EFFORT)
    return [
        JobRun(str(number), JobKind("q", job.gpus), at, at + job.seconds, False, job.submitted_s, pool)
        for number, (job, at) in enumerate(zip(jobs, starts_s, strict=True))
        if at is not None
    ]


def test_the_purchase_shortens_waits_and_costs_what_its_gpus_cost() -> None:
    answer = purchase_what_if(runs(), QUESTION)
    assert answer.check.is_trusted
    assert answer.figure("mean wait").change < 0
    assert answer.figure("a month", "h100").change == pytest.approx(8 * 2.0 * 730)
    assert answer.figure("GPUs", "h100").what_if == 24


def test_jobs_of_other_pools_are_not_replayed() -> None:
    mixed = [*runs(), *(replace(run, job=f"other-{run.job}") for run in runs(pool="a100"))]
    assert purchase_what_if(mixed, QUESTION).figures == purchase_what_if(runs(), QUESTION).figures


def test_jobs_that_name_no_pool_ran_in_the_only_one() -> None:
    unnamed = runs(pool="")
    with pytest.raises(WhatIfError, match="in h100"):
        purchase_what_if(unnamed, QUESTION)
    alone = purchase_what_if(unnamed, replace(QUESTION, is_only=True))
    assert alone.figures == purchase_what_if(runs(), QUESTION).figures


def test_only_the_last_jobs_are_replayed_and_the_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    every = runs()
    assert not any(text.startswith("Replayed") for text in purchase_what_if(every, QUESTION).assumptions)
    monkeypatch.setattr(purchase, "LONGEST_DAYS", 6)
    answer = purchase_what_if(every, QUESTION)
    assert answer.check.days <= 6
    assert "jobs, of 6 days at most" in answer.assumptions[0]
    monkeypatch.setattr(purchase, "MOST_JOBS", 100)
    assert purchase_what_if(every, QUESTION).assumptions[0].startswith("Replayed are the last 100 of 360 jobs")


def test_work_is_done_elsewhere_and_its_errors_come_back() -> None:
    assert in_process(60.0, os.getpid) != os.getpid()
    with pytest.raises(WhatIfError, match="in h100"):
        in_process(60.0, purchase_what_if, [], QUESTION)


def test_work_that_takes_too_long_or_dies_is_ended() -> None:
    began_s = time.monotonic()
    with pytest.raises(ReplayEnded, match="longer than 0 s"):
        in_process(0.2, time.sleep, 60)
    assert time.monotonic() - began_s < 20
    with pytest.raises(ReplayEnded, match="without an answer"):
        in_process(60.0, os._exit, 1)
