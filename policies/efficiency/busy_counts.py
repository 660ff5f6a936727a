"""How busy GPUs are as counts that can be added: percentiles of hours give those of days, where means of them do not.

A count is of one GPU at one time. Counts stand in ``STEPS`` steps of 5 %, so a percentile is right to 5 % of the time,
over however many GPUs and days they were added (mergeable summaries: Agarwal et al., PODS 2012).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

STEPS = 20
EVERY_S, HOUR_S = 300, 3600
"""How often GPUs are counted, and of how long counts are kept."""
SETTLED_S = 300
"""An hour is read so long after its end: rules are evaluated, and scraped, a little late."""
DAY_S = 24 * HOUR_S
KEEP_S = 400 * DAY_S
"""How long counts are kept: as long as the meter keeps intervals by default."""
QUERY = f'count_values by (node) ("step", clamp(ceil(kopt:gpu:busy_ratio * {STEPS}), 0, {STEPS}))'
"""GPUs that pods hold, by node and step of 5 %: hundreds of series however many GPUs there are."""


@dataclass(frozen=True)
class BusyCounts:
    """``counts`` has ``STEPS`` + 1 numbers: GPUs that did not compute at all, that did for up to 5 % of the time, …"""

    counts: tuple[int, ...] = (0,) * (STEPS + 1)

    def __post_init__(self) -> None:
        if len(self.counts) != STEPS + 1 or min(self.counts) < 0:
            raise ValueError(f"counts are {STEPS + 1} numbers that are not negative")

    @classmethod
    def of(cls, by_step: Mapping[int, int]) -> "BusyCounts":
        """Of counts by step. Raises ValueError for a step that there is not."""
        if unknown := sorted(step for step in by_step if not 0 <= step <= STEPS):
            raise ValueError(f"there is no step {unknown[0]}")
        return cls(tuple(by_step.get(step, 0) for step in range(STEPS + 1)))

    def __add__(self, other: "BusyCounts") -> "BusyCounts":
        return BusyCounts(tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)))

    @property
    def total(self) -> int:
        return sum(self.counts)

    def quantile(self, level: float) -> float | None:
        """Share of the time, 0 to 1, that a share of ``level`` of GPUs and times is busy for at most; between the
        bounds of a step it grows evenly. None without counts."""
        if not self.total:
            return None
        rank, below = level * self.total, 0
        for step, count in enumerate(self.counts):
            if count and below + count >= rank:
                inside = min(1.0, max(0.0, (rank - below) / count))
                return 0.0 if step == 0 else (step - 1 + inside) / STEPS
            below += count
        return 1.0


def by_pool(by_node: Mapping[str, BusyCounts], pools: Mapping[str, str], otherwise: str) -> dict[str, BusyCounts]:
    """Of nodes, added up by the pool of each; those of nodes that ``pools`` does not know are ``otherwise``."""
    return added((pools.get(node, otherwise), counts) for node, counts in by_node.items())


def added(parts: Iterable[tuple[str, BusyCounts]]) -> dict[str, BusyCounts]:
    """By name."""
    result: dict[str, BusyCounts] = {}
    for name, counts in parts:
        result[name] = result.get(name, BusyCounts()) + counts
    return result


def counts_by_node(series: Iterable[Any]) -> dict[str, BusyCounts]:
    """Of what Prometheus answers to ``QUERY``. Raises KeyError, TypeError, ValueError or AttributeError for what is no
    such answer."""
    by_node: dict[str, dict[int, int]] = {}
    for each in series:
        steps = by_node.setdefault(str(each["metric"].get("node", "")), {})
        step = int(each["metric"]["step"])
        gpus = sum(number for _, text in each["values"] if math.isfinite(number := float(text)))
        steps[step] = steps.get(step, 0) + round(gpus)
    return {node: BusyCounts.of(steps) for node, steps in by_node.items()}


def hours_until(now_s: float, span_s: float) -> list[int]:
    """When the whole hours of a window begin, which are settled by ``now_s``; the oldest first."""
    end_s = int(now_s - SETTLED_S) // HOUR_S * HOUR_S
    return list(range(end_s - int(span_s) // HOUR_S * HOUR_S, end_s, HOUR_S))


@dataclass(frozen=True)
class PoolUse:
    """Of a pool in a span of time that begins at ``start_s``; ``hours`` of it are stored."""

    start_s: int
    pool: str
    counts: BusyCounts
    hours: int

    @property
    def gpus(self) -> float:
        """The mean number that pods held while it was recorded."""
        return self.counts.total / (self.hours * HOUR_S / EVERY_S)


def pool_use(hours: Iterable[tuple[int, str, BusyCounts]], begin_of: Callable[[int], int]) -> list[PoolUse]:
    """Hours with their begin and pool, added up by where ``begin_of`` puts them; in the order of time and pool."""
    groups: dict[tuple[int, str], PoolUse] = {}
    for start_s, pool, counts in hours:
        key = begin_of(start_s), pool
        before = groups.get(key) or PoolUse(*key, BusyCounts(), 0)
        groups[key] = PoolUse(*key, before.counts + counts, before.hours + 1)
    return [groups[key] for key in sorted(groups)]


def day_of(start_s: int) -> int:
    """When its day begins (UTC)."""
    return start_s // DAY_S * DAY_S
