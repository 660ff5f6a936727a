"""Whether those who were asked to save have saved: from what their pods say, and the time.

Whoever stops a job that can be asked does so on SAVED, or on EXPIRED as if it had not been asked; on ASKED it waits. A
stamp counts to the second, and ``SaveRequest.of`` asks from the next whole second on.
"""

from collections.abc import Iterable
from enum import StrEnum

from kopt.core.checkpoint import JobState
from kopt.core.saving import PodSaving

USUAL_S = 60.0
"""From a request until the checkpoint is known to be durable, where nothing tells."""
_NOT_DONE = (JobState.CKPT_WRITING, JobState.UNKNOWN)


class SaveState(StrEnum):
    """Of all pods that hold a job's GPUs together."""

    UNASKABLE = "UNASKABLE"
    """A pod does not say that its program looks for requests."""
    ASKABLE = "ASKABLE"
    """Not every pod was asked yet."""
    ASKED = "ASKED"
    SAVED = "SAVED"
    """The last checkpoint is of the time of the request or later, and no write is under way."""
    EXPIRED = "EXPIRED"
    """The time to answer is over."""


def save_state(pods: Iterable[PodSaving], now_s: float, since_s: float = float("-inf")) -> SaveState:
    """The state of a job whose GPUs these pods hold. Requests that were over before ``since_s`` do not count."""
    views = list(pods)
    if not views or not all(one.askable for one in views):
        return SaveState.UNASKABLE
    asked = [one for one in views if _counts(one, since_s)]
    if len(asked) == len(views) and all(map(_has_saved, asked)):
        return SaveState.SAVED
    if asked and now_s >= max(one.until_s for one in asked if one.until_s is not None):
        return SaveState.EXPIRED
    return SaveState.ASKED if len(asked) == len(views) else SaveState.ASKABLE


def unasked(pods: Iterable[PodSaving], since_s: float = float("-inf")) -> list[bool]:
    """For each pod, whether it is still to be asked: never one that was, so that a job is asked once."""
    return [one.askable and not _counts(one, since_s) for one in pods]


def worth_asking(lost_gpu_s: float, waiting_gpus: float, price: float, usual_s: float = USUAL_S) -> bool:
    """Whether a checkpoint saves more than waiting for it costs: ``lost_gpu_s`` is the work since the last one,
    ``price`` what a second of a waiting GPU is worth in GPU-seconds of work."""
    return lost_gpu_s > price * waiting_gpus * usual_s


def _counts(pod: PodSaving, since_s: float) -> bool:
    return pod.asked_at_s is not None and pod.until_s is not None and pod.until_s > since_s


def _has_saved(pod: PodSaving) -> bool:
    durable_s, asked_s = pod.last_durable_at_s, pod.asked_at_s
    return durable_s is not None and asked_s is not None and durable_s >= asked_s and pod.state not in _NOT_DONE
