"""What to buy of a pool, and by when: the first week in which it is likelier than the accepted risk that GPUs lack."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.reason import Reason
from kopt.core.units import counted
from kopt.policies.capacity.forecast import WeekAhead

RISK = 0.1
"""How likely a week may be to need more GPUs than there are."""


@dataclass(frozen=True)
class Purchase:
    """``buy_gpus`` more make every week of the forecast short with a probability of RISK at most; ``buy_low`` and
    ``buy_high`` are those of its 50 % and 95 % quantile. ``short_in_weeks`` is the first week that is short, None for
    none; ``order_in_weeks`` when to order it at the latest, 0 for now."""

    buy_gpus: int
    buy_low: int
    buy_high: int
    short_in_weeks: int | None
    order_in_weeks: int | None
    reason: Reason


def purchase(gpus: int, gpus_per_node: int, weeks: Sequence[WeekAhead], delivery_weeks: int = 0) -> Purchase:
    """For a pool of ``gpus``, bought in whole nodes. ``weeks`` is the forecast, the next week first."""
    short = next((week.weeks for week in weeks if week.quantile(1 - RISK) > gpus), None)
    low, buy, high = (
        _nodes(max(week.quantile(level) for week in weeks) - gpus, gpus_per_node) for level in (0.5, 1 - RISK, 0.95)
    )
    last = weeks[-1]
    needed = f"the {counted(last.weeks, 'week')} ahead: {last.quantile(0.5):.0f} GPUs of {gpus} are needed"
    if short is None:
        text = f"By {needed} at the median, {last.quantile(1 - RISK):.0f} with 90 % certainty."
        return Purchase(0, 0, high, None, None, Reason("CAPACITY_ENOUGH", text))
    order = max(0, short - delivery_weeks)
    late = f" An order today comes {counted(delivery_weeks - short, 'week')} late." if delivery_weeks > short else ""
    text = f"In {counted(short, 'week')} more than {gpus} GPUs are needed with a probability above {RISK:.0%}.{late}"
    return Purchase(buy, low, high, short, order, Reason("CAPACITY_SHORT", text))


def _nodes(gpus: float, gpus_per_node: int) -> int:
    """GPUs of whole nodes that cover ``gpus``."""
    return max(0, math.ceil(gpus / gpus_per_node - 1e-9)) * gpus_per_node
