"""Which GPUs an interval fits on, and what to ask for."""

import math
from collections.abc import Mapping

from kopt.core.gpu import GpuModel
from kopt.core.gpu_catalogue import find_gpu, gpu_catalogue
from kopt.core.prediction import Prediction
from kopt.core.reason import Reason
from kopt.core.units import MIB, WHOLE_GPU, Bytes, MilliGpu, format_bytes
from kopt.core.workload.sizing import Recommendation, ShareKind

_STEP_MILLI = 50
"""Fractions are asked for in twentieths."""
_LARGEST_FRACTION_MILLI = 900
"""Above this share no other process fits beside it: the whole GPU is requested."""
_TOO_UNSURE = 2.5
"""An upper end this many times the centre says that the size is not known."""


def fits(high_bytes: float) -> Mapping[str, bool]:
    """GPU model → whether the upper end of an interval fits its usable memory."""
    return {name: high_bytes <= gpu.usable_bytes for name, gpu in gpu_catalogue().items()}


def recommend(
    memory: Prediction, gpu: str, *, world_size: int = 1, activity_high: float | None = None
) -> tuple[Recommendation, Reason]:
    """What to ask for on ``gpu``, and why. ``activity_high`` is the upper end of SM or CU activity, where known.

    Several processes, and sizes that are not known well, get whole GPUs. A refused prediction, and a need that no GPU
    holds, get no advice.
    """
    model = find_gpu(gpu)
    if memory.value is None or memory.high is None:
        text = "The size is not known, so nothing is advised: keep what the job asks for."
        return _no_advice(model), Reason("UNKNOWN_SIZE", text)
    wanted = Bytes(math.ceil(memory.high / MIB) * MIB)
    if wanted > model.usable_bytes:
        return _larger(model, wanted, world_size)
    whole = Recommendation(ShareKind.WHOLE, wanted, model.name, count=world_size)
    if world_size > 1:
        text = "Its processes talk to each other at full speed only on whole GPUs."
        return whole, Reason("DISTRIBUTED", text, {"world_size": world_size})
    if memory.high > _TOO_UNSURE * memory.value:
        text = (
            f"The interval, {format_bytes(int(memory.low or 0))} to {format_bytes(int(memory.high))}, is too wide to "
            "share a GPU by; a dry run (kopt profile) would narrow it."
        )
        return whole, Reason("TOO_UNSURE", text, {"high_bytes": memory.high, "peak_bytes": memory.value})
    return _share(model, wanted, activity_high, whole)


def _no_advice(model: GpuModel) -> Recommendation:
    return Recommendation(ShareKind.NONE, Bytes(0), model.name, MilliGpu(0), count=0)


def _share(
    model: GpuModel, wanted: Bytes, activity_high: float | None, whole: Recommendation
) -> tuple[Recommendation, Reason]:
    """A partition where its compute units suffice, else a fraction, else the whole."""
    for partition in sorted(model.partitions, key=lambda partition: partition.memory_bytes):
        enough = activity_high is not None and activity_high * model.compute_units <= partition.compute_units
        if wanted <= partition.memory_bytes and partition.count > 1 and enough:
            text = f"{format_bytes(wanted)} and the compute it needs fit the partition {partition.name}."
            recommendation = Recommendation(
                ShareKind.PARTITION, partition.memory_bytes, model.name, profile=partition.name
            )
            return recommendation, Reason(
                "FITS_PARTITION", text, {"bytes": int(wanted), "compute_units": partition.compute_units}
            )
    milli = math.ceil(wanted / model.usable_bytes * WHOLE_GPU / _STEP_MILLI) * _STEP_MILLI
    if milli > _LARGEST_FRACTION_MILLI:
        text = f"{format_bytes(wanted)} leave no room for anyone else on {model.name}."
        return whole, Reason("NEEDS_MOST_OF_IT", text, {"bytes": int(wanted)})
    text = f"{format_bytes(wanted)} are {milli / 1000:g} of one {model.name}."
    recommendation = Recommendation(ShareKind.FRACTION, wanted, model.name, MilliGpu(milli))
    return recommendation, Reason("FITS_FRACTION", text, {"bytes": int(wanted), "milli_gpu": milli})


def _larger(model: GpuModel, wanted: Bytes, world_size: int) -> tuple[Recommendation, Reason]:
    """The smallest GPU of the same vendor that holds it; no advice without one."""
    larger = [
        gpu_model
        for gpu_model in gpu_catalogue().values()
        if gpu_model.vendor is model.vendor and gpu_model.usable_bytes >= wanted
    ]
    numbers: dict[str, float | int | str] = {"bytes": int(wanted), "usable_bytes": int(model.usable_bytes)}
    if not larger:
        text = (
            f"{format_bytes(wanted)} fit no GPU of the catalogue: split the model over GPUs, or lower the batch size."
        )
        return _no_advice(model), Reason("FITS_NONE", text, numbers)
    best = min(larger, key=lambda gpu_model: gpu_model.usable_bytes)
    text = (
        f"{format_bytes(wanted)} exceed the {format_bytes(model.usable_bytes)} of {model.name}; {best.name} is the "
        "smallest that holds them."
    )
    return Recommendation(ShareKind.WHOLE, wanted, best.name, count=world_size), Reason("TOO_LARGE", text, numbers)
