"""A picture of memory over a run: stacked by role, reserved above, the peak marked, and bars by module."""

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kopt.core.units import GIB, format_bytes
from kopt.core.workload.sizing import SizingEstimate
from kopt.tracing.events import Role
from kopt.tracing.timeline import ModuleShare, Timeline, by_depth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 1600
_MODULES = 14
_STACK = (Role.WEIGHTS, Role.BUFFERS, Role.OPTIMIZER, Role.INPUTS, Role.ACTIVATIONS, Role.GRADIENTS, Role.TEMPORARY)
_COLOURS = ("#3b6ea5", "#7ba7d0", "#6a51a3", "#c7c7c7", "#e08214", "#238b45", "#b2182b")


def draw(sizing_estimate: SizingEstimate, timeline: Timeline, path: Path) -> None:
    """Write the picture; its format is that of the path's suffix."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    over_time, bars = figure.subplots(1, 2, width_ratios=(3, 1.15))
    _memory(over_time, sizing_estimate, timeline)
    _modules(bars, timeline.modules)
    interval = ""
    if sizing_estimate.memory.value is not None and sizing_estimate.memory.high is not None:
        interval = (
            f": process {format_bytes(int(sizing_estimate.memory.value))}, "
            f"{sizing_estimate.memory.probability:.0%} between "
            f"{format_bytes(int(sizing_estimate.memory.low or 0))} and "
            f"{format_bytes(int(sizing_estimate.memory.high))}"
        )
    figure.suptitle(
        f"{_short(sizing_estimate.script)} on {sizing_estimate.gpu}{interval}", fontsize=12, parse_math=False
    )
    figure.savefig(path, dpi=130)


def _memory(axes: "Axes", sizing_estimate: SizingEstimate, timeline: Timeline) -> None:
    at = _sampled(timeline)
    rows = timeline.by_role[at] / GIB
    rest = np.maximum(0, timeline.allocated[at] / GIB - rows.sum(1))
    layers = [rows[:, role] + (rest if role is Role.TEMPORARY else 0) for role in _STACK]
    axes.stackplot(at, layers, colors=_COLOURS, labels=[role.name.lower() for role in _STACK], step="post", lw=0)
    axes.step(at, timeline.reserved[at] / GIB, where="post", color="black", lw=1, label="reserved by the allocator")
    if sizing_estimate.memory.value is not None and sizing_estimate.memory.high is not None:
        axes.axhline(sizing_estimate.memory.value / GIB, color="black", ls="--", lw=1, label="process, predicted")
        axes.axhspan(
            (sizing_estimate.memory.low or 0) / GIB,
            sizing_estimate.memory.high / GIB,
            color="black",
            alpha=0.08,
            lw=0,
            label="its interval",
        )
    peak = timeline.allocated[timeline.peak] / GIB if len(timeline.allocated) else 0.0
    axes.annotate(
        f"peak {format_bytes(int(peak * GIB))}",
        (timeline.peak, peak),
        xytext=(0, 14),
        textcoords="offset points",
        ha="center",
        fontsize=9,
        arrowprops={"arrowstyle": "->", "lw": 0.8},
    )
    _steps(axes, timeline)
    axes.set_xlim(0, max(1, len(timeline.allocated) - 1))
    axes.set_ylim(
        0, 1.12 * max([peak, (sizing_estimate.memory.high or 0) / GIB, float(timeline.reserved.max(initial=1)) / GIB])
    )
    axes.set_xlabel("allocations and releases")
    axes.set_ylabel("GiB")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.09), fontsize=8, ncols=5, frameon=False)


def _sampled(timeline: Timeline) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Places to draw: evenly spread, with the highest of every stretch, so that no spike is lost."""
    count = len(timeline.allocated)
    if count <= _POINTS:
        return np.arange(count, dtype=np.int64)
    edges = np.linspace(0, count, _POINTS // 2 + 1).astype(np.int64)
    highest = [int(start + np.argmax(timeline.allocated[start:end])) for start, end in pairwise(edges) if end > start]
    return np.unique(np.array([*edges[:-1].tolist(), *highest, count - 1], dtype=np.int64))


def _steps(axes: "Axes", timeline: Timeline) -> None:
    """A line where each step begins."""
    labelled: set[int] = set()
    for phase in timeline.phases:
        if phase.step not in labelled and phase.name != "load":
            labelled.add(phase.step)
            axes.axvline(phase.begins, color="grey", lw=0.6, ls=":")
            axes.text(
                phase.begins, 0.995, f" step {phase.step}", fontsize=7, va="top", transform=axes.get_xaxis_transform()
            )


def _modules(axes: "Axes", modules: tuple[ModuleShare, ...]) -> None:
    shares = [module_share for module_share in by_depth(modules, _MODULES) if module_share.bytes]
    names = [_short(share.name or "outside of modules", 28) for share in shares]
    axes.barh(range(len(shares)), [share.bytes / GIB for share in shares], color="#e08214")
    axes.set_yticks(range(len(shares)), names, fontsize=8, parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel("GiB alive at the peak, by module")


def _short(text: str, most: int = 70) -> str:
    """The end of a long name tells more than its beginning."""
    return text if len(text) <= most else "…" + text[1 - most :]
