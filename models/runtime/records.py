"""How answers have held: by queue, and by the name of jobs."""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from kopt.core.workload.run_time import LEVELS
from kopt.features.job_history import Array
from kopt.features.run_rows import Calibration
from kopt.models.runtime.tracking import QuantileTracker

WINDOW = 300
"""Finished jobs of a queue over which a model is held against the last runs alone."""
LEAST_COMPARED = 150
WORSE = 1.5
"""A model whose loss is this many times that of the last runs has drifted. Runs end in bursts, short ones first, so
that a model that is better overall is often worse over a hundred of them."""
_LEVELS = np.array(LEVELS)
_PRIOR_RUNS, _PRIOR_LOSS, _PRIOR_RATIO = 30, 0.25, 0.8
"""A name begins as if so many of its runs had ended, with such a loss of the last runs, and less of the model's."""


@dataclass
class QueueRecord:
    """How answers about one queue have held, newest last: pinball losses of the model and of the last runs alone, and
    whether the interval held the run."""

    tracker: QuantileTracker = field(default_factory=QuantileTracker)
    losses: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    inside: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    stored: Calibration | None = None
    """In place of the losses, where only the feature store's row is known."""
    _ratio: float | None = field(default=None, init=False, repr=False)
    """Of the losses; it changes only when a run ends, and every question asks for it."""

    @classmethod
    def of(cls, held: Calibration | None) -> Self:
        """As the feature store has it; fresh where it has none."""
        return cls() if held is None else cls(QuantileTracker(offsets=np.array(held.offsets)), stored=held)

    def calibration(self) -> Calibration:
        """As the feature store keeps it."""
        ratio = self.loss_ratio
        offsets = tuple(self.tracker.offsets.tolist())
        return Calibration(offsets, self.compared, math.nan if ratio is None else ratio, self.has_drifted)

    def compare(self, losses: tuple[float, float]) -> None:
        """A run ended with these losses of the model and of the last runs alone."""
        self.losses.append(losses)
        if len(self.losses) >= LEAST_COMPARED:
            model, recent = np.sum(self.losses, axis=0)
            self._ratio = float(model / max(recent, 1e-9))

    @property
    def compared(self) -> int:
        """Runs that the model was held against the last runs alone on."""
        return len(self.losses) if self.stored is None else self.stored.compared

    @property
    def loss_ratio(self) -> float | None:
        """The model's loss by that of the last runs alone, over the window; None before enough has ended."""
        if self.stored is not None:
            return None if math.isnan(self.stored.loss_ratio) else self.stored.loss_ratio
        return self._ratio

    @property
    def has_drifted(self) -> bool:
        ratio = self.loss_ratio
        return ratio is not None and ratio > WORSE

    @property
    def coverage(self) -> float | None:
        """Share of runs inside their interval of 5 to 95 %; None before enough has ended."""
        return float(np.mean(self.inside)) if len(self.inside) >= LEAST_COMPARED else None


@dataclass
class NameRecord:
    """The losses of jobs of one name and user, newest last: of the model, and of their last runs alone."""

    losses: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=100))

    @property
    def recent_share(self) -> float:
        """How much the last runs alone count beside the model, by the squares of their losses, from 0 to 1.

        What is run again and again under one name is often more regular than any queue that the model has seen. Jobs
        that only have a queue and a size in common are not: there the same share is worse than the model alone.
        """
        model, recent = np.sum(self.losses, axis=0) if self.losses else (0.0, 0.0)
        prior = _PRIOR_RUNS * _PRIOR_LOSS
        ratio = float((model + _PRIOR_RATIO * prior) / (recent + prior)) ** 2
        return ratio / (1 + ratio)


def pinball(quantiles: Array, log_seconds: Array | float) -> Array:
    """Mean pinball losses (…) of quantiles (…, 7) at ``LEVELS``, for log seconds (…)."""
    error = np.asarray(log_seconds)[..., None] - quantiles
    result: Array = np.maximum(_LEVELS * error, (_LEVELS - 1) * error).mean(axis=-1)
    return result
