"""Placement policies by name, as the simulator and comparisons use them; one visible list."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from kopt.core.scheduling.placement import PodRequest
from kopt.policies.placement import expected_fill
from kopt.policies.placement.baselines import BASELINES, Baseline
from kopt.policies.placement.cache import Build, FragmentationCache
from kopt.policies.placement.choose import best, slots_for
from kopt.policies.placement.feasible import Refusal, refusals
from kopt.policies.placement.fragmentation import UsableTables
from kopt.policies.placement.state import FleetState
from kopt.policies.placement.typical import History, TypicalPods

Placed = tuple[int, tuple[int, ...]]


class Policy(Protocol):
    """Decides on pods one by one, as they arrive."""

    def select(self, state: FleetState, request: PodRequest) -> Placed | None:
        """Row and GPU slots for the pod; None if no node is feasible. Does not change the state."""


class BaselinePolicy:
    """A baseline's best node, the first among equal ones: that matches the published figures better than random.

    A share goes to the fullest GPU that it fits; under the random policy, to any.
    """

    def __init__(self, score: Baseline, chance: np.random.Generator) -> None:
        self._score = score
        self._chance = chance

    def select(self, state: FleetState, request: PodRequest) -> Placed | None:
        rows = np.flatnonzero(refusals(state, request) == Refusal.NONE)
        if not len(rows):
            return None
        score = self._score(state, request, rows, self._chance)
        row = int(rows[np.argmax(score)])
        if not request.is_share:
            return row, slots_for(state, row, request)
        enough = np.flatnonzero(state.gpu_free_milli[row] >= request.gpus.share)
        if self._score is BASELINES["random"]:
            return row, (int(self._chance.choice(enough)),)
        return row, (int(enough[np.argmin(state.gpu_free_milli[row, enough])]),)


class Expecting:
    """A policy based on typical pods: given ones, or else learned from the arrivals so far."""

    def __init__(self, typical: TypicalPods | None, build: Build) -> None:
        self._cache = FragmentationCache(typical or TypicalPods({}), build=build)
        self._history = History() if typical is None else None

    def select(self, state: FleetState, request: PodRequest) -> Placed | None:
        result = self._best(state, request)
        if self._history is not None and self._history.add(request):
            self._cache.relearn(self._history.typical())
        return result

    def _best(self, state: FleetState, request: PodRequest) -> Placed | None:
        raise NotImplementedError


class GradientDescent(Expecting):
    """Fragmentation gradient descent as published: scores 0 to 100 of its sigmoid, ties broken by best fit."""

    def __init__(self, typical: TypicalPods | None) -> None:
        super().__init__(typical, _usable)

    def _best(self, state: FleetState, request: PodRequest) -> Placed | None:
        outlook = self._cache.outlook(state, request)
        rows = np.flatnonzero(outlook.refusal == Refusal.NONE)
        if not len(rows):
            return None
        gain = -(outlook.loss[rows] + request.gpus.total) / 1000
        score = np.floor(100 / (1 + np.exp(-gain)))
        cpu = state.cpu_free_milli[rows] / max(1, state.largest_cpu_milli)
        full = cpu + state.gpu_free_total[rows] / max(1, 1000 * state.slots)
        row = int(rows[np.lexsort((full, -score))[0]])
        return row, slots_for(state, row, request, int(outlook.slot[row]))


def _usable(typical: TypicalPods, models: Sequence[str], slots: int, _: int) -> UsableTables:
    return UsableTables.build(typical, models, slots)


class ExpectedFill(Expecting):
    """Ours: what `choose` names."""

    def __init__(self, typical: TypicalPods | None) -> None:
        super().__init__(typical, expected_fill.build)

    def _best(self, state: FleetState, request: PodRequest) -> Placed | None:
        return best(state, request, cache=self._cache)


def _baseline(score: Baseline) -> "Make":
    return lambda typical, chance: BaselinePolicy(score, chance)


Make = Callable[[TypicalPods | None, np.random.Generator], Policy]
"""A policy from the expected pods (None: learned from arrivals) and a random generator."""

POLICIES: Mapping[str, Make] = {
    **{name: _baseline(score) for name, score in BASELINES.items()},
    "fgd": lambda typical, chance: GradientDescent(typical),
    "kopt": lambda typical, chance: ExpectedFill(typical),
}

LEARNS = frozenset({"kopt"})
"""Policies that learn typical pods by default; "fgd" is given them, as in its paper."""
