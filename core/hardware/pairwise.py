"""What pairs of nodes were measured to reach together, and what that says of the nodes."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kopt.core.hardware.bandwidth import BandwidthError, Collective, collective

Pair = tuple[str, str]
"""The names of two nodes, in their order."""


class Health(StrEnum):
    """Of a pair, or of a node by its pairs."""

    HEALTHY = "Healthy"
    SLOW = "Slow"
    """Well below what pairs of the same hardware reach."""
    FAILED = "Failed"
    """The test ran and did not come to its end."""


@dataclass(frozen=True)
class MeasuredPoint:
    """One size of a collective, as nccl-tests or rccl-tests timed it."""

    bytes: int
    latency_us: float


@dataclass(frozen=True)
class MeasuredPair:
    """One collective between two nodes with ``gpus_per_node`` GPUs of each, by size.

    ``alpha_us`` and ``beta_gbps`` are the latency and the bus bandwidth (GB/s) of the line ``time = alpha + bytes /
    bandwidth`` through the points. A failed pair has no points and neither of them. ``measured_at`` is in seconds since
    1970, ``software`` what the log names (``nccl 2.27.3``). Raises BandwidthError for what was never measured.
    """

    nodes: Pair
    gpus_per_node: int
    collective: Collective
    measured_at: float
    points: tuple[MeasuredPoint, ...] = ()
    alpha_us: float | None = None
    beta_gbps: float | None = None
    software: str = ""
    health: Health = Health.HEALTHY
    reason: str = ""

    def __post_init__(self) -> None:
        numbers = [self.measured_at, self.alpha_us or 0.0, self.beta_gbps or 0.0]
        numbers += [value for point in self.points for value in (point.bytes, point.latency_us)]
        if self.nodes[0] >= self.nodes[1] or self.gpus_per_node < 1:
            raise BandwidthError(f"{self.nodes} with {self.gpus_per_node} GPUs each is no pair of two nodes, sorted")
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise BandwidthError(f"{' and '.join(self.nodes)}: a time, size or bandwidth is negative or not finite")

    def to_dict(self) -> dict[str, Any]:
        return {
            "nodes": list(self.nodes),
            "gpus_per_node": self.gpus_per_node,
            "collective": self.collective.value,
            "measured_at": self.measured_at,
            "alpha_us": self.alpha_us,
            "beta_gbps": self.beta_gbps,
            "points": [{"bytes": point.bytes, "latency_us": point.latency_us} for point in self.points],
            "software": self.software,
            "health": self.health.value,
            "reason": self.reason,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "MeasuredPair":
        """Raises BandwidthError for anything else than ``to_dict`` gives."""
        try:
            first, second = document["nodes"]
            points = tuple(MeasuredPoint(int(item["bytes"]), float(item["latency_us"])) for item in document["points"])
            return cls(
                (str(first), str(second)),
                int(document["gpus_per_node"]),
                collective(str(document["collective"])),
                float(document["measured_at"]),
                points,
                _number(document.get("alpha_us")),
                _number(document.get("beta_gbps")),
                str(document.get("software") or ""),
                Health(document.get("health") or Health.HEALTHY),
                str(document.get("reason") or ""),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BandwidthError(f"not a measured pair ({error})") from error


def slow_pairs(pairs: Iterable[MeasuredPair]) -> dict[Pair, float]:
    """Those that are not healthy, and what they reached in their worst collective (GB/s); 0 where a test failed."""
    result: dict[Pair, float] = {}
    for pair in pairs:
        if pair.health is not Health.HEALTHY:
            result[pair.nodes] = min(result.get(pair.nodes, math.inf), pair.beta_gbps or 0.0)
    return result


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))
