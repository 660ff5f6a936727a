"""Which GPUs are held and not used, by what an exporter measured of the pods that hold them."""

from enum import StrEnum

from kopt.core.scheduling.workload_class import ClassTraits
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.measured import MeasuredUse


class Idleness(StrEnum):
    """``IDLE``: not even the busiest step of the window reached the threshold. ``LOW``: the mean does not.
    ``UNMEASURED``: nothing says what its GPUs did, so nothing is said about them."""

    IDLE = "idle"
    LOW = "low"
    USED = "used"
    UNMEASURED = "unmeasured"


def idleness(use: MeasuredUse | None, threshold: float) -> Idleness:
    """``threshold``: share of time, 0 to 1, in which kernels ran. Activity of a shared GPU is that of all its pods, so
    a pod that shares one with a busy pod counts as used."""
    if use is None or use.activity is None or use.activity_high is None:
        return Idleness.UNMEASURED
    if use.activity_high < threshold:
        return Idleness.IDLE
    return Idleness.LOW if use.activity < threshold else Idleness.USED


def should_give_up(state: Idleness, use: MeasuredUse | None, traits: ClassTraits) -> bool:
    """Whether a workload was idle for as long as its class may be. Never for a class whose idle GPUs are what it is
    for, nor where less time was measured."""
    return state is Idleness.IDLE and use is not None and 0 < traits.idle_s <= use.measured_s


def unused_gpu_hours(milli_gpu: int, use: MeasuredUse | None) -> float | None:
    """GPU-hours of the measured time in which no kernel ran; None where that is not known."""
    if use is None or use.unused_s is None:
        return None
    return milli_gpu / WHOLE_GPU * use.unused_s / 3600
