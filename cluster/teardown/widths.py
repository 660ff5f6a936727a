"""Widths of elastic jobs that nobody watches any more: each job gets back the workers that it had.

Its workers start their work again from the last checkpoint then. So this waits for a moment that the log agent calls
safe, while there is an agent: after controllers are stopped and before agents are, and for all jobs together no longer
than these may take to end.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from kopt.cluster.checkpoints.safe_moment import until_safe
from kopt.cluster.client.api import ApiError, Conflict, Forbidden, Kube
from kopt.cluster.client.resources import Object
from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.resize_history import RESIZING, widths_of
from kopt.cluster.teardown.steps import Outcome, Step, find
from kopt.cluster.workloads.resizing.elastic import ELASTIC_KINDS, width_of_object
from kopt.cluster.workloads.resizing.width import ResizedWidth
from kopt.core.workload.rightsizing import Outcome as Change
from kopt.core.workload.rightsizing import WidthRecord

LOG = logging.getLogger(__name__)
_POLL_S, _JOBS_A_SECOND = 2.0, 50.0
"""How often a job is looked at, and of many jobs no more than so many a second."""
_MOST_AT_ONCE = 16
"""Jobs that are read or written: the API server is there for others, too."""


@dataclass(frozen=True)
class _Open:
    """A job with a change of its width that nobody has ended."""

    step: Step
    job: Object
    record: WidthRecord


async def undo_widths(kube: Kube, dry_run: bool, within_s: float) -> AsyncGenerator[Outcome]:
    """By the record on each job, which is written before the change: at a safe moment if one comes ``within_s``, else
    at any. All wait at once, and each outcome comes when it is there."""
    changes: list[_Open] = []
    for resource in ELASTIC_KINDS:
        jobs, failed = await find(kube, resource, RESIZING)
        if failed is not None:
            yield failed
        for job in jobs:
            step = Step("release", resource, job["metadata"]["namespace"], job["metadata"]["name"], "its width")
            try:
                record = next((each for each in widths_of(job) if each.outcome is Change.OPEN), None)
            except AnnotationError as error:
                yield Outcome(step, str(error))
                continue
            if record is not None and dry_run:
                yield Outcome(step)
            elif record is not None:
                changes.append(_Open(step, job, record))
    slots, poll_s = asyncio.Semaphore(_MOST_AT_ONCE), max(_POLL_S, len(changes) / _JOBS_A_SECOND)
    tasks = [asyncio.create_task(_given_back(kube, each, slots, within_s, poll_s)) for each in changes]
    try:
        for done in asyncio.as_completed(tasks):
            yield await done
    finally:
        for task in tasks:
            task.cancel()


async def _given_back(kube: Kube, change: _Open, slots: asyncio.Semaphore, within_s: float, poll_s: float) -> Outcome:
    step, record = change.step, change.record
    try:
        width = width_of_object(step.resource, change.job)
        resized = ResizedWidth(kube, width, record.resize, time.time, record.at_s)

        async def showing() -> Sequence[Object]:
            """Nothing where others have changed its width meanwhile: there is nothing to wait for then."""
            async with slots:
                return await resized.read() if await resized.width() == record.resize.after else ()

        async with slots:
            is_ours = await resized.width() == record.resize.after
            if is_ours:
                # Who may not do it does not wait for it either.
                with contextlib.suppress(Conflict):
                    await ResizedWidth(kube, width, record.resize.undone, time.time).check()
        if is_ours:
            await until_safe(showing, within_s, poll_s)
        async with slots:
            left = await resized.restore("Switched off.")
    except Forbidden as error:
        return Outcome(step, str(error))
    except ApiError as error:
        return Outcome(step, f"{error}; `kopt off` again takes it back")
    except Exception as error:  # the edge of one job: nothing of it keeps the rest from being switched off
        LOG.exception("giving back the width of %s/%s failed", step.namespace, step.name)
        return Outcome(step, f"it cannot be worked with ({type(error).__name__}: {error})")
    return Outcome(step, left[0].why if left else "")
