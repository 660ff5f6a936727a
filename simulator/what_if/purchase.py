"""What an advised purchase would have changed: the last jobs of one pool, replayed in a process of their own.

A replay takes seconds, and much longer where thousands of jobs wait: a server that answers others has it done
elsewhere, and for so long at most.
"""

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import TypeVar

from kopt.core.workload.run_time import JobRun
from kopt.simulator.what_if.answer import WhatIf
from kopt.simulator.what_if.jobs import WhatIfError, history_of
from kopt.simulator.what_if.replay import Pool
from kopt.simulator.what_if.study import Cluster, changed, study

LONGEST_DAYS, MOST_JOBS = 90, 20_000
"""Of the past that are replayed: pools change, and so do those who use them."""
_POLL_S = 0.1
T = TypeVar("T")


class ReplayEnded(Exception):
    """The process ended without an answer, or took too long; the message is a sentence."""


@dataclass(frozen=True)
class PurchaseQuestion:
    """``buy_gpus`` more for a pool of ``gpus``; ``price`` of a GPU-hour. ``is_only``: there is no other pool, so jobs
    that name none ran in it. ``from_s``: they are there from then on (Unix seconds), and only jobs that were submitted
    since are replayed; None for all the time."""

    pool: str
    gpus: int
    buy_gpus: int
    price: float | None = None
    is_only: bool = False
    from_s: float | None = None


def purchase_what_if(runs: Sequence[JobRun], question: PurchaseQuestion) -> WhatIf:
    """Figures without and with the purchase. Raises WhatIfError."""
    named = {question.pool, ""} if question.is_only else {question.pool}
    of_pool = [run for run in runs if run.kind.gpus and run.pool in named]
    if not of_pool:
        raise WhatIfError(f"no job is recorded to have run in {question.pool}; `kopt controller runs` sends them")
    since = [run for run in of_pool if question.from_s is None or _submitted_s(run) >= question.from_s]
    if not since:
        raise WhatIfError(f"no job of {question.pool} is recorded that was submitted since then")
    kept = sorted(_last(since), key=_submitted_s)[-MOST_JOBS:]
    prices = {} if question.price is None else {question.pool: question.price}
    as_is = Cluster({question.pool: Pool(question.gpus)}, prices=prices)
    answer = study(history_of(kept), as_is, changed(as_is, add={question.pool: question.buy_gpus}))
    text = f"Replayed are the last {len(kept):,} of {len(of_pool):,} jobs, of {LONGEST_DAYS} days at most."
    texts = [text] if len(kept) < len(of_pool) else []
    if question.from_s is not None:
        texts.append("Jobs that were submitted before that day are not replayed, so those after it wait less for them.")
    return replace(answer, assumptions=(*texts, *answer.assumptions))


def _last(runs: Sequence[JobRun]) -> list[JobRun]:
    """Those that were submitted in the last days that are known."""
    last_s = max(run.started_s if run.ended_s is None else run.ended_s for run in runs)
    return [run for run in runs if _submitted_s(run) >= last_s - LONGEST_DAYS * 86_400]


def _submitted_s(run: JobRun) -> float:
    return run.started_s if run.submitted_s is None else run.submitted_s


async def in_process(limit_s: float, work: Callable[..., T], *parts: object) -> T:
    """What ``work`` gives for ``parts``, in a process that gives way to all others, and ends when this is cancelled.
    Raises the ValueErrors of ``work``, and ReplayEnded. Everything is pickled, between two processes of ours."""
    # Not forked: the process of a server has threads.
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sending, work, parts), daemon=True)
    try:
        # It blocks until the process has read what it needs.
        await asyncio.to_thread(process.start)
        sending.close()
        async with asyncio.timeout(limit_s):
            while not receiving.poll():
                await asyncio.sleep(_POLL_S)
        result, error = await asyncio.to_thread(receiving.recv)
    except TimeoutError:
        raise ReplayEnded(f"The replay took longer than {limit_s:.0f} s, and was ended.") from None
    except EOFError:
        raise ReplayEnded("The replay ended without an answer; the log of this process may say why.") from None
    finally:
        if process.pid is not None:
            process.kill()
            process.join()
        receiving.close()
    if error is not None:
        raise error
    answer: T = result
    return answer


def _run(sending: Connection, work: Callable[..., object], parts: Sequence[object]) -> None:
    os.nice(10)
    try:
        sending.send((work(*parts), None))
    except ValueError as error:
        sending.send((None, error))
