"""Which nodes of a pool are cut anew, and how: an integer programme over the configurations of their mig-manager.

Nodes with the same instances are alike, so the programme counts nodes by what they have now and what they get: it has
as many variables at ten GPUs as at ten thousand. What may not change, and what runs, is a constant in it.

Two objectives, the second under the value of the first: compute slices of waiting requests that get an instance; then
as few changes as possible or, in a pool that is used too little, how far instances are from their shares, where a
node's change has to bring at least one instance nearer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from kopt.core.hardware.mig import MigGeometry
from kopt.policies.partitions.configurations import WHOLE, NodeOption

Array = NDArray[np.float64]
_LIMIT_S = 0.25
"""Of one solve; the answer is the best until then. Distances from shares need it where a thousand nodes are too few."""
_SLACK = 1e-6
_GAP = 1e-2
"""Of distances from shares: proving the last hundredth takes most of the time."""


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
    """Nodes with as many GPUs of one model. ``waiting``: requests without an instance, by profile; ``shares`` in
    percent of instances. ``min_utilization``: as ``MigStrategy`` has it."""

    geometry: MigGeometry
    nodes: Sequence[PlanNode]
    options: Sequence[NodeOption]
    waiting: Mapping[str, int]
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
    changes: dict[str, NodeOption] = {}
    for alike, row in zip(programme.alike, counts, strict=True):
        nodes = iter(alike)
        for option, number in zip(pool.options, row, strict=True):
            changes |= {node.name: option for node in islice(nodes, int(number))}
    served = programme.served(counts)
    return PartitionPlan(changes, {name: int(count) for name, count in zip(pool.names, served, strict=True) if count})


class _Programme:
    """Variables: nodes of each kind that get each option (kinds x options), requests that are served (names), and how
    far instances of each profile are from their share (names)."""

    def __init__(self, pool: PartitionPool) -> None:
        self._pool = pool
        kinds: dict[tuple[float, ...], list[PlanNode]] = {}
        self._fixed, self._free = np.zeros(len(pool.names)), np.zeros(len(pool.names))
        for node in pool.nodes:
            have = pool.vector(node.instances)
            if node.may_change:
                kinds.setdefault(tuple(have), []).append(node)
            else:
                self._fixed += have
                self._free += np.maximum(0, have - pool.vector(node.used))
        self.alike = list(kinds.values())
        self._have = np.array(list(kinds), float).reshape(-1, len(pool.names))
        self._options = np.array([pool.vector(option.instances) for option in pool.options], float).reshape(
            -1, len(pool.names)
        )
        self._sizes = np.array([len(nodes) for nodes in self.alike], float)
        self._waiting = pool.vector(pool.waiting)

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self.alike), len(self._options)

    def served(self, counts: Array) -> Array:
        """Of the waiting requests (names,)."""
        supply = self._free + self._instances(counts)
        return np.minimum(self._waiting, supply)

    def _instances(self, counts: Array) -> Array:
        """Of nodes that may change, after the change (names,)."""
        kept = self._sizes - counts.sum(axis=1)
        result: Array = kept @ self._have + counts.sum(axis=0) @ self._options
        return result

    def solve(self) -> Array:
        """How many nodes of each kind get each option (kinds, options)."""
        nothing = np.zeros(self._shape)
        prefers = self._pool.min_utilization is not None and self._pool.utilization < self._pool.min_utilization
        lacks = bool((self.served(nothing) < self._waiting).any())
        if not nothing.size or not (prefers or lacks):
            return nothing
        kinds, options = self._shape
        names, cells = len(self._waiting), kinds * options
        changes = np.concatenate([np.ones(cells), np.zeros(2 * names)])
        served = np.concatenate([np.zeros(cells), -self._pool.slices, np.zeros(names)])
        distance = np.concatenate([np.ones(cells), np.zeros(names), np.ones(names)])
        objectives = [(served, 0.0), (distance, _GAP) if prefers else (changes, 0.0)]
        solution = _lexicographic(objectives, *self._constraints())
        return nothing if solution is None else np.round(solution[:cells]).reshape(self._shape)

    def _constraints(self) -> tuple[Array, Array, Array]:
        """Rows, with what they are at most, and the upper bounds of variables."""
        kinds, options = self._shape
        names, cells = len(self._waiting), kinds * options
        # By how much a cell's change raises the instances of each profile (names, cells).
        gains = (self._options[None, :, :] - self._have[:, None, :]).reshape(cells, names).T
        before = self._sizes @ self._have
        rows, most = [], []
        for kind in range(kinds):
            row = np.zeros(cells + 2 * names)
            row[kind * options : (kind + 1) * options] = 1
            rows.append(row)
            most.append(self._sizes[kind])
        for at in range(names):
            row = np.zeros(cells + 2 * names)
            row[:cells], row[cells + at] = -gains[at], 1
            rows.append(row)
            most.append(self._free[at] + before[at])
        shares = self._pool.vector(self._pool.shares) / 100
        is_profile = np.arange(names) < names - 1
        total, total_gains = (self._fixed + before)[is_profile].sum(), gains[is_profile].sum(axis=0)
        for at in range(names - 1):
            away = self._fixed[at] + before[at] - shares[at] * total
            slope = gains[at] - shares[at] * total_gains
            for sign in (1.0, -1.0):
                row = np.zeros(cells + 2 * names)
                row[:cells], row[cells + names + at] = sign * slope, -1
                rows.append(row)
                most.append(-sign * away)
        upper = np.concatenate([np.repeat(self._sizes, options), self._waiting, np.full(names, np.inf)])
        return np.array(rows), np.array(most), upper


def _lexicographic(objectives: Sequence[tuple[Array, float]], rows: Array, most: Array, upper: Array) -> Array | None:
    """(objective, relative gap) minimised one after the other; None where the solver has no answer."""
    solve, solution = _solver(), None
    for objective, gap in objectives:
        answer = solve(objective, gap, rows, most, upper)
        if answer is None:
            return solution
        solution = answer
        rows = np.vstack([rows, objective])
        most = np.append(most, float(objective @ solution) + _SLACK)
    return solution


Solver = Callable[[Array, float, Array, Array, Array], Array | None]


def _solver() -> Solver:
    # A third of a second to import, which only a plan should cost.
    from scipy.optimize import Bounds, LinearConstraint, milp

    def solve(objective: Array, gap: float, rows: Array, most: Array, upper: Array) -> Array | None:
        # All but the distances, which are the variables without a bound, are whole numbers.
        answer = milp(
            objective,
            integrality=np.isfinite(upper).astype(int),
            bounds=Bounds(0, upper),
            constraints=LinearConstraint(rows, -np.inf, most),
            options={"time_limit": _LIMIT_S, "mip_rel_gap": gap},
        )
        return None if answer.x is None else np.asarray(answer.x)

    return solve
