"""A prediction: a value with an interval, a confidence, the model behind it and reasons.

A refusal is a prediction without a value whose first reason says why; it is never an exception
and never a made-up number (product promise 2).
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.core.reason import Reason

DEFAULT_HORIZONS_S = (300, 1800, 3600)
"""How far ahead is asked where a question does not say, in seconds."""
DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class ModelVersion:
    """Which model answered: the registry's name and version, and the digest of its files."""

    name: str
    version: str
    digest: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"name": self.name, "version": self.version, "digest": self.digest}


@dataclass(frozen=True)
class Prediction:
    """``value`` with ``[low, high]``, which covers the truth with ``probability``.

    ``quantiles`` maps probabilities in (0, 1) to values, non-decreasing. ``features_at_s`` is the Unix
    time (or the series' own time where its start is unknown) of the newest datum used. ``fallback`` marks an answer
    that a model did not give. Raises ValueError for an interval that does not hold its value.
    """

    value: float | None
    low: float | None
    high: float | None
    probability: float
    unit: str
    confidence: float
    model: ModelVersion
    reasons: tuple[Reason, ...] = ()
    quantiles: Mapping[float, float] = field(default_factory=dict)
    features_at_s: float | None = None
    horizon_s: float | None = None
    fallback: bool = False

    def __post_init__(self) -> None:
        if self.value is None:
            if not self.reasons:
                raise ValueError("a refusal needs a reason")
            return
        if self.low is None or self.high is None or not self.low <= self.value <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] does not hold the value {self.value}")
        ordered = [self.quantiles[q] for q in sorted(self.quantiles)]
        if any(after < before for before, after in itertools.pairwise(ordered)):
            raise ValueError("quantiles must not decrease")

    @property
    def refused(self) -> bool:
        return self.value is None

    @classmethod
    def refusal(cls, reason: Reason, *, unit: str, model: ModelVersion, horizon_s: float | None = None) -> "Prediction":
        """No value, and the reason for it."""
        return cls(None, None, None, 0.0, unit, 0.0, model, (reason,), horizon_s=horizon_s)

    def to_dict(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "probability": self.probability,
            "unit": self.unit,
            "confidence": self.confidence,
            "model": self.model.to_dict(),
            "reasons": [reason.to_dict() for reason in self.reasons],
            "quantiles": {f"{q:g}": value for q, value in sorted(self.quantiles.items())},
            "features_at_s": self.features_at_s,
            "horizon_s": self.horizon_s,
            "fallback": self.fallback,
            "refused": self.refused,
        }
