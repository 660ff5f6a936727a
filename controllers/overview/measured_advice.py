"""Size advice for pods whose use of GPUs was measured."""

from dataclasses import replace

from kopt.cluster.workloads.memory_need import Need
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.units import Bytes
from kopt.core.workload.measured import MeasuredUse
from kopt.policies.sizing.advice import NOTHING_ADVISED, advise
from kopt.policies.sizing.measured import Evidence, weigh
from kopt.serving.contract.size_advice import SizeAdvice

METHOD = "measured"
"""What ``SizeAdvice.method`` says where a measurement took the estimate's place."""


def advice_of_measured(estimated: SizeAdvice, need: Need | None, measured: MeasuredUse, pods: int) -> SizeAdvice:
    """Advice for one of ``pods`` pods, by an estimate, which may be none, and by what they used.

    Figures and method are the measurement's where it took the estimate's place, else the estimate's.
    """
    requested = estimated.requested
    evidence = weigh(need.prediction if need else None, measured, requested, _usable(estimated.gpu, measured), pods)
    activity = _activity(evidence, need, measured)
    recommendation = advise(
        evidence.need,
        requested,
        estimated.gpu,
        need.processes if need else None,
        activity_high=activity,
        observed_peak_bytes=need.observed_peak_bytes if need else Bytes(0),
    )
    # What the endpoint gave as reasons for no advice would hide what the measurement says.
    reasons = tuple(reason for reason in estimated.reasons if reason.code not in NOTHING_ADVISED)
    result = replace(estimated, reasons=(evidence.reason, *reasons)).with_recommendation(recommendation)
    if not evidence.is_measured:
        return result
    figures = [round(amount or 0) for amount in (evidence.need.value, evidence.need.low, evidence.need.high)]
    return replace(
        result,
        peak_bytes=figures[0],
        low_bytes=figures[1],
        high_bytes=figures[2],
        method=METHOD,
        confidence=evidence.need.confidence,
    )


def _usable(gpu: str, measured: MeasuredUse) -> Bytes:
    try:
        return find_gpu(gpu).usable_bytes
    except UnknownGpuError:
        # Nothing is advised for it in any case.
        return measured.peak_bytes


def _activity(evidence: Evidence, need: Need | None, measured: MeasuredUse) -> float | None:
    """The most activity that there may be: of kernels in the busiest step, or as estimated."""
    estimated = need.activity_high if need else None
    if not evidence.is_measured or measured.activity_high is None:
        return estimated
    return max(measured.activity_high, estimated or 0.0)
