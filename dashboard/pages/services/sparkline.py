"""A sparkline as SVG geometry: measured demand, then the fan ahead. Drawn without a script."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kopt.core.prediction import Prediction
from kopt.dashboard.data.sources import Service

WIDTH, HEIGHT, AHEAD = 132, 32, 22
HOURS = 24
_POINTS = 96


@dataclass(frozen=True)
class Sparkline:
    """Path data in a box of WIDTH × HEIGHT; empty paths where there is nothing to draw."""

    line: str = ""
    median: str = ""
    fan: str = ""


def sparkline(service: Service) -> Sparkline:
    """The last day of demand and the quantiles ahead, on one scale."""
    recent = service.series.tail(max(2, HOURS * 3600 // service.series.step_s)).value
    blocks = np.array_split(recent, min(_POINTS, len(recent)))
    values = [float(np.nanmean(block)) if np.isfinite(block).any() else None for block in blocks]
    finite = [value for value in values if value is not None]
    if not finite:
        return Sparkline()
    answered = [h.demand for h in service.forecast.horizons if not h.demand.refused] if service.forecast else []
    uppers = [max(p.quantiles.values(), default=p.high or 0.0) for p in answered]
    # A wild tail must not flatten the day that is drawn before it.
    top = min(max([*finite, *uppers]), 2.5 * max(finite)) or 1.0
    begin = WIDTH - AHEAD
    step = begin / max(1, len(values) - 1)
    line = _path([(i * step, value) for i, value in enumerate(values)], top)
    root = finite[-1]
    if not answered:
        return Sparkline(line)
    median = [(begin, root), *_ahead(answered, [p.value or 0.0 for p in answered])]
    upper = [(begin, root), *_ahead(answered, uppers)]
    fan = _path(upper, top) + _path(median[::-1], top).replace("M", "L") + "Z"
    return Sparkline(line, _path(median, top), fan)


def _ahead(answered: Sequence[Prediction], values: Sequence[float]) -> list[tuple[float, float]]:
    longest = max((p.horizon_s or 1.0) for p in answered)
    return [
        (WIDTH - AHEAD + AHEAD * (p.horizon_s or 0.0) / longest, value)
        for p, value in zip(answered, values, strict=True)
    ]


def _path(points: Sequence[tuple[float, float | None]], top: float) -> str:
    """SVG path data; a gap lifts the pen."""
    text, down = "", False
    for x, value in points:
        if value is None:
            down = False
            continue
        y = HEIGHT - 1 - (HEIGHT - 2) * min(value / top, 1.0)
        text += f"{'L' if down else 'M'}{x:.1f} {y:.1f}"
        down = True
    return text
