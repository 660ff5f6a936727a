"""How often spot capacity was taken away, and for how long: from intervals of nodes and of what ran on them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kopt.core.cost.metering import Milliseconds, Offer
from kopt.policies.cost.spot_rates import Rates, Spell, rates_of

_NOTICE_MS = 5 * 60_000
"""Providers announce an interruption 30 s (GCP, Azure) or 2 min (AWS) before it, and pods are drained then."""


@dataclass(frozen=True, slots=True)
class SpotNode:
    """A node of interruptible capacity, for as long as it was there; without ``end_ms`` it still is.

    ``busy`` are the intervals in which pods held GPUs of it, in no order.
    """

    offer: Offer
    start_ms: Milliseconds
    end_ms: Milliseconds | None
    busy: Sequence[tuple[Milliseconds, Milliseconds]]

    @property
    def busy_ms(self) -> Milliseconds:
        """For how long any pod held a GPU."""
        total, until = 0, self.start_ms
        for start, end in sorted(self.busy):
            total += max(0, end - max(start, until))
            until = max(until, end)
        return total

    @property
    def interrupted(self) -> bool:
        """Whether it went away while it was in use. An autoscaler removes nodes that nobody uses."""
        last = max((end for _, end in self.busy), default=None)
        return self.end_ms is not None and last is not None and last >= self.end_ms - _NOTICE_MS


@dataclass(frozen=True)
class Interruptions:
    """What was counted of one offer: ``there`` are the spells in which a node was in use, ``away`` those after an
    interruption until another node of the offer came."""

    offer: Offer
    there: tuple[Spell, ...]
    away: tuple[Spell, ...]

    @property
    def count(self) -> int:
        return len(self.away)

    @property
    def busy_s(self) -> float:
        return sum(spell.span_s for spell in self.there)

    @property
    def rates(self) -> Rates:
        """Of a node's interruptions."""
        return rates_of(self.there)

    @property
    def returns(self) -> Rates:
        return rates_of(self.away)


def interruptions(nodes: Iterable[SpotNode], until_ms: Milliseconds) -> list[Interruptions]:
    """By offer, of what was seen until ``until_ms``; offers of which no node was in use are left out."""
    offers: dict[Offer, list[SpotNode]] = defaultdict(list)
    for node in nodes:
        if node.busy_ms:
            offers[node.offer].append(node)
    return [_counted(offer, offers[offer], until_ms) for offer in sorted(offers, key=str)]


def _counted(offer: Offer, nodes: Sequence[SpotNode], until_ms: Milliseconds) -> Interruptions:
    starts = sorted(node.start_ms for node in nodes)
    away = []
    for node in nodes:
        if node.interrupted and node.end_ms is not None:
            again = next((start for start in starts if start >= node.end_ms), None)
            span_ms = (until_ms if again is None else again) - node.end_ms
            away.append(Spell(max(0, span_ms) / 1000, again is not None))
    there = [Spell(node.busy_ms / 1000, node.interrupted) for node in nodes]
    return Interruptions(offer, tuple(there), tuple(away))
