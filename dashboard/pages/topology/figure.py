"""The node as a plotly figure, for the page and for HTML files; and the heat map of its pairs."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from kopt.dashboard.figures import faded
from kopt.dashboard.pages.topology.picture import Picture, Point
from kopt.dashboard.pages.topology.style import BOX_OPACITY, COLOURS, INK, PAPER, QUIET, Bundle, bundles, by_style

_SPAN = 1.95


def drawn(item: Picture) -> go.Figure:
    traces: list[Any] = [_box(box.outline, box.description) for box in item.boxes]
    wired = bundles(item)
    traces += [_wires(bundle) for bundle in wired]
    traces.append(_hover(wired))
    for style, devices in by_style(item.devices).items():
        x, y = _columns([device.at for device in devices])
        traces.append(
            go.Scatter(
                name=style.name,
                showlegend=bool(style.name),
                x=x,
                y=y,
                mode="markers+text",
                text=[escape(device.text) for device in devices],
                textposition="middle center",
                textfont={"color": COLOURS[style.text_role], "size": max(8, min(12, round(style.size * 0.5)))},
                hovertext=[escape(device.description) for device in devices],
                hoverinfo="text",
                marker={"symbol": style.symbol, "size": style.size, "color": COLOURS[style.role]},
                meta={"role": style.role, "text": style.text_role},
            )
        )
    for side in ("middle right", "middle left"):
        traces.append(_labels(item, side))
    return go.Figure(traces, _layout())


def _layout() -> dict[str, Any]:
    axis = {"visible": False, "fixedrange": True, "range": [-_SPAN, _SPAN]}
    return {
        "template": "none",
        "hovermode": "closest",
        "margin": {"l": 4, "r": 4, "t": 4, "b": 4},
        "xaxis": axis,
        "yaxis": axis | {"scaleanchor": "x", "range": [-_SPAN + 0.25, _SPAN - 0.25]},
        "legend": {"orientation": "h", "x": 0.5, "xanchor": "center", "y": 0, "yanchor": "top"},
    }


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [round(x, 4) for x, _ in points], [round(y, 4) for _, y in points]


def _box(outline: Sequence[Point], description: str) -> Any:
    x, y = _columns(outline)
    return go.Scatter(
        x=x,
        y=y,
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=faded(COLOURS["band"], BOX_OPACITY),
        name=description,
        text=escape(description),
        hoverinfo="text",
        hoveron="fills",
        showlegend=False,
        meta={"role": "band", "opacity": BOX_OPACITY},
    )


def _wires(bundle: Bundle) -> Any:
    x: list[float | None] = []
    y: list[float | None] = []
    for wire in bundle.wires:
        xs, ys = _columns(wire.points)
        x += [*xs, None]
        y += [*ys, None]
    line = {"color": COLOURS[bundle.role], "width": bundle.width, "dash": bundle.dash}
    return go.Scatter(
        name=bundle.name,
        showlegend=bool(bundle.name),
        x=x,
        y=y,
        mode="lines",
        line=line,
        hoverinfo="skip",
        meta={"role": bundle.role},
    )


def _hover(wired: Sequence[Bundle]) -> Any:
    """What is told of a link when its first third is pointed at: the middles of chords lie on one another."""
    wires = [wire for bundle in wired for wire in bundle.wires if wire.points]
    x, y = _columns([_third(wire.points) for wire in wires])
    return go.Scatter(
        x=x,
        y=y,
        mode="markers",
        marker={"size": 14, "opacity": 0},
        showlegend=False,
        text=[escape(wire.description) for wire in wires],
        hoverinfo="text",
        meta={"role": "none"},
    )


def _third(points: Sequence[Point]) -> Point:
    if len(points) > 2:
        return points[len(points) // 3]
    (ax, ay), (bx, by) = points[0], points[-1]
    return (ax + (bx - ax) / 3, ay + (by - ay) / 3)


def _labels(item: Picture, side: str) -> Any:
    here = [label for label in item.labels if (label.at[0] >= 0) == (side == "middle right")]
    x, y = _columns([label.at for label in here])
    return go.Scatter(
        x=x,
        y=y,
        mode="text",
        text=[escape(label.text) for label in here],
        textposition=side,
        textfont={"size": 11, "color": QUIET},
        hoverinfo="skip",
        showlegend=False,
        meta={"role": "none", "text": "quiet"},
    )


def heat_map(gpus: Sequence[int], gbps: Mapping[tuple[int, int], float]) -> go.Figure:
    """GB/s of every two GPUs; ``gbps`` by ascending pair."""
    names = [f"GPU {gpu}" for gpu in gpus]
    rows = [[None if a == b else gbps.get((min(a, b), max(a, b))) for b in gpus] for a in gpus]
    text = [["" if value is None else f"{value:.3g}" for value in row] for row in rows]
    trace = go.Heatmap(
        x=names,
        y=names,
        z=rows,
        text=text,
        texttemplate="%{text}" if len(gpus) <= 16 else None,
        xgap=1,
        ygap=1,
        hovertemplate="%{y} with %{x}: %{z:.4g} GB/s<extra></extra>",
        zmin=0,
        colorscale=[[0, PAPER], [1, COLOURS["keep"]]],
        colorbar={"title": {"text": "GB/s"}, "thickness": 12},
        meta={"role": "heat"},
    )
    axis = {"type": "category", "fixedrange": True, "showgrid": False}
    return go.Figure(
        [trace],
        {
            "template": "none",
            "margin": {"l": 64, "r": 8, "t": 8, "b": 48},
            "xaxis": axis,
            "yaxis": axis | {"autorange": "reversed"},
        },
    )


def write_html(figure: go.Figure, path: Path, title: str, lines: Sequence[str]) -> None:
    """One file that needs no network; it brings its own paper, so that it reads the same in light and dark."""
    page = go.Figure(figure)
    lines = [*lines, "GB/s per direction"]
    page.update_layout(
        paper_bgcolor=PAPER,
        plot_bgcolor=PAPER,
        font={"color": INK},
        width=860,
        height=900,
        margin={"t": 60 + 18 * len(lines), "l": 16, "r": 16, "b": 16},
        title={"text": "<br>".join([escape(title), *(f"<sub>{escape(line)}</sub>" for line in lines)]), "x": 0.5},
    )
    page.write_html(path, include_plotlyjs=True, full_html=True, config={"displaylogo": False, "responsive": False})
