"""Scores of rolling quantile forecasts: accuracy, calibration, and what they lend.

Definitions: MASE is scaled by the daily seasonal naive error of the part before the test window (Hyndman & Koehler
2006). A service's pool has 64 GPUs, sized so that the 99.9 % quantile of demand fills it. ``eff99`` is lending as a
share of an oracle's, after a forecast was rescaled so that exactly 1 % of the moments are under-provisioned: it
compares forecasts at the same safety. The test window is the last 30 % of a series, at most 10 days.

Sums are kept per block of four hours, so that the gate can resample blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.rolling import GPUS, SIZING_QUANTILE, Forecasts, window_start
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import DAY_S, fill_gaps, steps_ahead

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]

MATCHED_VIOLATION = 0.01
BLOCK_S = 4 * 3600
"""Errors further apart than this hardly depend on each other."""


@dataclass(frozen=True)
class Moments:
    """Every scored moment of a service, shape (n,): its block, the q95 forecast (floored) and the demand that came,
    both in GPUs, not rounded."""

    block: Index
    forecast: Array
    truth: Array

    def need(self) -> Array:
        """Whole GPUs needed."""
        return np.minimum(np.ceil(self.truth), GPUS)


@dataclass(frozen=True)
class Score:
    """One service at one horizon. Arrays hold one sum per block of the test window, shape (blocks,).

    ``error`` and ``last_error`` are absolute errors of the median and of the last value in units of the seasonal
    naive error; ``below[q]`` counts moments with demand at most the quantile; ``violations`` moments with fewer GPUs
    provisioned (at q95, q99) than needed; ``lent[rule]`` GPUs lent at matched violation (rules ``q95``, ``q99``,
    ``last``, ``hpa``), ``free`` the oracle's.
    """

    series: str
    horizon_s: int
    slices: tuple[str, ...]
    rows: Array
    error: Array
    last_error: Array
    below: Mapping[float, Array]
    violations: Mapping[float, Array]
    lent: Mapping[str, Array]
    free: Array
    moments: Moments

    @property
    def mase(self) -> float:
        return float(self.error.sum() / self.rows.sum())

    @property
    def mase_last(self) -> float:
        return float(self.last_error.sum() / self.rows.sum())

    def violation(self, quantile: float) -> float:
        """Share of moments with too few GPUs when provisioning at ``quantile``."""
        return float(self.violations[quantile].sum() / self.rows.sum())

    def eff99(self, rule: str = "q95") -> float:
        """Share of the oracle's lending at 1 % violation."""
        return float(self.lent[rule].sum() / max(float(self.free.sum()), 1.0))


def scored_origins(series: DemandSeries, horizons_s: Sequence[int]) -> Index:
    """Every observed origin that any horizon is scored at, on a series on its grid."""
    reach = max(steps_ahead(h, series.step_s) for h in horizons_s)
    first = max(0, window_start(len(series), series.step_s) - reach)
    observed = np.isfinite(series.value)
    return np.flatnonzero(observed & (np.arange(len(series)) >= first))[:-1].astype(np.int64)


def score(
    series: DemandSeries, forecasts: Forecasts, *, slices: tuple[str, ...] = (), unseen_from: int = 0
) -> tuple[Score, ...]:
    """Scores at every horizon; targets before bucket ``unseen_from`` are left out.

    Horizons without a single known target, and series whose demand never changes, have no score.
    Raises ValueError where the forecasts lack an origin of the test window.
    """
    scorer = _SeriesScorer.of(series)
    if scorer is None:
        return ()
    result = (scorer.score(forecasts, column, slices, unseen_from) for column in range(len(forecasts.horizons_s)))
    return tuple(score for score in result if score is not None)


@dataclass(frozen=True)
class _SeriesScorer:
    """What all horizons of a series share: the filled values, scales, and rules without a forecast."""

    series: DemandSeries
    filled: Array
    observed: Mask
    start: int
    scale: float
    capacity: float
    floor: float
    reactive: Array

    @classmethod
    def of(cls, series: DemandSeries) -> "_SeriesScorer | None":
        observed = np.isfinite(series.value)
        if not observed.any():
            return None
        filled, day = fill_gaps(series.value), DAY_S // series.step_s
        start = window_start(len(series), series.step_s)
        scale = _scale(filled, start, day)
        capacity = float(np.quantile(series.value[observed], SIZING_QUANTILE)) / GPUS
        if not scale > 0 or not capacity > 0:
            return None
        window = max(2, 1800 // series.step_s)
        reactive = _trailing_max(filled, window) * 1.2
        return cls(series, filled, observed, start, scale, capacity, 0.02 * float(filled[:start].mean()), reactive)

    def score(self, forecasts: Forecasts, column: int, slices: tuple[str, ...], unseen_from: int) -> Score | None:
        horizon_s = forecasts.horizons_s[column]
        ahead = steps_ahead(horizon_s, self.series.step_s)
        origins = np.arange(max(0, self.start - ahead), len(self.filled) - ahead)
        origins = origins[self.observed[origins + ahead] & self.observed[origins] & (origins + ahead >= unseen_from)]
        if not len(origins):
            return None
        value = forecasts.value[_rows_of(forecasts, origins), column]
        truth, last = self.filled[origins + ahead], self.filled[origins]
        need = np.minimum(np.ceil(truth / self.capacity), GPUS)
        by_quantile = {q: value[:, i] for i, q in enumerate(forecasts.quantiles)}
        blocks = origins * self.series.step_s // BLOCK_S
        return Score(
            self.series.name,
            horizon_s,
            slices,
            rows=_by_block(blocks, np.ones(len(origins))),
            error=_by_block(blocks, np.abs(truth - by_quantile[0.5]) / self.scale),
            last_error=_by_block(blocks, np.abs(truth - last) / self.scale),
            below={q: _by_block(blocks, (truth <= column_).astype(float)) for q, column_ in by_quantile.items()},
            violations={q: _by_block(blocks, self._short(by_quantile[q], need)) for q in (0.95, 0.99)},
            lent={
                rule: _by_block(blocks, self._matched(demand, truth, need))
                for rule, demand in (
                    ("q95", by_quantile[0.95]),
                    ("q99", by_quantile[0.99]),
                    ("last", last),
                    ("hpa", self.reactive[origins]),
                )
            },
            free=_by_block(blocks, GPUS - need),
            moments=Moments(
                blocks - blocks[0], np.maximum(by_quantile[0.95], self.floor) / self.capacity, truth / self.capacity
            ),
        )

    def _gpus(self, demand: Array) -> Array:
        gpus: Array = np.clip(np.ceil(demand / self.capacity - 1e-9), 1, GPUS)
        return gpus

    def _short(self, demand: Array, need: Array) -> Array:
        return (need > self._gpus(demand)).astype(float)

    def _matched(self, demand: Array, truth: Array, need: Array) -> Array:
        """GPUs lent after rescaling the forecast so that 1 % of the moments exceed it."""
        base = np.maximum(demand, self.floor)
        return GPUS - self._gpus(base * np.quantile(truth / base, 1 - MATCHED_VIOLATION))


def _scale(filled: Array, start: int, day: int) -> float:
    """Daily seasonal naive error before the window; with less than two days, the error of the last value."""
    lag = day if start > day else 1
    before = filled[: max(start, 2)]
    return float(np.abs(before[lag:] - before[:-lag]).mean()) if len(before) > lag else 0.0


def _trailing_max(value: Array, window: int) -> Array:
    padded = np.concatenate([np.full(window - 1, value[0]), value])
    largest: Array = np.lib.stride_tricks.sliding_window_view(padded, window).max(1)
    return largest


def _rows_of(forecasts: Forecasts, origins: Index) -> Index:
    rows = np.searchsorted(forecasts.origins, origins)
    array = forecasts.origins[np.minimum(rows, len(forecasts.origins) - 1)] if len(forecasts.origins) else rows - 1
    absent = origins[array != origins]
    if len(absent):
        raise ValueError(f"{forecasts.series}: no forecast at {len(absent)} origins, first {int(absent[0])}")
    return rows


def _by_block(blocks: Index, value: Array) -> Array:
    sums: Array = np.bincount(blocks - blocks[0], weights=value).astype(np.float64)
    return sums


@dataclass(frozen=True)
class Summary:
    """Means over the services of a slice at one horizon; ``mase_ratio`` is the geometric mean against last value."""

    slice: str
    horizon_s: int
    services: int
    rows: int
    mase: float
    mase_ratio: float
    violation_q95: float
    violation_q99: float
    calm_share: float
    """Share of services with at most 1.5 % violation of the p99."""
    eff99: float
    eff99_last: float
    eff99_hpa: float

    def metrics(self) -> dict[str, float]:
        """Figures by name, for MLflow."""
        names = ("mase", "mase_ratio", "violation_q95", "violation_q99", "calm_share", "eff99", "eff99_last")
        return {name: float(getattr(self, name)) for name in names}


def summarise(scores: Sequence[Score]) -> tuple[Summary, ...]:
    """One summary for all services and one for every slice they carry, at every horizon."""
    groups: dict[tuple[str, int], list[Score]] = {}
    for item in scores:
        for label in ("all", *item.slices):
            groups.setdefault((label, item.horizon_s), []).append(item)
    return tuple(_summary(label, horizon_s, members) for (label, horizon_s), members in sorted(groups.items()))


def _summary(label: str, horizon_s: int, scores: Sequence[Score]) -> Summary:
    mase, last = np.array([s.mase for s in scores]), np.array([s.mase_last for s in scores])
    short = np.array([s.violation(0.99) for s in scores])
    comparable = (mase > 0) & (last > 0)
    return Summary(
        label,
        horizon_s,
        services=len(scores),
        rows=int(sum(s.rows.sum() for s in scores)),
        mase=float(mase.mean()),
        mase_ratio=float(np.exp(np.log(mase[comparable] / last[comparable]).mean())) if comparable.any() else 1.0,
        violation_q95=float(np.mean([s.violation(0.95) for s in scores])),
        violation_q99=float(short.mean()),
        calm_share=float((short <= 0.015).mean()),
        eff99=float(np.mean([s.eff99() for s in scores])),
        eff99_last=float(np.mean([s.eff99("last") for s in scores])),
        eff99_hpa=float(np.mean([s.eff99("hpa") for s in scores])),
    )
