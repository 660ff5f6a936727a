"""The set of gangs that frees enough and loses least: branch and bound over gangs, cheapest per GPU first.

Exact up to ``EXACT`` candidates; beyond that, the best set within a number of steps. Sets are compared by (lost work,
number of gangs, GPUs freed beyond the need), in whole numbers; among equal sets the first in the order of (cost per
GPU, name) wins. The result therefore does not depend on the order of the candidates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

EXACT = 20


@dataclass(frozen=True)
class Option:
    """An eligible gang: ``cost`` in milli-GPU-seconds, ``on`` milli-GPU by node, ``queues`` that lose them."""

    name: str
    cost: int
    gpus: int
    on: tuple[tuple[str, int], ...]
    queues: tuple[str, ...] = ()


@dataclass(frozen=True)
class Need:
    """``pods`` of ``per_pod`` milli-GPU each on what is ``free`` by node; a queue in ``slack`` may lose so much.

    With ``rooms``, ``free`` is by limit, and all limits of one of these sets must have the GPUs of all pods free.
    """

    pods: int
    per_pod: int
    free: Mapping[str, int] = field(default_factory=dict)
    slack: Mapping[str, int] = field(default_factory=dict)
    rooms: tuple[tuple[str, ...], ...] = ()

    @property
    def missing(self) -> int:
        """At least so much has to be freed."""
        if self.rooms:
            return min(max(self.gpus - self.free.get(key, 0) for key in room) for room in self.rooms)
        return self.gpus - sum(max(0, amount) for amount in self.free.values())

    @property
    def gpus(self) -> int:
        return self.pods * self.per_pod

    def met_by(self, free: Mapping[str, int]) -> bool:
        if self.rooms:
            return any(all(free.get(key, 0) >= self.gpus for key in room) for room in self.rooms)
        return sum(max(0, amount) // self.per_pod for amount in free.values()) >= self.pods


@dataclass(frozen=True)
class VictimSet:
    """The gangs by name, what they cost, and whether no cheaper set exists."""

    names: tuple[str, ...]
    cost: int
    gpus: int
    exact: bool = True


def cheapest(options: Sequence[Option], need: Need, steps: int) -> VictimSet | None:
    """The cheapest set that meets ``need``; None if there is none (or, beyond ``EXACT`` options, none was reached)."""
    search = _Search(options, need, math.inf if len(options) <= EXACT else steps)
    search.run()
    if search.best is None:
        return None
    cost, _, surplus = search.best
    return VictimSet(tuple(sorted(search.names)), cost, surplus + search.missing, exact=search.remaining_steps > 0)


class _Search:
    """One depth-first search; the options selected so far are on a stack."""

    def __init__(self, options: Sequence[Option], need: Need, steps: float) -> None:
        self.options = sorted(
            (option for option in options if option.gpus > 0),
            key=lambda option: (option.cost / option.gpus, option.name),
        )
        self.need, self.remaining_steps = need, steps
        self.missing = need.missing
        self.free, self.slack = dict(need.free), dict(need.slack)
        self.selected: list[Option] = []
        self.best: tuple[int, int, int] | None = None
        self.names: tuple[str, ...] = ()
        self.rest = [_Rest.of(self.options[index:]) for index in range(len(self.options) + 1)]

    def run(self) -> None:
        """Visits all sets in the order that breaks ties, so a later one must be strictly better. A loop, because
        thousands of single-GPU gangs would exceed the recursion limit."""
        index = cost = freed = 0
        path: list[int] = []
        while True:
            self.remaining_steps -= 1
            if self._can_improve(index, cost, freed):
                option = self.options[index]
                if self._push(option):
                    path.append(index)
                    cost, freed = cost + option.cost, freed + option.gpus
            elif path:
                index = path.pop()
                option = self.options[index]
                self._pop(option)
                cost, freed = cost - option.cost, freed - option.gpus
            else:
                return
            index += 1

    def _can_improve(self, index: int, cost: int, freed: int) -> bool:
        """Whether a better set may follow from the choices made among ``options[:index]``."""
        if self.need.met_by(self.free):
            key = (cost, len(self.selected), freed - self.missing)
            if self.best is None or key < self.best:
                self.best, self.names = key, tuple(option.name for option in self.selected)
            return False
        if self.remaining_steps <= 0 or index == len(self.options) or self.rest[index].gpus < self.missing - freed:
            return False
        return self.best is None or self._least(index, cost, freed) < self.best

    def _least(self, index: int, cost: int, freed: int) -> tuple[int, int, int]:
        """Lower bound of any completion: as if gangs were divisible, and as if the cheapest gangs were large enough."""
        missing = max(1, self.missing - freed)
        rest = self.rest[index]
        surplus = max(freed - self.missing, -missing % rest.divisor)
        more = -(-missing // rest.largest)
        parts = 0
        for option in self.options[index:]:
            if option.gpus >= missing:
                parts += -(-option.cost * missing // option.gpus)
                break
            parts, missing = parts + option.cost, missing - option.gpus
        return cost + max(parts, rest.cheapest[more]), len(self.selected) + more, surplus

    def _push(self, option: Option) -> bool:
        if any(self.slack.get(queue, option.gpus) < option.gpus for queue in option.queues):
            return False
        self._move(option, 1)
        self.selected.append(option)
        return True

    def _pop(self, option: Option) -> None:
        self._move(option, -1)
        self.selected.pop()

    def _move(self, option: Option, sign: int) -> None:
        for node, amount in option.on:
            self.free[node] = self.free.get(node, 0) + sign * amount
        for queue in option.queues:
            if queue in self.slack:
                self.slack[queue] -= sign * option.gpus


@dataclass(frozen=True)
class _Rest:
    """The options from an index on: their GPUs (total, largest, common divisor) and the cost of the k cheapest."""

    gpus: int
    largest: int
    divisor: int
    cheapest: tuple[int, ...]

    @classmethod
    def of(cls, options: Sequence[Option]) -> "_Rest":
        gpus = [option.gpus for option in options]
        costs = accumulate(sorted(option.cost for option in options), initial=0)
        return cls(sum(gpus), max(gpus, default=1), math.gcd(*gpus) or 1, tuple(costs))
