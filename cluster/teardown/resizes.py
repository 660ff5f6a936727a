"""Changes of CPU and memory that nobody watches any more: each pod gets back what it had."""

import time
from collections.abc import AsyncGenerator

from kopt.cluster.client.api import ApiError, Kube
from kopt.cluster.client.resources import PODS
from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.resize_history import RESIZING, open_change
from kopt.cluster.teardown.steps import Outcome, Step, find
from kopt.cluster.workloads.resizing.pods import ResizedPods
from kopt.core.workload.rightsizing import Resize

_MOST_GIVEN = 2.1
"""Of what a pod has: a change takes half away at most, and rounds. The record may have been written by anybody."""


async def undo_resizes(kube: Kube, dry_run: bool) -> AsyncGenerator[Outcome]:
    """By the record on each, which is written before the change."""
    pods, failed = await find(kube, PODS, RESIZING)
    if failed is not None:
        yield failed
    for pod in pods:
        step = Step("release", PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], "its CPU and memory")
        try:
            record = open_change(pod)
        except AnnotationError as error:
            yield Outcome(step, str(error))
            continue
        if record is None:
            continue
        if not isinstance(record.resize, Resize) or not _is_ours(record.resize):
            yield Outcome(
                step, f"its record says it had much more, which no change of ours takes: {record.resize.text}"
            )
            continue
        resized = ResizedPods(kube, [pod], record.resize, time.time, record.at_s)
        yield Outcome(step, "" if dry_run else await _undone(resized))


async def _undone(resized: ResizedPods) -> str:
    """Why not; empty where it is done."""
    try:
        left = await resized.restore("Switched off.")
    except ApiError as error:
        return str(error)
    return left[0].why if left else ""


def _is_ours(resize: Resize) -> bool:
    amounts = (
        (resize.before.request, resize.after.request),
        (resize.before.limit, resize.after.limit),
    )
    return all(before <= _MOST_GIVEN * after for before, after in amounts if before is not None and after is not None)
