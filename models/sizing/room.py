"""How far above its centre a convolutional network that ran abstractly may lie: amounts, and no factor of its size.

What the replay has not is a machine's driver and libraries, the algorithms of another cuDNN, and how the allocator's
segments fit. None of it grows without bound: a factor that is right for a job of 3 GiB makes 31 GiB of one that needs
25. What was measured are single processes on an NVIDIA GPU, so nothing else is bounded.
"""

from kopt.core.gpu import Vendor
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.workload.sizing import AllocationKind, Method, TraceCoverage
from kopt.models.sizing.code import CodeEstimate
from kopt.models.sizing.table import SizingQuestion

_CONVOLUTIONAL = 0.5
"""Least share of a step's FLOPs that convolutions have."""
_ALLOCATOR_DIFFERS = 0.05
"""Of what the allocator reserves; with it no run of itu-rad/GPUMemNet's timm table (f01eb05) that it was set by lies
above the interval (docs/benchmarks/sizing.md has them, and the families that were looked at once)."""


def room_above(question: SizingQuestion, machine_bytes: float) -> float | None:
    """Bytes above the centre that suffice, where machines differ by ``machine_bytes``; None where that is not known."""
    code = question.code
    if not _is_bounded(question, code):
        return None
    return machine_bytes + _ALLOCATOR_DIFFERS * code.reserved_bytes + max(code.workspace_bytes, code.search_bytes)


def _is_bounded(question: SizingQuestion, code: CodeEstimate) -> bool:
    return (
        code.method is Method.ABSTRACT
        and code.coverage is TraceCoverage.FULL
        and not code.warnings
        and question.world_size == 1
        and question.metric is AllocationKind.PROCESS
        and find_gpu(question.gpu).vendor is Vendor.NVIDIA
        and code.inputs.get("flops_convolution", 0.0) >= _CONVOLUTIONAL
    )
