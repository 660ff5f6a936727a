"""The same drawing as a file without a script: SVG, PNG or PDF."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.dashboard.pages.topology.picture import Picture
from kopt.dashboard.pages.topology.style import BOX_OPACITY, COLOURS, INK, PAPER, QUIET, bundles, by_style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".png", ".pdf")
_MARKERS = {"circle": "o", "square": "s", "octagon": "8", "diamond": "D", "hexagon": "h"}
_DASHES = {"solid": "-", "dash": (0, (4, 2))}
_POINTS_PER_PIXEL = 0.72


def draw(picture: Picture, path: Path, title: str, lines: Sequence[str] = ()) -> None:
    """Write the drawing; its format is that of the path's suffix. ``lines`` stand under the title."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Text stays text in SVG: it can be searched and read aloud.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "kopt"}):
        figure = Figure(figsize=(8.6, 8.8), facecolor=PAPER)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.02, 0.1, 0.96, 0.8))
        axes.set_axis_off()
        axes.set_aspect("equal")
        axes.set_xlim(-1.95, 1.95)
        axes.set_ylim(-1.72, 1.72)
        _fill(axes, picture)
        figure.text(0.5, 0.975, title, ha="center", va="top", color=INK, fontsize=13, parse_math=False)
        under = "\n".join(lines)
        figure.text(0.5, 0.942, under, ha="center", va="top", color=QUIET, fontsize=9.5, parse_math=False, wrap=True)
        figure.savefig(path, dpi=130, facecolor=PAPER, metadata={"Date": None} if path.suffix == ".svg" else None)


def _fill(axes: "Axes", picture: Picture) -> None:
    handles: list[Artist] = []
    for box in picture.boxes:
        x, y = zip(*box.outline, strict=True)
        axes.fill(x, y, color=COLOURS["band"], alpha=BOX_OPACITY, lw=0)
    for number, bundle in enumerate(bundles(picture)):
        for wire in bundle.wires:
            x, y = zip(*wire.points, strict=True)
            drawn = axes.plot(
                x,
                y,
                color=COLOURS[bundle.role],
                lw=bundle.width * _POINTS_PER_PIXEL,
                ls=_DASHES[bundle.dash],
                zorder=2 + number / 100,
                solid_capstyle="butt",
            )
        if bundle.name:
            drawn[0].set_label(bundle.name)
            handles.append(drawn[0])
    for style, devices in by_style(picture.devices).items():
        x, y = zip(*(device.at for device in devices), strict=True)
        points = axes.scatter(
            x,
            y,
            s=(style.size * _POINTS_PER_PIXEL) ** 2,
            marker=_MARKERS[style.symbol],
            color=COLOURS[style.role],
            zorder=4,
            lw=0,
        )
        if style.name:
            points.set_label(style.name)
            handles.append(points)
        for device in devices:
            most = 8 if device.kind == "switch" else 11
            axes.annotate(
                device.text,
                device.at,
                ha="center",
                va="center_baseline",
                color=COLOURS[style.text_role],
                fontsize=max(6, min(most, style.size * 0.38)),
                parse_math=False,
                zorder=5,
            )
    for label in picture.labels:
        axes.annotate(
            label.text,
            label.at,
            ha="left" if label.at[0] >= 0 else "right",
            va="center",
            color=QUIET,
            fontsize=8,
            parse_math=False,
        )
    axes.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=4,
        frameon=False,
        fontsize=8,
        title="GB/s per direction",
        title_fontsize=8,
        labelcolor=INK,
        markerscale=0.55,
        handlelength=3,
    )
