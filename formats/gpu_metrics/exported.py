"""Series of NVIDIA's dcgm-exporter and AMD's device-metrics-exporter by the names of ``core.hardware.gpu_telemetry``.

What an exporter says of pods is not taken: it has none for shared GPUs (dcgm-exporter#151), and the kubelet knows.
AMD's ``gpu_*_vram`` are in bytes or in MiB, see ``exporters``; activity of AMD's partitions is not theirs
(gpu-operator#290).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kopt.core.hardware.gpu_telemetry import FIELDS, Exported
from kopt.core.units import MIB
from kopt.formats.gpu_metrics import exporters
from kopt.formats.gpu_metrics.device_reading import DeviceReading, kept
from kopt.formats.gpu_metrics.exporters import Series
from kopt.formats.gpu_metrics.samples import MetricsError

_VRAM = frozenset({"gpu_used_vram", "gpu_total_vram"})
_ACTIVITY = frozenset({"gpu_gfx_activity", "gpu_umc_activity", "gpu_prof_sm_active", "gpu_prof_tensor_active_percent"})
_NAMES = frozenset(name for each in FIELDS for exported in each.exported for name in exported.names)
_REASONS = frozenset({"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"})
_REASON_BITS = {"power": 0x04, "hardware": 0x08, "sync-boost": 0x10, "thermal": 0x60, "power-brake": 0x80}
_VIOLATIONS = {
    "gpu_violation_socket_thermal_tracking_accumulated": "thermal",
    "gpu_violation_vr_thermal_tracking_accumulated": "thermal",
    "gpu_violation_processor_hot_tracking_accumulated": "thermal",
    "gpu_violation_ppt_tracking_accumulated": "power",
}
_XID_COUNT = "DCGM_EXP_XID_ERRORS_COUNT"
_LIKELY_BYTES_FROM = 16 * MIB

Counters = Mapping[tuple[str, str, str], float]
"""By GPU, partition and series: readings that fields which grow need of the scrape before."""


@dataclass
class ExportedReadings:
    """Devices in the exporter's order, its counters for the next time, and the nodes that it speaks of."""

    devices: list[DeviceReading] = field(default_factory=list)
    counters: dict[tuple[str, str, str], float] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)


def device_readings(
    series: Iterable[Series], before: Counters | None = None, elapsed_s: float = 0.0
) -> ExportedReadings:
    """``before``: the counters of the scrape ``elapsed_s`` earlier; without, what grows is absent.

    A series that stands several times for one device, once for each pod that shares it, counts once. Raises
    MetricsError where nothing is of a GPU.
    """
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    xids: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    links: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    labels: dict[tuple[str, str], Mapping[str, str]] = {}
    result = ExportedReadings()
    for name, own, value in series:
        short = name.removeprefix("amd_")
        is_read = short in _NAMES or short in _REASONS or short in _VIOLATIONS or short == _XID_COUNT
        gpu = own.get("gpu") or own.get("gpu_id", "")
        if not is_read or not gpu.isdigit() or value != value:
            continue
        key = gpu, own.get("GPU_I_ID") or (own.get("gpu_partition_id", "") if exporters.is_partition(own) else "")
        labels.setdefault(key, own)
        result.nodes |= {own[label] for label in ("Hostname", "hostname") if own.get(label)}
        if short == _XID_COUNT:
            code = own.get("xid", "")
            if code.isdigit() and int(code):
                xids[key][str(int(code))] = value
            continue
        # One series for each link, and again for each pod that has the GPU.
        links[*key, short].setdefault(own.get("link_index", own.get("xgmi_link_index", "")), value)
        values.setdefault(key, {})[short] = [sum(links[*key, short].values())]
    if not values:
        raise MetricsError("no series of a GPU in it")
    for key, own_values in values.items():
        flat = {name: numbers[0] for name, numbers in own_values.items()}
        result.devices.append(_device(key, labels[key], flat, xids.get(key, {}), before or {}, elapsed_s, result))
    return result


def _device(
    key: tuple[str, str],
    labels: Mapping[str, str],
    flat: dict[str, float],
    xids: dict[str, float],
    before: Counters,
    elapsed_s: float,
    result: ExportedReadings,
) -> DeviceReading:
    if exporters.is_partition(labels) and not labels.get("GPU_I_ID"):
        flat = {name: value for name, value in flat.items() if name not in _ACTIVITY}
    if "gpu_used_vram" in flat and max(flat["gpu_used_vram"], flat.get("gpu_total_vram", 0.0)) < _LIKELY_BYTES_FROM:
        flat = {name: value * MIB if name in _VRAM else value for name, value in flat.items()}
    growths = {}
    for name, value in flat.items():
        result.counters[*key, name] = value
        earlier = before.get((*key, name))
        if earlier is not None and elapsed_s > 0 and value >= earlier:
            growths[name] = (value - earlier) / elapsed_s
    figures = {each.name: figure for each in FIELDS if (figure := _figure(each.exported, flat, growths)) is not None}
    labelled: dict[str, Mapping[str, float]] = {"xid_errors_total": xids} if xids else {}
    reasons = next((int(flat[name]) for name in sorted(_REASONS) if flat.get(name, -1.0) >= 0), None)
    if reasons is not None:
        labelled["throttled"] = {name: float(bool(reasons & mask)) for name, mask in _REASON_BITS.items()}
    elif growing := {reason: 0.0 for name, reason in _VIOLATIONS.items() if name in growths}:
        for name, reason in _VIOLATIONS.items():
            growing[reason] = max(growing.get(reason, 0.0), float(growths.get(name, 0.0) > 0))
        labelled["throttled"] = growing
    return DeviceReading(
        key[0],
        labels.get("UUID") or labels.get("gpu_uuid", ""),
        labels.get("modelName") or labels.get("card_series") or labels.get("card_model", ""),
        key[1],
        labels.get("GPU_I_PROFILE") or (labels.get("gpu_compute_partition_type", "") if key[1] else ""),
        labels.get("pci_bus_id") or labels.get("pcie_bus_id", ""),
        _aliases(key, labels),
        kept(figures),
        labelled,
    )


def _figure(
    alternatives: tuple[Exported, ...], flat: Mapping[str, float], growths: Mapping[str, float]
) -> float | None:
    for each in alternatives:
        values = growths if each.growth else flat
        if all(name in values for name in each.names):
            return sum(values[name] for name in each.names) * each.factor
    return None


def _aliases(key: tuple[str, str], labels: Mapping[str, str]) -> tuple[str, ...]:
    gpu, partition = key
    if partition:
        return (f"{gpu}:{partition}",)
    # dcgm-exporter writes the device node as nvidia0.
    device = labels.get("device", "")
    minor = device.removeprefix("nvidia")
    return (gpu, device or f"nvidia{gpu}", f"gpu-{minor if minor.isdigit() else gpu}")
