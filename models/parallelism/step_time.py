"""A plan on a cluster as the times that its parts would take at the peaks of the hardware (Williams et al. 2009).

Seconds here are lower bounds; ``efficiency`` says what share of each peak is reached and what overlaps.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.hardware.peak_compute import PeakCompute, peak_compute, peak_of_name
from kopt.core.workload.training_plan import Precision, Recompute, TrainingPlan
from kopt.models.parallelism.communication import ClusterDescription, StepCommunication
from kopt.models.parallelism.work import StepWork
from kopt.topology.gpu_facts import gpu_specs

_GENERATIONS = (
    ("volta", ("V100", "T4")),
    ("ampere", ("A100", "A10", "A30", "A40", "RTX-3", "RTX-A")),
    ("ultra", ("GB300", "B300")),
    ("blackwell", ("GB", "B200", "RTX-5")),
    ("ada", ("RTX-4", "RTX-6000-Ada", "L4")),
    ("cdna", ("MI",)),
)
"""By the beginning of a model's name; all others are taken for Hopper."""
_FORMATS = {"fp8": "eight", "mxfp8": "blocks", "nvfp4": "four"}
_STYLES = {
    "llm-foundry": "triton",
    **dict.fromkeys(("fsdp", "deepspeed", "nanotron"), "eager"),
    **dict.fromkeys(("torchtitan", "fms", "paxml", "maxtext"), "compiled"),
}
"""How frameworks' models run where not by fused kernels."""
OWN_FRAMEWORKS = ("nanotron", "torchtitan", "deepspeed", "fms", "paxml", "maxtext", "paddle", "llmq")
"""Whose measured steps say how long computing takes by that of the others; nothing is known of a framework before."""
_SMALL_FLOPS = 3e12
_TILE = 128 * 256
"""Numbers of a product that one SM or CU works out at a time."""
_USUAL_UNITS = 148
_HEAD_MULTIPLE = 8
"""Tensor cores take rows of so many half-precision numbers; heads of another width are padded or leave them unused."""


@dataclass(frozen=True)
class StepRow:
    """One question as numbers: what ``Efficiency`` is fitted on and asked with."""

    numbers: Mapping[str, float]
    generation: str
    matmul: str
    style: str
    framework: str
    """One with an efficiency of its own, else ``usual``."""
    small: bool
    """Micro-batches are so small that the host, not the GPU, sets the pace."""

    @property
    def format(self) -> str:
        """The efficiency that products run at: that of a format on a generation."""
        return f"{self.generation}_{_FORMATS.get(self.matmul, 'half')}"


def chip_of(gpu: str) -> str:
    """The name without its form and memory: H100 of H100-SXM5-80GB, RTX-4090."""
    name, _, rest = gpu.partition("-")
    return f"{name}-{rest.partition('-')[0]}" if name == "RTX" else name


def generation_of(gpu: str) -> str:
    """The generation whose efficiencies hold for a GPU model."""
    return next((name for name, starts in _GENERATIONS if gpu.startswith(starts)), "hopper")


def step_row(
    plan: TrainingPlan, cluster: ClusterDescription, work: StepWork, communication: StepCommunication, matmul: str
) -> StepRow:
    """``matmul`` is the format of layers' products: bf16, fp16, fp32, fp8, mxfp8 or nvfp4.

    Raises UnknownGpuError for a GPU whose peak is not known.
    """
    peaks, memory_bytes_per_second, units = _hardware(cluster.gpu)
    low = {"fp8": peaks.eight_bits, "mxfp8": peaks.eight_bits, "nvfp4": peaks.four_bits}.get(matmul, peaks.half)
    half = peaks.single if plan.compute is Precision.FP32 else peaks.half
    low = half if plan.compute is Precision.FP32 else low
    micro = work.micro_batch
    experts = plan.model.experts
    local = experts.count / plan.parallel.expert if experts else 0.0
    numbers = {
        "linear": micro.linear_flops / low,
        "expert_products": micro.expert_flops / low,
        "head": micro.head_flops / half,
        "attention": micro.attention_flops / half,
        "tails": micro.tail_depth * 2 * _TILE * units / low,
        "scores": micro.score_bytes / memory_bytes_per_second,
        "operands": micro.operand_bytes / memory_bytes_per_second,
        "activations": micro.activation_bytes / memory_bytes_per_second,
        "layers": micro.layers * (micro.pass_multiple / 3 if plan.recompute is Recompute.FULL else 1.0),
        "expert_layers": micro.expert_layers,
        "local_experts": micro.expert_layers * local,
        "split_layers": micro.layers * (plan.parallel.tensor > 1),
        "tensor": communication.tensor,
        "context": communication.context,
        "expert": communication.expert,
        "pipeline": communication.pipeline,
        "sharded": communication.sharded,
        "data": communication.data,
        "update": work.update_bytes / memory_bytes_per_second,
        "micro_batches": float(work.micro_batches),
        "bubbles": work.bubbles,
        "stages": float(plan.parallel.pipeline),
        "misaligned": float(plan.model.head_dim % _HEAD_MULTIPLE > 0),
    }
    generation = generation_of(cluster.gpu)
    style = _STYLES.get(plan.framework, "fused")
    framework = plan.framework if plan.framework in OWN_FRAMEWORKS else "usual"
    return StepRow(numbers, generation, matmul if low > half else "half", style, framework, micro.flops < _SMALL_FLOPS)


def _hardware(gpu: str) -> tuple[PeakCompute, float, int]:
    """Peaks, the memory's bytes per second, SMs or CUs; some models that others measured are not in the catalogue."""
    try:
        model = find_gpu(gpu)
    except UnknownGpuError:
        peaks = peak_of_name(gpu)
        if peaks is None:
            raise
        return peaks, gpu_specs(gpu).memory_gbps * 1e9, _USUAL_UNITS
    return peak_compute(model), model.memory_gbps * 1e9, model.compute_units
