"""Plotly figures of the pages.

Colours here are those of the light theme; every trace carries its role in ``meta`` and the pages' script repaints by
role from the style sheet, so that charts follow the theme. Times are Unix milliseconds in UTC, moved into the
reader's zone by the same script; series without a calendar count hours from their newest bucket.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kopt.core.prediction import Prediction
from kopt.dashboard.data.sources import PastForecast, Service
from kopt.dashboard.formatting import amount, horizon, quantile, shortened
from kopt.data.demand.table import Array
from kopt.policies.lending.policy import CurvePoint

# Okabe and Ito's palette, told apart by every kind of colour vision.
COLOURS: Mapping[str, str] = {
    "actual": "#1d2a33",
    "median": "#0072b2",
    "band": "#0072b2",
    "limit": "#d55e00",
    "lend": "#009e73",
    "keep": "#0072b2",
    "held": "#6b7780",
    "ideal": "#6b7780",
    "champion": "#0072b2",
    "challenger": "#d55e00",
}
_ANOMALY_OPACITY = 0.16
BAND_OPACITY = (0.44, 0.32, 0.21, 0.13)


@dataclass(frozen=True)
class Axis:
    """Maps the clock of a series to a figure's x axis."""

    calendar: bool
    newest_s: float

    def at(self, time_s: float) -> float:
        return time_s * 1000 if self.calendar else (time_s - self.newest_s) / 3600

    @property
    def layout(self) -> dict[str, Any]:
        if self.calendar:
            return {"type": "date", "title": {"text": "time (UTC)"}}
        return {"type": "linear", "title": {"text": "hours from the newest bucket"}}


def axis_of(service: Service) -> Axis:
    series = service.series
    return Axis(series.start_known, float(series.times_s[-1]))


def chart(traces: Sequence[Any], layout: Mapping[str, Any]) -> go.Figure:
    base = {
        "template": "none",
        "margin": {"l": 64, "r": 16, "t": 8, "b": 48},
        "hovermode": "x unified",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "xaxis": {"showgrid": False},
        "yaxis": {"rangemode": "tozero"},
    }
    return go.Figure(list(traces), base | dict(layout))


def line_trace(name: str, role: str, x: Sequence[Any], y: Sequence[Any], **style: Any) -> Any:
    line = {"color": COLOURS[role], "width": style.pop("width", 2), "dash": style.pop("dash", "solid")}
    return go.Scatter(
        name=name, x=list(x), y=list(y), mode=style.pop("mode", "lines"), line=line, meta={"role": role}, **style
    )


def band_trace(
    name: str, x: Sequence[float], low: Sequence[float | None], high: Sequence[float | None], depth: int
) -> Any:
    """An area between two lines as one closed outline; ``depth`` 0 is the darkest."""
    return go.Scatter(
        name=name,
        x=[*x, *reversed(x)],
        y=[*high, *reversed(low)],
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=faded(COLOURS["band"], BAND_OPACITY[min(depth, 3)]),
        hoverinfo="skip",
        meta={"role": "band", "opacity": BAND_OPACITY[min(depth, 3)]},
    )


def faded(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def _nulls(values: Array) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def fan(service: Service, hours: float) -> go.Figure:
    """The last ``hours`` of demand and the quantiles ahead, in demand (left) and GPUs (right)."""
    series, axis = service.series, axis_of(service)
    recent = series.tail(max(2, round(hours * 3600 / series.step_s)))
    actual = _nulls(recent.value)
    traces = [line_trace("measured", "actual", [axis.at(t) for t in recent.times_s], actual)]
    predictions = _answered(service)
    traces += _fan_traces(service, axis, predictions)
    top = max([value for value in actual if value is not None] + [_upper(p) for p in predictions], default=0.0) or 1.0
    traces += _limits(service, axis, [float(recent.times_s[0]), _end_s(service)], top)
    highest = max(top, *(max(t.y) for t in traces if t.meta.get("role") == "limit"), 0.0) * 1.06
    layout: dict[str, Any] = {
        "xaxis": axis.layout | {"showgrid": False},
        "yaxis": {"title": {"text": _per_bucket(service)}, "range": [0, highest], "fixedrange": True},
        "shapes": [
            now_line(axis.at(float(series.times_s[-1]))),
            *_anomaly_band(service, axis, float(recent.times_s[0])),
        ],
    }
    if service.capacity.per_gpu:
        # An axis is only drawn when something lies on it.
        ends = [axis.at(float(recent.times_s[0])), axis.at(_end_s(service))]
        traces.append(
            go.Scatter(x=ends, y=[None, None], yaxis="y2", showlegend=False, hoverinfo="skip", meta={"role": "none"})
        )
        layout["yaxis2"] = {
            "title": {"text": "GPUs"},
            "overlaying": "y",
            "side": "right",
            "fixedrange": True,
            "showgrid": False,
            "tickmode": "auto",
            "range": [0, highest / service.capacity.per_gpu],
        }
        layout["margin"] = {"l": 64, "r": 56, "t": 8, "b": 48}
    return chart(traces, layout)


def _answered(service: Service) -> list[Prediction]:
    horizons = service.forecast.horizons if service.forecast else ()
    return [h.demand for h in horizons if not h.demand.refused]


def _upper(prediction: Prediction) -> float:
    return max(prediction.quantiles.values(), default=prediction.high or 0.0)


def _end_s(service: Service) -> float:
    ahead = max((h.horizon_s for h in service.forecast.horizons), default=0) if service.forecast else 0
    return float(service.series.times_s[-1]) + ahead


def _fan_traces(service: Service, axis: Axis, predictions: Sequence[Prediction]) -> list[Any]:
    """Median and nested bands, fanning out of the newest value."""
    start_s = float(service.series.times_s[-1])
    finite = service.series.value[np.isfinite(service.series.value)]
    if not predictions or not len(finite):
        return []
    x = [axis.at(start_s)] + [axis.at(start_s + (p.horizon_s or 0.0)) for p in predictions]
    shared = sorted(set.intersection(*(set(p.quantiles) for p in predictions)) - {0.5})
    root = float(finite[-1])
    median: list[float | None] = [root, *(p.quantiles.get(0.5, p.value) for p in predictions)]
    rows: dict[float, list[float | None]] = {q: [root, *(p.quantiles[q] for p in predictions)] for q in shared}
    uppers = [q for q in shared if q > 0.5]
    floor: Sequence[float | None] = [root, *(p.low for p in predictions)]
    traces, below = [band_trace(f"{quantile((1 - predictions[0].probability) / 2)}–p50", x, floor, median, 1)], median
    names = ["p50", *(quantile(q) for q in uppers)]
    for depth, ((low_name, high_name), q) in enumerate(zip(pairwise(names), uppers, strict=True)):
        traces.append(band_trace(f"{low_name}–{high_name}", x, below, rows[q], depth))
        below = rows[q]
    hover = [_fan_hover(p) for p in predictions]
    traces.append(
        line_trace(
            "median (p50)",
            "median",
            x,
            median,
            mode="lines+markers",
            text=["newest value", *hover],
            hovertemplate="%{text}<extra></extra>",
        )
    )
    return traces


def _fan_hover(prediction: Prediction) -> str:
    values = " · ".join(f"{quantile(q)} {amount(v)}" for q, v in sorted(prediction.quantiles.items()))
    return f"in {horizon(prediction.horizon_s or 0)}: {values}"


def _limits(service: Service, axis: Axis, ends: Sequence[float], top: float) -> list[Any]:
    """What the service's GPUs serve, and the cap of the tails, where they are near enough to be seen."""
    levels = {}
    if service.capacity.per_gpu:
        gpus = service.capacity.gpus
        levels[f"{gpus} GPUs serve {amount(gpus * service.capacity.per_gpu)}"] = gpus * service.capacity.per_gpu, "dash"
    if (cap := tail_cap(service)) is not None:
        levels[f"cap of forecasts {amount(cap)}"] = cap, "dot"
    x = [axis.at(end) for end in ends]
    return [
        line_trace(name, "limit", x, [level, level], dash=dash, width=1.5, hoverinfo="skip")
        for name, (level, dash) in levels.items()
        if level <= 2 * top
    ]


def tail_cap(service: Service) -> float | None:
    """Twice the largest demand of the last seven days: no quantile goes beyond."""
    recent = service.series.tail(max(1, 7 * 86_400 // service.series.step_s)).value
    finite = recent[np.isfinite(recent)]
    return 2 * float(finite.max()) if len(finite) and finite.max() > 0 else None


def _anomaly_band(service: Service, axis: Axis, first_s: float) -> list[dict[str, Any]]:
    """From where demand became unusual to the newest bucket."""
    anomaly = service.forecast.anomaly if service.forecast else None
    if anomaly is None:
        return []
    return [
        {
            "type": "rect",
            "x0": axis.at(max(anomaly.since_s, first_s)),
            "x1": axis.at(float(service.series.times_s[-1])),
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "line": {"width": 0},
            "fillcolor": faded(COLOURS["limit"], _ANOMALY_OPACITY),
            "layer": "below",
        }
    ]


def _per_bucket(service: Service) -> str:
    # Plotly reads a little HTML in its texts.
    return f"{escape(shortened(service.series.unit, 40))} per {horizon(service.series.step_s)}"


def now_line(x: float) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"color": COLOURS["held"], "width": 1, "dash": "dot"},
    }


def past(service: Service, forecasts: Sequence[PastForecast]) -> go.Figure:
    """Forecasts made one horizon before, beside what came."""
    axis, ordered = axis_of(service), sorted(forecasts, key=lambda f: f.made_s)
    x = [axis.at(f.made_s + f.horizon_s) for f in ordered]
    shared = sorted(set.intersection(*(set(f.quantiles) for f in ordered))) if ordered else []
    rows = {q: [f.quantiles[q] for f in ordered] for q in shared}
    traces = [
        band_trace(f"{quantile(low)}–{quantile(high)}", x, rows[low], rows[high], depth)
        for depth, (low, high) in enumerate(pairwise([q for q in shared if q >= 0.5]))
    ]
    if 0.5 in rows:
        traces.append(line_trace("median (p50)", "median", x, rows[0.5], width=1.5))
    first_s = min((f.made_s for f in ordered), default=float(service.series.times_s[-1]))
    kept = max(2, int((float(service.series.times_s[-1]) - first_s) / service.series.step_s) + 1)
    recent = service.series.tail(kept)
    traces.append(
        line_trace("measured", "actual", [axis.at(t) for t in recent.times_s], _nulls(recent.value), width=1.5)
    )
    layout = {
        "xaxis": axis.layout | {"showgrid": False},
        "yaxis": {"title": {"text": _per_bucket(service)}, "rangemode": "tozero", "fixedrange": True},
    }
    return chart(traces, layout)


def calibration(lines: Mapping[str, Sequence[tuple[float, float]]]) -> go.Figure:
    """Nominal against observed share at or under the quantile; ``lines`` by role (champion, challenger)."""
    traces = [line_trace("ideal", "ideal", [0, 100], [0, 100], dash="dot", width=1.5, hoverinfo="skip")]
    for role, points in lines.items():
        x, y = ([100 * pair[i] for pair in sorted(points)] for i in (0, 1))
        traces.append(
            line_trace(
                role,
                role,
                x,
                y,
                mode="lines+markers",
                hovertemplate=f"{role}: of p%{{x:g}}, %{{y:.1f}} %<extra></extra>",
            )
        )
    low = min([40.0] + [100 * observed - 5 for points in lines.values() for _, observed in points])
    layout = {
        "hovermode": "closest",
        "xaxis": {
            "title": {"text": "promised: demand stays at or under it (%)"},
            "range": [48, 101],
            "fixedrange": True,
            "showgrid": False,
        },
        "yaxis": {"title": {"text": "observed (%)"}, "range": [max(0.0, low), 101], "fixedrange": True},
    }
    return chart(traces, layout)


@dataclass(frozen=True)
class MeasuredPoint:
    """An answer of a champion or challenger beside its measurement, all in one unit and above 0."""

    role: str
    subject: str
    value: float
    low: float
    high: float
    measured: float


def measured(points: Sequence[MeasuredPoint], unit: str) -> go.Figure:
    """Predicted with its interval (across) against measured (up), both on logarithmic axes: on the dotted line they
    are equal, and a bar that does not cross it is an interval that missed."""
    amounts = [amount for point in points for amount in (point.low, point.high, point.measured)]
    ends = [min(amounts, default=1.0) / 1.2, max(amounts, default=10.0) * 1.2]
    traces = [line_trace("predicted as measured", "ideal", ends, ends, dash="dot", width=1.5, hoverinfo="skip")]
    for role in sorted({point.role for point in points}):
        of_role = [point for point in points if point.role == role]
        traces.append(
            go.Scatter(
                name=role,
                x=[point.value for point in of_role],
                y=[point.measured for point in of_role],
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [point.high - point.value for point in of_role],
                    "arrayminus": [point.value - point.low for point in of_role],
                    "color": COLOURS[role],
                    "thickness": 1,
                    "width": 2,
                },
                mode="markers",
                marker={"color": COLOURS[role], "size": 7, "symbol": "circle" if role == "champion" else "diamond"},
                text=[escape(shortened(point.subject, 80)) for point in of_role],
                hovertemplate=f"%{{text}}<br>predicted %{{x:.3g}} {unit}, measured %{{y:.3g}} {unit}<extra></extra>",
                meta={"role": role},
            )
        )
    axis = {"type": "log", "fixedrange": True, "showgrid": False, "range": [float(np.log10(end)) for end in ends]}
    layout = {
        "hovermode": "closest",
        "xaxis": axis | {"title": {"text": f"predicted, with its interval ({unit})"}},
        "yaxis": axis | {"title": {"text": f"measured ({unit})"}},
    }
    return chart(traces, layout)


def lending(curve: Sequence[CurvePoint], held_gpus: int) -> go.Figure:
    """GPUs to keep (from below) and to lend (on top) over the horizons: the sum is what the pool holds."""
    names = [horizon(point.horizon_s) for point in curve]
    keep = [min(point.provision / 1000, held_gpus) for point in curve]
    lend = [point.lendable / 1000 for point in curve]
    bars = [
        go.Bar(
            name=name,
            x=names,
            y=values,
            meta={"role": role},
            marker={"color": COLOURS[role]},
            text=[f"{value:.0f}" for value in values],
            textposition="inside",
            textangle=0,
            insidetextanchor="middle",
            hovertemplate=f"{name}: %{{y:.0f}} GPUs<extra></extra>",
        )
        for name, role, values in (("keep", "keep", keep), ("lend", "lend", lend))
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.4,
        "xaxis": {"type": "category", "title": {"text": "loan lasts"}, "fixedrange": True},
        "yaxis": {"title": {"text": "GPUs"}, "range": [0, max(held_gpus, 1) * 1.02], "fixedrange": True},
    }
    return chart(bars, layout)
