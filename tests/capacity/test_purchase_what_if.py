"""What an advised purchase would have changed, for the jobs of its pool alone and in a process of its own."""

import asyncio
import multiprocessing
import os
import time
from dataclasses import replace

import pytest

from kopt.simulator.what_if import purchase
from kopt.simulator.what_if.jobs import WhatIfError
from kopt.simulator.what_if.purchase import PurchaseQuestion, ReplayEnded, in_process, purchase_what_if
from tests.capacity.made_capacity import runs

QUESTION = PurchaseQuestion("h100", 16, 8, 2.0)


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


async def test_work_is_done_elsewhere_and_its_errors_come_back() -> None:
    assert await in_process(60.0, os.getpid) != os.getpid()
    with pytest.raises(WhatIfError, match="in h100"):
        await in_process(60.0, purchase_what_if, [], QUESTION)


async def test_work_that_takes_too_long_or_dies_is_ended() -> None:
    with pytest.raises(ReplayEnded, match="longer than 0 s"):
        await in_process(0.2, time.sleep, 60)
    with pytest.raises(ReplayEnded, match="without an answer"):
        await in_process(60.0, os._exit, 1)
    assert not multiprocessing.active_children()


async def test_a_replay_ends_with_who_asked_for_it() -> None:
    asked = asyncio.create_task(in_process(60.0, time.sleep, 60))
    async with asyncio.timeout(20):
        while not multiprocessing.active_children():
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    assert not multiprocessing.active_children()
