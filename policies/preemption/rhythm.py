"""When the next checkpoint is to be expected, from the intervals between those that were seen."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from kopt.policies.preemption.settings import PreemptionSettings
from kopt.policies.preemption.state import Rhythm

_LEAST, _MISSED, _ANCHORS, _OFF = 2, 3, 3, 0.15


@dataclass(frozen=True)
class Beat:
    """Seconds from one durable checkpoint to the next: the median, the upper quartile, the shortest."""

    period_s: float
    high_s: float
    shortest_s: float


@dataclass(frozen=True)
class Pace:
    """What is expected of a gang's checkpoints. ``known`` is the number of intervals that it rests on.

    From ``due_s`` on a write may begin at any moment. ``next_s`` is when the next checkpoint should be durable, None
    where that is not known; ``hazard`` is the chance per second of one then. ``doubtful_s``: work that is at risk too,
    because the last checkpoint does not fit the rhythm and may be a mistake.
    """

    due_s: float = math.inf
    next_s: float | None = None
    hazard: float = 0.0
    doubtful_s: float = 0.0
    known: int = 0


def pace_of(rhythm: Rhythm | None, now_s: float, settings: PreemptionSettings) -> Pace:
    """The pace of a gang whose rhythm is known as far as ``rhythm`` says."""
    if rhythm is None or rhythm.durable_at_s is None:
        return Pace(hazard=1 / settings.usual_s)
    durable_s, intervals = rhythm.durable_at_s, rhythm.intervals_s
    guard_s, safe_share = settings.write_guard_s + settings.act_s, 1 - settings.caution
    found = beat(intervals, settings.regular)
    for number in range(1, _MISSED + 1) if found else ():
        if found and now_s <= durable_s + number * found.high_s + guard_s:
            doubtful_s = 0.0 if _on_beat(intervals, found.period_s) else intervals[-1]
            due_s = durable_s + (number - 1) * found.period_s + safe_share * found.shortest_s - guard_s
            return Pace(due_s, durable_s + number * found.period_s, 0.0, doubtful_s, len(intervals))
    if intervals:
        shortest, usual = min(intervals), statistics.fmean(intervals)
    else:
        shortest, usual = settings.unpaced_s, max(settings.usual_s, now_s - durable_s)
    return Pace(durable_s + safe_share * shortest - guard_s, None, 1 / usual, 0.0, len(intervals))


def beat(intervals_s: Sequence[float], regular: float) -> Beat | None:
    """None for fewer than two intervals and for checkpoints that come irregularly.

    A checkpoint whose end was not seen makes an interval twice as long; it counts as two.
    """
    if len(intervals_s) < _LEAST:
        return None
    base = statistics.median_low(intervals_s)
    single = sorted(interval / max(1, round(interval / base)) for interval in intervals_s)
    period = statistics.median(single)
    quarter = (len(single) - 1) // 4
    low, high = single[quarter], single[-1 - quarter]
    return Beat(period, high, single[0]) if high - low <= regular * period else None


def _on_beat(intervals_s: Sequence[float], period_s: float) -> bool:
    """Whether the last checkpoint is a whole number of periods after one of those before it."""
    back = accumulate(reversed(intervals_s[-_ANCHORS:]))
    return any(abs(span / period_s - max(1, round(span / period_s))) <= _OFF for span in back)
