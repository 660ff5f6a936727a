"""The heat map of a cluster's pairs: rows and columns are nodes in the order of their domains.

Colour is measured by predicted; what is slow, failed or not measured has a mark of its own, so that it is read without
the colours as well.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Any

import plotly.graph_objects as go

from kopt.dashboard.pages.topology.style import COLOURS, PAPER

TO = 1.25
"""The share at which colours end."""
_NAMED = 24
"""Of more nodes the axes name domains, or some of the nodes."""
_WRITTEN = 10
"""Of so many nodes the cells have figures."""
_LONGEST = 18


class State(StrEnum):
    HEALTHY = "healthy"
    SLOW = "slow"
    FAILED = "failed"
    UNMEASURED = "not measured"


@dataclass(frozen=True)
class Cell:
    """One pair. ``share`` is measured by predicted, ``gbps`` what stands in the cell: measured, else predicted."""

    state: State
    tooltip: str
    share: float | None = None
    gbps: float | None = None


Node = tuple[str, tuple[str, ...]]
"""Name and domains."""
_SYMBOLS = (
    (State.SLOW, "triangle-down", "actual"),
    (State.FAILED, "x", "actual"),
    (State.UNMEASURED, "line-ne-open", "held"),
)
Grid = Sequence[Sequence[Cell | None]]


def pair_map(nodes: Sequence[Node], cells: Mapping[tuple[str, str], Cell]) -> go.Figure:
    """``cells`` by ascending pair."""
    count = len(nodes)
    grid = [[_of(cells, a, b) for b, _ in nodes] for a, _ in nodes]
    traces = [_shares(grid), _others(grid)]
    # Below the figure, where cells have one.
    below = 0.27 if count <= _WRITTEN else 0.0
    for state, symbol, role in _SYMBOLS:
        here = [(x, y) for y, row in enumerate(grid) for x, cell in enumerate(row) if cell and cell.state is state]
        traces.append(
            go.Scatter(
                name=state.value,
                x=[x for x, _ in here],
                y=[y + below for _, y in here],
                mode="markers",
                hoverinfo="skip",
                showlegend=bool(here),
                marker={
                    "symbol": symbol,
                    "size": 8,
                    "color": COLOURS[role],
                    "line": {"width": 1.2},
                    "opacity": 0.6 if state is State.UNMEASURED else 1,
                },
                meta={"role": role, "cells": count},
            )
        )
    places, names = _ticks(nodes)
    axis = {
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
        "tickvals": places,
        "ticktext": names,
        "range": [-0.5, count - 0.5],
    }
    return go.Figure(
        traces,
        {
            "template": "none",
            "margin": {"l": 64, "r": 8, "t": 8, "b": 48},
            "shapes": list(_borders(nodes)),
            "hovermode": "closest",
            "xaxis": axis,
            "yaxis": axis | {"range": [count - 0.5, -0.5], "tickangle": 0},
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.01, "yanchor": "bottom"},
        },
    )


def _of(cells: Mapping[tuple[str, str], Cell], a: str, b: str) -> Cell | None:
    return cells.get((min(a, b), max(a, b)))


def _shares(grid: Grid) -> Any:
    """Pairs that were measured and of which something is predicted."""
    z = [[None if cell is None or cell.share is None else round(cell.share, 3) for cell in row] for row in grid]
    ticks = [0, 0.25, 0.5, 0.75, 1, TO]
    return go.Heatmap(
        z=z,
        x=list(range(len(grid))),
        y=list(range(len(grid))),
        zmin=0,
        zmax=TO,
        xgap=_gap(grid),
        ygap=_gap(grid),
        **_written(grid, measured=True),
        hovertext=_cell_text(grid),
        hoverinfo="text",
        colorscale=[[0, COLOURS["limit"]], [0.6, PAPER], [0.8, COLOURS["keep"]], [1, COLOURS["median"]]],
        colorbar={
            "title": {"text": "of predicted", "side": "right"},
            "thickness": 12,
            "tickvals": ticks,
            "ticktext": [f"{tick:.0%}" for tick in ticks],
        },
        meta={"role": "share"},
    )


def _others(grid: Grid) -> Any:
    """The other pairs, pale."""
    z = [[1 if cell is not None and cell.share is None else None for cell in row] for row in grid]
    return go.Heatmap(
        z=z,
        x=list(range(len(grid))),
        y=list(range(len(grid))),
        zmin=0,
        zmax=1,
        xgap=_gap(grid),
        ygap=_gap(grid),
        showscale=False,
        **_written(grid, measured=False),
        hovertext=_cell_text(grid),
        hoverinfo="text",
        colorscale=[[0, PAPER], [1, PAPER]],
        meta={"role": "pale"},
    )


def _gap(grid: Sequence[object]) -> float:
    return 1 if len(grid) <= 48 else 0.4


def _cell_text(grid: Grid) -> list[list[str]]:
    return [["" if cell is None else escape(cell.tooltip).replace("\n", "<br>") for cell in row] for row in grid]


def _written(grid: Grid, *, measured: bool) -> dict[str, Any]:
    """Figures in the cells, where there is room; what is predicted and was not measured in brackets."""
    if len(grid) > _WRITTEN:
        return {}
    form = "{:.3g}" if measured else "({:.3g})"
    text = [
        [
            form.format(cell.gbps) if cell is not None and cell.gbps and (cell.share is not None) == measured else ""
            for cell in row
        ]
        for row in grid
    ]
    return {"text": text, "texttemplate": "%{text}"}


def _ticks(nodes: Sequence[Node]) -> tuple[list[float], list[str]]:
    names = _short([name for name, _ in nodes])
    if len(nodes) <= _NAMED:
        return [float(n) for n in range(len(nodes))], names
    groups = _groups(nodes)
    if 1 < len(groups) <= _NAMED:
        domains = [(nodes[start][1] or ("no domain",))[-1][:_LONGEST] for start, _ in groups]
        return [(start + end - 1) / 2 for start, end in groups], [escape(domain) for domain in domains]
    step = math.ceil(len(nodes) / 12)
    return [float(n) for n in range(0, len(nodes), step)], names[::step]


def _groups(nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Neighbours of the same innermost domain, as ranges."""
    starts = [n for n in range(len(nodes)) if n == 0 or nodes[n][1] != nodes[n - 1][1]]
    return list(zip(starts, [*starts[1:], len(nodes)], strict=True))


def _borders(nodes: Sequence[Node]) -> Iterator[dict[str, Any]]:
    """Lines between domains; heavier between the outermost."""
    last = len(nodes) - 0.5
    for start, _ in _groups(nodes)[1:]:
        outer = nodes[start][1][:1] != nodes[start - 1][1][:1]
        line = {"width": 2 if outer else 1, "color": COLOURS["held"]}
        yield {"type": "line", "x0": start - 0.5, "x1": start - 0.5, "y0": -0.5, "y1": last, "line": line}
        yield {"type": "line", "x0": -0.5, "x1": last, "y0": start - 0.5, "y1": start - 0.5, "line": line}


def _short(names: Sequence[str]) -> list[str]:
    """Without what all have in common behind their first dot; of long ones the end, which tells them apart."""
    tails = {name.partition(".")[2] for name in names}
    cut = [name.partition(".")[0] if len(tails) == 1 else name for name in names]
    return [escape(item if len(item) <= _LONGEST else f"…{item[-_LONGEST + 1 :]}") for item in cut]
