"""A pool of GPUs that one service fills at its 99.9 % demand, and how many of them each rule keeps for it.

A rule decides at an origin for the moment one lead time later, as reclaiming takes that long: only what was observed
until the origin is used. Moments are buckets of the five-minute grid in the test window of the series.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.rolling import GPUS, SIZING_QUANTILE, Forecasts, window_start
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import fill_gaps, steps_ahead
from kopt.policies.lending.caution import CautionSettings
from kopt.policies.lending.policy import LendingSettings, LendingState, Pool, ServiceDemand, decide, gpus_for, observe

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_RECENT_S = 1800


@dataclass(frozen=True)
class LendingPool:
    """Shapes (n,): every bucket ``lead_steps`` after an observed origin that was observed itself.

    ``moments`` count buckets of the series, ``need`` is in whole GPUs of ``GPUS``; ``recent`` is the largest demand of
    the half hour until the origin and ``quantiles`` (n, q) the forecasts from there, both in GPUs, not rounded.
    """

    name: str
    step_s: int
    lead_steps: int
    moments: Ints
    need: Ints
    recent: Floats
    probabilities: tuple[float, ...]
    quantiles: Floats


def pool_of(series: DemandSeries, forecasts: Forecasts, horizon_s: int) -> LendingPool | None:
    """None where the demand never changes or nothing was observed. Raises ValueError where forecasts are missing."""
    value = fill_gaps(series.value)
    finite = np.isfinite(series.value)
    per_gpu = float(np.nanquantile(series.value, SIZING_QUANTILE)) / GPUS if finite.any() else 0.0
    if not per_gpu > 0:
        return None
    lead = steps_ahead(horizon_s, series.step_s)
    origins = np.arange(max(0, window_start(len(value), series.step_s) - lead), len(value) - lead)
    origins = origins[finite[origins] & finite[origins + lead]]
    rows = np.searchsorted(forecasts.origins, origins)
    if not len(origins):
        return None
    if rows[-1] >= len(forecasts) or (forecasts.origins[rows] != origins).any():
        raise ValueError(f"{series.name}: no forecast from some of the observed origins of its test window")
    width = max(2, _RECENT_S // series.step_s)
    padded = np.concatenate([np.full(width - 1, value[0]), value])
    recent = np.lib.stride_tricks.sliding_window_view(padded, width).max(1)[origins]
    need = np.minimum(np.ceil(value[origins + lead] / per_gpu), GPUS).astype(np.int64)
    column = forecasts.horizons_s.index(horizon_s)
    return LendingPool(
        series.name,
        series.step_s,
        lead,
        (origins + lead).astype(np.int64),
        need,
        recent / per_gpu,
        forecasts.quantiles,
        forecasts.value[rows, column] / per_gpu,
    )


def forecast_rule(pool: LendingPool, caution: CautionSettings | None = None) -> Ints:
    """Ours, as ``policies.lending.policy`` decides at every origin; GPUs kept at every moment."""
    settings = LendingSettings(reactive_margin=1.0, hold_s=0.0, caution=caution or CautionSettings())
    lead_s = float(pool.lead_steps * pool.step_s)
    state, kept, observed = LendingState(), np.empty(len(pool.need), dtype=np.int64), 0
    for row, bucket in enumerate(pool.moments):
        # What was needed until this one's origin is known.
        while observed < row and pool.moments[observed] <= bucket - pool.lead_steps:
            state = observe(state, float(pool.moments[observed] * pool.step_s), int(pool.need[observed]), settings)
            observed += 1
        demand = ServiceDemand(
            pool.name,
            float(pool.recent[row]),
            1.0,
            dict(zip(pool.probabilities, pool.quantiles[row].tolist(), strict=True)),
        )
        at_s = float(bucket * pool.step_s) - lead_s
        _, state = decide(Pool(pool.name, GPUS, {lead_s: [demand]}), state, at_s, settings)
        kept[row] = GPUS - state.lent_gpus
    return kept


def reactive_rule(pool: LendingPool, factor: float) -> Ints:
    """The largest demand of the half hour before, times a factor."""
    return np.array([_whole(factor * item) for item in pool.recent], dtype=np.int64)


def oracle_rule(pool: LendingPool) -> Ints:
    """Knows the need."""
    return np.maximum(pool.need, 1)


def matched_reactive(pool: LendingPool, violation: float) -> Ints:
    """The reactive rule with the least factor (to 1 %) at which it falls short no more often than ``violation``."""
    for factor in np.arange(1.0, 20.0, 0.01):
        kept = reactive_rule(pool, float(factor))
        if float((pool.need > kept).mean()) <= violation:
            return kept
    return np.full(len(pool.need), GPUS, dtype=np.int64)


def _whole(demand: float) -> int:
    return min(max(gpus_for(demand, 1.0), 1), GPUS)
