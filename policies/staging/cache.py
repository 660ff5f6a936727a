"""Which copies to evict: those without users, least recently used first."""

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
    """Unused copies that together free ``needed_bytes``, least recently used first; all of them if that is not enough:
    it may be enough for smaller data."""
    cacheds: list[Cached] = []
    freed = 0
    for item in sorted(cached, key=lambda item: (item.last_used_s, item.key)):
        if freed >= needed_bytes:
            break
        if not item.in_use and item.bytes > 0:
            cacheds.append(item)
            freed += item.bytes
    return cacheds


def over_budget(cached: Iterable[Cached], budget_bytes: int | None) -> list[Cached]:
    """The unused copies to evict so that the copies of one location fit into its budget."""
    cacheds = list(cached)
    if budget_bytes is None:
        return []
    return to_evict(cacheds, sum(item.bytes for item in cacheds) - budget_bytes)
