"""Figures of a training as one HTML page that needs nothing else.

MLflow shows an HTML artifact as a blob in a sandboxed frame, where a relative path leads nowhere and the frame has no
origin of its own: plotly.js has to be inside the page. It is there once, however many figures follow.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "plots.html"

_HEAD = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Plots</title></head><body>\n'


def new_figure(title: str, x: str, y: str, height_px: int = 480) -> Any:
    """An empty plotly figure in the style of all plots of a training."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(title=title, xaxis_title=x, yaxis_title=y, template="plotly_white", height=height_px)
    return figure


def write_plot_page(folder: Path, figures: Mapping[str, Any]) -> Path:
    """Write plotly figures, by the identifier of their element, into ``folder``; returns the page."""
    parts = [
        figure.to_html(full_html=False, include_plotlyjs=number == 0, div_id=name)
        for number, (name, figure) in enumerate(figures.items())
    ]
    path = folder / FILE
    path.write_text(_HEAD + "\n".join(parts) + "\n</body></html>\n", encoding="utf-8")
    return path
