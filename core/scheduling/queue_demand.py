"""What queues used and waited for over weeks, hour by hour, from the series of ``kopt controller queues``."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.core.scheduling.queue_tree import DEMAND_METRIC, DemandState

HOUR_S = 3600
HOURLY_QUERY = f"max by (queue, pool, state) (avg_over_time({DEMAND_METRIC}[1h]))"
"""PromQL for the mean of each hour before a point. Both replicas report the same, so the larger counts."""
_THOUSANDTHS = 1000
_MOST_GPUS = 1e7
Series = tuple[int | None, ...]
QueuePool = tuple[str, str]
"""(queue, pool)."""


@dataclass(frozen=True)
class QueueDemandHistory:
    """The mean of each hour in thousandths of a GPU, the first of which begins at ``start_s`` (Unix seconds); None
    where nothing was scraped. All series have the same length."""

    start_s: float
    used: Mapping[QueuePool, Series] = field(default_factory=dict)
    pending: Mapping[QueuePool, Series] = field(default_factory=dict)

    def demand(self, leaf: QueuePool) -> Series:
        """Used and waited for together; empty for a queue that was never seen."""
        used, pending = self.used.get(leaf, ()), self.pending.get(leaf, ())
        both = zip(used, pending, strict=True) if used and pending else ()
        return tuple(None if a is None or b is None else a + b for a, b in both)

    def of_pool(self, pool: str) -> Series:
        """The demand of all queues for a pool; hours in which none of them is known are None."""
        series = [self.demand(leaf) for leaf in self.used if leaf[1] == pool]
        hours = zip(*(each for each in series if each), strict=True)
        return tuple(
            sum(values) if (values := [value for value in hour if value is not None]) else None for hour in hours
        )

    @property
    def end_s(self) -> float:
        """When the last hour ended."""
        return self.start_s + HOUR_S * max((len(series) for series in self.used.values()), default=0)


def history_of(series: Iterable[Any], start_s: int, hours: int) -> QueueDemandHistory:
    """From series as a range query of ``HOURLY_QUERY`` with steps of an hour answers them, the first hour of which
    begins at ``start_s``. Raises ValueError for what is none of these."""
    rows: dict[tuple[str, str, str], list[int | None]] = {}
    for key, points in _points(series):
        row = rows.setdefault(key, [None] * hours)
        for at_s, value in points:
            hour = round((at_s - start_s) / HOUR_S) - 1
            if 0 <= hour < hours:
                row[hour] = round(value * _THOUSANDTHS)
    by_state: dict[str, dict[QueuePool, Series]] = {state: {} for state in DemandState}
    for (queue, pool, state), row in sorted(rows.items()):
        by_state[state][queue, pool] = tuple(row)
    return QueueDemandHistory(float(start_s), by_state[DemandState.USED], by_state[DemandState.PENDING])


def _points(series: Iterable[Any]) -> Iterator[tuple[tuple[str, str, str], list[tuple[float, float]]]]:
    try:
        for item in series:
            labels, values = item["metric"], item["values"]
            if not isinstance(labels, dict) or not isinstance(values, list):
                raise TypeError("no labels")
            key = (str(labels["queue"]), str(labels["pool"]), DemandState(labels["state"]).value)
            points = [(float(at_s), float(value)) for at_s, value in values]
            yield key, [(at_s, value) for at_s, value in points if 0 <= value <= _MOST_GPUS]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("not a matrix of numbers as Prometheus answers it") from error
