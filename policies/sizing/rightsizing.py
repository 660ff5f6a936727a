"""How much GPU memory a workload should request (K3), from a prediction of its need.

The recommendation is the upper end of the interval, and never less than any observed run of the job type used. Without
a prediction, or with a refusal, a fallback or too little confidence, the workload stays unchanged.
"""

import math
from dataclasses import dataclass

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import MIB, Bytes, format_bytes

NOT_OBSERVED = Bytes(0)


@dataclass(frozen=True)
class RightsizingSettings:
    """What a prediction needs to be used. Raises ValueError for values out of range."""

    min_confidence: float = 0.8
    """Of the prediction, 0 to 1."""
    min_probability: float = 0.9
    """Stated coverage of its interval."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_confidence <= 1 or not 0 < self.min_probability < 1:
            raise ValueError(f"{self} is out of range: confidence in [0, 1], probability in (0, 1)")


@dataclass(frozen=True)
class Sizing:
    """``recommended_bytes`` per GPU, or None when unsure; ``ask_bytes`` replaces the workload's request, or None to
    leave it unchanged."""

    recommended_bytes: Bytes | None
    ask_bytes: Bytes | None
    confidence: float
    model: ModelVersion | None
    reasons: tuple[Reason, ...]


def recommend(
    asked_bytes: Bytes,
    need: Prediction | None,
    settings: RightsizingSettings,
    observed_peak_bytes: Bytes = NOT_OBSERVED,
) -> Sizing:
    """The recommendation for a workload that requests ``asked_bytes`` per GPU (0: whole GPUs).

    ``need`` is the predicted peak in bytes, ``observed_peak_bytes`` the most that any run of this job type used.
    Whole GPUs are never turned into shares here: at this point no executor for the share is known.
    """
    doubt = _doubt(need, settings)
    if doubt is not None or need is None or need.high is None:
        return Sizing(None, None, 0.0, None, (doubt,) if doubt else ())
    peak = max(need.high, float(observed_peak_bytes))
    recommended = Bytes(math.ceil(peak / MIB) * MIB)
    numbers = {"low_bytes": float(need.low or 0), "high_bytes": need.high, "observed_peak_bytes": observed_peak_bytes}
    text = (
        f"{need.probability:.0%} of such jobs stay below {format_bytes(int(need.high))}"
        + (f"; a run used {format_bytes(observed_peak_bytes)}" if observed_peak_bytes else "")
        + f"; {format_bytes(asked_bytes) if asked_bytes else 'whole GPUs'} requested."
    )
    request = recommended if asked_bytes and asked_bytes != recommended else None
    return Sizing(recommended, request, need.confidence, need.model, (Reason("PREDICTED_NEED", text, numbers),))


def _doubt(need: Prediction | None, settings: RightsizingSettings) -> Reason | None:
    """Why a prediction is not good enough to be used; None if it is."""
    if need is None:
        return Reason("NO_PREDICTION", "Nothing is known about this job type yet.")
    if need.refused or need.value is None or need.high is None or not math.isfinite(need.high) or need.high <= 0:
        return need.reasons[0] if need.reasons else Reason("REFUSED", "The predictor gave no usable value.")
    if need.fallback:
        return Reason("FALLBACK", "The answer did not come from a model.")
    if need.confidence < settings.min_confidence or need.probability < settings.min_probability:
        text = (
            f"Confidence {need.confidence:.2f} and probability {need.probability:.2f} are below "
            f"{settings.min_confidence:.2f} and {settings.min_probability:.2f}."
        )
        return Reason("UNSURE", text, {"confidence": need.confidence, "probability": need.probability})
    return None
