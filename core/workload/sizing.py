"""GPU memory and compute need of a job: what is asked, what is answered, and what a dry run has shown.

The document of ``kopt estimate -o json`` is ``SizingEstimate.to_dict()``. All memory is per GPU process, in bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from html import escape
from typing import Any

from kopt.core.gpu import GpuModel
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import MIB, WHOLE_GPU, Bytes, MilliGpu, format_bytes
from kopt.core.workload.executor import Executor
from kopt.core.workload.gpu_count import GpuCountAdvice

SCHEMA = "kopt/v1"


class Method(StrEnum):
    """How an estimate came about."""

    ABSTRACT = "abstract"
    """The script ran on a fake device and its allocations were replayed."""
    ANALYTIC = "analytic"
    """Formulas over the arguments and configuration; nothing ran."""
    PROFILE = "profile"
    """Measured in a dry run; the code said nothing."""
    COMBINED = "combined"
    """Code and dry run together."""


class TraceCoverage(StrEnum):
    """How far the script ran on the fake device."""

    FULL = "full"
    """To steady training steps, or to its end."""
    PARTIAL = "partial"
    """Something was allocated, but no steady step was seen."""
    FAILED = "failed"
    """It could not be run; an analytic estimate answers."""


class AllocationKind(StrEnum):
    """Where a figure of memory was taken: they differ, and only equal kinds may be compared."""

    ALLOCATED = "allocated"
    """``torch.cuda.max_memory_allocated``: tensors."""
    RESERVED = "reserved"
    """``torch.cuda.max_memory_reserved``: tensors and what the caching allocator keeps."""
    PROCESS = "process"
    """What nvidia-smi or rocm-smi show for the process: the driver's context and libraries as well."""


@dataclass(frozen=True)
class MemoryBreakdown:
    """What the memory holds at the peak, by role. ``framework`` is the driver's context, libraries and cached blocks.

    Raises ValueError for a negative part.
    """

    weights: Bytes = Bytes(0)
    gradients: Bytes = Bytes(0)
    optimizer: Bytes = Bytes(0)
    activations: Bytes = Bytes(0)
    temporary: Bytes = Bytes(0)
    framework: Bytes = Bytes(0)

    def __post_init__(self) -> None:
        for name, amount in self.items():
            if amount < 0:
                raise ValueError(f"{name} cannot be {amount} bytes")

    def items(self) -> Iterator[tuple[str, Bytes]]:
        """Names and amounts, in the order in which they are shown."""
        return ((field.name, getattr(self, field.name)) for field in fields(self))

    @property
    def total(self) -> Bytes:
        return Bytes(sum(amount for _, amount in self.items()))

    @property
    def tensors(self) -> Bytes:
        """All but the framework's part: comparable with ``max_memory_allocated``."""
        return Bytes(self.total - self.framework)

    def to_dict(self) -> dict[str, int]:
        return {name: int(amount) for name, amount in self.items()}


@dataclass(frozen=True)
class RankMemory:
    """One process of a distributed job at its peak."""

    rank: int
    peak_bytes: Bytes
    breakdown: MemoryBreakdown

    def to_dict(self) -> dict[str, Any]:
        return {"rank": self.rank, "peak_bytes": int(self.peak_bytes), "breakdown": self.breakdown.to_dict()}


class ShareKind(StrEnum):
    """What a job is advised to ask for; NONE: no advice, as its need is not known or no GPU holds it."""

    WHOLE = "whole"
    FRACTION = "fraction"
    PARTITION = "partition"
    NONE = "none"


@dataclass(frozen=True)
class RequestedGpus:
    """What a pod asks for: whole GPUs, or a share of one by memory (MiB) or fraction; None where it does not say."""

    gpus: int | None = None
    memory_mib: int | None = None
    fraction: float | None = None

    @property
    def is_share(self) -> bool:
        return bool(self.memory_mib or self.fraction)

    def memory_bytes(self, gpu: GpuModel) -> Bytes:
        """Memory that it gives each process on ``gpu``."""
        if self.memory_mib:
            return Bytes(self.memory_mib * MIB)
        milli = round(self.fraction * WHOLE_GPU) if self.fraction else WHOLE_GPU
        return Bytes(gpu.usable_bytes * milli // WHOLE_GPU)

    def milli_gpu(self, gpu: GpuModel | None) -> MilliGpu | None:
        """The request in thousandths of a GPU; None where it does not say, nor for memory of an unknown GPU."""
        if self.memory_mib:
            return None if gpu is None else MilliGpu(min(WHOLE_GPU, share_of(Bytes(self.memory_mib * MIB), gpu)))
        if self.fraction:
            return MilliGpu(round(self.fraction * WHOLE_GPU))
        return MilliGpu(self.gpus * WHOLE_GPU) if self.gpus else None

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


def share_of(amount: Bytes, gpu: GpuModel) -> MilliGpu:
    """Thousandths of a GPU's usable memory that hold an amount, rounded up."""
    return MilliGpu(-(-amount * WHOLE_GPU // gpu.usable_bytes))


@dataclass(frozen=True)
class Recommendation:
    """What one pod is advised to ask for: ``count`` times ``bytes`` of GPU memory, as ``milli_gpu`` of ``gpu`` or as
    the partition ``profile``. ``reason`` says why; ``executor`` hands out shares where it runs."""

    kind: ShareKind
    bytes: Bytes
    gpu: str = ""
    milli_gpu: MilliGpu = WHOLE_GPU
    profile: str = ""
    count: int = 1
    reason: Reason = Reason("ADVISED", "")
    executor: Executor = Executor.UNKNOWN

    def total_milli_gpu(self, gpu: GpuModel) -> MilliGpu:
        """All that is advised, in thousandths of ``gpu``; a partition counts by its memory."""
        return share_of(self.bytes, gpu) if self.kind is ShareKind.PARTITION else MilliGpu(self.milli_gpu * self.count)

    def to_dict(self) -> dict[str, Any]:
        """Without the reason, which stands among those of the answer."""
        return {
            "kind": self.kind.value,
            "bytes": int(self.bytes),
            "gpu": self.gpu,
            "milli_gpu": int(self.milli_gpu),
            "profile": self.profile,
            "count": self.count,
            "executor": self.executor.value,
        }


@dataclass(frozen=True)
class WorkloadProfile:
    """What a dry run has shown of a job type on one kind of GPU.

    ``peak_bytes`` is the most that the process was seen to use, as nvidia-smi or rocm-smi show it; ``activity`` and
    ``bandwidth`` are the mean shares, 0 to 1, of busy SMs or CUs and of the memory bandwidth while it was steady.
    ``steps`` counts training steps seen, where they are known. Raises ValueError for figures out of range.
    """

    gpu: str
    peak_bytes: Bytes
    duration_s: float
    samples: int
    steady: bool = False
    activity: float | None = None
    bandwidth: float | None = None
    steps: int | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if self.peak_bytes < 0 or not self.duration_s >= 0 or self.samples < 0:
            raise ValueError("a profile's peak, duration and number of samples cannot be negative")
        for name, share in (("activity", self.activity), ("bandwidth", self.bandwidth)):
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{name} is a share between 0 and 1, not {share}")

    def to_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class SizingEstimate:
    """The answer. ``memory`` predicts the peak of the process in bytes, per GPU, on the rank that needs most.

    ``allocated_bytes`` and ``reserved_bytes`` are the caching allocator's own figures. ``fits`` compares the upper end
    of the interval with the usable memory of GPUs of the catalogue. ``compute`` predicts SM or CU activity, 0 to 1.
    """

    script: str
    gpu: str
    memory: Prediction
    allocated_bytes: Bytes | None
    reserved_bytes: Bytes | None
    breakdown: MemoryBreakdown
    method: Method
    trace: TraceCoverage
    recommendation: Recommendation
    fits: Mapping[str, bool] = field(default_factory=dict)
    compute: Prediction | None = None
    per_rank: tuple[RankMemory, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    seconds: float = 0.0
    observed_peak_bytes: Bytes = Bytes(0)
    gpu_count: GpuCountAdvice | None = None
    """How many of its GPUs are useful, where its trainer's arguments say how it scales and that was computed."""

    @property
    def model(self) -> ModelVersion:
        return self.memory.model

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; refusals have null figures and their reason first."""
        return {
            "schema": SCHEMA,
            "script": self.script,
            "gpu": self.gpu,
            "memory": self._memory(),
            "compute": self._compute(),
            "per_rank": [rank_memory.to_dict() for rank_memory in self.per_rank],
            "method": self.method.value,
            "trace": self.trace.value,
            "fits": dict(self.fits),
            "recommendation": self.recommendation.to_dict(),
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
            "reasons": [reason.to_dict() for reason in self.reasons],
            "confidence": self.memory.confidence,
            "fallback": self.memory.fallback,
            "observed_peak_bytes": int(self.observed_peak_bytes),
            "seconds": round(self.seconds, 3),
            "model": self.model.to_dict(),
            "gpu_count": None if self.gpu_count is None else self.gpu_count.to_dict(),
        }

    def _repr_html_(self) -> str:
        """For notebooks: what the peak is made of, and what to ask for; texts are escaped."""
        figures = self._memory()
        if figures["peak_bytes"] is None:
            why = self.memory.reasons[0].message if self.memory.reasons else "its need is not known"
            return f"<p>{escape(self.script)}: {escape(why)}</p>"
        peak, low, high = (format_bytes(figures[name] or 0) for name in ("peak_bytes", "low_bytes", "high_bytes"))
        head = f"{self.script} on {self.gpu}: {peak}, {self.memory.probability:.0%} between {low} and {high}"
        parts = [(name, amount) for name, amount in self.breakdown.items() if amount]
        rows = "".join(_html_bar(name, amount, self.breakdown.total) for name, amount in parts)
        why = self.recommendation.reason.message
        foot = f'<tfoot><tr><td colspan="3">{escape(why)}</td></tr></tfoot>' if why else ""
        return f"<table><caption>{escape(head)}</caption><tbody>{rows}</tbody>{foot}</table>"

    def _memory(self) -> dict[str, Any]:
        peak = _whole(self.memory.value)
        return {
            "peak_bytes": peak,
            "low_bytes": _whole(self.memory.low),
            "high_bytes": _whole(self.memory.high),
            "probability": self.memory.probability,
            "allocated_bytes": self.allocated_bytes,
            "reserved_bytes": self.reserved_bytes,
            "process_bytes": peak,
            "breakdown": self.breakdown.to_dict(),
        }

    def _compute(self) -> dict[str, Any]:
        prediction = self.compute
        if prediction is None or prediction.refused:
            return {"activity": None, "low": None, "high": None}
        return {
            "activity": prediction.value,
            "low": prediction.low,
            "high": prediction.high,
            "reasons": [reason.to_dict() for reason in prediction.reasons],
        }


def _html_bar(name: str, amount: Bytes, total: Bytes) -> str:
    share = amount / total
    bar = f'<div style="width: {share * 10:.2f}em; height: .8em; background: currentColor; opacity: .6"></div>'
    return f"<tr><th>{escape(name)}</th><td>{format_bytes(amount)}</td><td>{bar}</td></tr>"


def _whole(amount: float | None) -> int | None:
    return None if amount is None else round(amount)
