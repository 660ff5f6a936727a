"""Readings of AMD's GPUs through ``amdsmi``, the library that comes with ROCm: a line of JSON for each line of input.

A program of its own for the reason that ``nvml`` is one, and because the tool ``amd-smi`` takes half a second of a core
for each call. Partitions have memory of their own and else the GPU's figures, which are read from the first alone.
"""

import importlib
import json
import sys
import time
from typing import Any

_MIB = 1 << 20
_EXIT_ABSENT = 3
_NO_VALUE = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""All bits set: what the driver writes in place of a figure that it does not have."""
_VIOLATIONS = {
    "active_ppt_pwr": "power",
    "active_socket_thrm": "thermal",
    "active_vr_thrm": "thermal",
    "active_hbm_thrm": "thermal",
    "active_prochot_thrm": "thermal",
}


class Reader:
    """``smi`` is the module ``amdsmi``, initialised."""

    def __init__(self, smi: Any) -> None:
        self._smi = smi
        self._links: dict[str, tuple[float, float]] = {}

    def read(self) -> list[dict[str, Any]]:
        """Raises AmdSmiException where the library as a whole does not answer; a GPU that does not is left out."""
        devices = [self._device(at, handle) for at, handle in enumerate(self._smi.amdsmi_get_processor_handles())]
        return [device for device in devices if device["values"]]

    def _device(self, at: int, handle: Any) -> dict[str, Any]:
        mode = str(self._ask("gpu_compute_partition", handle) or "")
        is_cut = mode.upper() not in ("", "SPX", "N/A")
        kfd = self._ask("gpu_kfd_info", handle)
        partition, node = _figure(kfd, "current_partition_id") or 0, _figure(kfd, "node_id")
        uuid = str(self._ask("gpu_device_uuid", handle) or "")
        memory = self._ask("gpu_vram_usage", handle)
        values = {
            "memory_used_bytes": _scaled(_figure(memory, "vram_used"), _MIB),
            "memory_total_bytes": _scaled(_figure(memory, "vram_total"), _MIB),
        }
        labelled: dict[str, Any] = {}
        if not is_cut or not partition:
            values |= self._of_whole(handle, uuid, is_cut=is_cut)
            if throttled := self._throttled(handle):
                labelled["throttled"] = throttled
        asic = self._ask("gpu_asic_info", handle)
        return {
            "gpu": str(at),
            "uuid": uuid,
            "model": str(asic.get("market_name", "")) if isinstance(asic, dict) else "",
            "partition": str(int(partition)) if is_cut else "",
            "profile": mode.lower() if is_cut else "",
            "pci": str(self._ask("gpu_device_bdf", handle) or "").lower(),
            "aliases": [str(at), *([f"kfd-{node:.0f}"] if node is not None else [])],
            "values": {name: value for name, value in values.items() if value is not None},
            "labelled": labelled,
        }

    def _of_whole(self, handle: Any, uuid: str, *, is_cut: bool) -> dict[str, float | None]:
        activity, power = self._ask("gpu_activity", handle), self._ask("power_info", handle)
        energy, errors = self._ask("energy_count", handle), self._ask("gpu_total_ecc_count", handle)
        link = self._ask("pcie_info", handle)
        pcie = link.get("pcie_metric") if isinstance(link, dict) else None
        watts = [_figure(power, name) for name in ("current_socket_power", "socket_power", "average_socket_power")]
        counted, resolution = _figure(energy, "energy_accumulator"), _figure(energy, "counter_resolution")
        if counted is None:
            counted = _figure(energy, "power")
        return {
            # Of a GPU that is cut the driver has no activity that means something.
            "busy_ratio": None if is_cut else _scaled(_figure(activity, "gfx_activity"), 0.01),
            "dram_active_ratio": None if is_cut else _scaled(_figure(activity, "umc_activity"), 0.01),
            "power_watts": next((watt for watt in watts if watt is not None), None),
            "energy_joules_total": None if counted is None or resolution is None else counted * resolution * 1e-6,
            "temperature_celsius": self._temperature(handle, "HOTSPOT"),
            "memory_temperature_celsius": self._temperature(handle, "VRAM"),
            "ecc_correctable_errors_total": _figure(errors, "correctable_count"),
            "ecc_uncorrectable_errors_total": _figure(errors, "uncorrectable_count"),
            "pcie_bytes_per_second": _scaled(_figure(pcie, "pcie_bandwidth"), 1e6 / 8),
            "pcie_replays_total": _figure(pcie, "pcie_replay_count"),
            "link_bytes_per_second": self._link_rate(handle, uuid),
        }

    def _temperature(self, handle: Any, sensor: str) -> float | None:
        kinds = getattr(self._smi, "AmdSmiTemperatureType", None)
        now = getattr(self._smi, "AmdSmiTemperatureMetric", None)
        if kinds is None or now is None or not hasattr(kinds, sensor):
            return None
        value = self._ask("temp_metric", handle, getattr(kinds, sensor), now.CURRENT)
        return _figure({"value": value}, "value")

    def _throttled(self, handle: Any) -> dict[str, float]:
        status = self._ask("violation_status", handle)
        reasons: dict[str, float] = {}
        for name, reason in _VIOLATIONS.items():
            active = status.get(name) if isinstance(status, dict) else None
            if isinstance(active, bool):
                reasons[reason] = max(reasons.get(reason, 0.0), float(active))
        return reasons

    def _link_rate(self, handle: Any, uuid: str) -> float | None:
        """xGMI counts KB that were read and written; a first reading says nothing."""
        metrics = self._ask("link_metrics", handle)
        links = metrics.get("links") if isinstance(metrics, dict) else None
        if not isinstance(links, list) or not links:
            return None
        amounts = [_figure(link, way) for link in links for way in ("read", "write")]
        now_s, total = time.monotonic(), sum(amount or 0.0 for amount in amounts) * 1000
        before_s, before = self._links.get(uuid, (now_s, total))
        self._links[uuid] = now_s, total
        return (total - before) / (now_s - before_s) if now_s > before_s and total >= before else None

    def _ask(self, what: str, *arguments: Any) -> Any:
        """None for what this GPU or release does not know or say."""
        try:
            return getattr(self._smi, f"amdsmi_get_{what}")(*arguments)
        except (self._smi.AmdSmiException, AttributeError):
            return None


def _figure(own: Any, name: str) -> float | None:
    value = own.get(name) if isinstance(own, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value in _NO_VALUE:
        return None
    return float(value)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def main() -> int:
    try:
        # Beside a tool that is broken, the library's own loader raises KeyError or OSError.
        smi = importlib.import_module("amdsmi")
    except (ImportError, KeyError, OSError) as error:
        sys.stderr.write(f"amdsmi cannot be imported: {error}\n")
        return _EXIT_ABSENT
    try:
        smi.amdsmi_init()
        reader = Reader(smi)
        for _ in sys.stdin:
            sys.stdout.write(json.dumps(reader.read(), separators=(",", ":")) + "\n")
            sys.stdout.flush()
    except smi.AmdSmiException as error:
        sys.stderr.write(f"amdsmi does not answer: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
