"""Whether a job that was asked to save a checkpoint has saved: from its pods' annotations, and the time.

A component that stops an askable job waits on ASKED and stops it on SAVED, or on EXPIRED as if it had not been asked.
Timestamps have a resolution of one second, so ``SaveRequest.of`` counts from the next whole second on.
"""

from collections.abc import Iterable
from enum import StrEnum

from kopt.core.workload.checkpoint import JobState
from kopt.core.workload.checkpoint_request import PodSaving

USUAL_S = 60.0
"""Assumed time from a request until the checkpoint is known to be durable."""
_NOT_DONE = (JobState.CKPT_WRITING, JobState.UNKNOWN)


class SaveState(StrEnum):
    """Of all pods that hold a job's GPUs together."""

    UNASKABLE = "UNASKABLE"
    """A pod does not declare that its program handles save requests."""
    ASKABLE = "ASKABLE"
    """Not every pod has been asked yet."""
    ASKED = "ASKED"
    SAVED = "SAVED"
    """The last checkpoint is not older than the request, and no write is under way."""
    EXPIRED = "EXPIRED"
    """The deadline of the request has passed."""


def save_state(pods: Iterable[PodSaving], now_s: float, since_s: float = float("-inf")) -> SaveState:
    """The state of a job from all pods that hold its GPUs. Requests that ended before ``since_s`` do not count."""
    savings = list(pods)
    if not savings or not all(pod_saving.askable for pod_saving in savings):
        return SaveState.UNASKABLE
    requested = [pod_saving for pod_saving in savings if _counts(pod_saving, since_s)]
    if len(requested) == len(savings) and all(map(_has_saved, requested)):
        return SaveState.SAVED
    if requested and now_s >= max(pod_saving.until_s for pod_saving in requested if pod_saving.until_s is not None):
        return SaveState.EXPIRED
    return SaveState.ASKED if len(requested) == len(savings) else SaveState.ASKABLE


def unasked(pods: Iterable[PodSaving], since_s: float = float("-inf")) -> list[bool]:
    """For each pod, whether it still has to be asked; a pod is never asked twice."""
    return [pod.askable and not _counts(pod, since_s) for pod in pods]


def _counts(pod: PodSaving, since_s: float) -> bool:
    return pod.requested_at_s is not None and pod.until_s is not None and pod.until_s > since_s


def _has_saved(pod: PodSaving) -> bool:
    durable_s, requested_s = pod.last_durable_at_s, pod.requested_at_s
    return durable_s is not None and requested_s is not None and durable_s >= requested_s and pod.state not in _NOT_DONE
