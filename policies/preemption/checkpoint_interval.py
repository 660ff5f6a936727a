"""When the next checkpoint is to be expected, from the intervals between those that were seen."""

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

    ``early_s`` is how long before the last checkpoint the last one was that fits: 0 where the last fits, too.
    """

    period_s: float
    high_s: float
    shortest_s: float
    early_s: float = 0.0


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
    """The pace of a gang whose rhythm is known as far as ``rhythm`` says.

    A checkpoint that is overdue may come at any moment: it is not taken for one that was missed.
    """
    if rhythm is None or rhythm.durable_at_s is None:
        return Pace(hazard=1 / settings.usual_s)
    durable_s, intervals = rhythm.durable_at_s, rhythm.intervals_s
    guard_s = settings.write_guard_s + settings.act_s
    if found := beat(intervals, settings.regular):
        fits_s = (durable_s if rhythm.own_at_s is None else rhythm.own_at_s) - found.early_s
        due_s = fits_s + found.shortest_s - settings.early * found.period_s - guard_s
        for number in range(1, _OVERDUE + 1):
            if now_s <= fits_s + number * found.high_s + guard_s:
                return Pace(due_s, fits_s + number * found.period_s, 0.0, found.early_s, len(intervals))
    shortest, usual = min(intervals, default=math.inf), max(settings.usual_s, now_s - durable_s)
    if len(intervals) < _LEAST:
        # One or two may be of checkpoints that were not all seen.
        shortest = min(shortest, settings.unpaced_s)
    else:
        usual = statistics.fmean(intervals)
    due_s = durable_s + (1 - settings.caution) * shortest - guard_s
    return Pace(due_s, None, 1 / usual, 0.0, len(intervals))


def beat(intervals_s: Sequence[float], regular: float) -> Beat | None:
    """None for fewer than three intervals and for checkpoints that come irregularly.

    A checkpoint whose end was not seen makes an interval twice as long; it counts as two. One that comes far too early,
    most often a mistake, makes two short ones; they count as one, as long as that is rare. Several on end are no
    mistakes: where the last checkpoints came so, there is another rhythm now.
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
