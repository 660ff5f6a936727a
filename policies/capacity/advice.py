"""What to buy of a pool and by when, from the weeks that it needed."""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.hardware.pools import PoolSize
from kopt.core.reason import Reason
from kopt.policies.capacity.forecast import SERVED, TooShort, WeekAhead, forecast, weekly_need
from kopt.policies.capacity.purchase import Purchase, purchase

MONTH_HOURS = 730
_WEEK_S = 7 * 86_400.0
_THOUSANDTHS = 1000


@dataclass(frozen=True)
class CapacitySettings:
    """``weeks`` ahead are looked at; ``served`` is the share of hours in which GPUs are to be enough;
    ``delivery_weeks`` go by from an order to GPUs that can be used."""

    weeks: int = 13
    served: float = SERVED
    delivery_weeks: int = 8


@dataclass(frozen=True)
class PoolAdvice:
    """``ahead`` is empty where too little of the past is known, and ``purchase`` None there and where nobody knows how
    many GPUs there are; ``reason`` says it then."""

    gpus: int
    last_week: float | None
    ahead: tuple[WeekAhead, ...]
    purchase: Purchase | None
    reason: Reason
    delivery_weeks: int = 0

    @property
    def arrives_in_weeks(self) -> int | None:
        """The week ahead in which the purchase is there: the one that is short, or later where that is too soon."""
        if self.purchase is None or self.purchase.short_in_weeks is None:
            return None
        return max(self.purchase.short_in_weeks, self.delivery_weeks)

    @property
    def buy_gpus(self) -> int:
        return 0 if self.purchase is None else self.purchase.buy_gpus


def needs_of(hours: Sequence[int | None], served: float = SERVED) -> list[float | None]:
    """GPUs that each week needed, from the thousandths of a GPU that were demanded in each hour, as ``weekly_need``."""
    return weekly_need([None if milli is None else milli / _THOUSANDTHS for milli in hours], served)


def advise(needs: Sequence[float | None], size: PoolSize, settings: CapacitySettings | None = None) -> PoolAdvice:
    """``needs`` of the weeks, the oldest first. Raises ValueError for weeks out of range."""
    settings = settings or CapacitySettings()
    last_week = needs[-1] if needs else None
    try:
        ahead = forecast(needs, settings.weeks)
    except TooShort as error:
        reason = Reason("CAPACITY_HISTORY_TOO_SHORT", f"Too little demand was scraped: {error}.")
        return PoolAdvice(size.gpus, last_week, (), None, reason)
    if not size.gpus:
        text = "No node of this pool is known, so nothing can be said of what to buy: only what it needs."
        return PoolAdvice(0, last_week, tuple(ahead), None, Reason("CAPACITY_SIZE_UNKNOWN", text))
    advised = purchase(size.gpus, size.gpus_per_node or 1, ahead, settings.delivery_weeks)
    return PoolAdvice(size.gpus, last_week, tuple(ahead), advised, advised.reason, settings.delivery_weeks)


def begin_s(end_s: float, weeks: int) -> float:
    """When the ``weeks``-th week ahead begins, in seconds; the first does when the past ends, at ``end_s``."""
    return end_s + _WEEK_S * max(0, weeks - 1)


def month_cost(price: float | None, gpus: int) -> float | None:
    """Of so many GPUs at a price of a GPU-hour; None without a price, or GPUs."""
    return None if price is None or not gpus else price * gpus * MONTH_HOURS
