"""The answer of ``/v1/sizing``, declared once for the endpoint and its clients. Standard library only.

The endpoint writes it from ``core.workload.sizing.SizingEstimate``, as the command line does.
"""

from dataclasses import dataclass, replace
from typing import Literal

from kopt.core.workload.executor import Executor
from kopt.core.workload.gpu_count import CountPoint, GpuCountAdvice
from kopt.core.workload.sizing import ShareKind
from kopt.serving.contract.common import SCHEMA, ModelOut, ReasonOut
from kopt.serving.contract.reading import added_later
from kopt.serving.contract.size_advice import SizeAdvice

# Docstrings of these classes are published in docs/openapi.json, and their names are.


@dataclass(frozen=True)
class BreakdownOut:
    """Bytes at the peak by role."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    temporary: int
    framework: int


@dataclass(frozen=True)
class MemoryOut:
    """Bytes per GPU process; nulls where nothing is known, the reasons say why."""

    peak_bytes: int | None
    low_bytes: int | None
    high_bytes: int | None
    probability: float
    allocated_bytes: int | None
    reserved_bytes: int | None
    process_bytes: int | None
    breakdown: BreakdownOut


@dataclass(frozen=True)
class ComputeOut:
    """SM or CU activity, 0 to 1."""

    activity: float | None
    low: float | None
    high: float | None
    reasons: tuple[ReasonOut, ...] = ()


@dataclass(frozen=True)
class RankOut:
    rank: int
    peak_bytes: int
    breakdown: BreakdownOut


@dataclass(frozen=True)
class ShareOut:
    """What to ask for; ``profile`` names a partition, ``executor`` what hands out shares of a GPU in the cluster."""

    kind: Literal["whole", "fraction", "partition", "none"]
    bytes: int
    gpu: str
    milli_gpu: int
    profile: str
    count: int
    executor: Literal["unknown", "none", "kai", "hami", "volcano"] = "unknown"


@dataclass(frozen=True)
class CountPointOut:
    """The best split on so many GPUs; ``marginal_efficiency`` is what each GPU more than before brings."""

    gpus: int
    split: str
    fit_probability: float
    step_seconds: float
    step_low_seconds: float
    step_high_seconds: float
    tokens_per_second: float
    speedup: float
    marginal_efficiency: float
    gpu_hours_per_billion_tokens: float


@dataclass(frozen=True)
class PatchOperationOut:
    """An operation of a JSON Patch (RFC 6902) on the manifest that was asked about."""

    op: Literal["add", "replace", "remove"]
    path: str
    value: int | str | list[str]


@dataclass(frozen=True)
class GpuCountOut:
    """``core.workload.gpu_count.GpuCountAdvice``: how many of a job's GPUs are useful, and the JSON Patch for fewer."""

    model: str
    gpu: str
    framework: str
    requested_gpus: int
    useful_gpus: int | None
    advised_gpus: int
    threshold: float
    probability: float
    points: tuple[CountPointOut, ...]
    reasons: tuple[ReasonOut, ...]
    settings: str
    patch: tuple[PatchOperationOut, ...]
    no_patch: str

    @property
    def advice(self) -> GpuCountAdvice:
        points = tuple(CountPoint(**vars(point)) for point in self.points)
        patch = tuple(dict(vars(operation)) for operation in self.patch)
        return GpuCountAdvice(**{**vars(self), "points": points, "patch": patch})


@dataclass(frozen=True, kw_only=True)
class SizingResponse:
    """``core.sizing.SizingEstimate``, the document of ``kopt estimate -o json``."""

    schema: Literal["kopt/v1"] = SCHEMA
    script: str
    gpu: str
    memory: MemoryOut
    compute: ComputeOut
    per_rank: tuple[RankOut, ...]
    method: Literal["abstract", "analytic", "profile", "combined"]
    trace: Literal["full", "partial", "failed"]
    fits: dict[str, bool]
    recommendation: ShareOut
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    reasons: tuple[ReasonOut, ...]
    confidence: float
    fallback: bool
    observed_peak_bytes: int
    seconds: float
    model: ModelOut
    gpu_count: GpuCountOut | None = added_later(absent=None)


@dataclass(frozen=True)
class AskedOut:
    """What the workload asks for itself; nulls where it does not say."""

    gpus: int | None
    memory_mib: int | None
    fraction: float | None


@dataclass(frozen=True)
class SizeAdviceOut:
    """The newest answer of ``/v1/sizing`` for one job type; its command is kept without secrets."""

    name: str
    job_type: str
    image: str
    asked: AskedOut
    made_at_s: float
    estimate: SizingResponse
    namespace: str = ""
    """Whose jobs it is about; empty where the question named none."""

    @property
    def advice(self) -> SizeAdvice:
        advice = size_advice(self.name, self.image, self.asked, self.made_at_s, self.estimate)
        return replace(advice, namespace=self.namespace)


def size_advice(name: str, image: str, requested: AskedOut, made_at_s: float, estimate: SizingResponse) -> SizeAdvice:
    """What an estimate, made at a moment, means for a workload."""
    memory, share = estimate.memory, estimate.recommendation
    return SizeAdvice(
        name,
        estimate.script,
        image,
        estimate.gpu,
        requested.gpus,
        requested.memory_mib,
        requested.fraction,
        memory.peak_bytes,
        memory.low_bytes,
        memory.high_bytes,
        dict(vars(memory.breakdown)),
        ShareKind(share.kind),
        share.bytes,
        share.milli_gpu,
        share.profile,
        share.count,
        estimate.method,
        estimate.confidence,
        estimate.reasons,
        made_at_s,
        share.gpu,
        Executor(share.executor),
        gpu_count=None if estimate.gpu_count is None else estimate.gpu_count.advice,
    )
