"""Which nodes of a pool are cut anew, and how: an integer programme over the configurations of their manager.

Nodes with the same instances are alike, so the programme counts how many nodes have which instances afterwards: it has
as many variables at ten GPUs as at ten thousand. What may not change, and what runs, is a constant in it.

Two objectives, the second under the value of the first: compute slices of waiting requests that get an instance; then
as few changes as possible or, in a pool that is used too little, how far instances are from their shares, where a
node's change has to bring at least one instance nearer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kopt.policies.partitions.configurations import WHOLE, NodeOption

Array = NDArray[np.float64]
_LIMIT_S = 2.0
"""Of one solve, which takes some hundredths of it; the answer is the best until then."""
_SLACK = 1e-6
_GAP = 1e-2
"""Of distances from shares: proving the last hundredth takes most of the time."""


class Sized(Protocol):
    """A kind of instance: a MIG profile, or a partition of an AMD GPU, whose slices are its dies (XCDs)."""

    @property
    def name(self) -> str: ...

    @property
    def compute_slices(self) -> int: ...


class Geometry(Protocol):
    """What a GPU of a model can be cut into."""

    @property
    def compute_slices(self) -> int: ...

    @property
    def profiles(self) -> Sequence[Sized]: ...


@dataclass(frozen=True)
class PlanNode:
    """``instances``: what it has, or is about to have; ``used``: those that pods hold. ``may_change``: nothing runs on
    it, and it is ours to cut."""

    name: str
    instances: Mapping[str, int] = field(hash=False)
    used: Mapping[str, int] = field(hash=False, default_factory=dict)
    may_change: bool = False


@dataclass(frozen=True)
class PartitionPool:
    """Nodes with as many GPUs of one model; of those that are alike the first are cut. ``pending``: requests without an
    instance, by profile; ``shares`` in percent of instances. ``min_utilization``: as ``MigStrategy`` has it."""

    geometry: Geometry
    nodes: Sequence[PlanNode]
    options: Sequence[NodeOption]
    pending: Mapping[str, int]
    shares: Mapping[str, int]
    min_utilization: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of what is counted: profiles, and whole GPUs last."""
        return (*(profile.name for profile in self.geometry.profiles), WHOLE)

    @property
    def slices(self) -> Array:
        """Compute slices of each (names,)."""
        return np.array([*(p.compute_slices for p in self.geometry.profiles), self.geometry.compute_slices], float)

    @property
    def utilization(self) -> float:
        """Compute slices that pods hold, of all that are cut or whole."""
        used = sum(float(self.vector(node.used) @ self.slices) for node in self.nodes)
        total = sum(float(self.vector(node.instances) @ self.slices) for node in self.nodes)
        return used / total if total else 0.0

    def vector(self, counts: Mapping[str, int]) -> Array:
        return np.array([counts.get(name, 0) for name in self.names], float)


@dataclass(frozen=True)
class PartitionPlan:
    """``changes``: the option of each node that is cut anew. ``served``: waiting requests that get an instance by it,
    or have a free one already."""

    changes: Mapping[str, NodeOption]
    served: Mapping[str, int]


def plan_partitions(pool: PartitionPool) -> PartitionPlan:
    """The best plan. Nodes that may not change keep what they have, whatever waits."""
    programme = _Programme(pool)
    counts = programme.solve()
    served = programme.served(counts)
    names = {name: int(count) for name, count in zip(pool.names, served, strict=True) if count}
    return PartitionPlan(programme.changes(counts), names)


class _Programme:
    """Layouts of nodes are what nodes that may change have, and what options give. Variables: nodes with each layout
    afterwards (layouts), requests that are served and how far instances are from their share (names each), and nodes
    that lose each layout (layouts)."""

    def __init__(self, pool: PartitionPool) -> None:
        self._pool = pool
        self._options: dict[tuple[float, ...], NodeOption] = {}
        for option in pool.options:
            self._options.setdefault(tuple(pool.vector(option.instances)), option)
        self._members: dict[tuple[float, ...], list[PlanNode]] = {layout: [] for layout in self._options}
        self._fixed, self._free = np.zeros(len(pool.names)), np.zeros(len(pool.names))
        for node in pool.nodes:
            have = pool.vector(node.instances)
            if node.may_change:
                self._members.setdefault(tuple(have), []).append(node)
            else:
                self._fixed += have
                self._free += np.maximum(0, have - pool.vector(node.used))
        self._layouts = np.array(list(self._members), float).reshape(-1, len(pool.names))
        self._before = np.array([len(nodes) for nodes in self._members.values()], float)
        self._pending = pool.vector(pool.pending)

    def served(self, counts: Array) -> Array:
        """Of the waiting requests, with so many nodes of each layout (names,)."""
        result: Array = np.minimum(self._pending, self._free + counts @ self._layouts)
        return result

    def changes(self, counts: Array) -> dict[str, NodeOption]:
        """The option of each node that loses its layout."""
        spare: list[PlanNode] = []
        lacking: list[NodeOption] = []
        for (layout, nodes), count in zip(self._members.items(), counts.astype(int), strict=True):
            spare += nodes[: max(0, len(nodes) - count)]
            lacking += [self._options[layout]] * (count - len(nodes)) if count > len(nodes) else []
        return {node.name: option for node, option in zip(spare, lacking, strict=True)}

    def solve(self) -> Array:
        """How many nodes have each layout (layouts,)."""
        prefers = self._pool.min_utilization is not None and self._pool.utilization < self._pool.min_utilization
        lacks = bool((self.served(self._before) < self._pending).any())
        if not self._options or not self._before.any() or not (prefers or lacks):
            return self._before
        layouts, names = len(self._before), len(self._pending)
        nothing = np.zeros(names)
        changes = np.concatenate([np.zeros(layouts), nothing, nothing, np.ones(layouts)])
        served = np.concatenate([np.zeros(layouts), -self._pool.slices, nothing, np.zeros(layouts)])
        distance = np.concatenate([np.zeros(layouts), nothing, np.ones(names), np.ones(layouts)])
        objectives = [*([(served, 0.0)] if lacks else []), (distance, _GAP) if prefers else (changes, 0.0)]
        solution = _lexicographic(objectives, *self._constraints())
        return self._before if solution is None else np.round(solution[:layouts])

    def _constraints(self) -> tuple[Array, Array, Array, Array]:
        """Rows, with what they are at most; the upper bounds of variables, and which are whole numbers."""
        layouts, names = len(self._before), len(self._pending)
        width, rows, most = 2 * layouts + 2 * names, list[Array](), list[float]()

        def add(at_most: float, counts: Array, at: int | None = None, factor: float = 0.0) -> None:
            row = np.zeros(width)
            row[:layouts] = counts
            if at is not None:
                row[at] = factor
            rows.append(row)
            most.append(at_most)

        ones, total = np.ones(layouts), float(self._before.sum())
        add(total, ones)
        add(-total, -ones)
        shares = self._pool.vector(self._pool.shares) / 100
        instances = self._layouts[:, :-1].sum(axis=1)
        for at in range(names):
            add(self._free[at], -self._layouts[:, at], layouts + at, 1.0)
        for at in range(names - 1):
            away = self._fixed[at] - shares[at] * self._fixed[:-1].sum()
            slope = self._layouts[:, at] - shares[at] * instances
            for sign in (1.0, -1.0):
                add(-sign * away, sign * slope, layouts + names + at, -1.0)
        for at in range(layouts):
            add(-self._before[at], -np.eye(layouts)[at], layouts + 2 * names + at, -1.0)
        # What no option gives can only become less.
        least = [total if layout in self._options else len(nodes) for layout, nodes in self._members.items()]
        upper = np.concatenate([least, self._pending, np.full(names, np.inf), self._before])
        whole = np.concatenate([np.ones(layouts), np.zeros(2 * names + layouts)])
        return np.array(rows), np.array(most), upper, whole


def _lexicographic(
    objectives: Sequence[tuple[Array, float]], rows: Array, most: Array, upper: Array, whole: Array
) -> Array | None:
    """(objective, relative gap) minimised one after the other; None where the solver has no answer."""
    solve, solution = _solver(), None
    for objective, gap in objectives:
        answer = solve(objective, gap, (rows, most, upper, whole))
        if answer is None:
            return solution
        solution = answer
        rows = np.vstack([rows, objective])
        most = np.append(most, float(objective @ solution) + _SLACK)
    return solution


Problem = tuple[Array, Array, Array, Array]
"""Rows, with what they are at most; upper bounds of variables, and which are whole numbers."""
Solver = Callable[[Array, float, Problem], Array | None]


def _solver() -> Solver:
    # A third of a second to import, which only a plan should cost.
    from scipy.optimize import Bounds, LinearConstraint, milp

    def solve(objective: Array, gap: float, problem: Problem) -> Array | None:
        rows, most, upper, whole = problem
        answer = milp(
            objective,
            integrality=whole,
            bounds=Bounds(0, upper),
            constraints=LinearConstraint(rows, -np.inf, most),
            options={"time_limit": _LIMIT_S, "mip_rel_gap": gap},
        )
        return None if answer.x is None else np.asarray(answer.x)

    return solve
