"""Run times drawn for many workloads at once, which err together."""

import math
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from kopt.policies.diagnosis.run_time_columns import Floats, Rows, RunTimeColumns

SHARED, SHARED_ALIKE = 0.5, 0.3
"""Of the variance of how long workloads run against what is expected of their like: what those that run at a time have
in common, and what those of one queue and size have besides. Whoever submits together errs together; without it sums
over a queue are far too sure."""
MOST_STRATIFIED = 256
_SCORES = np.linspace(-6.0, 6.0, 4801)
_CDF = np.array([0.5 * math.erfc(-score / math.sqrt(2)) for score in _SCORES])
"""Of the normal distribution."""
_MARGIN = 0.01
"""Of a score: wider than a cell of the table and the rounding of single precision."""


class Futures:
    """Times of workloads in draws. In each draw a part of their levels is shared by all, and a part by those that are
    alike, and each stays uniform (a Gaussian copula with factors; Li, On Default Correlation, J. of Fixed Income
    2000)."""

    def __init__(self, columns: RunTimeColumns, rng: np.random.Generator, draws: int) -> None:
        self._columns, self._rng, self._draws = columns, rng, draws
        self._of_like: dict[Hashable, Floats] = {}
        self._shared = math.sqrt(SHARED) * self._scores(1)[0]

    def seconds(self, rows: Rows) -> Floats:
        """(rows, draws). To be asked for once of each."""
        common, own = self._common(rows)
        scores = own[:, None] * self._scores(len(rows)) + common
        return self._columns.seconds(rows, _levels(scores))

    def _common(self, rows: Rows) -> tuple[Floats, Floats]:
        """What scores of rows share with others in each draw, (rows, draws), and the weight of what is theirs."""
        likes, index = self._columns.likes(rows)
        shared = np.array([self._shared_by(like) for like in likes]).reshape(-1, self._draws) + self._shared
        own = np.sqrt([1 - SHARED - (SHARED_ALIKE if like is not None else 0.0) for like in likes])
        return shared[index], own[index]

    def _shared_by(self, like: Hashable) -> Floats:
        if like is None:
            return np.zeros(self._draws)
        if like not in self._of_like:
            self._of_like[like] = math.sqrt(SHARED_ALIKE) * self._scores(1)[0]
        return self._of_like[like]

    def _scores(self, count: int) -> Floats:
        """Normal, (count, draws)."""
        draws = self._draws
        if count > MOST_STRATIFIED:
            return self._rng.standard_normal((count, draws))
        # Spread evenly over the draws, which halves the noise of so few.
        strata = self._rng.permuted(np.tile(np.arange(float(draws)), (count, 1)), axis=1)
        result: Floats = np.interp((strata + self._rng.random(strata.shape)) / draws, _CDF, _SCORES)
        return result

    def many(self, rows: Rows) -> "ManyFutures":
        """Of thousands, most of which end too late to matter."""
        return ManyFutures(self._columns, self._rng, rows, *self._common(rows))


class ManyFutures:
    """Draws of thousands of workloads, sorted by the least that they take, of which only those times are computed that
    come before a horizon. The same come whichever horizons were asked for before."""

    def __init__(
        self, columns: RunTimeColumns, rng: np.random.Generator, rows: Rows, common: Floats, own: Floats
    ) -> None:
        self._columns, self._rng, self._rows = columns, rng, rows
        self._common, self._own = common.astype(np.float32), own.astype(np.float32)
        self._scores = np.empty(common.shape, np.float32)
        self._drawn = 0

    def before(self, first: int, horizons_s: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
        """Of the ``first`` workloads what ends by the horizon of its draw (draws,): which workload, in which draw, and
        when, sorted by draw and time."""
        if first > self._drawn:
            part = slice(self._drawn, first)
            normal = self._rng.standard_normal((first - self._drawn, self._common.shape[1]), dtype=np.float32)
            np.multiply(normal, self._own[part, None], out=normal)
            np.add(normal, self._common[part], out=self._scores[part])
            self._drawn = first
        open_draws = np.flatnonzero(horizons_s >= 0)
        latest_s = float(horizons_s[open_draws].max(initial=0.0))
        # Nearly all are told by their scores to come later.
        levels = self._columns.levels_by(self._rows[:first], latest_s)
        limits = np.where(levels < 1, np.interp(levels, _CDF, _SCORES) + _MARGIN, np.inf).astype(np.float32)
        workloads, of_draws = np.nonzero(self._scores[:first, open_draws] <= limits[:, None])
        draws = open_draws[of_draws]
        scores = self._scores[workloads, draws].astype(np.float64)
        times = self._columns.seconds(self._rows[workloads], _levels(scores)[:, None])[:, 0]
        kept = times <= horizons_s[draws]
        workloads, draws, times = workloads[kept], draws[kept], times[kept]
        order = np.lexsort((times, draws))
        return workloads[order], draws[order], times[order]


def _levels(scores: Floats) -> Floats:
    cells = np.rint((scores - _SCORES[0]) * ((len(_SCORES) - 1) / (_SCORES[-1] - _SCORES[0]))).astype(np.intp)
    result: Floats = _CDF.take(cells, mode="clip")
    return result
