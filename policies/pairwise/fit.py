"""Latency and bandwidth of a link from timed messages of many sizes.

``time = alpha + bytes / bandwidth`` (Hockney, 1994). Sizes span six decades, so relative errors count: weights are
``1 / time²``, and points that lie off the line (a change of protocol, a disturbed row) count less (Huber, 1964).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_ROUNDS = 30
_HUBER = 1.345
_LEAST_SPREAD = 1e-4


@dataclass(frozen=True)
class Line:
    """``alpha_us`` microseconds and ``slope_us`` microseconds per byte."""

    alpha_us: float
    slope_us: float

    def gigabytes_per_s(self, factor: float = 1.0) -> float:
        """The bandwidth that it tends to; ``factor`` makes a bus bandwidth of an algorithm bandwidth."""
        return factor / self.slope_us / 1000


def fit(points: Sequence[tuple[float, float]]) -> Line | None:
    """The line through (bytes, microseconds); None where there are not two sizes, or larger ones take no longer."""
    points = [(size, time) for size, time in points if size >= 0 and time > 0]
    if len({size for size, _ in points}) < 2:
        return None
    trust = [1.0] * len(points)
    line = _weighted(points, trust)
    for _ in range(_ROUNDS):
        if line is None:
            return None
        errors = [time / (line.alpha_us + line.slope_us * size) - 1 for size, time in points]
        spread = max(_LEAST_SPREAD, 1.4826 * statistics.median(abs(error) for error in errors))
        trust = [min(1.0, _HUBER * spread / max(abs(error), 1e-12)) for error in errors]
        line = _weighted(points, trust)
    return line


def _weighted(points: Sequence[tuple[float, float]], trust: Sequence[float]) -> Line | None:
    """Least squares of relative errors with ``alpha`` at least 0."""
    weights = [value / time**2 for value, (_, time) in zip(trust, points, strict=True)]
    total = math.fsum(weights)
    mean_size = math.fsum(w * size for w, (size, _) in zip(weights, points, strict=True)) / total
    mean_time = math.fsum(w * time for w, (_, time) in zip(weights, points, strict=True)) / total
    spread = math.fsum(w * (size - mean_size) ** 2 for w, (size, _) in zip(weights, points, strict=True))
    both = math.fsum(
        w * (size - mean_size) * (time - mean_time) for w, (size, time) in zip(weights, points, strict=True)
    )
    if spread <= 0 or both <= 0:
        return None
    slope = both / spread
    alpha = mean_time - slope * mean_size
    if alpha < 0:
        squares = math.fsum(w * size**2 for w, (size, _) in zip(weights, points, strict=True))
        slope = math.fsum(w * size * time for w, (size, time) in zip(weights, points, strict=True)) / squares
        alpha = 0.0
    return Line(alpha, slope)
