"""Predicts the next checkpoint of a gang from the intervals between observed ones."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kopt.policies.preemption.settings import PreemptionSettings
from kopt.policies.preemption.state import Rhythm

_LEAST, _OVERDUE, _EARLY, _RARE = 3, 3, 0.2, 0.25


@dataclass(frozen=True)
class Beat:
    """Seconds from one durable checkpoint to the next: the median, the upper quartile, the shortest.

    ``early_s``: time between the last checkpoint that fits the rhythm and the last one; 0 if the last one fits.
    """

    period_s: float
    high_s: float
    shortest_s: float
    early_s: float = 0.0


@dataclass(frozen=True)
class Pace:
    """The expected checkpoints of a gang. ``intervals`` is the number of intervals that the expectation is based on.

    From ``due_s`` on a write may begin at any time. ``next_s`` is when the next checkpoint should be durable; where
    that is None, ``hazard`` is the probability of one per second. ``doubtful_s``: additional work at risk, because the
    last checkpoint does not fit the rhythm and may have been misread.
    """

    due_s: float = math.inf
    next_s: float | None = None
    hazard: float = 0.0
    doubtful_s: float = 0.0
    intervals: int = 0


def pace_of(rhythm: Rhythm | None, now_s: float, settings: PreemptionSettings) -> Pace:
    """The pace of a gang with the given rhythm.

    An overdue checkpoint may come at any time; it is not assumed to have been missed.
    """
    if rhythm is None or rhythm.durable_at_s is None:
        return Pace(hazard=1 / settings.usual_s)
    durable_s, intervals = rhythm.durable_at_s, rhythm.intervals_s
    guard_s = settings.write_guard_s + settings.act_s
    if result := beat(intervals, settings.regular):
        fits_s = (durable_s if rhythm.own_at_s is None else rhythm.own_at_s) - result.early_s
        due_s = fits_s + result.shortest_s - settings.early * result.period_s - guard_s
        for number in range(1, _OVERDUE + 1):
            if now_s <= fits_s + number * result.high_s + guard_s:
                return Pace(due_s, fits_s + number * result.period_s, 0.0, result.early_s, len(intervals))
    shortest, usual = min(intervals, default=math.inf), max(settings.usual_s, now_s - durable_s)
    if len(intervals) < _LEAST:
        # One or two intervals may span checkpoints that were not observed.
        shortest = min(shortest, settings.unpaced_s)
    else:
        usual = statistics.fmean(intervals)
    due_s = durable_s + (1 - settings.caution) * shortest - guard_s
    return Pace(due_s, None, 1 / usual, 0.0, len(intervals))


def beat(intervals_s: Sequence[float], regular: float) -> Beat | None:
    """The rhythm of the intervals; None for fewer than three of them and for irregular checkpoints.

    A checkpoint whose end was not observed doubles an interval, which then counts as two. A checkpoint that is far too
    early, usually a misread one, makes two short intervals; they count as one as long as that is rare. Several in a row
    are real: if the last checkpoints came that early, the rhythm has changed.
    """
    if len(intervals_s) < _LEAST:
        return None
    usual = statistics.median_low(intervals_s)
    single: list[float] = []
    early_s, early, on_end, before = 0.0, 0, 0, 0
    for interval in intervals_s:
        early_s += interval
        if early_s < (1 - _EARLY) * usual:
            early, on_end = early + 1, on_end + 1
        else:
            single.append(early_s / max(1, round(early_s / usual)))
            early_s, on_end, before = 0.0, 0, on_end
    if early > _RARE * len(intervals_s) or max(on_end, before) > 1:
        return None
    single.sort()
    period, quarter = statistics.median(single), (len(single) - 1) // 4
    low, high = single[quarter], single[-1 - quarter]
    return Beat(period, high, single[0], early_s) if high - low <= regular * period else None
