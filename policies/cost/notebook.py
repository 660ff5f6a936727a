"""A report of costs, and a run by its epochs, as a notebook shows them."""

from html import escape

from kopt.core.cost.metering import GPU_HOUR
from kopt.policies.cost.attribution import CostRow
from kopt.policies.cost.budgets import stamp
from kopt.policies.cost.epochs import EpochCost
from kopt.policies.cost.report import CostReport
from kopt.policies.cost.run import RunCost

_HEADINGS = ("who", "part", "pods", "GPU-hours", "amount", "share")
_UNUSED = "of it unused"
_RUN_HEADINGS = ("epoch", "from", "until", "GPU-hours", "amount", "1,000 steps", "samples for 1", "tokens for 1")


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


def run_table(run: RunCost) -> str:
    """As ``table``; the last row is the whole run, and remarks stand below."""
    whole, currency = run.whole, run.whole.currency
    total = "" if whole.micro is None else f", {_money(whole.micro, currency)}"
    caption = f"Cost of {run.workload} by epoch: {whole.gpu_hours:,.2f} GPU-hours{total}"
    head = "".join(f"<th>{text}</th>" for text in _RUN_HEADINGS)
    rows = "".join(_epoch_row(item) for item in (*run.epochs, whole))
    remarks = "".join(f"<p>{escape(text)}</p>" for text in run.remarks)
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table>{remarks}"
    )


def _epoch_row(item: EpochCost) -> str:
    def money(micro: int | None) -> str:
        return "" if micro is None else _money(micro, item.currency)

    def amount(number: float | None) -> str:
        return "" if number is None else f"{number:,.0f}"

    cells = (
        "all" if item.epoch is None else str(item.epoch),
        stamp(item.start_ms),
        stamp(item.end_ms),
        f"{item.gpu_hours:,.2f}",
        money(item.micro),
        money(item.micro_per_1000_steps),
        amount(item.samples_per_unit),
        amount(item.tokens_per_unit),
    )
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


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
