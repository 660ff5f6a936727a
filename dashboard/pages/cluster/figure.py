"""A lending pool over a day: what services need and may come to need from below, what is lent from above.

Loans hang from the pool's size, so that the room between the two is what is held in reserve: where a loan comes down
onto what has to be provisioned, GPUs are taken back. Forecasts stand where they are about, one lead time after they
were made, so the fan reaches beyond now.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from kopt.core.scheduling.overview import PoolMoment, PoolState
from kopt.dashboard.figures import BAND_OPACITY, COLOURS, faded
from kopt.dashboard.formatting import amount

GAP_S = 900.0
"""Between two moments further apart nobody looked: nothing is drawn."""
_DAY_S = 86_400.0
_EVERY_S = 300.0
_LENT_OPACITY, _USED_OPACITY = 0.2, 0.3


def pool_chart(pool: PoolState, now_s: float) -> go.Figure:
    """Needs two moments of history to show anything."""
    lead_s = pool.lead_time_s or 0.0
    parts = segments([item for item in pool.history if item.at_s > now_s - _DAY_S])
    top = max([pool.gpus or 0.0, *(_most(item) for part in parts for item in part)]) or 1.0
    total = pool.gpus if pool.gpus is not None else top
    traces: list[Any] = []
    for part in parts:
        first = part is parts[0]
        traces += _hanging(part, total, first=first)
        traces += _fan(part, lead_s, first=first)
    traces += [_line("provisioned", "median", parts, "provision"), _line("services ask", "actual", parts, "service")]
    traces.append(_hover_texts(parts, total))
    start_s = parts[0][0].at_s if parts else now_s - _DAY_S
    end_s = max([now_s, *(part[-1].at_s + _EVERY_S for part in parts)]) + lead_s
    traces.append(_level("pool", [start_s, end_s], total))
    if reclaims_drawn := reclaims(parts):
        traces.append(_reclaim_markers(reclaims_drawn, total))
    layout = {
        "template": "none",
        "margin": {"l": 56, "r": 16, "t": 8, "b": 48},
        "hovermode": "x unified",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "xaxis": {"type": "date", "title": {"text": "time (UTC)"}, "showgrid": False},
        "yaxis": {"title": {"text": "GPUs"}, "range": [0, top * 1.08], "fixedrange": True},
        "shapes": [
            {
                "type": "line",
                "x0": now_s * 1000,
                "x1": now_s * 1000,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": COLOURS["held"], "width": 1.5, "dash": "dot"},
            }
        ],
    }
    return go.Figure(traces, layout)


def segments(history: Sequence[PoolMoment]) -> list[list[PoolMoment]]:
    """Moments without a gap between them."""
    pool_moments: list[list[PoolMoment]] = [[history[0]]] if history else []
    for before, item in pairwise(history):
        if item.at_s - before.at_s > GAP_S:
            pool_moments.append([])
        pool_moments[-1].append(item)
    return pool_moments


def reclaims(parts: Sequence[Sequence[PoolMoment]]) -> list[tuple[PoolMoment, float]]:
    """Moments at which less was lent than before, and by how many GPUs."""
    return [
        (item, before.lent - item.lent)
        for part in parts
        for before, item in pairwise(part)
        if before.lent is not None and item.lent is not None and item.lent < before.lent
    ]


def _most(item: PoolMoment) -> float:
    return max(item.service or 0.0, item.provision or 0.0, item.p99 or 0.0)


def _stairs(part: Sequence[PoolMoment], values: Sequence[float], shift_s: float = 0.0) -> list[tuple[float, float]]:
    """Corners: each value holds until the next moment."""
    ends = [*(item.at_s for item in part[1:]), part[-1].at_s + _EVERY_S]
    return [
        corner
        for item, end_s, value in zip(part, ends, values, strict=True)
        for corner in ((item.at_s + shift_s, value), (end_s + shift_s, value))
    ]


def _area(
    name: str,
    shade: str,
    opacity: float,
    upper: list[tuple[float, float]],
    lower: list[tuple[float, float]],
    group: str,
    *,
    first: bool,
) -> Any:
    outline = [*upper, *reversed(lower)]
    return go.Scatter(
        name=name,
        x=[at_s * 1000 for at_s, _ in outline],
        y=[value for _, value in outline],
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=faded(COLOURS[shade], opacity),
        hoverinfo="skip",
        legendgroup=group,
        showlegend=first,
        meta={"role": "band", "opacity": opacity, "shade": shade},
    )


def _hanging(part: Sequence[PoolMoment], total: float, *, first: bool) -> list[Any]:
    result = []
    for name, field, opacity in (("lent", "lent", _LENT_OPACITY), ("in use", "borrowed", _USED_OPACITY)):
        values = [max(0.0, total - (getattr(item, field) or 0.0)) for item in part]
        corners = _stairs(part, values)
        top = [(at_s, total) for at_s, _ in corners]
        result.append(_area(name, "lend", opacity, top, corners, field, first=first))
    return result


def _fan(part: Sequence[PoolMoment], lead_s: float, *, first: bool) -> list[Any]:
    forecasts = [item for item in part if item.p50 is not None and item.p99 is not None]
    if not forecasts:
        return []
    upper, lower = (_stairs(forecasts, [getattr(item, name) for item in forecasts], lead_s) for name in ("p99", "p50"))
    return [_area("forecast p50–p99", "band", BAND_OPACITY[2], upper, lower, "fan", first=first)]


def _line(name: str, role: str, parts: Sequence[Sequence[PoolMoment]], field: str) -> Any:
    x: list[float | None] = []
    y: list[float | None] = []
    for part in parts:
        x += [*(item.at_s * 1000 for item in part), part[-1].at_s * 1000 + 1]
        y += [*(getattr(item, field) for item in part), None]
    return go.Scatter(
        name=name,
        x=x,
        y=y,
        mode="lines",
        meta={"role": role},
        line={"color": COLOURS[role], "width": 2, "shape": "hv"},
        hovertemplate=f"{name}: %{{y:.0f}}<extra></extra>",
    )


def _hover_texts(parts: Sequence[Sequence[PoolMoment]], total: float) -> Any:
    """Nothing to be seen: what areas say, for whoever points at a moment."""
    moments = [moment for part in parts for moment in part]
    texts = [
        f"lent: {amount(moment.lent)}, in use: {amount(moment.borrowed)}<br>"
        f"forecast for later: p50 {amount(moment.p50)}, p99 {amount(moment.p99)}"
        for moment in moments
    ]
    return go.Scatter(
        x=[item.at_s * 1000 for item in moments],
        y=[total] * len(moments),
        mode="lines",
        showlegend=False,
        line={"width": 0},
        meta={"role": "none"},
        text=texts,
        hovertemplate="%{text}<extra></extra>",
        name="told",
    )


def _level(name: str, ends_s: Sequence[float], value: float) -> Any:
    return go.Scatter(
        name=name,
        x=[item * 1000 for item in ends_s],
        y=[value, value],
        mode="lines",
        hoverinfo="skip",
        meta={"role": "held"},
        line={"color": COLOURS["held"], "width": 1.5, "dash": "dash"},
    )


def _reclaim_markers(reclaims_drawn: Sequence[tuple[PoolMoment, float]], total: float) -> Any:
    return go.Scatter(
        name="taken back",
        x=[item.at_s * 1000 for item, _ in reclaims_drawn],
        y=[max(0.0, total - (item.lent or 0.0)) for item, _ in reclaims_drawn],
        mode="markers",
        meta={"role": "limit"},
        marker={"color": COLOURS["limit"], "symbol": "triangle-up", "size": 9},
        text=[f"{amount(by)} GPUs taken back" for _, by in reclaims_drawn],
        hovertemplate="%{text}<extra></extra>",
    )
