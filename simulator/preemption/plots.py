"""Pictures of pre-emption studies: lost work and added wait by the number of candidates, a line per policy."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kopt.simulator.preemption.study import Figures

SUFFIXES = (".png", ".svg", ".pdf")


def write_plot(path: Path, result: Sequence[Figures], title: str) -> None:
    """Draw all figures into one picture. Raises ValueError for a suffix that is none of ``SUFFIXES``, OSError."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: a picture ends in {', '.join(SUFFIXES)}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    lost, per_ask, waits = figure.subplots(1, 3)
    for number, policy in enumerate(dict.fromkeys(figures.policy for figures in result)):
        mine = sorted((figures for figures in result if figures.policy == policy), key=lambda figures: figures.pool)
        color = f"C{number}"
        _line(lost, mine, policy, color, lambda figures: figures.lost_mean)
        lost.fill_between(
            [figures.pool for figures in mine],
            [figures.lost_low for figures in mine],
            [figures.lost_high for figures in mine],
            color=color,
            alpha=0.15,
            linewidth=0,
        )
        _line(per_ask, mine, policy, color, lambda figures: figures.lost_per_ask)
        _line(waits, mine, f"{policy}, mean", color, lambda figures: figures.wait_mean_s)
        waits.plot([figures.pool for figures in mine], [figures.wait_p95_s for figures in mine], ":", color=color)
    _describe(lost, "Lost per pre-emption", "GPU-hours")
    _describe(per_ask, "Lost per urgent job without room", "GPU-hours")
    _describe(waits, "Added wait (dotted: 95 % of them)", "seconds")
    lost.legend(fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=140)


def _line(axes: Any, mine: Sequence[Figures], label: str, color: str, value: Callable[[Figures], float]) -> None:
    axes.plot(
        [figures.pool for figures in mine],
        [value(figures) for figures in mine],
        "o-",
        color=color,
        label=label,
        markersize=3.5,
    )


def _describe(axes: Any, title: str, y: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("candidates")
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
