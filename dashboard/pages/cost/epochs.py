"""A training by its epochs on the page of costs: a chart of what each cost, and a table."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from kopt.dashboard.figures import COLOURS, chart
from kopt.dashboard.formatting import NONE
from kopt.dashboard.pages.cost.view import money
from kopt.policies.cost.budgets import stamp
from kopt.policies.cost.epochs import EpochCost
from kopt.policies.cost.run import RunCost
from kopt.policies.cost.runs import SHORT

MOST_EPOCHS = 200
_MOST_NAMED = 24
"""Further bars are too narrow for a name of their own."""


@dataclass(frozen=True)
class RunSection:
    """``rows``: epoch, amount, GPU-hours, steps, of 1,000 steps, samples and tokens for one unit of the currency, from
    and until; the last is the whole run. ``hidden`` epochs are in the document alone."""

    workload: str
    uid: str
    runs: tuple[tuple[str, str], ...]
    """UID and its begin of all that have this name, where there are several."""
    rows: tuple[tuple[str, ...], ...]
    hidden: int
    remarks: tuple[str, ...]
    currency: str
    figure: go.Figure | None
    figure_text: str


def run_section(run: RunCost) -> RunSection:
    """The chart is of amounts; of GPU-hours where a price is missing, and none without epochs."""
    priced = run.whole.micro is not None
    unit = run.whole.currency if priced else "GPU-hours"
    values = [(item.micro or 0) / 1e6 if priced else item.gpu_hours for item in run.epochs]
    text = ""
    if values:
        text = (
            f"What each of {len(values)} epochs of {run.workload} cost, {min(values):,.2f} to {max(values):,.2f} {unit}"
        )
    return RunSection(
        run.workload,
        run.uid,
        tuple((uid, uid[:SHORT] or "earlier") for uid in run.runs) if len(run.runs) > 1 else (),
        tuple(_row(item) for item in (*run.epochs[:MOST_EPOCHS], run.whole)),
        max(0, len(run.epochs) - MOST_EPOCHS),
        run.remarks,
        run.whole.currency,
        _figure(run.epochs, values, unit) if values else None,
        text,
    )


def _row(item: EpochCost) -> tuple[str, ...]:
    return (
        "all" if item.epoch is None else f"{item.epoch}",
        money(item.micro, item.currency),
        f"{item.gpu_hours:,.2f}",
        f"{item.steps:,}" if item.steps else NONE,
        money(item.micro_per_1000_steps, item.currency),
        _amount(item.samples_per_unit),
        _amount(item.tokens_per_unit),
        stamp(item.start_ms),
        stamp(item.end_ms),
    )


def _amount(number: float | None) -> str:
    return NONE if number is None else f"{number:,.0f}"


def _figure(epochs: Sequence[EpochCost], values: Sequence[float], unit: str) -> go.Figure:
    """In the order of time: an epoch that was begun again has a bar for each time."""
    order = list(range(1, len(epochs) + 1))
    hover = [f"epoch {item.epoch}, {item.gpu_hours:,.2f} GPU-hours" for item in epochs]
    bar = go.Bar(
        name=unit,
        x=order,
        y=list(values),
        text=hover,
        textposition="none",
        hovertemplate=f"%{{text}}: %{{y:,.2f}} {unit}<extra></extra>",
        marker={"color": COLOURS["median"]},
        meta={"role": "median"},
    )
    axis: dict[str, object] = {"title": {"text": "epochs, in the order of time"}, "fixedrange": True, "showgrid": False}
    if len(epochs) <= _MOST_NAMED:
        axis |= {"tickvals": order, "ticktext": [f"{item.epoch}" for item in epochs], "title": {"text": "epoch"}}
    layout = {
        "hovermode": "closest",
        "bargap": 0.3,
        "xaxis": axis,
        "yaxis": {"title": {"text": unit}, "rangemode": "tozero", "fixedrange": True},
    }
    return chart([bar], layout)
