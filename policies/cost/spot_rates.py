"""How fast spot capacity is taken away and comes back, by how long it has been there, or away."""

from collections.abc import Iterable
from dataclasses import dataclass

YOUNG_S = 3600.0
"""Capacity that has just come is taken away sooner, and what has just gone comes back sooner, than what has been there,
or away, for an hour: on AWS V100 and K80 capacity of 2022 more than half of both ends within the first hour."""
_PRIOR_H = 5.0
"""How many hours of a class its own count needs to weigh as much as that of both classes."""
_EVENTS, _HOURS = 0.5, 10.0
"""What is taken as seen before anything is."""
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Spell:
    """A time in which capacity was there, or away. ``ended``: it was seen to its end."""

    span_s: float
    ended: bool


@dataclass(frozen=True, slots=True)
class Rates:
    """Ends per hour of a spell that has lasted less than ``YOUNG_S``, and of one that has lasted longer."""

    young: float
    old: float

    @classmethod
    def alike(cls, per_hour: float) -> "Rates":
        return cls(per_hour, per_hour)

    def of_any(self, count: int) -> "Rates":
        """Of the first of ``count`` independent ends."""
        return Rates(self.young * count, self.old * count)

    def of_all(self, count: int) -> "Rates":
        """About those of the last of ``count`` independent ends: one in the mean of the longest of as many spells."""
        longer = sum(1 / number for number in range(1, count + 1))
        return Rates(self.young / longer, self.old / longer)


def rates_of(spells: Iterable[Spell]) -> Rates:
    """From counts by age, each drawn towards the rate of both: a class that was seldom seen says little by itself."""
    events, hours = [0, 0], [0.0, 0.0]
    for spell in spells:
        hours[0] += min(spell.span_s, YOUNG_S) / _HOUR_S
        hours[1] += max(0.0, spell.span_s - YOUNG_S) / _HOUR_S
        events[spell.span_s >= YOUNG_S] += spell.ended
    pooled = rate_of(sum(events), sum(hours) * _HOUR_S)
    young, old = ((count + pooled * _PRIOR_H) / (span + _PRIOR_H) for count, span in zip(events, hours, strict=True))
    return Rates(young, old)


def rate_of(count: int, span_s: float) -> float:
    """Ends per hour, of ``count`` in ``span_s``; never 0, as what was not seen yet may come."""
    return (count + _EVENTS) / (span_s / _HOUR_S + _HOURS)
