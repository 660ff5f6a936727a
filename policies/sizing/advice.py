"""What a pod should ask for (K3): the one rule of the endpoint, the command line, the pages and the webhook.

A prediction of its need and its own request go in, a recommendation comes out. Without evidence, and where no GPU holds
the need, nothing is advised. Otherwise a recommendation covers the upper end of the interval and every run that was
observed, and never exceeds the request unless these exceed it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kopt.core.gpu import GpuModel, Vendor
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu, gpu_catalogue
from kopt.core.prediction import Prediction
from kopt.core.reason import Reason
from kopt.core.units import MIB, WHOLE_GPU, Bytes, MilliGpu, format_bytes
from kopt.core.workload.executor import Executor
from kopt.core.workload.sizing import Recommendation, RequestedGpus, ShareKind, share_of
from kopt.formats.gpu_shares import share_patch

MEMORY_ANNOTATION, FRACTION_ANNOTATION = "kaiwo.ai/gpu-memory", "kaiwo.ai/gpu-fraction"
WHOLE_RESOURCES = {Vendor.NVIDIA: "nvidia.com/gpu", Vendor.AMD: "amd.com/gpu"}
"""Extended resources of whole GPUs."""
NOT_OBSERVED = Bytes(0)
NOT_FOLLOWED = frozenset({"RAY_WORKERS", "MPI_LAUNCHER", "RUNTIME_UNKNOWN"})
"""Codes of the reasons why nothing can be said of what a job's pods run."""
NOTHING_ADVISED = frozenset({"UNKNOWN_SIZE", "FALLBACK", "UNSURE", "UNKNOWN_GPU", "FITS_NONE"}) | NOT_FOLLOWED
"""Codes of the reasons for no advice."""
ABOVE_ANY_GPU = "ABOVE_ANY_GPU"
"""Code of the reason that says what would bring a job below the largest GPU."""
NO_EXECUTOR = "NO_EXECUTOR"
"""Code of the reason for no share where nothing in the cluster hands any out."""
_DEPENDS = "Whether it can have that share depends on the cluster's executor (KAI Scheduler, HAMi or Volcano vGPU)."
_STEP_MILLI = 50
"""Fractions are asked for in twentieths."""
_LARGEST_FRACTION_MILLI = 900
"""Above this share no other process fits beside it: the whole GPU is requested."""
_TOO_UNSURE = 2.5
"""An upper end this many times the centre is no size to share a GPU by."""


@dataclass(frozen=True)
class CertaintySettings:
    """What a prediction needs before something acts on it by itself. Raises ValueError for values out of range."""

    min_confidence: float = 0.8
    """Of the prediction, 0 to 1."""
    min_probability: float = 0.9
    """Stated coverage of its interval."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_confidence <= 1 or not 0 < self.min_probability < 1:
            raise ValueError(f"{self} is out of range: confidence in [0, 1], probability in (0, 1)")

    def met_by(self, need: Prediction) -> bool:
        return need.confidence >= self.min_confidence and need.probability >= self.min_probability


def advise(
    need: Prediction | None,
    requested: RequestedGpus,
    gpu: str,
    processes: int | None = None,
    *,
    activity_high: float | None = None,
    observed_peak_bytes: Bytes = NOT_OBSERVED,
    certainty: CertaintySettings | None = None,
    shares: bool = True,
    executor: Executor = Executor.UNKNOWN,
    silent: Reason | None = None,
) -> Recommendation:
    """What a pod on ``gpu`` should ask for that requests ``requested``, and why.

    ``need`` predicts the peak of each process in bytes, ``observed_peak_bytes`` is the most that any run of this job
    type used, ``activity_high`` the upper end of SM or CU activity, where known. ``processes`` counts those of one pod
    where the command says so; None stands for one for each GPU that is asked for. Without ``shares`` whole GPUs stay
    whole. ``executor`` is what hands out shares where the pod runs: with NONE no share is advised in place of more.
    ``certainty`` is for advice that is acted upon. ``silent`` is why nothing can be said of what the pod runs.
    """
    if silent is not None:
        return _nothing(gpu, silent)
    if gpu_vendor(gpu) is not Vendor.NVIDIA and executor is not Executor.UNKNOWN:
        executor = Executor.NONE
    advice = _advise(
        need, requested, gpu, processes, activity_high, observed_peak_bytes, certainty, shares=shares, executor=executor
    )
    if advice.kind is ShareKind.FRACTION and executor is Executor.UNKNOWN:
        why = advice.reason
        numbers = {**why.numbers, "executor": executor.value}
        advice = replace(advice, reason=Reason(why.code, f"{why.message} {_DEPENDS}", numbers))
    return replace(advice, executor=executor)


def gpu_vendor(gpu: str) -> Vendor:
    """Who makes a GPU; NVIDIA where it is not in the catalogue."""
    try:
        return find_gpu(gpu).vendor
    except UnknownGpuError:
        return Vendor.NVIDIA


def _advise(
    need: Prediction | None,
    requested: RequestedGpus,
    gpu: str,
    processes: int | None,
    activity_high: float | None,
    observed_peak_bytes: Bytes,
    certainty: CertaintySettings | None,
    *,
    shares: bool,
    executor: Executor,
) -> Recommendation:
    if (why := doubt(need, certainty)) is not None:
        return _nothing(gpu, why)
    assert need is not None
    try:
        model = find_gpu(gpu)
    except UnknownGpuError:
        text = f"Nothing is advised, as the GPU {gpu[:80]!r} is not in the catalogue."
        return _nothing(gpu, Reason("UNKNOWN_GPU", text))
    wanted = needed_bytes(need, observed_peak_bytes)
    count = _count(requested, processes)
    if wanted > model.usable_bytes:
        return _larger(model, wanted, count, need)
    whole = _whole(model, wanted, count, requested, processes or count)
    is_alone = count == 1 and (processes or 1) == 1
    if requested.is_share:
        return _handed_out(
            _share_like(requested, model, wanted, whole, is_alone=is_alone), requested, model, whole, executor
        )
    if not is_alone:
        return whole
    if need.high is not None and need.value is not None and need.high > _TOO_UNSURE * need.value:
        return replace(whole, reason=_too_unsure(need))
    if not shares:
        return whole
    return _handed_out(_share(model, wanted, activity_high, whole), requested, model, whole, executor)


def doubt(need: Prediction | None, certainty: CertaintySettings | None = None) -> Reason | None:
    """Why a prediction is no evidence, or not certain enough to act on; None if it is."""
    if need is None:
        return _unknown("nothing is known about this job type yet.")
    if need.value is None or need.high is None or not math.isfinite(need.high) or need.high <= 0:
        return _unknown(need.reasons[0].message if need.reasons else "the predictor gave no usable value.")
    if need.fallback:
        return Reason("FALLBACK", "Nothing is advised, as the answer did not come from a model.")
    numbers = {"confidence": need.confidence, "probability": need.probability}
    if not need.confidence > 0:
        return Reason("UNSURE", "Nothing is advised, as there is no confidence in the size.", numbers)
    if certainty is not None and not certainty.met_by(need):
        text = (
            f"Nothing is advised, as confidence {need.confidence:.2f} and probability {need.probability:.2f} are below "
            f"{certainty.min_confidence:.2f} and {certainty.min_probability:.2f}."
        )
        return Reason("UNSURE", text, numbers)
    return None


def needed_bytes(need: Prediction, observed_peak_bytes: Bytes = NOT_OBSERVED) -> Bytes:
    """The upper end of a known need, never below what a run used, in whole mebibytes."""
    return Bytes(math.ceil(max(need.high or 0.0, float(observed_peak_bytes)) / MIB) * MIB)


def evidence_of(need: Prediction, requested: RequestedGpus, observed_peak_bytes: Bytes = NOT_OBSERVED) -> Reason:
    """What advice rests on: the interval, the largest run that was observed, and the request."""
    numbers = {
        "low_bytes": float(need.low or 0),
        "high_bytes": float(need.high or 0),
        "observed_peak_bytes": observed_peak_bytes,
    }
    request = f"{format_bytes(requested.memory_mib * MIB)}" if requested.memory_mib else "whole GPUs"
    text = (
        f"{need.probability:.0%} of such jobs stay below {format_bytes(int(need.high or 0))}"
        + (f"; a run used {format_bytes(observed_peak_bytes)}" if observed_peak_bytes else "")
        + f"; {request} requested."
    )
    return Reason("PREDICTED_NEED", text, numbers)


def fits(high_bytes: float) -> Mapping[str, bool]:
    """GPU model → whether the upper end of an interval fits its usable memory."""
    return {name: high_bytes <= gpu.usable_bytes for name, gpu in gpu_catalogue().items()}


def pod_patch(advice: Recommendation, requested: RequestedGpus, gpu: str) -> dict[str, Any] | None:
    """A merge patch for the pod template and container resources; None where the pod cannot be made to ask for what is
    advised: nothing is, it needs another GPU than ``gpu``, each node calls the partition differently, or nothing in the
    cluster hands out shares.

    ``{"metadata": {"annotations": …}}`` for a share of a GPU, ``{"resources": {"limits": …}}`` for the container, and
    ``{"spec": {"schedulerName": …}}``, in the terms of the advice's executor where there is one.
    """
    try:
        model = find_gpu(gpu)
    except UnknownGpuError:
        return None
    if advice.kind is ShareKind.NONE or advice.gpu != model.name:
        return None
    resource = WHOLE_RESOURCES[model.vendor]
    if advice.kind is ShareKind.PARTITION:
        if model.vendor is not Vendor.NVIDIA:
            # How AMD's partitions are called depends on the node's device plugin.
            return None
        return {"resources": {"limits": {resource: None, f"nvidia.com/mig-{advice.profile}": "1"}}}
    patch: dict[str, Any] = {}
    if advice.executor.hands_out and advice.count == 1 and (advice.kind is ShareKind.FRACTION or requested.memory_mib):
        return _share_patch(advice, requested, model)
    if advice.executor is not Executor.NONE and (advice.kind is ShareKind.FRACTION or requested.memory_mib):
        patch["metadata"] = {"annotations": {MEMORY_ANNOTATION: str(-(-advice.bytes // MIB))}}
    if advice.kind is ShareKind.FRACTION and advice.executor is Executor.NONE:
        return None
    if not patch or (requested.gpus or 0) > advice.count:
        patch["resources"] = {"limits": {resource: str(advice.count)}}
    return patch


def _share_patch(advice: Recommendation, requested: RequestedGpus, model: GpuModel) -> dict[str, Any]:
    """In the executor's terms, beside our own annotation, by which quotas and the extender count it."""
    mib = -(-advice.bytes // MIB)
    if advice.bytes <= requested.memory_bytes(model):
        # A fraction that is kept is no whole number of MiB: rounded up, it would be more than was asked for.
        mib = min(mib, requested.memory_bytes(model) // MIB)
    patch = share_patch(advice.executor, mib)
    annotations = patch.setdefault("metadata", {}).setdefault("annotations", {})
    annotations |= {MEMORY_ANNOTATION: str(mib), FRACTION_ANNOTATION: None}
    return patch


def _unknown(why: str) -> Reason:
    return Reason("UNKNOWN_SIZE", f"Nothing is advised, as its size is not known: {why}")


def _nothing(gpu: str, why: Reason) -> Recommendation:
    return Recommendation(ShareKind.NONE, Bytes(0), gpu, MilliGpu(0), count=0, reason=why)


def _count(requested: RequestedGpus, processes: int | None) -> int:
    """GPUs of the pod: one for each process, and never more than it asks for."""
    if not requested.gpus:
        return processes or 1
    return min(requested.gpus, processes or requested.gpus)


def _whole(model: GpuModel, wanted: Bytes, count: int, requested: RequestedGpus, processes: int) -> Recommendation:
    requested_gpus = requested.gpus or 0
    numbers = {"bytes": int(wanted), "count": count, "requested_gpus": requested_gpus, "processes": processes}
    if processes > count:
        text = f"Its command starts {processes} processes and it asks for {count} GPUs; fewer are not advised."
        why = Reason("MORE_PROCESSES", text, numbers)
    elif count < requested_gpus:
        has = f"{count} processes have" if count > 1 else "one process has"
        why = Reason("FEWER_GPUS", f"Its {has} a GPU each; it asks for {requested_gpus} GPUs.", numbers)
    elif count > 1:
        why = Reason("DISTRIBUTED", "Its processes talk to each other at full speed only on whole GPUs.", numbers)
    else:
        text = f"{format_bytes(wanted)} fit one {model.name}, and nothing here is known to share it."
        why = Reason("WHOLE_GPU", text, numbers)
    return Recommendation(ShareKind.WHOLE, wanted, model.name, count=count, reason=why)


def _too_unsure(need: Prediction) -> Reason:
    text = (
        f"The interval, {format_bytes(int(need.low or 0))} to {format_bytes(int(need.high or 0))}, is too wide to "
        "share a GPU by; a dry run (kopt profile) would narrow it."
    )
    return Reason("TOO_UNSURE", text, {"high_bytes": need.high or 0.0, "peak_bytes": need.value or 0.0})


def _share(model: GpuModel, wanted: Bytes, activity_high: float | None, whole: Recommendation) -> Recommendation:
    """A partition where its compute units suffice, else a fraction, else the whole."""
    for partition in sorted(model.partitions, key=lambda partition: partition.memory_bytes):
        enough = activity_high is not None and activity_high * model.compute_units <= partition.compute_units
        if wanted <= partition.memory_bytes and partition.count > 1 and enough:
            text = f"{format_bytes(wanted)} and the compute it needs fit the partition {partition.name}."
            why = Reason("FITS_PARTITION", text, {"bytes": int(wanted), "compute_units": partition.compute_units})
            return Recommendation(
                ShareKind.PARTITION, partition.memory_bytes, model.name, profile=partition.name, reason=why
            )
    return _fraction(model, wanted, _STEP_MILLI, whole)


def _fraction(model: GpuModel, wanted: Bytes, step: int, whole: Recommendation) -> Recommendation:
    milli = MilliGpu(-(-share_of(wanted, model) // step) * step)
    if milli > _LARGEST_FRACTION_MILLI:
        text = f"{format_bytes(wanted)} leave no room for anyone else on {model.name}."
        return replace(whole, reason=Reason("NEEDS_MOST_OF_IT", text, {"bytes": int(wanted)}))
    text = f"{format_bytes(wanted)} are {milli / 1000:g} of one {model.name}."
    why = Reason("FITS_FRACTION", text, {"bytes": int(wanted), "milli_gpu": milli})
    return Recommendation(ShareKind.FRACTION, wanted, model.name, milli, reason=why)


def _share_like(
    requested: RequestedGpus, model: GpuModel, wanted: Bytes, whole: Recommendation, *, is_alone: bool
) -> Recommendation:
    """For a pod that asks for a share: another one, its own where less is not sure, or more where it is too small."""
    best = whole
    if is_alone:
        # Memory is asked for exactly, a fraction in steps.
        best = _fraction(model, wanted, 1 if requested.memory_mib else _STEP_MILLI, whole)
    own_milli, own_bytes = requested.milli_gpu(model) or WHOLE_GPU, requested.memory_bytes(model)
    if wanted > own_bytes or best.total_milli_gpu(model) <= own_milli:
        return best
    text = f"{format_bytes(wanted)} fit the {format_bytes(own_bytes)} that it asks for, and no smaller share would do."
    why = Reason("AS_REQUESTED", text, {"bytes": int(wanted), "requested_bytes": int(own_bytes)})
    return Recommendation(ShareKind.FRACTION, own_bytes, model.name, own_milli, reason=why)


def _handed_out(
    best: Recommendation, requested: RequestedGpus, model: GpuModel, whole: Recommendation, executor: Executor
) -> Recommendation:
    """The advice where something hands it out; else the pod keeps what it asks for, less GPUs that nothing uses."""
    if executor is not Executor.NONE or best.kind is not ShareKind.FRACTION:
        return best
    own_milli, own_bytes = requested.milli_gpu(model) or WHOLE_GPU, requested.memory_bytes(model)
    if not requested.is_share:
        return whole if whole.count < (requested.gpus or 0) else replace(whole, reason=_no_executor(best))
    if best.total_milli_gpu(model) > own_milli or best.bytes > own_bytes:
        return best
    return Recommendation(ShareKind.FRACTION, own_bytes, model.name, own_milli, reason=_no_executor(best))


def _no_executor(best: Recommendation) -> Reason:
    text = (
        f"{format_bytes(best.bytes)} would do, but nothing hands this pod a share of such a GPU: that takes KAI "
        "Scheduler and a queue of its own, HAMi, or Volcano vGPU, and none of Kueue's queues."
    )
    return Reason(NO_EXECUTOR, text, {"bytes": int(best.bytes), "milli_gpu": best.milli_gpu})


def _larger(model: GpuModel, wanted: Bytes, count: int, need: Prediction) -> Recommendation:
    """The smallest GPU of the same vendor that holds it; no advice without one."""
    numbers: dict[str, float | int | str] = {"bytes": int(wanted), "usable_bytes": int(model.usable_bytes)}
    best = min(_holding(model, wanted), key=lambda gpu_model: gpu_model.usable_bytes, default=None)
    if best is None:
        ways = next((reason.message for reason in need.reasons if reason.code == ABOVE_ANY_GPU), None)
        text = (
            f"Nothing is advised, as {format_bytes(wanted)} fit no GPU of the catalogue: "
            f"{ways or 'split the model over GPUs, or lower the batch size'}."
        )
        return _nothing(model.name, Reason("FITS_NONE", text, numbers))
    text = (
        f"{format_bytes(wanted)} exceed the {format_bytes(model.usable_bytes)} of {model.name}; {best.name} is the "
        "smallest that holds them."
    )
    return Recommendation(ShareKind.WHOLE, wanted, best.name, count=count, reason=Reason("TOO_LARGE", text, numbers))


def _holding(model: GpuModel, wanted: Bytes) -> Iterator[GpuModel]:
    return (
        gpu_model
        for gpu_model in gpu_catalogue().values()
        if gpu_model.vendor is model.vendor and gpu_model.usable_bytes >= wanted
    )
