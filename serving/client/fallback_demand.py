"""The answer when no model can give one: last value and a pooled conformal spread. Standard library only.

``SPREAD`` holds quantiles of the ratio of the demand ``h`` seconds ahead to the last value, pooled over 33 public
series of LLM and web demand with the same weight each (split conformal, Lei et al. 2018, without the ranking by
series that a model would add). Pooled tails are far too wide for calm services, so they are capped at twice the
largest value of the last seven days; and nothing above the median goes below 1.2 times the largest value of the last
half hour, which is the reactive rule. The result is conservative: it lends less than a model does.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.serving.contract.common import GRID_S

FALLBACK_MODEL = ModelVersion("last-value", "1")
REACTIVE_MARGIN = 1.2
REACTIVE_WINDOW_S = 1800
CAP_WINDOW_S = 7 * 86_400
CAP_FACTOR = 2.0
CONFIDENCE = 0.2
"""Low on purpose: callers that weigh answers by confidence should wait for the model."""
_FLOOR_SHARE = 0.02
"""Of the mean demand; added on both sides of the ratio so that a quiet bucket does not make it explode."""

SPREAD: Mapping[int, Mapping[float, float]] = {
    300: {
        0.01: 0.098,
        0.05: 0.569,
        0.1: 0.788,
        0.25: 0.956,
        0.5: 1.0,
        0.75: 1.043,
        0.9: 1.267,
        0.95: 1.788,
        0.99: 11.69,
        0.999: 55.98,
    },
    1800: {
        0.01: 0.063,
        0.05: 0.474,
        0.1: 0.695,
        0.25: 0.923,
        0.5: 1.0,
        0.75: 1.082,
        0.9: 1.451,
        0.95: 2.146,
        0.99: 18.77,
        0.999: 87.33,
    },
    3600: {
        0.01: 0.052,
        0.05: 0.417,
        0.1: 0.629,
        0.25: 0.889,
        0.5: 1.0,
        0.75: 1.114,
        0.9: 1.603,
        0.95: 2.527,
        0.99: 20.73,
        0.999: 109.9,
    },
}


@dataclass(frozen=True)
class Recent:
    """What the fallback needs of a history, in sums over ``bucket_s``. ``at_s`` is when the last bucket ended."""

    last: float
    mean: float
    half_hour_max: float
    week_max: float
    bucket_s: int
    at_s: float
    step_s: int
    """Of the history as it was given."""


def recent(t: Sequence[float], value: Sequence[float | None]) -> Recent | None:
    """The end of a history, or None where it has no value at all.

    ``t`` (seconds) and ``value`` have the same length; None and NaN are gaps. Never raises on odd histories: times
    out of order are sorted, a repeated time keeps its larger value, impossible amounts count as gaps.
    """
    demand_at: dict[float, float] = {}
    for time_s, amount in zip(t, value, strict=False):
        if amount is not None and math.isfinite(time_s) and math.isfinite(amount) and amount >= 0:
            demand_at[time_s] = max(amount, demand_at.get(time_s, 0.0))
    if not demand_at:
        return None
    times = sorted(demand_at)
    step_s = _step_s(times)
    bucket_s = step_s
    if step_s < GRID_S:
        demand_at, bucket_s = _summed(demand_at, times, step_s), GRID_S
        times = sorted(demand_at)
    end = times[-1]
    near = times[bisect_left(times, min(end, end - REACTIVE_WINDOW_S + bucket_s)) :]
    week = times[bisect_left(times, end - CAP_WINDOW_S) :]
    values = [demand_at[time_s] for time_s in week]
    mean = sum(values) / len(values)
    return Recent(
        demand_at[end], mean, max(demand_at[time_s] for time_s in near), max(values), bucket_s, end + step_s, step_s
    )


def _step_s(times: Sequence[float]) -> int:
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return max(1, round(min(gaps))) if gaps else GRID_S


def _summed(demand_at: Mapping[float, float], times: Sequence[float], step_s: int) -> dict[float, float]:
    """Sums to the grid, aligned to the newest bucket; a block with gaps is scaled up from what it has."""
    end, blocks = times[-1], dict[int, list[float]]()
    for time_s in times:
        blocks.setdefault(int((end - time_s) // GRID_S), []).append(demand_at[time_s])
    return {end - k * GRID_S: sum(block) / len(block) * GRID_S / step_s for k, block in blocks.items()}


def fallback_forecast(
    history: Recent | None, horizons_s: Sequence[int], quantiles: Sequence[float], unit: str, why: Reason
) -> tuple[Prediction, ...]:
    """One prediction per horizon, marked as fallback, ``why`` first; refusals where there is no history."""
    if history is None:
        reasons = (why,) if why.code == "NO_HISTORY" else (why, _no_history())
        refused = Prediction.refusal(why, unit=unit, model=FALLBACK_MODEL)
        return tuple(replace(refused, reasons=reasons, horizon_s=float(h), fallback=True) for h in horizons_s)
    return tuple(_at(history, horizon_s, quantiles, unit, why) for horizon_s in horizons_s)


def _no_history() -> Reason:
    return Reason("NO_HISTORY", "There is no model and no history to go by; send t and value with the request.")


def _at(history: Recent, horizon_s: int, quantiles: Sequence[float], unit: str, why: Reason) -> Prediction:
    reactive, cap = REACTIVE_MARGIN * history.half_hour_max, CAP_FACTOR * history.week_max
    soft = _FLOOR_SHARE * history.mean

    def level(q: float) -> float:
        amount = min(max((history.last + soft) * _ratio(horizon_s, q) - soft, 0.0), cap)
        return max(amount, reactive) if q > 0.5 else min(amount, history.last) if q < 0.5 else history.last

    values = {q: level(q) for q in quantiles}
    span = Reason(
        "LAST_VALUE",
        f"Last value {history.last:g} {unit}; upper quantiles are at least {REACTIVE_MARGIN:g} × the last half hour's "
        f"largest value {history.half_hour_max:g} and at most {CAP_FACTOR:g} × the week's {history.week_max:g}.",
        {"last": history.last, "half_hour_max": history.half_hour_max, "week_max": history.week_max},
    )
    return Prediction(
        value=history.last,
        low=level(0.05),
        high=max(level(0.95), history.last),
        probability=0.9,
        unit=unit,
        confidence=CONFIDENCE,
        model=FALLBACK_MODEL,
        reasons=(why, span),
        quantiles=values,
        features_at_s=history.at_s,
        horizon_s=float(horizon_s),
        fallback=True,
    )


def _ratio(horizon_s: float, q: float) -> float:
    """``SPREAD`` between and beyond its points: log-linear in time, linear in the logit of the probability."""
    spans_s = sorted(SPREAD)
    logs = [_between(list(SPREAD[h]), [math.log(v) for v in SPREAD[h].values()], q, _logit) for h in spans_s]
    clipped = min(max(float(horizon_s), float(spans_s[0])), 86_400.0)
    return math.exp(_between([float(h) for h in spans_s], logs, clipped, math.log))


def _logit(p: float) -> float:
    return math.log(p / (1 - p))


def _between(xs: Sequence[float], ys: Sequence[float], x: float, scale: Callable[[float], float]) -> float:
    """Linear in ``scale(x)``; beyond the last point the last slope goes on, before the first its value stays."""
    if x <= xs[0]:
        return ys[0]
    i = min(bisect_left(xs, x), len(xs) - 1)
    lower, upper = scale(xs[i - 1]), scale(xs[i])
    return ys[i - 1] + (ys[i] - ys[i - 1]) * (scale(x) - lower) / (upper - lower)
