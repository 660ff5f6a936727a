"""The set of gangs that frees enough and loses least: branch and bound over gangs, cheapest per GPU first.

Exact up to ``EXACT`` candidates; beyond, the best found within a number of steps. What is compared is (lost work,
number of gangs, GPUs freed beyond need), in whole numbers; of equal sets the first in the order of (cost per GPU, name)
is taken. So the answer does not depend on the order in which candidates are given.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

EXACT = 20


@dataclass(frozen=True)
class Option:
    """A gang that may be chosen: ``cost`` in milli-GPU-seconds, ``on`` milli-GPU by node, ``queues`` that lose them."""

    name: str
    cost: int
    gpus: int
    on: tuple[tuple[str, int], ...]
    queues: tuple[str, ...] = ()


@dataclass(frozen=True)
class Need:
    """``pods`` of ``per_pod`` milli-GPU each on what is ``free`` by node; a queue in ``slack`` may lose so much."""

    pods: int
    per_pod: int
    free: Mapping[str, int] = field(default_factory=dict)
    slack: Mapping[str, int] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        return self.pods * self.per_pod

    def met_by(self, free: Mapping[str, int]) -> bool:
        return sum(max(0, amount) // self.per_pod for amount in free.values()) >= self.pods


@dataclass(frozen=True)
class Found:
    """The gangs by name, what they cost, and whether no cheaper set exists."""

    names: tuple[str, ...]
    cost: int
    gpus: int
    exact: bool = True


def cheapest(options: Sequence[Option], need: Need, steps: int) -> Found | None:
    """The cheapest set that meets ``need``; None if none does (or, beyond ``EXACT`` options, none was found)."""
    search = _Search(options, need, math.inf if len(options) <= EXACT else steps)
    search.run()
    if search.best is None:
        return None
    cost, _, surplus = search.best
    return Found(tuple(sorted(search.names)), cost, surplus + search.missing, exact=search.steps_left > 0)


class _Search:
    """One depth-first search; what is chosen so far lies on a stack."""

    def __init__(self, options: Sequence[Option], need: Need, steps: float) -> None:
        self.options = sorted((one for one in options if one.gpus > 0), key=lambda one: (one.cost / one.gpus, one.name))
        self.need, self.steps_left = need, steps
        self.missing = need.gpus - sum(max(0, amount) for amount in need.free.values())
        self.free, self.slack = dict(need.free), dict(need.slack)
        self.chosen: list[Option] = []
        self.best: tuple[int, int, int] | None = None
        self.names: tuple[str, ...] = ()
        self.rest = [_Rest.of(self.options[place:]) for place in range(len(self.options) + 1)]

    def run(self) -> None:
        """All sets, in the order that decides between equals, so a later one must be better. A loop: those who free
        thousands of GPUs one by one are more than calls may be nested."""
        place = cost = freed = 0
        taken: list[int] = []
        while True:
            self.steps_left -= 1
            if self._goes_on(place, cost, freed):
                one = self.options[place]
                if self._take(one):
                    taken.append(place)
                    cost, freed = cost + one.cost, freed + one.gpus
            elif taken:
                place = taken.pop()
                one = self.options[place]
                self._put_back(one)
                cost, freed = cost - one.cost, freed - one.gpus
            else:
                return
            place += 1

    def _goes_on(self, place: int, cost: int, freed: int) -> bool:
        """Whether something better may follow from the choices made among ``options[:place]``."""
        if self.need.met_by(self.free):
            key = (cost, len(self.chosen), freed - self.missing)
            if self.best is None or key < self.best:
                self.best, self.names = key, tuple(one.name for one in self.chosen)
            return False
        if self.steps_left <= 0 or place == len(self.options) or self.rest[place].gpus < self.missing - freed:
            return False
        return self.best is None or self._least(place, cost, freed) < self.best

    def _least(self, place: int, cost: int, freed: int) -> tuple[int, int, int]:
        """No completion is better: as if GPUs could be had in parts, and as if the cheapest gangs were large enough."""
        missing = max(1, self.missing - freed)
        rest = self.rest[place]
        surplus = max(freed - self.missing, -missing % rest.divisor)
        more = -(-missing // rest.largest)
        parts = 0
        for one in self.options[place:]:
            if one.gpus >= missing:
                parts += -(-one.cost * missing // one.gpus)
                break
            parts, missing = parts + one.cost, missing - one.gpus
        return cost + max(parts, rest.cheapest[more]), len(self.chosen) + more, surplus

    def _take(self, one: Option) -> bool:
        if any(self.slack.get(queue, one.gpus) < one.gpus for queue in one.queues):
            return False
        self._move(one, 1)
        self.chosen.append(one)
        return True

    def _put_back(self, one: Option) -> None:
        self._move(one, -1)
        self.chosen.pop()

    def _move(self, one: Option, sign: int) -> None:
        for node, amount in one.on:
            self.free[node] = self.free.get(node, 0) + sign * amount
        for queue in one.queues:
            if queue in self.slack:
                self.slack[queue] -= sign * one.gpus


@dataclass(frozen=True)
class _Rest:
    """The options from a place on: their GPUs (all, largest, common divisor), the cost of the k cheapest."""

    gpus: int
    largest: int
    divisor: int
    cheapest: tuple[int, ...]

    @classmethod
    def of(cls, options: Sequence[Option]) -> "_Rest":
        gpus = [one.gpus for one in options]
        costs = accumulate(sorted(one.cost for one in options), initial=0)
        return cls(sum(gpus), max(gpus, default=1), math.gcd(*gpus) or 1, tuple(costs))
