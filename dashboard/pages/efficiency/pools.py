"""How busy the GPUs of each pool were, as bars by day."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from kopt.dashboard.formatting import share
from kopt.policies.efficiency.busy_counts import DAY_S, BusyCounts, PoolUse, added

DAYS, WIDTH, HEIGHT = 90, 900.0, 100.0
_GAP = 1.5
_LEAST = 2.0
"""How high the bar of a day without any use is: a day without a bar was not recorded."""
MOST_POOLS = 40


@dataclass(frozen=True)
class DayBar:
    """Up to the median, and up to the 95th percentile behind it, in units of the picture."""

    x: float
    width: float
    p50: float
    p95: float
    tooltip: str


@dataclass(frozen=True)
class PoolDays:
    """``gpus`` is the mean that pods held; percentiles are of all days that are stored."""

    name: str
    gpus: str
    p50: str
    p95: str
    bars: tuple[DayBar, ...]


@dataclass(frozen=True)
class PoolPicture:
    """Empty where nothing is stored. ``count`` is that of all pools."""

    pools: tuple[PoolDays, ...] = ()
    begin: str = ""
    end: str = ""
    count: int = 0


def pool_picture(days: Sequence[PoolUse]) -> PoolPicture:
    """The pools with most GPUs first. The picture ends with the last day that is stored of any pool."""
    if not days:
        return PoolPicture()
    last_s = max(use.start_s for use in days)
    first_s = last_s - (DAYS - 1) * DAY_S
    counts = added((use.pool, use.counts) for use in days)
    names = sorted(counts, key=lambda name: (-counts[name].total, name))
    by_name = {name: [use for use in days if use.pool == name] for name in names[:MOST_POOLS]}
    pools = tuple(_pool(name, counts[name], uses, first_s) for name, uses in by_name.items())
    return PoolPicture(pools, _day(first_s), _day(last_s), len(names))


def _pool(name: str, counts: BusyCounts, days: Sequence[PoolUse], first_s: int) -> PoolDays:
    whole = PoolUse(first_s, name, counts, sum(use.hours for use in days))
    bars = tuple(_bar(use, first_s) for use in days if use.start_s >= first_s)
    return PoolDays(name, f"{whole.gpus:,.1f}", share(counts.quantile(0.5), 0), share(counts.quantile(0.95), 0), bars)


def _bar(use: PoolUse, first_s: int) -> DayBar:
    p50, p95 = use.counts.quantile(0.5), use.counts.quantile(0.95)
    step, high = WIDTH / DAYS, max(_LEAST, HEIGHT * (p95 or 0))
    text = f"{_day(use.start_s)}: p50 {share(p50, 0)}, p95 {share(p95, 0)} of {use.gpus:,.1f} GPUs"
    if use.hours < DAY_S // 3600:
        text += f", {use.hours} h recorded"
    x = (use.start_s - first_s) // DAY_S * step
    return DayBar(round(x, 2), step - _GAP, round(HEIGHT * (p50 or 0), 1), round(high, 1), text)


def _day(start_s: int) -> str:
    return datetime.fromtimestamp(start_s, UTC).strftime("%Y-%m-%d")
