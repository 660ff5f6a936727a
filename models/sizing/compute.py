"""SM or CU activity from a trace by the roofline model: how long each kernel keeps the GPU busy, and how much of it.

A kernel takes the longer of its FLOPs at the peak and its bytes at the memory's bandwidth, and cannot start faster than
the host launches (Williams et al. 2009; NVIDIA DL performance guide). Neither the precision nor the host's speed is in
the trace, so the interval spans what they may be. It has not been validated against measurements and says so.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kopt.core.gpu import GpuModel
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.peak_compute import peak_compute
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.workload.sizing import WorkloadProfile
from kopt.models.sizing.code import CodeEstimate, KernelLoad

ROOFLINE = ModelVersion("roofline", "1")
_EFFICIENCY = (0.4, 0.85)
"""Of the peaks, what kernels reach."""
_LAUNCH_S = (3e-6, 25e-6)
"""Between two kernels: from CUDA graphs and C++ to eager Python on a slow host."""
_STALLED = (0.02, 0.4)
"""Of the time: from data that is there already to a slow input pipeline."""
_KERNELS_PER_OPERATION = 1.3
_BYTES_PER_UNIT = 32 * 1024
"""Bytes that one SM or CU works on at a time; smaller kernels leave others idle."""


@dataclass(frozen=True)
class _Corner:
    """One set of assumptions; ``stalled`` is the part of a step in which the GPU waits for input."""

    half: bool
    efficiency: float
    launch_s: float
    stalled: float


def activity(code: CodeEstimate, gpu: str, profile: WorkloadProfile | None = None) -> Prediction:
    """Share of SMs or CUs that are busy, over time, 0 to 1; a refusal where the code did not run.

    A dry run's own figure replaces the roofline's centre and most of its interval.
    """
    model = find_gpu(gpu)
    if profile is not None and profile.activity is not None:
        return _measured(profile, profile.activity)
    loads = {name: kernel_load for name, kernel_load in code.kernels.items() if kernel_load.count}
    if not loads:
        text = "Nothing ran, so what it would compute is not known; make a dry run (kopt profile)."
        return Prediction.refusal(Reason("NO_KERNELS", text), unit="share", model=ROOFLINE)
    result = sorted(
        _activity(loads, model, _Corner(half, efficiency, launch, stalled))
        for half in (False, True)
        for efficiency in _EFFICIENCY
        for launch in _LAUNCH_S
        for stalled in _STALLED
    )
    low, high = result[0], result[-1]
    value = min(max(math.sqrt(max(low, 1e-4) * max(high, 1e-4)), low), high)
    total = sum(load.flops for load in loads.values())
    step = total / max(1, code.steps)
    amount = f"{step / 1e12:.3g} TFLOP" if step >= 1e10 else f"{step / 1e9:.3g} GFLOP"
    text = (
        f"{amount} a step on {model.name} by the roofline model; precision, input "
        "pipeline and host speed are not known, and no measurement has validated it."
    )
    reasons = [Reason("UNVALIDATED_ROOFLINE", text, {"flops_per_step": total / max(1, code.steps)})]
    return Prediction(value, low, high, 0.8, "share", 0.3, ROOFLINE, tuple(reasons))


def _activity(loads: Mapping[str, KernelLoad], model: GpuModel, corner: _Corner) -> float:
    """Busy SM-seconds over all SM-seconds of the trace."""
    peak = peak_compute(model)
    busy = total = 0.0
    for name, load in loads.items():
        matrix = name in ("convolution", "gemm", "attention", "recurrent")
        reached = (peak.half if corner.half and matrix else peak.single) * corner.efficiency
        seconds = max(load.flops / reached, load.bytes / (model.memory_gbps * 1e9 * corner.efficiency))
        kernels = load.count * _KERNELS_PER_OPERATION
        share = min(1.0, load.bytes / load.count / _BYTES_PER_UNIT / model.compute_units) if load.bytes else 1.0
        busy += seconds * max(share, 1 / model.compute_units)
        total += max(seconds, kernels * corner.launch_s)
    return min(1.0, busy / total) * (1 - corner.stalled) if total > 0 else 0.0


def _measured(profile: WorkloadProfile, share: float) -> Prediction:
    room = 0.05 if profile.steady else 0.2
    text = f"A dry run of {profile.duration_s:.0f} s measured {share:.0%} on {profile.gpu}."
    reason = Reason("DRY_RUN_ACTIVITY", text, {"activity": share, "samples": profile.samples})
    low, high = max(0.0, share - room), min(1.0, share + room)
    return Prediction(share, low, high, 0.8, "share", 0.8 if profile.steady else 0.5, ROOFLINE, (reason,))
