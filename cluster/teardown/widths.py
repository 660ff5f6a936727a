"""Widths of elastic jobs that nobody watches any more: each job gets back the workers that it had.

Its workers start their work again from the last checkpoint then. So this waits for a moment that the log agent calls
safe, while there is an agent: before components of ours are stopped, and for all jobs together no longer than they may
take to end.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from kopt.cluster.checkpoints.status import recent_status
from kopt.cluster.client.api import ApiError, Conflict, Forbidden, Kube
from kopt.cluster.client.resources import Object, Resource
from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.fields import mapping
from kopt.cluster.objects.resize_history import RESIZING, widths_of
from kopt.cluster.teardown.steps import Outcome, Step, find
from kopt.cluster.workloads.resizing.elastic import ELASTIC_KINDS, width_of_object
from kopt.cluster.workloads.resizing.width import ResizedWidth
from kopt.core.workload.rightsizing import Outcome as Change
from kopt.core.workload.rightsizing import WidthRecord

_STALE_S = 90.0
"""What the log agent writes on pods is written again each minute."""
_POLL_S = 2.0


async def undo_widths(kube: Kube, dry_run: bool, within_s: float) -> AsyncGenerator[Outcome]:
    """By the record on each job, which is written before the change: at a safe moment if one comes ``within_s``, else
    at any. All wait at once."""
    giving_back = []
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
                giving_back.append(_given_back(kube, resource, job, record, step, within_s))
    for outcome in await asyncio.gather(*giving_back):
        yield outcome


async def _given_back(
    kube: Kube, resource: Resource, job: Object, record: WidthRecord, step: Step, within_s: float
) -> Outcome:
    width = width_of_object(resource, job)
    resized = ResizedWidth(kube, width, record.resize, time.time, record.at_s)
    try:
        if await resized.width() == record.resize.after:
            # Who may not do it does not wait for it either.
            with contextlib.suppress(Conflict):
                await ResizedWidth(kube, width, record.resize.undone, time.time).check()
            await _until_safe(resized, within_s)
        left = await resized.restore("Switched off.")
    except Forbidden as error:
        return Outcome(step, str(error))
    except ApiError as error:
        return Outcome(step, f"{error}; `kopt off` again takes it back")
    return Outcome(step, left[0].why if left else "")


async def _until_safe(resized: ResizedWidth, within_s: float) -> None:
    """Without a word of the log agent's, at once: nothing tells which moment is better."""
    until_s = time.monotonic() + within_s
    while (left_s := until_s - time.monotonic()) > 0:
        annotations = [mapping(pod, "metadata", "annotations") for pod in await resized.read()]
        reported = recent_status(annotations, time.time(), _STALE_S)
        if reported is None or reported.status.safe or await resized.width() != resized.resize.after:
            return
        await asyncio.sleep(min(_POLL_S, left_s))
