"""When the next checkpoint is to be expected, from the intervals between those that were seen."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST, _MISSED = 2, 3


@dataclass(frozen=True)
class Beat:
    """Seconds from one durable checkpoint to the next: the median, and the middle half of them."""

    period_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class Expected:
    """When a checkpoint should be durable."""

    low_s: float
    value_s: float
    high_s: float


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
    return Beat(period, low, high) if high - low <= regular * period else None


def expected(durable_at_s: float, found: Beat, now_s: float) -> Expected | None:
    """The next checkpoint that is not overdue, the third after the last one seen at most."""
    for number in range(1, _MISSED + 1):
        if now_s <= durable_at_s + number * found.high_s:
            return Expected(*(durable_at_s + number * one for one in (found.low_s, found.period_s, found.high_s)))
    return None
