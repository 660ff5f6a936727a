"""Why a forecast is what it is, in words with numbers."""

import numpy as np
from numpy.typing import NDArray

from kopt.core.reason import Reason
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import COLUMN, DAY_S, HORIZONS_S, INPUTS
from kopt.models.demand.global_model import GlobalModel
from kopt.models.demand.memory import SeriesMemory
from kopt.models.demand.online import EXPERTS

Array = NDArray[np.float64]

_EXPERT_LABELS = {
    "last": "the last value",
    "daily": "the usual change at this time of day",
    "ridge_slow": "this service's own pattern over weeks",
    "ridge_fast": "this service's own pattern of the past day",
    "trees": "the trees learned from all services",
    "network": "the network learned from all services",
    "middle": "the median of all these",
}
_INPUT_LABELS = (
    ("change_", "how demand moved over the past hours"),
    ("above_mean", "how far demand stands above its recent mean"),
    ("below_max", "how far demand stands below its recent peak"),
    ("above_min", "how far demand stands above its recent trough"),
    ("roughness", "how restless demand has been"),
    ("day1", "the same time yesterday"),
    ("day7", "the same time a week ago"),
    ("daily", "what this time of day usually brings"),
    ("jump", "the size of past jumps"),
    ("days_seen", "how long the service has been known"),
)
_SHIFT_FACTOR = 1.5
_TENANT_SHIFT = 0.1


def mixture_reason(memory: SeriesMemory, horizon_s: float) -> Reason:
    """Which experts the mixture follows at the trained horizon nearest to ``horizon_s``."""
    if memory.outlook is None:
        raise ValueError("the memory has not seen this series")
    column = int(np.argmin(np.abs(np.array(HORIZONS_S) - horizon_s)))
    weights = memory.outlook.weights[0, column]
    first, second = np.argsort(weights)[::-1][:2]
    parts = [f"{weights[i]:.0%} on {_EXPERT_LABELS[EXPERTS[i]]}" for i in (first, second) if weights[i] >= 0.05]
    centre, last = memory.outlook.centre[0, column], memory.row[COLUMN["last_value"]]
    text = f"From {last:.4g} now to {centre:.4g}: weighs {' and '.join(parts)}, by how well each did on this service."
    numbers: dict[str, float | int | str] = {"last": float(last), "centre": float(centre)}
    numbers |= {f"weight_{name}": round(float(weight), 4) for name, weight in zip(EXPERTS, weights, strict=True)}
    return Reason("MIXTURE", text, numbers)


def reasons(series: DemandSeries, memory: SeriesMemory, model: GlobalModel, column: int) -> tuple[Reason, ...]:
    """What moved the trees at horizon ``column``, a change of level, and a tenant that came or went."""
    result = [*_inputs(model.contributions(memory.row[None], column)[0]), _change_point(series), _tenant(series)]
    return tuple(reason for reason in result if reason is not None)


def _inputs(contributions: Array) -> list[Reason]:
    """The two groups of inputs that moved the median most, as factors on the last value."""
    totals: dict[str, float] = {}
    for name, value in zip(INPUTS, contributions, strict=True):
        label = next((label for prefix, label in _INPUT_LABELS if name.startswith(prefix)), name)
        totals[label] = totals.get(label, 0.0) + float(value)
    strongest = sorted(totals, key=lambda label: abs(totals[label]), reverse=True)[:2]
    return [
        Reason(
            "INPUT",
            f"{label[:1].upper()}{label[1:]} moves the forecast by {np.expm1(totals[label]):+.1%}.",
            {"input": label, "log_ratio": round(totals[label], 5)},
        )
        for label in strongest
    ]


def _change_point(series: DemandSeries) -> Reason | None:
    """Has the level of the last two hours left what the past week knew at these times of day, and since when?"""
    day, hours = DAY_S // series.step_s, max(1, 7200 // series.step_s)
    days = min(7, len(series) // day - 1)
    if days < 1 or not np.isfinite(series.value[-hours:]).any():
        return None
    value = series.value
    past = np.stack([value[len(value) - (d + 1) * day : len(value) - d * day or None] for d in range(1, days + 1)])
    is_finite = np.isfinite(past).any(0)
    usual = np.where(is_finite, np.nanmedian(np.where(is_finite, past, 0.0), axis=0), np.nan)
    ratio = (value[-day:] + 1e-9) / (usual + 1e-9)
    recent = float(np.nanmedian(ratio[-hours:])) if np.isfinite(ratio[-hours:]).any() else 1.0
    if not (recent > _SHIFT_FACTOR or recent < 1 / _SHIFT_FACTOR):
        return None
    moved = ratio > _SHIFT_FACTOR if recent > 1 else ratio < 1 / _SHIFT_FACTOR
    still = np.flatnonzero(~moved)
    since_h = (len(moved) - 1 - (still[-1] if len(still) else -1)) * series.step_s / 3600
    text = f"For {since_h:.1f} hours demand has been {recent:.2g} times what the past {days} days brought then."
    return Reason("CHANGE_POINT", text, {"ratio": round(recent, 4), "since_hours": round(since_h, 2), "days": days})


def _tenant(series: DemandSeries) -> Reason | None:
    """The tenant whose share of the last hour differs most from its share of the day before."""
    hour, day = max(1, 3600 // series.step_s), DAY_S // series.step_s
    total_hour, total_day = float(np.nansum(series.value[-hour:])), float(np.nansum(series.value[-day - hour : -hour]))
    if not series.tenants or total_hour <= 0 or total_day <= 0:
        return None
    shares = {
        name: (float(np.nansum(part[-day - hour : -hour])) / total_day, float(np.nansum(part[-hour:])) / total_hour)
        for name, part in series.tenants.items()
    }
    name = max(shares, key=lambda tenant: abs(shares[tenant][1] - shares[tenant][0]))
    before, now = shares[name]
    if abs(now - before) < _TENANT_SHIFT:
        return None
    text = f"Tenant {name} went from {before:.0%} to {now:.0%} of the demand within the last hour."
    return Reason("TENANT", text, {"tenant": name, "share_before": round(before, 4), "share_now": round(now, 4)})
