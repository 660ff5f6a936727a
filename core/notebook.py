"""Tables and small charts in HTML for ``_repr_html_``: what a notebook shows of an answer. All texts are escaped."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from kopt.core.units import format_span

_WIDTH, _HEIGHT = 360, 34
_COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9d755d", "#e45756", "#72b7b2", "#bab0ac")


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], foot: str = "") -> str:
    """Cells are texts, or charts of this module, which are put in as they are."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    below = f'<tfoot><tr><td colspan="{len(head)}">{escape(foot)}</td></tr></tfoot>' if foot else ""
    top = f"<caption>{escape(caption)}</caption><thead><tr>{names}</tr></thead>"
    return f"<table>{top}<tbody>{body}</tbody>{below}</table>"


class Chart(str):
    """Markup made here."""


def span_chart(title: str, low_s: float, lower_s: float, middle_s: float, upper_s: float, high_s: float) -> Chart:
    """Five times in order, in seconds, on a logarithmic axis: a line between the outer, a box between the inner, and a
    stroke at the middle, each with its value as a tooltip."""
    times_s = [max(1.0, value) for value in (low_s, lower_s, middle_s, upper_s, high_s)]
    first, last = math.log(times_s[0]) - 0.1, math.log(times_s[-1]) + 0.1
    low, lower, middle, upper, high = (_WIDTH * (math.log(value) - first) / (last - first) for value in times_s)
    values = ", ".join(format_span(value) for value in (low_s, lower_s, middle_s, upper_s, high_s))
    return Chart(
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img"><title>{escape(title)}: {escape(values)}</title>'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="12" y2="12" stroke="currentColor"/>'
        f'<rect x="{lower:.1f}" y="4" width="{max(1.0, upper - lower):.1f}" height="16" fill="{_COLORS[0]}"/>'
        f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="2" y2="22" stroke="{_COLORS[1]}" stroke-width="2"/>'
        f'<text x="0" y="33" font-size="10">{escape(format_span(low_s))}</text>'
        f'<text x="{_WIDTH}" y="33" font-size="10" text-anchor="end">{escape(format_span(high_s))}</text></svg>'
    )


def waits_chart(p50_s: float, p90_s: float | None) -> Chart:
    """From now to when half and nine of ten of the predicted starts have come; open where the second is not known."""
    last_s = max(p50_s, 1.0) * 2 if p90_s is None else max(p90_s, 1.0)
    half = _WIDTH * min(1.0, p50_s / last_s)
    end = "later" if p90_s is None else format_span(p90_s)
    return Chart(
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img">'
        f"<title>half by {escape(format_span(p50_s))}, nine of ten by {escape(end)}</title>"
        f'<rect x="0" y="4" width="{_WIDTH}" height="16" fill="{_COLORS[0]}" opacity=".4"/>'
        f'<rect x="0" y="4" width="{half:.1f}" height="16" fill="{_COLORS[0]}"/>'
        f'<text x="0" y="33" font-size="10">now</text>'
        f'<text x="{_WIDTH}" y="33" font-size="10" text-anchor="end">{escape(end)}</text></svg>'
    )


def stacked_bar(parts: Mapping[str, float], longest: float) -> Chart:
    """Parts of a whole beside each other, ``longest`` as wide as the chart; names and shares are tooltips."""
    total, x, boxes = sum(parts.values()), 0.0, ""
    for index, (name, amount) in enumerate(parts.items()):
        width = _WIDTH / 2 * amount / longest if longest > 0 else 0.0
        share = amount / total if total > 0 else 0.0
        boxes += (
            f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="12" fill="{_COLORS[index % len(_COLORS)]}">'
            f"<title>{escape(name)}: {share:.0%}</title></rect>"
        )
        x += width
    return Chart(f'<svg width="{_WIDTH // 2}" height="12" role="img">{boxes}</svg>')


def bar(share: float, *, is_good: bool = True) -> Chart:
    """From 0 to 1.5, green or red."""
    width = 100 * max(0.0, min(1.5, share))
    return Chart(f'<div style="background:{"#2a7" if is_good else "#b55"};height:.8em;width:{width:.0f}px"></div>')


def scaling_row(
    gpus: int, cells: Sequence[str], speedup: float, efficiency: float, *, useful: int, threshold: float
) -> tuple[str, ...]:
    """Of a scaling curve: the number of GPUs, bold up to ``useful``, what ``cells`` say of them, the speed-up, and what
    each further GPU brings, green from ``threshold`` on."""
    number = bold(str(gpus)) if gpus <= useful else str(gpus)
    return number, *cells, f"{speedup:.2f}", f"{efficiency:.0%}", bar(efficiency, is_good=efficiency >= threshold)


def bold(text: str) -> Chart:
    return Chart(f"<b>{escape(text)}</b>")


def _cell(cell: str) -> str:
    return cell if isinstance(cell, Chart) else escape(cell)
