"""Run times of thousands of workloads as arrays: prepared once for a reading of a cluster, asked for every start."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kopt.core.workload.run_time import RunTimeQuantiles

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
UNKNOWN = -1
_BELOW = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.035)
_FINE = (*_BELOW, *(number / 20 for number in range(1, 20)), *(1 - level for level in reversed(_BELOW)))
"""Levels that quantiles are refined to."""
_LEAST_TAIL, _SHORTEST_S = 0.25, 1.0
"""The exponent of a tail, at least: none is taken to end; and what a logarithm is taken of, at least."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


class RunTimeColumns(Mapping[str, RunTimeQuantiles]):
    """The run times of a mapping, which must not change any more; ``rows`` number its workloads in its order."""

    def __init__(self, run_times: Mapping[str, RunTimeQuantiles]) -> None:
        self._run_times = run_times
        self._row = {name: row for row, name in enumerate(run_times)}
        every = list(run_times.values())
        likes = {like: code for code, like in enumerate(dict.fromkeys(each.like for each in every))}
        self._likes = tuple(likes)
        self._like_codes = np.array([likes[each.like] for each in every], np.intp)
        # Those of thousands are mostly one object, which is found faster than its values are compared.
        by_levels: dict[int, list[int]] = {}
        for row, each in enumerate(every):
            by_levels.setdefault(id(each.levels), []).append(row)
        self._group = np.zeros(len(every), np.intp)
        self._index = np.zeros(len(every), np.intp)
        self._tables: list[tuple[Floats, Floats]] = []
        for group, members in enumerate(by_levels.values()):
            self._group[members], self._index[members] = group, np.arange(len(members))
            levels, seconds = np.array(every[members[0]].levels), np.array([every[row].seconds for row in members])
            self._tables.append(_refined(levels, seconds))
        self._last: tuple[Sequence[Named], Rows] | None = None

    @classmethod
    def of(cls, run_times: Mapping[str, RunTimeQuantiles]) -> "RunTimeColumns":
        """Itself, where it is prepared already."""
        return run_times if isinstance(run_times, cls) else cls(run_times)

    def __getitem__(self, name: str) -> RunTimeQuantiles:
        return self._run_times[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._run_times)

    def __len__(self) -> int:
        return len(self._run_times)

    @cached_property
    def medians_s(self) -> Mapping[str, float]:
        """Half take no longer; by name."""
        return {name: quantiles.median_s for name, quantiles in self._run_times.items()}

    @cached_property
    def shortest_s(self) -> Floats:
        """The least that each takes, (rows,)."""
        result = np.zeros(len(self))
        for group, (_, seconds) in enumerate(self._tables):
            result[self._group == group] = seconds[:, 0]
        return result

    def rows(self, workloads: Sequence[Named]) -> Rows:
        """(workloads,); ``UNKNOWN`` where there is no run time. Asked again about the same tuple it answers at once."""
        if self._last is not None and self._last[0] is workloads:
            return self._last[1]
        get = self._row.get
        result = np.array([get(workload.name, UNKNOWN) for workload in workloads], np.intp)
        if isinstance(workloads, tuple):
            self._last = workloads, result
        return result

    def likes(self, rows: Rows) -> tuple[tuple[object, ...], Rows]:
        """The keys of those that err together, in order of first use, and which of them each row has, (rows,)."""
        codes = self._like_codes[rows]
        used, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        order = np.argsort(first)
        position = np.empty(len(used), np.intp)
        position[order] = np.arange(len(used))
        return tuple(self._likes[code] for code in used[order].tolist()), position[inverse]

    def seconds(self, rows: Rows, levels: Floats) -> Floats:
        """At ``levels`` (rows, draws), as ``_refined`` has them; (rows, draws)."""
        groups = self._group[rows]
        result = np.empty(levels.shape)
        for group, (known, table) in enumerate(self._tables):
            if len(self._tables) == 1:
                return _at_levels(known, table[self._index[rows]], levels)
            members = groups == group
            result[members] = _at_levels(known, table[self._index[rows[members]]], levels[members])
        return result

    def levels_by(self, rows: Rows, horizon_s: float) -> Floats:
        """The share of futures in which each takes no longer than ``horizon_s``, (rows,): never less than it is."""
        groups = self._group[rows]
        result = np.ones(len(rows))
        for group, (known, table) in enumerate(self._tables):
            members = groups == group
            result[members] = _levels_by(known, table[self._index[rows[members]]], horizon_s)
        return result


def _refined(levels: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Quantiles (n, levels) at the same levels and finer ones, and these.

    Linear in the logarithm between them, as run times span orders of magnitude. Beyond them powers, with the exponents
    that the last two on either side imply: of a hundred workloads the first to end is at a level of 1 %, and it would
    come too late were the lowest that is known, 5 %, the least that any can take.
    """
    if len(levels) == 1:
        return levels, seconds
    grid = np.union1d(levels, [level for level in _FINE if np.abs(levels - level).min() > 1e-6])
    logs = np.log(np.maximum(seconds, _SHORTEST_S))
    right = np.searchsorted(levels, grid).clip(1, len(levels) - 1)
    share = (grid - levels[right - 1]) / np.diff(levels)[right - 1]
    result: Floats = logs[:, right - 1] + share * (logs[:, right] - logs[:, right - 1])
    below, above = grid < levels[0], grid > levels[-1]
    lower = np.maximum(_LEAST_TAIL, (logs[:, 1] - logs[:, 0]) / np.log(levels[1] / levels[0]))
    result[:, below] = logs[:, :1] + lower[:, None] * np.log(grid[below] / levels[0])
    upper = np.maximum(_LEAST_TAIL, (logs[:, -1] - logs[:, -2]) / np.log((1 - levels[-2]) / (1 - levels[-1])))
    result[:, above] = logs[:, -1:] + upper[:, None] * np.log((1 - levels[-1]) / (1 - grid[above]))
    np.exp(result, out=result)
    known = np.searchsorted(grid, levels)
    result[:, known] = seconds
    return grid, np.maximum.accumulate(result, axis=1)


def _at_levels(levels: Floats, quantiles: Floats, wanted: Floats) -> Floats:
    """Seconds (n, draws) at ``wanted`` levels, linear between the quantiles (n, levels)."""
    if len(levels) == 1:
        return np.broadcast_to(quantiles, wanted.shape)
    right = np.searchsorted(levels, wanted, side="right").clip(1, len(levels) - 1)
    share = ((wanted - levels[right - 1]) / np.diff(levels)[right - 1]).clip(0.0, 1.0)
    low, high = np.take_along_axis(quantiles, right - 1, axis=1), np.take_along_axis(quantiles, right, axis=1)
    result: Floats = low + share * (high - low)
    return result


def _levels_by(levels: Floats, quantiles: Floats, horizon_s: float) -> Floats:
    right = (quantiles <= horizon_s).sum(axis=1)
    inside = right.clip(1, max(1, len(levels) - 1))
    if len(levels) == 1:
        return np.where(right == 0, 0.0, 1.0)
    every = np.arange(len(quantiles))
    low, high = quantiles[every, inside - 1], quantiles[every, inside]
    share = ((horizon_s - low) / np.maximum(high - low, 1e-12)).clip(0.0, 1.0)
    result = levels[inside - 1] + share * (levels[inside] - levels[inside - 1])
    return np.where(right == 0, 0.0, np.where(right == len(levels), 1.0, result))
