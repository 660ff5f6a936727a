"""Corrects predicted starts by how those before came true: conformal, in the order in which starts become known.

Run times of a queue err together: where all its jobs last longer than their class did, every sum of them does. Draws
that treat them as independent are too sure then. The ratio of real to predicted waits shows it, and its quantiles over
the last starts widen and shift the next prediction (split conformal prediction with a rolling window; the level follows
the misses as in Gibbs and Candès, Adaptive Conformal Inference Under Distribution Shift, NeurIPS 2021).

Waits that overlap hang on the same few ends: they are a wave, and err together. p50 is therefore shifted by a median in
which a wave weighs by the root of its waits, and by less, the fewer waves there were.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kopt.core.scheduling.diagnosis import StartEstimate

WINDOW, LEAST = 150, 8
_WAVES_UNMOVED = 3.0
"""So many waves' worth of evidence stand for no correction of p50."""
_TARGET, _STEP = 0.9, 0.03
_SHORTEST_S = 1.0
_LEVELS = (0.5, 0.99)
"""Between which the level may move."""


@dataclass(frozen=True)
class StartCalibration:
    """Natural logarithms of real waits as a share of the predicted p50 and p90, the newest last; ``level`` is that at
    which the second are read. ``spans``: from when to when each waited, in any seconds. It is a value: the caller keeps
    it, one for each queue."""

    p50_logs: tuple[float, ...] = ()
    p90_logs: tuple[float, ...] = ()
    level: float = _TARGET
    spans: tuple[tuple[float, float], ...] = ()

    def observed(self, estimate: StartEstimate, wait_s: float, asked_s: float) -> "StartCalibration":
        """With a start that has come, or, for what still waits beyond its p90, the wait so far. ``estimate`` is what
        the draws gave at ``asked_s``, before any correction. Waits of a second and less say nothing about a ratio."""
        p50_s, p90_s = estimate.p50_s, estimate.p90_s
        if p50_s is None or p90_s is None or wait_s <= _SHORTEST_S:
            return self
        p50_log = math.log(wait_s / max(_SHORTEST_S, p50_s))
        p90_log = math.log(wait_s / max(_SHORTEST_S, p90_s))
        missed = self.p90_logs and len(self.p90_logs) >= LEAST and p90_log > _quantile(self.p90_logs, self.level)
        level = (
            self.level + _STEP * ((1.0 if missed else 0.0) - (1 - _TARGET))
            if len(self.p90_logs) >= LEAST
            else self.level
        )
        return StartCalibration(
            (*self.p50_logs, p50_log)[-WINDOW:],
            (*self.p90_logs, p90_log)[-WINDOW:],
            min(_LEVELS[1], max(_LEVELS[0], level)),
            (*self.spans, (asked_s, asked_s + wait_s))[-WINDOW:],
        )

    def corrected(self, estimate: StartEstimate) -> StartEstimate:
        """The estimate as the last starts suggest; unchanged while fewer than ``LEAST`` are known. Its p90 never comes
        earlier than the draws have it: between two waves starts come soon, which says nothing about the next one."""
        if estimate.p50_s is None or estimate.p90_s is None or len(self.p50_logs) < LEAST:
            return estimate
        waves = _waves(self.spans)
        sizes = Counter(waves)
        trust = len(sizes) / (len(sizes) + _WAVES_UNMOVED)
        shift = _weighted_median(self.p50_logs, [sizes[wave] ** -0.5 for wave in waves])
        p50_s = estimate.p50_s * math.exp(trust * shift)
        p90_s = estimate.p90_s * math.exp(_quantile(self.p90_logs, self.level))
        return replace(estimate, p50_s=p50_s, p90_s=max(p50_s, p90_s, estimate.p90_s))


def _waves(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Which wave each belongs to: spans that overlap, also by others in between."""
    result, wave, until_s = [0] * len(spans), -1, -math.inf
    for index in sorted(range(len(spans)), key=lambda index: spans[index][0]):
        since_s, end_s = spans[index]
        if since_s > until_s:
            wave += 1
        until_s = max(until_s, end_s)
        result[index] = wave
    return result


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    half, total = sum(weights) / 2, 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        total += weight
        if total >= half:
            return value
    raise ValueError("there are no values")


def _quantile(values: Sequence[float], level: float) -> float:
    """The smallest value that covers the level with the one that comes next, as conformal prediction has it."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(level * (len(ordered) + 1)) - 1)]
