"""How an estimate is shown to people: bars, interval, GPUs that hold it, reasons; and as rows for spreadsheets."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.output import Answer, Format, column
from kopt.core.units import format_bytes

if TYPE_CHECKING:
    from kopt.core.sizing import SizingEstimate

_BAR = 32
_GPUS_SHOWN = 8


@dataclass(frozen=True)
class PartRow:
    """One part of the memory at the peak."""

    part: str = column("at the peak")
    size: int = column("memory", show=format_bytes)
    share: float = column("share", show=lambda share: f"{share:.0%}")
    bar: str = column("")


@dataclass(frozen=True)
class SummaryRow:
    """The whole estimate in one line, for spreadsheets."""

    script: str
    gpu: str
    peak_bytes: float | None
    low_bytes: float | None
    high_bytes: float | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    recommended_kind: str
    recommended_bytes: int
    fits: bool | None
    activity: float | None
    method: str
    trace: str
    model: str
    seconds: float


def answer(found: "SizingEstimate", plot: Path | None, output: Format) -> Answer:
    """What is printed."""
    if output is Format.CSV:
        return Answer("estimates", [_summary(found)])
    facts = {"script": found.script, "GPU": found.gpu, **_figures(found)}
    empty = "no size could be told"
    return Answer(
        "breakdown", _parts(found), facts, notes=_notes(found, plot), document=found.to_dict(), empty=empty,
        title="GPU memory" + (", each process" if len(found.per_rank) > 1 or found.recommendation.count > 1 else ""),
    )  # fmt: skip


def _figures(found: "SizingEstimate") -> dict[str, str]:
    memory = found.memory
    if memory.value is None:
        # Why it could not be run says more than that nothing is known.
        why = found.warnings[0] if found.warnings else memory.reasons[0].message
        return {"peak": f"not known: {why}"}
    low, high = format_bytes(int(memory.low or 0)), format_bytes(int(memory.high or 0))
    figures = {"peak": f"{format_bytes(int(memory.value))}, {memory.probability:.0%} between {low} and {high}"}
    if found.allocated_bytes is not None:
        reserved = format_bytes(found.reserved_bytes or 0)
        figures["PyTorch"] = f"{format_bytes(found.allocated_bytes)} allocated, {reserved} reserved"
    if found.compute is not None and found.compute.low is not None and found.compute.high is not None:
        figures["SM/CU activity"] = f"{found.compute.low:.0%} to {found.compute.high:.0%}"
    figures["ask for"] = _asked(found)
    figures["from"] = f"{found.method.value}, {found.trace.value} trace, {found.seconds:.1f} s"
    return figures


def _asked(found: "SizingEstimate") -> str:
    share = found.recommendation
    if share.kind.value == "partition":
        return f"{share.profile} of {share.gpu} ({format_bytes(share.bytes)})"
    if share.kind.value == "fraction":
        return f"{share.milli_gpu / 1000:g} of one {share.gpu} ({format_bytes(share.bytes)})"
    return f"{share.count} × {share.gpu} ({format_bytes(share.bytes)} each)"


def _parts(found: "SizingEstimate") -> Sequence[PartRow]:
    total = int(found.breakdown.total)
    if not total:
        return []
    return [
        PartRow(name, int(amount), amount / total, "█" * max(round(_BAR * amount / total), 1 if amount else 0))
        for name, amount in found.breakdown.items()
        if amount
    ]


def _notes(found: "SizingEstimate", plot: Path | None) -> list[str]:
    holds = [name for name, held in found.fits.items() if held]
    not_held = [name for name, held in found.fits.items() if not held]
    notes = []
    if found.fits:
        notes.append(f"fits: {_listed(holds)}; not: {_listed(not_held)}")
    notes += [f"{one.rank}: {format_bytes(one.peak_bytes)} reserved" for one in found.per_rank[:8]]
    notes += [f"why: {reason.message}" for reason in found.reasons]
    notes += [f"assumed: {text}" for text in found.assumptions]
    notes += [f"warning: {text}" for text in found.warnings]
    return [*notes, *([f"drawn: {plot}"] if plot is not None else [])]


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "none"
    more = len(names) - _GPUS_SHOWN
    return ", ".join(names[:_GPUS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _summary(found: "SizingEstimate") -> SummaryRow:
    memory, busy = found.memory, found.compute
    return SummaryRow(
        found.script, found.gpu, memory.value, memory.low, memory.high, found.allocated_bytes, found.reserved_bytes,
        found.recommendation.kind.value, int(found.recommendation.bytes), found.fits.get(found.gpu),
        busy.value if busy is not None else None, found.method.value, found.trace.value,
        f"{found.model.name} {found.model.version}", round(found.seconds, 3),
    )  # fmt: skip
