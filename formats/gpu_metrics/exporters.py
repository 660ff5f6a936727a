"""Series of dcgm-exporter, of AMD's device-metrics-exporter and of our telemetry agent, decoded by the caller.

``DCGM_FI_DEV_FB_*`` are MiB, ``DCGM_FI_PROF_*`` are shares, ``DCGM_FI_DEV_GPU_UTIL`` per cent (dcgm-exporter,
``default-counters.csv``). AMD's ``gpu_*_vram`` are documented in bytes but exported in MiB by the releases that take
them from amdsmi's ``vram_usage``; no GPU has less than 16 MiB or more than a tebibyte, which tells them apart.
"""

from collections.abc import Iterable, Mapping

from kopt.core.units import MIB, Bytes
from kopt.formats.gpu_metrics.samples import GpuSample, MetricsError, amount_bytes, share

Series = tuple[str, Mapping[str, str], float]
"""Name, labels and value of one sample."""

_BYTES_FROM = 16 * MIB


def samples_of(series: Iterable[Series], namespace: str = "", pod: str = "") -> tuple[GpuSample, ...]:
    """GPUs by their order of appearance, of all pods or of one. Raises MetricsError for values that cannot be.

    Unknown series are passed over; a GPU without a figure of memory is left out.
    """
    result: dict[str, dict[str, float]] = {}
    labels: dict[str, Mapping[str, str]] = {}
    for name, own, value in series:
        short = name.removeprefix("amd_").upper()
        if short not in _METRICS or not _belongs(own, namespace, pod):
            continue
        gpu = identity(own)
        labels.setdefault(gpu, own)
        if value == value:
            result.setdefault(gpu, {})[short] = value
    return tuple([_sample(gpu, values, labels[gpu]) for gpu, values in result.items() if _MEMORY & values.keys()])


_OUR_USED, _OUR_TOTAL = "KOPT_GPU_MEMORY_USED_BYTES", "KOPT_GPU_MEMORY_TOTAL_BYTES"
_MEMORY = {"DCGM_FI_DEV_FB_USED", "GPU_USED_VRAM", _OUR_USED}
_METRICS = _MEMORY | {
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_FB_RESERVED",
    "DCGM_FI_DEV_FB_TOTAL",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "GPU_TOTAL_VRAM",
    "GPU_GFX_ACTIVITY",
    "GPU_UMC_ACTIVITY",
    _OUR_TOTAL,
    "KOPT_GPU_BUSY_RATIO",
    "KOPT_GPU_SM_ACTIVE_RATIO",
    "KOPT_GPU_DRAM_ACTIVE_RATIO",
}


def _belongs(labels: Mapping[str, str], namespace: str, pod: str) -> bool:
    # Prometheus moves labels of the exporter aside when the scrape has its own.
    own_pod = labels.get("exported_pod", labels.get("pod", ""))
    own_namespace = labels.get("exported_namespace", labels.get("namespace", ""))
    return (not pod or own_pod == pod) and (not namespace or own_namespace == namespace)


def used_bytes(values: Mapping[str, float]) -> Bytes | None:
    """Memory in use on a GPU by its series' names in capitals, without ``amd_``; None without such a series.

    Raises MetricsError for a value that is no amount.
    """
    if "DCGM_FI_DEV_FB_USED" in values:
        return _dcgm(values, "FB_USED")
    if _OUR_USED in values:
        return amount_bytes(values[_OUR_USED], "B")
    return _vram(values, "GPU_USED_VRAM", values)


def pod_of(labels: Mapping[str, str]) -> tuple[str, str]:
    """Namespace and name of the pod that has the GPU; empty where no pod has it.

    A scrape's own labels win over the exporter's, which Prometheus then calls ``exported_…``.
    """
    if any(labels.get(name) for name in ("exported_pod", "exported_namespace")):
        return labels.get("exported_namespace", ""), labels.get("exported_pod", "")
    return labels.get("namespace", ""), labels.get("pod", "")


def identity(labels: Mapping[str, str]) -> str:
    """A GPU or partition of one, by node, number or UUID. Raises MetricsError where the labels say none."""
    gpu = (
        labels.get("UUID") or labels.get("gpu_uuid") or labels.get("uuid") or labels.get("gpu") or labels.get("gpu_id")
    )
    if not gpu:
        raise MetricsError("a series of a GPU without UUID, gpu_uuid, gpu or gpu_id")
    instance = labels.get("GPU_I_ID") or labels.get("gpu_partition_id") or labels.get("partition", "")
    node = labels.get("Hostname") or labels.get("hostname") or labels.get("node", "")
    return "/".join(part for part in (node, gpu, instance) if part)


def model_of(labels: Mapping[str, str]) -> str:
    """What the exporter calls the model; empty where it does not say."""
    return next((labels[name] for name in ("modelName", "card_series", "card_model", "model") if labels.get(name)), "")


def is_partition(labels: Mapping[str, str]) -> bool:
    """Whether a series is of a MIG device (``GPU_I_ID``, our ``partition``), or of AMD's in another mode than SPX."""
    mode = labels.get("gpu_compute_partition_type", "").lower()
    return bool(labels.get("GPU_I_ID") or labels.get("partition")) or mode not in ("", "spx", "none")


def _sample(gpu: str, values: Mapping[str, float], labels: Mapping[str, str]) -> GpuSample:
    is_dcgm = "DCGM_FI_DEV_FB_USED" in values
    used = used_bytes(values)
    total = _dcgm_total(values) if is_dcgm else _vram(values, "GPU_TOTAL_VRAM", values)
    if not is_dcgm and _OUR_USED in values and _OUR_TOTAL in values:
        total = amount_bytes(values[_OUR_TOTAL], "B")
    busy = values.get(
        "DCGM_FI_PROF_SM_ACTIVE", values.get("KOPT_GPU_SM_ACTIVE_RATIO", values.get("KOPT_GPU_BUSY_RATIO"))
    )
    moving = values.get("DCGM_FI_PROF_DRAM_ACTIVE", values.get("KOPT_GPU_DRAM_ACTIVE_RATIO"))
    for name in ("DCGM_FI_DEV_GPU_UTIL", "GPU_GFX_ACTIVITY"):
        busy = values[name] / 100 if busy is None and name in values else busy
    for name in ("DCGM_FI_DEV_MEM_COPY_UTIL", "GPU_UMC_ACTIVITY"):
        moving = values[name] / 100 if moving is None and name in values else moving
    return GpuSample(
        gpu,
        model_of(labels),
        used,
        total,
        _dcgm(values, "FB_RESERVED") if is_dcgm else None,
        None if busy is None else share(busy * 100),
        None if moving is None else share(moving * 100),
        pod=labels.get("exported_pod", labels.get("pod", "")),
    )


def _dcgm(values: Mapping[str, float], name: str) -> Bytes | None:
    value = values.get(f"DCGM_FI_DEV_{name}")
    return None if value is None else amount_bytes(value, "MiB")


def _dcgm_total(values: Mapping[str, float]) -> Bytes | None:
    parts = [_dcgm(values, name) for name in ("FB_USED", "FB_FREE", "FB_RESERVED")]
    return _dcgm(values, "FB_TOTAL") or (Bytes(sum(part or 0 for part in parts)) if parts[1] is not None else None)


def _vram(values: Mapping[str, float], name: str, beside: Mapping[str, float]) -> Bytes | None:
    value = values.get(name)
    if value is None:
        return None
    # The unit is told by the larger figure of the two: little use in bytes may look like much in MiB.
    largest = max(value, beside.get("GPU_TOTAL_VRAM", 0.0))
    return amount_bytes(value, "B" if largest >= _BYTES_FROM else "MiB")
