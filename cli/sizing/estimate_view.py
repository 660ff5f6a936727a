"""How an estimate is shown to people: bars, interval, GPUs that hold it, reasons; and as rows for spreadsheets."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.output import Answer, Format, column
from kopt.core.units import format_bytes
from kopt.core.workload.executor import IF_SHARED, Executor

if TYPE_CHECKING:
    from kopt.cli.sizing.whole_jobs import WholeJob
    from kopt.core.workload.sizing import SizingEstimate

_BAR = 32
_MAX_GPUS = 8


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


def answer(
    sizing_estimate: "SizingEstimate", plot: Path | None, output: Format, job: "WholeJob | None" = None
) -> Answer:
    """What is printed; of a ``job`` the figures of all its pods in front of those of one process."""
    if output is Format.CSV:
        return Answer("estimates", [_summary(sizing_estimate)])
    figures = {"script": sizing_estimate.script, "GPU": sizing_estimate.gpu, **_figures(sizing_estimate)}
    header = {**({} if job is None else _of_job(job)), **figures}
    empty = "no size could be determined"
    return Answer(
        "breakdown",
        _parts(sizing_estimate),
        header,
        remarks=[*_remarks(sizing_estimate, plot), *(f"assumed: {text}" for text in (job.assumptions if job else ()))],
        document=sizing_estimate.to_dict() | ({} if job is None else {"job": job.to_dict()}),
        empty=empty,
        title="GPU memory"
        + (", each process" if len(sizing_estimate.per_rank) > 1 or sizing_estimate.recommendation.count > 1 else ""),
    )


def _of_job(job: "WholeJob") -> dict[str, str]:
    """The job, each set of its pods, and the sum."""
    rows = {"job": f"{job.kind} {job.name}"}
    for item in job.roles:
        has = f"{item.role.pods} × {_gpus(item.role.gpus)}"
        processes = f"{item.code.world_size} processes in all, " if item.code.world_size > 1 else ""
        advice = item.estimate.recommendation
        request = advice.reason.message if advice.kind.value == "none" else f"each pod: {_request(item.estimate)}"
        rows[item.role.name] = f"{has}, {processes}{request}"
    requested, advised = sum(item.requested for item in job.roles), sum(item.advised for item in job.roles)
    fewer = f", {_gpus(advised)} would do" if advised < requested else ""
    return rows | {"all pods": f"{_gpus(requested)}{fewer}"}


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _figures(sizing_estimate: "SizingEstimate") -> dict[str, str]:
    memory = sizing_estimate.memory
    if memory.value is None:
        # Why it could not be run says more than that nothing is known.
        why = sizing_estimate.warnings[0] if sizing_estimate.warnings else memory.reasons[0].message
        return {"peak": f"not known: {why}"}
    low, high = format_bytes(int(memory.low or 0)), format_bytes(int(memory.high or 0))
    figures = {"peak": f"{format_bytes(int(memory.value))}, {memory.probability:.0%} between {low} and {high}"}
    if sizing_estimate.allocated_bytes is not None:
        reserved = format_bytes(sizing_estimate.reserved_bytes or 0)
        figures["PyTorch"] = f"{format_bytes(sizing_estimate.allocated_bytes)} allocated, {reserved} reserved"
    if (
        sizing_estimate.compute is not None
        and sizing_estimate.compute.low is not None
        and sizing_estimate.compute.high is not None
    ):
        figures["SM/CU activity"] = f"{sizing_estimate.compute.low:.0%} to {sizing_estimate.compute.high:.0%}"
    figures["ask for"] = _request(sizing_estimate)
    figures["from"] = (
        f"{sizing_estimate.method.value}, {sizing_estimate.trace.value} trace, {sizing_estimate.seconds:.1f} s"
    )
    return figures


def _request(sizing_estimate: "SizingEstimate") -> str:
    share = sizing_estimate.recommendation
    if share.kind.value == "none":
        return f"nothing. {share.reason.message}"
    if share.kind.value == "partition":
        return f"{share.profile} of {share.gpu} ({format_bytes(share.bytes)})"
    if share.kind.value == "fraction":
        depends = f", {IF_SHARED}" if share.executor is Executor.UNKNOWN else ""
        return f"{share.milli_gpu / 1000:g} of one {share.gpu} ({format_bytes(share.bytes)}){depends}"
    return f"{share.count} × {share.gpu} ({format_bytes(share.bytes)} each)"


def _parts(sizing_estimate: "SizingEstimate") -> Sequence[PartRow]:
    total = int(sizing_estimate.breakdown.total)
    if not total:
        return []
    return [
        PartRow(name, int(amount), amount / total, "█" * max(round(_BAR * amount / total), 1 if amount else 0))
        for name, amount in sizing_estimate.breakdown.items()
        if amount
    ]


def _remarks(sizing_estimate: "SizingEstimate", plot: Path | None) -> list[str]:
    holds = [name for name, held in sizing_estimate.fits.items() if held]
    not_held = [name for name, held in sizing_estimate.fits.items() if not held]
    remarks = []
    if sizing_estimate.fits:
        remarks.append(f"fits: {_listed(holds)}; not: {_listed(not_held)}")
    remarks += [
        f"{rank_memory.rank}: {format_bytes(rank_memory.peak_bytes)} reserved"
        for rank_memory in sizing_estimate.per_rank[:8]
    ]
    remarks += [f"why: {reason.message}" for reason in sizing_estimate.reasons]
    remarks += [f"assumed: {text}" for text in sizing_estimate.assumptions]
    remarks += [f"warning: {text}" for text in sizing_estimate.warnings]
    return [*remarks, *([f"drawn: {plot}"] if plot is not None else [])]


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "none"
    more = len(names) - _MAX_GPUS
    return ", ".join(names[:_MAX_GPUS]) + (f" and {more} more" if more > 0 else "")


def _summary(sizing_estimate: "SizingEstimate") -> SummaryRow:
    memory, busy = sizing_estimate.memory, sizing_estimate.compute
    return SummaryRow(
        sizing_estimate.script,
        sizing_estimate.gpu,
        memory.value,
        memory.low,
        memory.high,
        sizing_estimate.allocated_bytes,
        sizing_estimate.reserved_bytes,
        sizing_estimate.recommendation.kind.value,
        int(sizing_estimate.recommendation.bytes),
        sizing_estimate.fits.get(sizing_estimate.gpu),
        busy.value if busy is not None else None,
        sizing_estimate.method.value,
        sizing_estimate.trace.value,
        f"{sizing_estimate.model.name} {sizing_estimate.model.version}",
        round(sizing_estimate.seconds, 3),
    )
