"""When a run with a deadline should use spot capacity, on-demand capacity, or wait: the cheapest plan that is in time.

Spot capacity is a Markov chain of four states: there or away, each for less or more than an hour, with the rates of
``spot_rates``. On-demand capacity is always to be had. The expected cost of what is left is computed backwards from the
deadline over the work that is left (finite-horizon dynamic programming: Puterman, Markov Decision Processes, 1994,
chapter 4), and in each state the plan does what costs least. It never uses spot capacity where an interruption could
miss the deadline.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kopt.policies.cost.spot_rates import YOUNG_S, Rates

_HOUR_S = 3600.0
_TICKS = 288
_NEVER = 1e12
"""The cost of missing the deadline: finite, so that a probability of 0 times it is 0."""
_TICK_OF_REST = 1e-6
"""What a tick of waiting costs, of a tick of on-demand capacity: of plans that cost the same the soonest is taken."""

Costs = NDArray[np.float64]
"""Of states, by the ticks of work that are left."""


class Capacity(StrEnum):
    """What a run computes on; ``NONE`` while it waits."""

    NONE = "none"
    SPOT = "spot"
    ON_DEMAND = "on-demand"


_ORDER = (Capacity.NONE, Capacity.SPOT, Capacity.ON_DEMAND)
_AWAY, _THERE = slice(0, 2), slice(2, 4)
"""States of spot capacity: young and old, away; young and old, there."""


@dataclass(frozen=True)
class SpotRun:
    """``work_s`` seconds of computing that have to be done within ``deadline_s`` from now.

    ``restart_s`` pass until new capacity computes; an interruption loses ``lost_s`` of work on average and
    ``most_lost_s`` at most. ``price_ratio`` is the spot price over the on-demand price.
    """

    work_s: float
    deadline_s: float
    restart_s: float
    lost_s: float
    most_lost_s: float
    price_ratio: float
    interruptions: Rates
    returns: Rates

    def __post_init__(self) -> None:
        times = (self.work_s, self.deadline_s, self.restart_s, self.lost_s, self.most_lost_s)
        rates = (self.interruptions.young, self.interruptions.old, self.returns.young, self.returns.old)
        every = (*times, *rates, self.price_ratio)
        if not all(map(math.isfinite, every)) or min(every) < 0 or self.work_s == 0:
            raise ValueError("times, rates and prices of a run are finite and not below 0, and its work is above 0")
        if self.most_lost_s < self.lost_s:
            raise ValueError("what an interruption loses at most is not below what it loses on average")
        if self.work_s + self.restart_s > self.deadline_s:
            raise ValueError("the run would not be done in time on on-demand capacity either")


class SpotPlan:
    """What to do in each state of a run, in steps of a 288th of the time until the deadline.

    Solving takes 0.1 to 0.3 s of a core.
    """

    def __init__(self, run: SpotRun) -> None:
        self.run = run
        self.tick_s = run.deadline_s / _TICKS
        self._choices: list[NDArray[np.int8]] = []
        """By ticks left: index into ``_ORDER`` by what is held, state of spot capacity, and ticks of work left."""
        self._at_rest = self._solve()

    def expected_hours(self, *, available: bool, age_s: float = 0.0) -> float:
        """What the run costs from now on, in hours of on-demand capacity, with spot capacity there, or away, for
        ``age_s``. Where a run needs all its time, that is on-demand capacity alone."""
        alone = (self.run.work_s + self.run.restart_s) / _HOUR_S
        work = self._ticks_of(self.run.work_s)
        if work > _TICKS:
            return alone
        planned = float(self._at_rest[_state(available=available, age_s=age_s)][work]) * self.tick_s / _HOUR_S
        return planned if planned < _NEVER * self.tick_s / _HOUR_S else alone

    def choose(self, left_s: float, work_s: float, held: Capacity, *, available: bool, age_s: float) -> Capacity:
        """What to compute on, with ``left_s`` until the deadline, ``work_s`` to compute and ``held`` now.

        ``available``: whether spot capacity is to be had, and ``age_s`` for how long it has, or has not, been so. Where
        the deadline can no longer be met the answer is on-demand capacity.
        """
        ticks, work = min(int(left_s / self.tick_s), _TICKS), self._ticks_of(work_s)
        if ticks < 1 or work > _TICKS:
            return Capacity.ON_DEMAND
        if held is Capacity.SPOT and not available:
            held = Capacity.NONE
        state = _state(available=available, age_s=age_s)
        return _ORDER[self._choices[ticks - 1][_ORDER.index(held)][state][work]]

    def least_hours_to_wait(self, work_s: float) -> float | None:
        """The least time left, in hours, at which waiting is better than on-demand capacity while spot capacity has
        been away for an hour; None where it never is."""
        return self._least_hours(work_s, Capacity.NONE)

    def least_hours_for_spot(self, work_s: float) -> float | None:
        """The least time left, in hours, at which spot capacity that has been there for an hour is used by a run that
        holds nothing; None where it never is."""
        return self._least_hours(work_s, Capacity.SPOT)

    def _least_hours(self, work_s: float, wanted: Capacity) -> float | None:
        there = wanted is Capacity.SPOT
        for ticks in range(1, _TICKS + 1):
            left_s = ticks * self.tick_s
            if self.choose(left_s, work_s, Capacity.NONE, available=there, age_s=YOUNG_S) is wanted:
                return left_s / _HOUR_S
        return None

    def _ticks_of(self, span_s: float) -> int:
        return math.ceil(span_s / self.tick_s - 1e-9)

    def _solve(self) -> Costs:
        """Costs of a run that holds nothing, by state and work, with all the time until the deadline."""
        size, chain, restart = _TICKS + 1, self._chain(), self._ticks_of(self.run.restart_s)
        kept, fresh = np.arange(size) - 1, np.arange(size) + restart - 1
        none = np.full((4, size), _NEVER)
        none[:, 0] = 0.0
        spot, on_demand = none.copy(), none.copy()
        for ticks in range(1, size):
            waits, paid = _TICK_OF_REST + chain @ none, chain @ on_demand
            begins, starts = self._on_spot(fresh, spot, none, chain, ticks), 1 + _at(paid, fresh)
            goes_on = self._on_spot(kept, spot, none, chain, ticks)
            paths = (
                _cheapest(waits, begins, starts),
                _cheapest(waits, goes_on, starts),
                _cheapest(waits, begins, 1 + _at(paid, kept)),
            )
            none, spot, on_demand = (costs for costs, _ in paths)
            self._choices.append(np.stack([choices for _, choices in paths]))
        return none

    def _on_spot(self, left: NDArray[np.int_], spot: Costs, none: Costs, chain: Costs, ticks: int) -> Costs:
        """Costs of computing on spot capacity for one of ``ticks``, after which ``left`` of the work is left."""
        run = self.run
        restart, lost, most_lost = map(self._ticks_of, (run.restart_s, run.lost_s, run.most_lost_s))
        goes_on = chain[_THERE, _THERE] @ _at(spot[_THERE], left)
        again = chain[_THERE, _AWAY] @ _at(none[_AWAY], np.where(left > 0, left + lost, 0))
        late = (left > 0) & (left + most_lost + restart > ticks - 1)
        costs = np.full(spot.shape, _NEVER)
        costs[_THERE] = np.where(late, _NEVER, run.price_ratio + np.where(left > 0, goes_on + again, 0.0))
        return costs

    def _chain(self) -> Costs:
        """Probabilities from state to state within a tick."""

        def within(per_hour: float) -> float:
            return 1 - math.exp(-per_hour * self.tick_s / _HOUR_S)

        ages, chain = within(_HOUR_S / YOUNG_S), np.zeros((4, 4))
        for young, other, rates in ((0, 2, self.run.returns), (2, 0, self.run.interruptions)):
            stays = 1 - within(rates.young)
            chain[young, [young, young + 1, other]] = stays * (1 - ages), stays * ages, within(rates.young)
            chain[young + 1, [young + 1, other]] = 1 - within(rates.old), within(rates.old)
        return chain


def _state(*, available: bool, age_s: float) -> int:
    return (2 if available else 0) + (age_s >= YOUNG_S)


def _at(costs: Costs, work: NDArray[np.int_]) -> Costs:
    """Costs of what is left of the work; more than there is time for is never done."""
    most = costs.shape[-1] - 1
    return np.where(work > most, _NEVER, costs[..., np.clip(work, 0, most)])


def _cheapest(none: Costs, spot: Costs, on_demand: Costs) -> tuple[Costs, NDArray[np.int8]]:
    """The least costs by state and work, and which of ``_ORDER`` they belong to."""
    options = np.minimum(np.stack((none, spot, on_demand)), _NEVER)
    least = options.min(axis=0)
    # Where nothing is in time any more, on-demand capacity is the least late.
    choices = np.where(least >= _NEVER, _ORDER.index(Capacity.ON_DEMAND), options.argmin(axis=0))
    least[:, 0] = 0.0
    return least, choices.astype(np.int8)
