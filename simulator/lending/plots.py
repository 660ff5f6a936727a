"""A picture of a lending study: what is lent and gained by lead time, a line per rule."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kopt.simulator.lending.study import RULES, LendingOutcome

SUFFIXES = (".png", ".svg", ".pdf")


def write_plot(path: Path, lending_outcomes: Sequence[LendingOutcome], title: str) -> None:
    """Draw means over services into one picture. Raises OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels: Sequence[tuple[str, str, Callable[[LendingOutcome], float]]] = (
        ("Lent", "% of the pool's GPU-time", lambda lending_outcome: 100 * lending_outcome.lent),
        ("Fell short", "% of the time", lambda lending_outcome: 100 * lending_outcome.violation),
        ("Useful training", "GPU-hours per service", lambda lending_outcome: lending_outcome.gains.gained),
    )
    for axes, (name, unit, value) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        _draw(axes, lending_outcomes, value)
        axes.set_title(name, fontsize="medium")
        axes.set_ylabel(unit)
    figure.axes[0].legend(fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=140)


def _draw(axes: Any, lending_outcomes: Sequence[LendingOutcome], value: Callable[[LendingOutcome], float]) -> None:
    leads = sorted({lending_outcome.lead_s for lending_outcome in lending_outcomes})
    for number, rule in enumerate(RULES):
        means = [
            np.mean(
                [
                    value(lending_outcome)
                    for lending_outcome in lending_outcomes
                    if (lending_outcome.rule, lending_outcome.lead_s) == (rule, lead)
                ]
            )
            for lead in leads
        ]
        axes.plot([lead / 60 for lead in leads], means, "o-", color=f"C{number}", label=rule, markersize=3.5)
    axes.set_xlabel("minutes to get a GPU back")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
