"""How busy GPUs are as counts that can be added: percentiles of hours give those of days, where means of them do not.

A count is of one GPU at one time. Counts stand in ``STEPS`` steps of 5 %, so a percentile is right to 5 % of the time,
over however many GPUs and days they were added (mergeable summaries: Agarwal et al., PODS 2012).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

STEPS = 20
EVERY_S, HOUR_S = 300, 3600
"""How often GPUs are counted, and of how long counts are kept."""


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
