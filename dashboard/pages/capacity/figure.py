"""The chart of a pool: what it needed, what it will need, and the GPUs that there are and would be."""

from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from kopt.dashboard.figures import band_trace, chart, line_trace, now_line
from kopt.policies.capacity.advice import PoolAdvice, begin_s
from kopt.policies.capacity.forecast import QUANTILES, WeekAhead

_WEEK_S = 7 * 86_400.0
_BANDS = ((0.05, 0.95, 2), (0.25, 0.75, 1))
"""Quantiles between which an area is drawn, and how dark it is."""


def capacity_figure(pool: str, needs: Sequence[float | None], end_s: float, advice: PoolAdvice) -> go.Figure:
    """Each week stands at its end."""
    past = [1000 * (end_s - _WEEK_S * age) for age in reversed(range(len(needs)))]
    traces = [line_trace("needed", "actual", past, list(needs), mode="lines+markers", hovertemplate="%{y:.0f}")]
    if advice.ahead:
        traces += _ahead(end_s, next((need for need in reversed(needs) if need is not None), None), advice.ahead)
    traces += _levels(past[0] if past else 1000 * end_s, end_s, advice)
    layout: dict[str, Any] = {
        "xaxis": {"type": "date", "title": {"text": "week (UTC)"}, "showgrid": False},
        "yaxis": {"title": {"text": f"GPUs of {escape(pool[:40])}"}, "rangemode": "tozero", "fixedrange": True},
        "shapes": [now_line(1000 * end_s)],
    }
    return chart(traces, layout)


def _ahead(end_s: float, newest: float | None, ahead: Sequence[WeekAhead]) -> list[Any]:
    """Areas and the median, from what is newest on."""
    x = [1000 * end_s, *(1000 * (end_s + _WEEK_S * week.weeks) for week in ahead)]

    def row(level: float) -> list[float | None]:
        return [newest, *(week.gpus[QUANTILES.index(level)] for week in ahead)]

    areas = [
        band_trace(f"{100 * low:.0f}–{100 * high:.0f} %", x, row(low), row(high), depth) for low, high, depth in _BANDS
    ]
    return [*areas, line_trace("median", "median", x, row(0.5), hovertemplate="%{y:.0f}")]


def _levels(first: float, end_s: float, advice: PoolAdvice) -> list[Any]:
    """The GPUs that there are, and with what is advised from the week on in which it can be there; none where the size
    of the pool is not known."""
    if not advice.gpus:
        return []
    last = 1000 * (end_s + _WEEK_S * len(advice.ahead))
    levels = [line_trace(f"{advice.gpus} GPUs", "limit", [first, last], [advice.gpus] * 2, dash="dash", width=1.5)]
    bought = advice.purchase
    if bought is None or not bought.buy_gpus or advice.arrives_in_weeks is None:
        return levels
    from_ms = min(1000 * begin_s(end_s, advice.arrives_in_weeks), last)
    total = advice.gpus + bought.buy_gpus
    steps = [from_ms, from_ms, last], [advice.gpus, total, total]
    return [*levels, line_trace(f"{total} GPUs with the purchase", "lend", *steps, dash="dash", width=1.5)]
