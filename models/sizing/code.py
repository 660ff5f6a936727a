"""What the code alone says: the one shape in which abstract execution and formulas hand on their findings."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kopt.core.reason import Reason
from kopt.core.units import Bytes, format_bytes
from kopt.core.workload.sizing import AllocationKind, MemoryBreakdown, Method, RankMemory, TraceCoverage
from kopt.tracing.events import EVENT, MODULE, OP, A, B, Event, Rows, Trace
from kopt.tracing.timeline import LARGE_CARD_BYTES, Timeline, replay

KERNELS = ("convolution", "gemm", "attention", "normalisation", "recurrent", "embedding", "optimizer", "memory")
"""Classes of kernels that load a GPU alike; the last is everything bound by moving bytes."""
_CLASSES = (
    ("attention", re.compile(r"scaled_dot_product|flash_attn|flash_attention|efficient_attention|flex_attention")),
    ("convolution", re.compile(r"conv")),
    ("optimizer", re.compile(r"_foreach|_fused_(adam|sgd|adagrad)")),
    ("recurrent", re.compile(r"lstm|gru|rnn")),
    ("embedding", re.compile(r"embedding")),
    ("normalisation", re.compile(r"norm")),
    ("gemm", re.compile(r"(^|::|\.|_)(b|add|badd|addb|scaled_|grouped_|int_)?mm|linear|matmul|einsum|bilinear")),
)
_LEAST_WORKSPACE_SHARE = 0.05
"""Below, workspaces are within what measured runs differ by."""


@dataclass(frozen=True)
class KernelLoad:
    """Operations of one class over the trace: how many, their FLOPs and bytes, and the largest single one."""

    count: int = 0
    flops: int = 0
    bytes: int = 0
    largest_flops: int = 0
    largest_bytes: int = 0


@dataclass(frozen=True)
class CodeEstimate:
    """Memory of one process as the code says it, before anything learned is added.

    ``amounts`` are bytes by kind of figure; ``inputs`` are numbers for the learned part, by name. A formula that knows
    its own uncertainty gives ``spread``, the factor by which it may be off in either direction where nothing like it
    was measured. By ``below`` and ``above`` the truth may lie further off than measured runs were, where what was
    estimated may not be the job.
    """

    method: Method
    coverage: TraceCoverage
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    breakdown: MemoryBreakdown
    inputs: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, KernelLoad] = field(default_factory=dict)
    steps: int = 0
    per_rank: tuple[RankMemory, ...] = ()
    spread: float = 1.0
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    most_share: float | None = None
    """Of the GPU's memory, where an engine limits itself to a share."""
    below: float = 1.0
    above: float = 1.0
    search_bytes: Bytes = Bytes(0)
    """What a search for algorithms may hold on top of the figures above; it is in none of them."""
    workspace_bytes: Bytes = Bytes(0)
    """Of the convolution that takes most while it runs; it is in the figures above."""

    def amount(self, kind: AllocationKind) -> Bytes:
        """The allocator's figure that is comparable with ``kind``; for a process the overhead is still missing."""
        return self.allocated_bytes if kind is AllocationKind.ALLOCATED else self.reserved_bytes


def kernel_class(operation: str) -> str:
    """The class of an operation by its name in PyTorch (``aten::convolution_backward``)."""
    return next((name for name, pattern in _CLASSES if pattern.search(operation)), "memory")


def from_trace(
    trace: Trace,
    *,
    capacity_bytes: int | None = None,
    card_bytes: int = LARGE_CARD_BYTES,
    capability: tuple[int, int] | None = None,
) -> tuple[CodeEstimate, Timeline]:
    """The estimate of a trace, and the timeline of the rank that needs most; amounts as for ``replay``."""
    lines = {
        rank: replay(trace, rank=rank, capacity_bytes=capacity_bytes, card_bytes=card_bytes, capability=capability)
        for rank in trace.ranks
    }
    worst = max(lines, key=lambda rank: lines[rank].peak_reserved_bytes)
    line, rows = lines[worst], trace.of_rank(worst)
    kernels = _kernels(rows, trace.names)
    steps = trace.end.steps if trace.end is not None else 0
    estimate = CodeEstimate(
        Method.ABSTRACT,
        _coverage(trace, line),
        line.peak_allocated_bytes,
        line.peak_reserved_bytes,
        line.breakdown,
        _inputs(trace, line, rows, kernels, steps),
        kernels,
        steps,
        tuple(RankMemory(rank, timeline.peak_reserved_bytes, timeline.breakdown) for rank, timeline in lines.items())
        if len(lines) > 1
        else (),
        assumptions=(
            *trace.assumptions,
            *(f"{stand_in.what}: {stand_in.why}" for stand_in in trace.stand_ins),
            *_workspace_assumptions(line),
            *_search_assumptions(line),
        ),
        warnings=(*trace.warnings, *_warnings(trace, line)),
        reasons=_reasons(trace, line),
        above=1 + _workspace_share(line),
        search_bytes=line.search_bytes,
        workspace_bytes=line.workspace_bytes,
    )
    return estimate, line


def _workspace_share(line: Timeline) -> float:
    """The largest workspace beside everything reserved; 0 where it matters little.

    Which algorithm runs is decided by cuDNN's version, and where the cached segments have other sizes the workspace is
    reserved beside them: by so much more may be needed than the replay shows.
    """
    share = line.workspace_bytes / max(1, int(line.peak_reserved_bytes))
    return share if share > _LEAST_WORKSPACE_SHARE else 0.0


def _workspace_assumptions(line: Timeline) -> list[str]:
    if not _workspace_share(line):
        return []
    return [
        f"convolutions take up to {format_bytes(line.workspace_bytes)} of workspace while they run, as cuDNN 9 "
        "chooses; other versions may choose otherwise, so the interval reaches as much further up"
    ]


def _search_assumptions(line: Timeline) -> list[str]:
    if not line.search_bytes:
        return []
    return [
        f"cudnn.benchmark has every algorithm tried: one in frequencies or of unfolded pictures would hold up to "
        f"{format_bytes(line.search_bytes)} more for a moment, and the interval has room for it"
    ]


def _coverage(trace: Trace, line: Timeline) -> TraceCoverage:
    if not line.peak_reserved_bytes or (trace.end is not None and trace.end.reason == "unsupported"):
        return TraceCoverage.FAILED
    whole = trace.end is not None and trace.end.reason in ("steady", "finished")
    if not whole and not (trace.end is not None and trace.end.steps):
        # Stopped while it was loading or in its first step: what was seen says little about the peak.
        return TraceCoverage.FAILED
    return TraceCoverage.FULL if whole and not line.out_of_memory else TraceCoverage.PARTIAL


def _kernels(rows: Rows, names: Mapping[int, str]) -> dict[str, KernelLoad]:
    done = rows[rows[:, EVENT] == Event.OP]
    ids, where = np.unique(done[:, OP], return_inverse=True)
    classes = [kernel_class(names[item]) for item in ids.tolist()]
    kernels: dict[str, KernelLoad] = {}
    for name in sorted(set(classes)):
        own = done[np.isin(where, [n for n, item in enumerate(classes) if item == name])]
        flops, moved = own[:, A], own[:, B]
        # Python's integers do not overflow where a hostile trace's sums would.
        kernels[name] = KernelLoad(
            len(own), sum(flops.tolist()), sum(moved.tolist()), int(flops.max()), int(moved.max())
        )
    return kernels


def _inputs(
    trace: Trace, line: Timeline, rows: Rows, kernels: Mapping[str, KernelLoad], steps: int
) -> dict[str, float]:
    sizes = rows[rows[:, EVENT] == Event.ALLOC, A]
    total = max(1, sum(kernel.flops for kernel in kernels.values()))
    convolution, empty = kernels.get("convolution", KernelLoad()), KernelLoad()
    allocated = max(1, int(line.peak_allocated_bytes))
    parts = {f"share_{name}": amount / allocated for name, amount in line.breakdown.items()}
    modules = len(np.unique(rows[rows[:, EVENT] == Event.OP, MODULE]))
    parameters = trace.parameters
    return {
        **parts,
        **{f"flops_{name}": kernels.get(name, empty).flops / total for name in ("convolution", "gemm", "attention")},
        "largest_convolution_bytes": _log(convolution.largest_bytes),
        "largest_convolution_flops": _log(convolution.largest_flops),
        "convolutions_per_step": _log(convolution.count / max(1, steps)),
        "operations_per_step": _log(sum(kernel.count for kernel in kernels.values()) / max(1, steps)),
        "flops_per_step": _log(total / max(1, steps)),
        "largest_allocation": _log(int(sizes.max()) if len(sizes) else 0),
        "allocations_per_step": _log(len(sizes) / max(1, steps)),
        "slack_of_blocks": line.peak_allocated_bytes / max(1, int(line.requested_bytes)) - 1,
        "parameter_bytes": _log(parameters.bytes if parameters else 0),
        "trainable_share": parameters.trainable / max(1, parameters.count) if parameters else math.nan,
        "modules": _log(modules),
        "torch": _version(trace.hello.torch),
        "toolkit": _version(trace.hello.cuda or trace.hello.hip or ""),
        "rocm": float(trace.hello.hip is not None),
        "distributed": float(len(trace.ranks) > 1),
    }


def _warnings(trace: Trace, line: Timeline) -> list[str]:
    warnings = [
        f"allocator setting {unknown_setting} does not act in the simulation"
        for unknown_setting in line.unknown_settings
    ]
    if (growth := line.grows()) > 0.01:
        warnings.append(f"memory still grew by {growth:.0%} in the last step: the peak may come later")
    if trace.end is None:
        warnings.append("the script was ended before it had finished; what it allocated until then is counted")
    elif trace.end.error:
        warnings.append(
            f"the script stopped with an error after {trace.end.steps} steps: {_last_line(trace.end.error)}"
        )
    elif trace.end.reason == "limit":
        warnings.append(f"the script reached its limit after {trace.end.steps} steps")
    return warnings


def _reasons(trace: Trace, line: Timeline) -> tuple[Reason, ...]:
    # What the allocator holds beyond tensors is reported separately.
    tensors = [(amount, name) for name, amount in line.breakdown.items() if amount and name != "framework"]
    parts = sorted(tensors, reverse=True)
    breakdown = ", ".join(f"{name} {format_bytes(amount)}" for amount, name in parts[:4])
    when = next((phase for phase in line.phases if phase.allocated_bytes == line.peak_allocated_bytes), None)
    at = f" in {when.name or 'the start'} of step {when.step}" if when is not None else ""
    text = (
        f"Tensors peak at {format_bytes(line.peak_allocated_bytes)}{at} ({breakdown or 'nothing allocated'}); "
        f"PyTorch's allocator reserves {format_bytes(line.peak_reserved_bytes)} for them."
    )
    numbers: dict[str, float | int | str] = {
        "allocated_bytes": int(line.peak_allocated_bytes),
        "reserved_bytes": int(line.peak_reserved_bytes),
        "steps": trace.end.steps if trace.end else 0,
    }
    return (Reason("ABSTRACT_EXECUTION", text, numbers),)


def _last_line(text: str) -> str:
    lines: Sequence[str] = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _log(amount: float) -> float:
    return math.log2(1 + amount)


def _version(text: str) -> float:
    """2.15.0 → 215; NaN where nothing is known."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return float(int(match[1]) * 100 + int(match[2])) if match else math.nan
