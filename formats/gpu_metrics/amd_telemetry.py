"""``amd-smi metric --json`` and ``amd-smi list --json`` as readings of devices.

Source: amd-smi's ``amdsmi_commands.py`` (ROCm 6.0 to 7). In CPX and DPX each partition stands as a GPU of its own, and
most of what it says of itself is N/A: activity and power are those of the whole GPU, which its first partition has.
"""

from collections.abc import Mapping
from typing import Any

from kopt.formats.gpu_metrics import amd_smi
from kopt.formats.gpu_metrics.device_reading import DeviceReading, kept
from kopt.formats.gpu_metrics.documents import measured, memory
from kopt.formats.gpu_metrics.samples import MetricsError

METRIC_ARGUMENTS = ("metric", "--json")
LIST_ARGUMENTS = ("list", "--json")
STATIC_ARGUMENTS = ("static", "--asic", "--partition", "--json")
_FIGURES: tuple[tuple[str, str, str, str, float], ...] = (
    ("busy_ratio", "usage", "gfx_activity", "%", 0.01),
    ("dram_active_ratio", "usage", "umc_activity", "%", 0.01),
    ("power_watts", "power", "socket_power", "W", 1.0),
    ("energy_joules_total", "energy", "total_energy_consumption", "J", 1.0),
    ("temperature_celsius", "temperature", "edge", "C", 1.0),
    ("temperature_celsius", "temperature", "hotspot", "C", 1.0),
    ("memory_temperature_celsius", "temperature", "mem", "C", 1.0),
    ("ecc_correctable_errors_total", "ecc", "total_correctable_count", "", 1.0),
    ("ecc_uncorrectable_errors_total", "ecc", "total_uncorrectable_count", "", 1.0),
    ("pcie_bytes_per_second", "pcie", "current_bandwidth", "Mb/s", 1e6 / 8),
    ("pcie_replays_total", "pcie", "replay_count", "", 1.0),
)
"""Field, part and name of the document, unit and factor; the last that is there counts."""
_VIOLATIONS = {
    "ppt_violation_status": "power",
    "socket_thermal_violation_status": "thermal",
    "vr_thermal_violation_status": "thermal",
    "hbm_thermal_violation_status": "thermal",
    "prochot_violation_status": "thermal",
}


def parse(metric: str, listed: str = "", static: str = "") -> tuple[DeviceReading, ...]:
    """Devices in the tool's order; without ``listed`` and ``static`` they are known by number alone. Raises
    MetricsError."""
    about = dict(amd_smi.entries(listed)) if listed else {}
    kinds = dict(amd_smi.entries(static)) if static else {}
    devices = [
        _device(index, entry, about.get(index, {}), kinds.get(index, {})) for index, entry in amd_smi.entries(metric)
    ]
    if not devices:
        raise MetricsError("no GPU in it; did amd-smi find one?")
    return tuple(devices)


def _device(index: str, entry: Mapping[str, Any], about: Mapping[str, Any], kind: Mapping[str, Any]) -> DeviceReading:
    values: dict[str, Any] = {}
    for field, part, name, unit, factor in _FIGURES:
        value = _value(entry, part, name, unit, index)
        if value is not None:
            values[field] = value * factor
    held = entry.get("mem_usage")
    for field, name in (("memory_used_bytes", "used_vram"), ("memory_total_bytes", "total_vram")):
        amount = memory(held.get(name), f"GPU {index}: {name}", "MB") if isinstance(held, dict) else None
        if amount is not None:
            values[field] = float(amount)
    labelled: dict[str, dict[str, float]] = {}
    throttle = entry.get("throttle")
    for name, reason in _VIOLATIONS.items():
        status = throttle.get(name) if isinstance(throttle, dict) else None
        if status in ("ACTIVE", "NOT ACTIVE"):
            own = labelled.setdefault("throttled", {})
            own[reason] = max(own.get(reason, 0.0), float(status == "ACTIVE"))
    mode = _text(kind, "partition", "compute_partition") or _text(kind, "partition", "accelerator_partition")
    is_cut = mode.upper() not in ("", "SPX", "N/A")
    partition, node = about.get("partition_id", 0), about.get("node_id")
    return DeviceReading(
        index,
        _name(about, "uuid"),
        _text(kind, "asic", "market_name"),
        str(partition) if is_cut and isinstance(partition, int) else "",
        mode.lower() if is_cut else "",
        _name(about, "bdf").lower(),
        (index, *([f"kfd-{node}"] if isinstance(node, int) else [])),
        kept(values),
        labelled,
    )


def _value(entry: Mapping[str, Any], part: str, name: str, unit: str, index: str) -> float | None:
    own = entry.get(part)
    value = own.get(name) if isinstance(own, dict) else None
    return measured(value, f"GPU {index}: {name}", unit)


def _text(entry: Mapping[str, Any], part: str, name: str) -> str:
    own = entry.get(part)
    return _name(own, name) if isinstance(own, dict) else ""


def _name(own: Mapping[str, Any], name: str) -> str:
    value = own.get(name)
    return value if isinstance(value, str) else ""
