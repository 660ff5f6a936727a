"""How measured use of GPUs counts as evidence of what a workload needs, beside the estimate from its code.

Measured for a day or longer, the peak with a margin takes the estimate's place, as a resource recommender that reads
Prometheus would do it (KRR). A shorter time has perhaps not shown the phase that needs most: then the peak only raises
an estimate, and without an estimate nothing is advised.
"""

from dataclasses import dataclass, replace

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import MIB, Bytes, format_bytes, format_span
from kopt.core.workload.measured import MeasuredUse
from kopt.core.workload.sizing import RequestedGpus
from kopt.policies.sizing.advice import doubt

ENOUGH_S = 24 * 3600.0
"""Readings over this time stand for themselves: most workloads repeat by the day."""
MARGIN = 0.15
"""Above the measured peak, as a share of it: the next peak may be higher, and nothing is left of a GPU that is full."""
_PROBABILITY = 0.9
"""Assumed coverage of peak and margin; it has not been calibrated."""
_MODEL = ModelVersion("measured", "")


@dataclass(frozen=True)
class Evidence:
    """The need that advice rests on, what was made of the measurement, and whether it took the estimate's place."""

    need: Prediction
    reason: Reason
    is_measured: bool = False


def weigh(
    need: Prediction | None, measured: MeasuredUse, requested: RequestedGpus, usable_bytes: Bytes, pods: int
) -> Evidence:
    """What is known of the need by the estimate ``need`` and by what ``measured`` shows of some of ``pods`` pods.

    ``usable_bytes`` is what the GPU holds that they run on. The upper end of the interval is never below the measured
    peak, and never above ``usable_bytes`` where the peak took the estimate's place.
    """
    peak = format_bytes(measured.peak_bytes)
    if measured.partition:
        text = f"it runs on a partition of a GPU (MIG), whose {peak} say nothing about whole GPUs."
        return _refused("MEASURED_PARTITION", text)
    if measured.shared or requested.is_share:
        return _estimated(need, "MEASURED_SHARED", f"{peak} were measured of a GPU that others may share.")
    # Advice is in whole mebibytes, rounded up: it must not round to more than the GPU holds.
    usable_bytes = Bytes(usable_bytes // MIB * MIB)
    if measured.peak_bytes > usable_bytes:
        text = f"{peak} were measured, more than the {format_bytes(usable_bytes)} of the GPU that is assumed."
        return _refused("MEASURED_OTHER_GPU", text)
    high = min(measured.peak_bytes * (1 + MARGIN), float(usable_bytes))
    why = _too_little(measured, pods)
    if why:
        return _widened(need, measured, high, f"{peak} were measured, but {why}.")
    text = f"No pod used more than {peak} of a GPU in {format_span(measured.measured_s)}; {MARGIN:.0%} are added."
    reason = Reason("MEASURED", text, {"peak_bytes": int(measured.peak_bytes), "measured_s": measured.measured_s})
    # A week counts for more than a day; a number near 1 would promise what no window can.
    confidence = measured.measured_s / (measured.measured_s + ENOUGH_S)
    value = float(measured.peak_bytes)
    return Evidence(Prediction(value, value, high, _PROBABILITY, "bytes", confidence, _MODEL, (reason,)), reason, True)


def _too_little(measured: MeasuredUse, pods: int) -> str:
    if measured.measured_s < ENOUGH_S:
        return f"for {format_span(measured.measured_s)} only, where {format_span(ENOUGH_S)} are needed"
    return f"of {measured.pods} of {pods} pods only" if measured.pods < pods else ""


def _widened(need: Prediction | None, measured: MeasuredUse, high: float, text: str) -> Evidence:
    evidence = _estimated(need, "MEASURED_SHORT", text)
    if evidence.need.refused:
        return evidence
    value, low, upper = (evidence.need.value or 0.0), (evidence.need.low or 0.0), (evidence.need.high or 0.0)
    peak = float(measured.peak_bytes)
    raised = replace(evidence.need, value=max(value, peak), low=max(low, peak), high=max(upper, high), quantiles={})
    return replace(evidence, need=replace(raised, low=min(raised.low or 0.0, raised.value or 0.0)))


def _estimated(need: Prediction | None, code: str, text: str) -> Evidence:
    """The estimate as it is; where it is none, nothing, for the measurement's reason."""
    if need is None or doubt(need) is not None:
        return _refused(code, f"{text[:1].lower()}{text[1:]}")
    return Evidence(need, Reason(code, text))


def _refused(code: str, text: str) -> Evidence:
    reason = Reason(code, text)
    return Evidence(Prediction.refusal(reason, unit="bytes", model=_MODEL), reason)
