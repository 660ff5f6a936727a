"""A report of costs as a notebook shows it."""

from html import escape

from kopt.core.cost.metering import GPU_HOUR
from kopt.policies.cost.attribution import CostRow
from kopt.policies.cost.budgets import stamp
from kopt.policies.cost.report import CostReport

_HEADINGS = ("who", "part", "pods", "GPU-hours", "amount", "share")
_UNUSED = "of it unused"


def table(report: CostReport) -> str:
    """HTML without styles; every text of others is escaped."""
    rows = "".join(_row(row, report) for row in (*report.rows, *report.rest))
    headings = _HEADINGS if report.unused is None else (*_HEADINGS, _UNUSED)
    head = "".join(f"<th>{text}</th>" for text in headings)
    span = f"{stamp(report.start_ms)} to {stamp(report.end_ms)}"
    by = f"label {report.label}" if report.label else report.by.value
    totals = ", ".join(_money(micro, currency) for currency, micro in sorted(report.micro.items()))
    caption = f"GPU cost by {by}, {span}: {report.used / GPU_HOUR:,.2f} GPU-hours{f', {totals}' if totals else ''}"
    if report.nodes is not None:
        caption += f"; {report.nodes.used / GPU_HOUR:,.2f} of nodes"
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(row: CostRow, report: CostReport) -> str:
    money = "" if row.unpriced else _money(row.micro, row.currency)
    share = f"{row.used / report.used:.1%}" if report.used else ""
    cells = [row.name, row.part.value, str(row.pods or ""), f"{row.used / GPU_HOUR:,.2f}", money, share]
    if report.unused is not None:
        unused = report.unused_of(row)
        cells.append("" if unused is None else f"{unused.used / GPU_HOUR:,.2f}")
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _money(micro: int, currency: str) -> str:
    return f"{micro / 1_000_000:,.2f} {currency}"
