"""Requests to save, as annotations on pods (``core.workload.checkpoint_request``), and their progress.

await fence.patch(PODS, pod, request_patch("kopt-reallocation", "the spike", now_s, until_s))
save_state([saving_of(pod) for pod in pods], now_s)
"""

from collections.abc import Mapping
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.seals import SEAL
from kopt.core.times import seconds_or_none
from kopt.core.workload.checkpoint import JobState
from kopt.core.workload.checkpoint_request import ASKABLE_ANNOTATION, REQUEST_ANNOTATION, PodSaving, SaveRequest

_STATE, _LAST_TIME = "kaiwo.ai/checkpoint-state", "kaiwo.ai/last-checkpoint-time"
_LONGEST = 512


def request_patch(by: str, reason: str, now_s: float, until_s: float, for_whom: str = "", *, uid: str = "") -> Object:
    """The merge patch that asks the pod ``uid`` to save; times are Unix seconds. Controllers count a request that has
    no uid as one of the pod's user."""
    request = SaveRequest.of(by, reason[:_LONGEST], now_s, until_s, for_whom)
    value = SEAL.sealed(REQUEST_ANNOTATION, uid, request.to_document()) if uid else request.to_text()
    return {"metadata": {"annotations": {REQUEST_ANNOTATION: value}}}


def request_of(document: Object) -> SaveRequest | None:
    """What a pod was asked; None where it was not, or where it cannot be read."""
    return SaveRequest.from_text(_annotations(document).get(REQUEST_ANNOTATION))


def is_askable(document: Object) -> bool:
    return _annotations(document).get(ASKABLE_ANNOTATION) == "true"


def saving_of(document: Object) -> PodSaving:
    """How a pod stands; nothing that anybody may have written makes this raise."""
    return saving_by(_annotations(document))


def saving_by(annotations: Mapping[str, Any]) -> PodSaving:
    """The same from a pod's annotations alone."""
    request = SaveRequest.from_text(annotations.get(REQUEST_ANNOTATION))
    state = annotations.get(_STATE)
    return PodSaving(
        annotations.get(ASKABLE_ANNOTATION) == "true",
        request.at_s if request else None,
        request.until_s if request else None,
        seconds_or_none(annotations.get(_LAST_TIME)),
        JobState(state) if state in tuple(JobState) else JobState.UNKNOWN,
    )


def _annotations(document: Object) -> Mapping[str, Any]:
    return document["metadata"].get("annotations") or {}
