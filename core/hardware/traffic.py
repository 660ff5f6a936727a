"""Traffic that other jobs put on links, cards and the uplinks of switches, as rates.

A link is named as tools name it: a card ``mlx5_0``, ``GPU3`` for the GPU's own links, ``GPU3/PCIe`` for its bus, and
``uplink r3`` for what leaves a network level such as a rack. GB/s = 1e9 per direction; the busier direction counts.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from kopt.core.hardware.bandwidth import BandwidthError

MOST_AGE_S = 600.0
"""Older rates say nothing of now, and the link counts as unloaded."""
TOLERANCE = 1.05
"""Counters are read late and early: a little more than a link carries is a full link."""
UPLINK = "uplink "


class TrafficError(BandwidthError):
    """Traffic that cannot be; ``number`` is its place in the list that was given."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


@dataclass(frozen=True)
class LinkTraffic:
    """``flows`` is how many jobs share the link already. No ``node``: the same on every node that is asked about.
    ``capacity_gigabytes_per_s`` is needed for uplinks, whose speed no topology tells."""

    link: str
    gigabytes_per_s: float
    flows: int = 1
    node: str = ""
    capacity_gigabytes_per_s: float | None = None
    age_s: float = 0.0

    @property
    def uplink(self) -> str:
        """The network level whose uplink this is; empty for a link of a node."""
        return self.link.removeprefix(UPLINK).strip() if self.link.startswith(UPLINK) else ""

    @property
    def stale(self) -> bool:
        return self.age_s > MOST_AGE_S

    def to_dict(self) -> dict[str, Any]:
        result: dict[str, Any] = {"link": self.link, "gigabytes_per_s": self.gigabytes_per_s, "flows": self.flows}
        optional = {
            "node": self.node or None,
            "capacity_gigabytes_per_s": self.capacity_gigabytes_per_s,
            "age_s": self.age_s or None,
        }
        return result | {name: value for name, value in optional.items() if value is not None}

    def check(self, number: int) -> None:
        """Raises TrafficError for figures that no link has."""
        figures = (self.gigabytes_per_s, self.age_s, self.capacity_gigabytes_per_s or 0.0)
        if not all(math.isfinite(figure) and figure >= 0 for figure in figures):
            raise TrafficError(number, f"traffic on {self.link[:60]!r} is no rate in GB/s: {self.gigabytes_per_s}")
        if self.flows < 1:
            raise TrafficError(number, f"traffic on {self.link[:60]!r} of {self.flows} jobs; one at least sends it")
        if self.uplink and not self.capacity_gigabytes_per_s:
            raise TrafficError(number, f"say what {self.link[:60]!r} carries at most (capacity_gigabytes_per_s)")


@dataclass(frozen=True)
class LinkLoad:
    """All traffic on one link; ``capacity_gbps`` is what it carries per direction."""

    link: str
    capacity_gbps: float
    gbps: float
    flows: int

    @property
    def expected_share(self) -> float:
        """Of the link for one job more: what is left of it, or a fair share, whichever is more."""
        return max(self.remaining_share, 1 / (self.flows + 1)) if self.gbps > 0 else 1.0

    @property
    def remaining_share(self) -> float:
        """What is left while the others go on as they do; a full link still lets a little through."""
        return max(0.05, 1 - self.gbps / self.capacity_gbps) if self.gbps > 0 else 1.0

    @property
    def text(self) -> str:
        jobs = f"{self.flows} other job{'s' * (self.flows > 1)}"
        return f"{self.link} carries {self.gbps:.3g} of {self.capacity_gbps:.3g} GB/s of {jobs}"


def loads_of(traffic: Collection[LinkTraffic], capacities_gbps: Mapping[str, float]) -> tuple[LinkLoad, ...]:
    """By link, those that are not stale. Raises TrafficError for a link that is not there, with the nearest name, and
    for more than a link carries."""
    names = {name.lower(): name for name in capacities_gbps}
    total: dict[str, tuple[float, int]] = {}
    for number, item in enumerate(traffic):
        item.check(number)
        name = names.get(item.link.lower())
        if name is None:
            raise TrafficError(number, nearest("link", item.link, capacities_gbps))
        gbps, flows = total.get(name, (0.0, 0))
        gbps, flows = (gbps, flows) if item.stale else (gbps + item.gigabytes_per_s, flows + item.flows)
        if gbps > TOLERANCE * capacities_gbps[name]:
            text = f"{gbps:.4g} GB/s of traffic on {name}, which carries {capacities_gbps[name]:.4g} per direction"
            raise TrafficError(number, text)
        total[name] = min(gbps, capacities_gbps[name]), flows
    return tuple(LinkLoad(name, capacities_gbps[name], *load) for name, load in sorted(total.items()) if load[0] > 0)


def nearest(kind: str, link: str, names: Collection[str]) -> str:
    """What to say of a name that is none of ``names``."""
    near = get_close_matches(link.lower(), [name.lower() for name in names], n=1, cutoff=0.5)
    meant = next((name for name in names if near and name.lower() == near[0]), "")
    hint = f"do you mean {meant}?" if meant else f"there are {', '.join(list(names)[:12]) or 'none'}"
    return f"no {kind} is named {link[:60]!r}; {hint}"
