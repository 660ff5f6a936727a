"""Pictures of placement replays: allocation and fragmentation over load, a line per policy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kopt.simulator.placement.replay import Replay

SUFFIXES = (".png", ".svg", ".pdf")
_GRID = 200


def write_plot(path: Path, replays: Sequence[Replay], title: str) -> None:
    """Draw all replays into one picture: means over seeds, with the range from lowest to highest shaded.

    Raises ValueError for a suffix that is none of ``SUFFIXES``, OSError where the file cannot be written.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: a picture ends in {', '.join(SUFFIXES)}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    allocated, fragmented = figure.subplots(1, 2)
    for number, policy in enumerate(dict.fromkeys(replay.policy for replay in replays)):
        mine = [replay for replay in replays if replay.policy == policy]
        ends = f"{policy}, {100 * np.mean([replay.allocated for replay in mine]):.1f} %"
        _line(allocated, mine, [replay.allocation for replay in mine], ends, f"C{number}")
        _line(fragmented, mine, [replay.fragmented for replay in mine], policy, f"C{number}")
    most = max(float(replay.requested[-1]) for replay in replays)
    allocated.plot(
        [0, 100 * min(1.0, most)], [0, 100 * min(1.0, most)], ":", color="gray", label="all that was asked for"
    )
    _describe(allocated, "GPUs allocated", "share of the fleet's GPUs, %", most)
    _describe(fragmented, "GPUs free, but of no use to a typical pod", "share of the fleet's GPUs, %", most)
    if most > 0.9:
        # Everybody follows the diagonal at first; what differs is how far.
        allocated.set_xlim(80, 100 * most)
        allocated.set_ylim(78, 101)
    allocated.legend(loc="lower right", fontsize="small")
    fragmented.legend(loc="upper left", fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=140)


def _line(axes: Any, replays: Sequence[Replay], curves: Sequence[Any], label: str, color: str) -> None:
    grid = np.linspace(0, min(float(replay.requested[-1]) for replay in replays), _GRID)
    values = 100 * np.array(
        [np.interp(grid, replay.requested, curve) for replay, curve in zip(replays, curves, strict=True)]
    )
    axes.plot(100 * grid, values.mean(0), color=color, label=label, linewidth=1.6)
    axes.fill_between(100 * grid, values.min(0), values.max(0), color=color, alpha=0.15, linewidth=0)


def _describe(axes: Any, title: str, y: str, most: float) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("load: GPUs asked for so far, % of the fleet's")
    axes.set_ylabel(y)
    axes.set_xlim(0, 100 * most)
    axes.grid(alpha=0.3)
