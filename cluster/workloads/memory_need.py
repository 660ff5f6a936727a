"""The GPU memory that a workload needs, as the prediction endpoint says it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import Bytes

ASSUMED = "PROCESSES_ASSUMED"
"""The endpoint's reason where nothing says how many processes there are."""


@dataclass(frozen=True)
class UsefulGpus:
    """How many of a training's ``requested`` GPUs are ``advised``, which is as many or fewer, and why."""

    requested: int
    advised: int
    reason: Reason


@dataclass(frozen=True)
class Need:
    """Predicted GPU memory of one pod's process on ``gpu``, and the most that any run of the job type was seen to use.

    ``processes`` are those of a pod, None where they are assumed; ``activity_high`` the most SM or CU activity.
    """

    prediction: Prediction
    observed_peak_bytes: Bytes = Bytes(0)
    gpu: str = ""
    processes: int | None = None
    activity_high: float | None = None
    useful: UsefulGpus | None = None


def parse_need(document: Mapping[str, Any]) -> Need | None:
    """The need in an answer of ``/v1/sizing`` (the ``memory`` block of ``kopt estimate``); None when it is refused.

    Raises ValueError for an answer whose figures contradict each other.
    """
    memory = mapping(document, "memory")
    bounds = [memory.get(name) for name in ("peak_bytes", "low_bytes", "high_bytes")]
    if not all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in bounds):
        return None
    value, low, high = (float(bound) for bound in bounds if bound is not None)
    probability = float(memory.get("probability") or 0.0)
    confidence = at(document, "confidence")
    prediction = Prediction(
        value,
        low,
        high,
        probability,
        "bytes",
        float(confidence) if isinstance(confidence, int | float) else probability,
        ModelVersion(text(document, "model", "name") or "sizing", text(document, "model", "version")),
        (Reason("SIZING", f"method {text(document, 'method') or 'unknown'}"),),
        fallback=at(document, "fallback") is True,
    )
    observed = at(document, "observed_peak_bytes")
    activity = at(document, "compute", "high")
    return Need(
        prediction,
        Bytes(observed if isinstance(observed, int) and observed > 0 else 0),
        text(document, "gpu"),
        _processes(document),
        float(activity) if isinstance(activity, int | float) else None,
        _useful(mapping(document, "gpu_count")),
    )


def _useful(count: Mapping[str, Any]) -> UsefulGpus | None:
    """None where nothing is known, or where the answer contradicts itself."""
    useful, advised, requested = (count.get(name) for name in ("useful_gpus", "advised_gpus", "requested_gpus"))
    if not (isinstance(useful, int) and isinstance(advised, int) and isinstance(requested, int)):
        return None
    if not 0 < advised <= min(useful, requested):
        return None
    reason: Mapping[str, Any] = next((reason for _, reason in items(count, "reasons")), {})
    return UsefulGpus(requested, advised, Reason(text(reason, "code"), text(reason, "message")))


def _processes(document: Mapping[str, Any]) -> int | None:
    """GPUs that the answer gives a pod, one for each process, where it does not only assume these."""
    if any(text(reason, "code") == ASSUMED for _, reason in items(document, "reasons")):
        return None
    number = at(document, "recommendation", "count")
    return number if isinstance(number, int) and number > 0 else None
