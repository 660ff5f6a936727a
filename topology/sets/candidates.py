"""Sets of one size, the most promising first: what one reaches is asked only where that can still matter."""

from collections.abc import Callable
from dataclasses import dataclass
from math import factorial

import numpy as np

from kopt.topology.sets.link_table import Ints, LinkTable, Members
from kopt.topology.sets.symmetry import shares_of

Value = Callable[[tuple[int, ...]], float]
"""GB/s that a set of GPUs, in ascending order, reaches."""
_MOST_WORK = 900.0
_RINGS_PER_WORK, _PAIRS_PER_WORK = 256, 128
_ALL_EVALUATED, _WORST_EVALUATED, _LOOKED_UP = 256, 8, 512
_HALVINGS = 24
AS_FAST = 0.99
"""Of the fastest: closer than any prediction tells apart."""


@dataclass(frozen=True)
class Limit:
    """GB/s that no set reaches more than: ``linked`` by the least GB/s of links that one of its GPUs has to the others
    (grows), ``unlinked`` where links join them in no ring."""

    linked: Callable[[float], float]
    unlinked: float


def _work(count: int) -> float:
    """What it takes to ask for a set of so many GPUs, a pair being one."""
    rings = factorial(count - 1) / 2 if 3 < count <= 8 else 0
    return 1 + rings / _RINGS_PER_WORK + count * count / 2 / _PAIRS_PER_WORK


class SetEvaluator:
    """Asks for values, each once, as long as there is work left; a set of more rings is more work."""

    def __init__(self, value: Value, limit: Limit | None, work: float = _MOST_WORK) -> None:
        self._value, self._limit, self._remaining_work = value, limit, work
        self._values: dict[tuple[int, ...], float] = {}
        self.complete = True
        """Whether nothing was left out for want of work."""

    def value(self, gpus: tuple[int, ...]) -> float | None:
        """What a set reaches; None where the work is spent."""
        if gpus not in self._values:
            if self._remaining_work <= 0:
                self.complete = False
                return None
            self._remaining_work -= _work(len(gpus))
            self._values[gpus] = self._value(gpus)
        return self._values[gpus]

    def most(self, degree: float) -> float:
        """What a set reaches at most whose GPUs have links of so many GB/s."""
        if self._limit is None:
            return float("inf")
        return max(self._limit.linked(degree), self._limit.unlinked)

    def needed(self, gbps: float, degree: float) -> float:
        """GB/s of links, up to ``degree``, without which no ring reaches ``gbps``; 0 where that is not known."""
        low, high = 0.0, degree
        if self._limit is None:
            return low
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._limit.linked(middle) >= gbps else (middle, high)
        return low

    def go_on(self, work: float) -> None:
        """Allows so much work beyond what is spent."""
        self._remaining_work = max(self._remaining_work, work)


class Pool:
    """Sets in the order in which they are asked: by the links of the GPU that has fewest, all links, nearness."""

    def __init__(self, table: LinkTable, members: Members, evaluator: SetEvaluator) -> None:
        self._table, self._evaluator = table, evaluator
        degrees = np.where(members, table.degrees(members), 0.0)
        least = np.where(members, degrees, np.inf).min(axis=1)
        far = ((members @ table.far) * members).sum(axis=1)
        order = np.lexsort((np.arange(len(members)), far, -degrees.sum(axis=1), -least))
        self.members, self._least = members[order], least[order]
        rows = np.nonzero(self.members)[1].reshape(len(order), -1)
        self._sets: list[list[int]] = np.array(table.gpus)[rows].tolist()
        self._shares: Ints | None = None
        self._top = float("inf")

    def gpus(self, index: int) -> tuple[int, ...]:
        """The indexes of a set's GPUs."""
        return tuple(self._sets[index])

    def near(self) -> list[int]:
        """The sets that are as fast as the fastest."""
        values: dict[int, float] = {}
        best = 0.0
        for index, least in enumerate(self._least.tolist()):
            if self._evaluator.most(least) < AS_FAST * best:
                break
            value = self._evaluator.value(self.gpus(index))
            if value is not None:
                values[index] = value
                best = max(best, value)
        self._top = best
        return [index for index, value in values.items() if value >= AS_FAST * best]

    def slowest(self) -> float:
        """What the worst set reaches, or the worst of a few that seem so where there are many."""
        last = range(
            0 if len(self.members) <= _ALL_EVALUATED else len(self.members) - _WORST_EVALUATED, len(self.members)
        )
        result = [self._evaluator.value(self.gpus(index)) for index in last]
        return min((value for value in result if value is not None), default=0.0)

    def fastest(self, available: Ints | None = None) -> float:
        """GB/s of a set as fast as the fastest, 0 where there is none; of those with no more GPUs of each class of
        twins than are ``available``."""
        if self._shares is None:
            self._shares = shares_of(self._table, self.members)
        best = 0.0
        for start in range(0, len(self.members), _LOOKED_UP):
            shares = self._shares[start : start + _LOOKED_UP]
            fits = np.ones(len(shares), np.bool_) if available is None else (shares <= available).all(axis=1)
            for index in (np.flatnonzero(fits) + start).tolist():
                if best >= min(self._top, AS_FAST * self._evaluator.most(float(self._least[index]))):
                    return best
                best = max(best, self._evaluator.value(self.gpus(index)) or 0.0)
        return best
