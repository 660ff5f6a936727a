"""Which copies make room: nobody uses them, and they were used longest ago."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cached:
    """A copy in one place (a claim, or a node). ``last_used_s``: Unix seconds, infinite while it is in use."""

    key: tuple[str, str]
    bytes: int
    last_used_s: float
    in_use: bool


def to_evict(cached: Iterable[Cached], needed_bytes: int) -> list[Cached]:
    """Unused copies that together free ``needed_bytes``, those used longest ago first; all of them where that is not
    enough: what is freed may be enough for somebody smaller."""
    found: list[Cached] = []
    freed = 0
    for one in sorted(cached, key=lambda one: (one.last_used_s, one.key)):
        if freed >= needed_bytes:
            break
        if not one.in_use and one.bytes > 0:
            found.append(one)
            freed += one.bytes
    return found


def over_budget(cached: Iterable[Cached], budget_bytes: int | None) -> list[Cached]:
    """What has to go so that the copies of one place fit into its budget, as far as they are not in use."""
    found = list(cached)
    if budget_bytes is None:
        return []
    return to_evict(found, sum(one.bytes for one in found) - budget_bytes)
