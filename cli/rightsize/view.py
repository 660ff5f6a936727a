"""What ``kopt rightsize plan`` and ``apply`` print."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kopt.cli.output import Answer, column
from kopt.controllers.rightsizing.candidates import Candidate, RunningWorkload
from kopt.core.reason import Reason
from kopt.core.units import GIB, format_bytes
from kopt.core.workload.rightsizing import Batch, Bounds, Lever

if TYPE_CHECKING:
    from kopt.cli.rightsize.widths import WidthCandidate
    from kopt.policies.rightsizing.watch import Decision


@dataclass(frozen=True)
class PlanRow:
    """One resource of one container, of every pod of a workload, or its width. Amounts are milli-CPU or bytes of one
    pod; of a width, GPUs of all of them."""

    namespace: str = column("namespace")
    workload: str = column("workload")
    container: str = column("container", drop=3)
    resource: str = column("resource")
    pods: int = column("pods", drop=2)
    used: str = column("used", drop=4)
    now: str = column("now")
    then: str = column("then")
    freed: str = column("gives back")
    accepted: bool | None = column("accepted", drop=1)
    why: str = column("why", drop=5)
    code: str = column("code", wide=True)
    request_before: int | None = column("request before", wide=True)
    request_after: int | None = column("request after", wide=True)
    limit_before: int | None = column("limit before", wide=True)
    limit_after: int | None = column("limit after", wide=True)
    freed_amount: int = column("freed", wide=True)


@dataclass(frozen=True)
class AppliedRow:
    """How a change ended; the slowdown is a ratio less one, null where no step was observed after it."""

    namespace: str = column("namespace")
    workload: str = column("workload")
    container: str = column("container")
    resource: str = column("resource")
    before: str = column("before")
    after: str = column("after")
    action: str = column("action")
    slowdown: float | None = column("slower by", show=lambda ratio: f"{ratio:+.1%}")
    slowdown_low: float | None = column("at least", wide=True)
    slowdown_high: float | None = column("at most", wide=True)
    code: str = column("code", wide=True)
    why: str = column("why")


def plan_answer(
    candidates: Sequence[Candidate],
    refusals: Mapping[int, str],
    widths: "Sequence[WidthCandidate]" = (),
    *,
    everything: bool,
    is_measured: bool = True,
) -> Answer:
    """``is_measured``: CPU and memory were looked at.
    ``refusals``: why the API server would not take a change, by the index of its candidate."""
    shown = [
        (candidate, refusals.get(index))
        for index, candidate in enumerate(candidates)
        if everything or candidate.resize is not None
    ]
    rows = [_row(candidate, refusal) for candidate, refusal in shown]
    shown_widths = [each for each in widths if everything or each.proposal is not None]
    rows += [_width_row(each) for each in shown_widths]
    accepted = [each for index, each in enumerate(candidates) if each.resize is not None and index not in refusals]
    cpu = sum(each.freed for each in accepted if each.lever is Lever.CPU) / 1000
    memory = sum(each.freed for each in accepted if each.lever is Lever.MEMORY)
    remarks = []
    if accepted:
        remarks.append(f"{len(accepted)} changes would give back {cpu:g} CPUs and {memory / GIB:.1f} GiB of requests.")
        remarks.append("One at a time: kopt rightsize apply KIND/NAME -n NAMESPACE, which watches and undoes.")
    if hidden := len(candidates) + len(widths) - len(rows):
        remarks.append(f"{hidden} more are left as they are (--all says why).")
    if not is_measured:
        remarks.append("Widths alone: CPU and memory were not looked at, which --prometheus does.")
    header = {"freed_cpus": cpu, "freed_bytes": memory}
    return Answer("changes", rows, header=header, hide_header=True, remarks=remarks, empty="there is nothing to change")


def _row(candidate: Candidate, refusal: str | None) -> PlanRow:
    lever, resize, bounds = candidate.lever, candidate.resize, candidate.bounds
    reason = candidate.result if isinstance(candidate.result, Reason) else None
    after = bounds if resize is None else resize.after
    return PlanRow(
        candidate.workload.namespace,
        candidate.workload.label,
        candidate.container,
        lever.value,
        len(candidate.pods),
        _used(candidate),
        _bounds(lever, bounds),
        "" if resize is None else _bounds(lever, resize.after),
        _amount(lever, candidate.freed) if resize is not None else "",
        None if resize is None else refusal is None,
        refusal or ("" if reason is None else reason.message),
        "" if reason is None else reason.code,
        bounds.request,
        after.request,
        bounds.limit,
        after.limit,
        candidate.freed,
    )


def _width_row(candidate: "WidthCandidate") -> PlanRow:
    job, proposal = candidate.job, candidate.proposal
    reason = candidate.result if isinstance(candidate.result, Reason) else candidate.result.reason
    gpus = 0 if job is None or proposal is None else (proposal.change.before - proposal.change.after) * job.gpus
    return PlanRow(
        candidate.workload.namespace,
        candidate.workload.label,
        "",
        "width",
        len(candidate.pods),
        "",
        "" if job is None else f"{job.width} workers",
        "" if proposal is None else f"{proposal.change.after} workers",
        f"{gpus:+d} GPUs" if gpus else "",
        None,
        reason.message,
        reason.code,
        None,
        None,
        None,
        None,
        gpus,
    )


def applied_width_answer(candidate: "WidthCandidate", decision: "Decision") -> Answer:
    """How a change of width ended: slower is GPU time for a sample."""
    proposal = candidate.proposal
    assert proposal is not None
    change = "", "width", f"{proposal.change.before} workers", f"{proposal.change.after} workers"
    row = _applied_row(candidate.workload, change, decision)
    fixed = proposal.change.batch is Batch.FIXED
    compared = "step time × workers: all workers' batch stays" if fixed else "step time: each worker's batch stays"
    return Answer("changes", [row], remarks=[f"Compared is GPU time for a sample, by {compared}, as was said."])


def applied_answer(candidate: Candidate, decision: "Decision") -> Answer:
    """With what to change in the template, for pods that are made later."""
    assert candidate.resize is not None
    resize = candidate.resize
    before, after = (_bounds(resize.lever, bounds) for bounds in (resize.before, resize.after))
    row = _applied_row(candidate.workload, (resize.container, resize.lever.value, before, after), decision)
    remarks = []
    if decision.action.value == "keep":
        remarks.append(f"Pods made later have their template's size; for these, too: {_template(candidate)}")
    return Answer("changes", [row], remarks=remarks)


def _applied_row(workload: RunningWorkload, change: tuple[str, str, str, str], decision: "Decision") -> AppliedRow:
    """``change``: container, what of it, before and after."""
    interval = decision.slowdown
    is_measured = interval.low > -1
    return AppliedRow(
        workload.namespace,
        workload.label,
        *change,
        decision.action.value,
        interval.estimate if is_measured else None,
        interval.low if is_measured else None,
        interval.high if is_measured else None,
        decision.reason.code,
        decision.reason.message,
    )


def _template(candidate: Candidate) -> str:
    """The resources that belong into the template."""
    from kopt.cluster.workloads.pod_resize import resize_patch

    assert candidate.resize is not None
    return json.dumps(resize_patch(candidate.resize)["spec"]["containers"][0])


def _used(candidate: Candidate) -> str:
    use = candidate.use
    if use is None:
        return ""
    if candidate.lever is Lever.MEMORY:
        return format_bytes(int(use.memory_max_bytes))
    return f"{use.cpu_p95 / 1000:.2f}, at most {use.cpu_max / 1000:.2f}"


def _bounds(lever: Lever, bounds: Bounds) -> str:
    if bounds.limit is None or bounds.limit == bounds.request:
        return _amount(lever, bounds.request)
    return f"{_amount(lever, bounds.request)}, at most {_amount(lever, bounds.limit)}"


def _amount(lever: Lever, amount: int | None) -> str:
    if amount is None:
        return "none"
    return f"{amount / 1000:g}" if lever is Lever.CPU else format_bytes(amount)
