"""What the learned part is asked and fitted on: a code estimate on a GPU, and what was measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.core.gpu import GpuModel, Vendor
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.units import Bytes
from kopt.core.workload.sizing import AllocationKind, Method, WorkloadProfile
from kopt.models.sizing.code import CodeEstimate

Array = NDArray[np.float64]
Names = NDArray[np.str_]

_CODE_INPUTS = (
    "share_weights",
    "share_gradients",
    "share_optimizer",
    "share_activations",
    "share_temporary",
    "share_framework",
    "flops_convolution",
    "flops_gemm",
    "flops_attention",
    "largest_convolution_bytes",
    "largest_convolution_flops",
    "convolutions_per_step",
    "operations_per_step",
    "flops_per_step",
    "largest_allocation",
    "allocations_per_step",
    "slack_of_blocks",
    "parameter_bytes",
    "trainable_share",
    "modules",
    "torch",
    "toolkit",
    "rocm",
    "distributed",
)
"""Numbers that a trace brings; what it has not is NaN."""
_PLAN_INPUTS = tuple(
    f"plan_{name}"
    for name in (
        "weights_share",
        "gradients_share",
        "optimizer_share",
        "activations_share",
        "temporary_share",
        "log_total",
        "log_parameters",
        "log_tokens",
        "log_vocabulary_to_hidden",
        "layers",
        "weight_bytes",
        "compute_bytes",
        "trained_share",
        "tensor",
        "pipeline",
        "virtual_stages",
        "context",
        "data",
        "expert",
        "experts",
        "experts_per_token",
        "latent",
        "sequence_parallel",
        "sharding",
        "offloads",
        "recompute",
        "eager_attention",
        "eager_style",
        "dropout",
        "accumulates",
        "serves",
        "assumptions",
        "varying_lengths",
        "offloads_activations",
        "state_space_share",
        "workspace_share",
    )
)
"""Numbers that formulas bring (``analytic.features``)."""
INPUTS = (
    *_CODE_INPUTS,
    *_PLAN_INPUTS,
    "allocated",
    "reserved",
    "fragmentation",
    "analytic",
    "partial",
    "allocated_metric",
    "reserved_metric",
    "gpu_memory",
    "gpu_units",
    "gpu_bandwidth",
    "amd",
    "world_size",
)
"""Columns of the learned part, in order."""


OWN = "own"
"""The source of runs that were measured where answers are wanted."""


@dataclass(frozen=True)
class SizingQuestion:
    """What ``predict`` and ``explain`` are asked. ``metric`` is the process for everyone but a benchmark."""

    code: CodeEstimate
    gpu: str
    world_size: int = 1
    metric: AllocationKind = AllocationKind.PROCESS
    profile: WorkloadProfile | None = None

    @property
    def amount(self) -> Bytes:
        """The allocator's figure that the learned part starts from."""
        return self.code.amount(self.metric)

    @property
    def group(self) -> str:
        """Questions that are calibrated together."""
        return f"{self.code.method.value}-{self.metric.value}"


@dataclass(frozen=True)
class Questions:
    """Questions as columns: ``inputs`` (n, F); ``amounts`` in bytes, ``groups`` and ``gpus`` (n,)."""

    inputs: Array
    amounts: Array
    groups: Names
    gpus: Names

    def __len__(self) -> int:
        return len(self.amounts)

    def where(self, keep: NDArray[np.bool_]) -> "Questions":
        return Questions(self.inputs[keep], self.amounts[keep], self.groups[keep], self.gpus[keep])


@dataclass(frozen=True)
class SizingTable:
    """Measured runs and what their code shows; columns are (n,).

    ``families`` and ``sources`` are left out whole when unseen ones are imitated. ``names`` tell a run again.
    """

    questions: Questions
    measured: Array
    families: Names
    sources: Names
    names: Names

    def __len__(self) -> int:
        return len(self.measured)

    def where(self, keep: NDArray[np.bool_]) -> "SizingTable":
        return SizingTable(
            self.questions.where(keep), self.measured[keep], self.families[keep], self.sources[keep], self.names[keep]
        )


@dataclass(frozen=True)
class MeasuredQuestion:
    """A question with its answer."""

    name: str
    family: str
    source: str
    question: SizingQuestion
    measured: Bytes


def sizing_table(rows: Sequence[MeasuredQuestion]) -> SizingTable:
    """The table of measured questions. Raises ValueError without any, or for amounts of nothing."""
    if not rows:
        raise ValueError("no measured run to learn from")
    if any(measured_question.measured <= 0 or measured_question.question.amount <= 0 for measured_question in rows):
        raise ValueError("a run that used no memory cannot be learned from")
    return SizingTable(
        questions_of([measured_question.question for measured_question in rows]),
        np.array([float(measured_question.measured) for measured_question in rows]),
        np.array([measured_question.family for measured_question in rows]),
        np.array([measured_question.source for measured_question in rows]),
        np.array([measured_question.name for measured_question in rows]),
    )


def questions_of(requests: Sequence[SizingQuestion]) -> Questions:
    """Questions as columns. Raises UnknownGpuError."""
    return Questions(
        np.stack([inputs_of(sizing_question) for sizing_question in requests]),
        np.array([float(sizing_question.amount) for sizing_question in requests]),
        np.array([sizing_question.group for sizing_question in requests]),
        np.array([find_gpu(sizing_question.gpu).name for sizing_question in requests]),
    )


def inputs_of(question: SizingQuestion) -> Array:
    """The row (F,) of a question; amounts are logarithms. Raises UnknownGpuError."""
    code, gpu = question.code, find_gpu(question.gpu)
    allocated, reserved = max(1, int(code.allocated_bytes)), max(1, int(code.reserved_bytes))
    values = {
        **code.inputs,
        "allocated": math.log2(allocated),
        "reserved": math.log2(reserved),
        "fragmentation": reserved / allocated - 1,
        "analytic": float(code.method is Method.ANALYTIC),
        "partial": float(code.coverage.value != "full"),
        "allocated_metric": float(question.metric is AllocationKind.ALLOCATED),
        "reserved_metric": float(question.metric is AllocationKind.RESERVED),
        "world_size": math.log2(question.world_size),
        **_gpu_inputs(gpu),
    }
    return np.array([values.get(name, math.nan) for name in INPUTS], dtype=np.float64)


def _gpu_inputs(gpu: GpuModel) -> dict[str, float]:
    return {
        "gpu_memory": math.log2(gpu.memory_bytes),
        "gpu_units": float(gpu.compute_units),
        "gpu_bandwidth": gpu.memory_gbps,
        "amd": float(gpu.vendor is Vendor.AMD),
    }
