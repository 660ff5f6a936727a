"""Readings of NVIDIA's GPUs through NVML (the package ``nvidia-ml-py``): one line of JSON for each line on its input;
for the line ``xids`` only what XIDs there were.

A program of its own (``python -m kopt.agents.telemetry.nvml``): where a driver hangs, the call never returns, and only
another process can be given up. It imports nothing else of the product, to be small. From Hopper on, GPM gives the
share of busy SMs, tensor cores and DRAM between two readings, also of MIG instances; before, NVML only knows the share
of the time in which any kernel ran, and nothing of instances.
"""

import contextlib
import ctypes
import importlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

_MOST_EVENTS = 1000
"""XIDs that are read at once: in a storm the others wait in the driver, or are lost there."""
_MOST_CODES = 32
_REASONS = {"power": 0x04, "hardware": 0x08, "sync-boost": 0x10, "thermal": 0x60, "power-brake": 0x80}
"""``nvmlClocksEventReasons``: the power cap, any slowdown by hardware, sync boost, thermal by software and hardware."""
_MIB, _KIB = 1 << 20, 1 << 10
_ALL_LINKS = 0xFFFFFFFF
_EXIT_ABSENT = 3
Figures = dict[str, float]


class Reader:
    """``nvml`` is the module ``pynvml``, initialised. Handles are looked up anew: they do not outlive a re-cut."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._samples: dict[tuple[str, str], Any] = {}
        self._links: dict[str, tuple[float, float]] = {}
        self._events: Any = None
        self._registered: dict[int, str] = {}
        self._xids: dict[str, Counter[str]] = {}
        self._last_xid: Figures = {}
        self._names: dict[str, dict[str, Any]] = {}

    def read(self) -> list[dict[str, Any]]:
        """Raises NVMLError where NVML as a whole does not answer; a GPU that does not is left out."""
        devices: list[dict[str, Any]] = []
        seen: set[tuple[str, str]] = set()
        for at in range(self._nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(self._nvml.NVMLError):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(at)
                own = self._gpu(at, handle)
                # One that fell off the bus may still say its name.
                if own[0]["values"]:
                    devices += own
                    seen |= {(own[0]["uuid"], device["partition"]) for device in own}
        for key in self._samples.keys() - seen:
            self._nvml.nvmlGpmSampleFree(self._samples.pop(key))
        self._drain()
        for device in devices:
            if not device["partition"] and device["uuid"] in self._xids:
                device["labelled"]["xid_errors_total"] = dict(self._xids[device["uuid"]])
                device["values"]["last_xid"] = self._last_xid.get(device["uuid"], 0.0)
        return [*devices, *self._lost({device["uuid"] for device in devices})]

    def xids(self) -> list[dict[str, Any]]:
        """Of GPUs that had XIDs since the program began, their counts; no GPU is asked anything."""
        self._drain()
        return [
            self._names[uuid]
            | {
                "values": {"last_xid": self._last_xid.get(uuid, 0.0)},
                "labelled": {"xid_errors_total": dict(counts)},
            }
            for uuid, counts in self._xids.items()
            if counts and uuid in self._names
        ]

    def _lost(self, answering: set[str]) -> Iterator[dict[str, Any]]:
        """XIDs of GPUs that do not answer any more, without values: the last is often why."""
        for uuid, counts in self._xids.items():
            if counts and uuid not in answering and uuid in self._names:
                yield self._names[uuid] | {"values": {}, "labelled": {"xid_errors_total": dict(counts)}}

    def _gpu(self, at: int, handle: Any) -> list[dict[str, Any]]:
        nvml = self._nvml
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        minor = self._ask("MinorNumber", handle)
        device: dict[str, Any] = {
            "gpu": str(at),
            "uuid": uuid,
            "model": _text(nvml.nvmlDeviceGetName(handle)),
            "partition": "",
            "profile": "",
            "pci": _address(nvml.nvmlDeviceGetPciInfo(handle).busId),
            "aliases": [str(at), f"nvidia{at if minor is None else minor}", f"gpu-{at if minor is None else minor}"],
        }
        self._names[uuid] = dict(device)
        mig = self._ask("MigMode", handle)
        is_cut = bool(mig and mig[0])
        figures = self._figures(handle, uuid)
        if not is_cut:
            # Memory and activity of a GPU that is cut are those of its instances, and would count twice.
            figures |= self._memory(handle) | self._activity(handle, uuid)
        device["values"] = figures
        reasons = self._ask("CurrentClocksEventReasons", handle)
        device["labelled"] = {}
        if reasons is not None:
            device["labelled"]["throttled"] = {name: float(bool(reasons & mask)) for name, mask in _REASONS.items()}
        self._register(handle, uuid)
        return [device, *(self._instances(device, handle, minor) if is_cut else ())]

    def _figures(self, handle: Any, uuid: str) -> Figures:
        nvml = self._nvml
        figures = {
            "power_watts": _scaled(self._ask("PowerUsage", handle), 1e-3),
            "energy_joules_total": _scaled(self._ask("TotalEnergyConsumption", handle), 1e-3),
            "temperature_celsius": self._ask("Temperature", handle, nvml.NVML_TEMPERATURE_GPU),
            "pcie_replays_total": self._ask("PcieReplayCounter", handle),
        }
        for name, kind in (("correctable", 0), ("uncorrectable", 1)):
            figures[f"ecc_{name}_errors_total"] = self._ask("TotalEccErrors", handle, kind, nvml.NVML_VOLATILE_ECC)
        rows = self._ask("RemappedRows", handle)
        figures["row_remap_failed"] = None if rows is None else float(bool(rows[3]))
        (heat,) = self._fields(handle, nvml.NVML_FI_DEV_MEMORY_TEMP)
        figures["memory_temperature_celsius"] = None if heat is None else float(heat.uiVal)
        figures["link_bytes_per_second"] = self._link_rate(handle, uuid)
        sent = [self._ask("PcieThroughput", handle, way) for way in (0, 1)]
        if None not in sent:
            figures["pcie_bytes_per_second"] = sum(sent) * _KIB
        return {name: float(value) for name, value in figures.items() if value is not None}

    def _link_rate(self, handle: Any, uuid: str) -> float | None:
        """NVLink counts kibibytes that were carried; a first reading says nothing."""
        ids = (self._nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, self._nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)
        values = self._fields(handle, *((each, _ALL_LINKS) for each in ids))
        if None in values:
            return None
        now_s, total = time.monotonic(), float(sum(value.ullVal for value in values)) * _KIB
        before_s, before = self._links.get(uuid, (now_s, total))
        self._links[uuid] = now_s, total
        return (total - before) / (now_s - before_s) if now_s > before_s and total >= before else None

    def _fields(self, handle: Any, *ids: Any) -> list[Any]:
        """Values of fields, None for each that the GPU does not have."""
        values = self._ask("FieldValues", handle, list(ids))
        if values is None:
            return [None] * len(ids)
        return [value.value if value.nvmlReturn == 0 else None for value in values]

    def _memory(self, handle: Any) -> Figures:
        memory = self._ask("MemoryInfo", handle)
        if memory is None:
            return {}
        return {"memory_used_bytes": float(memory.used), "memory_total_bytes": float(memory.total)}

    def _activity(self, handle: Any, uuid: str) -> Figures:
        rates = self._ask("UtilizationRates", handle)
        coarse = {} if rates is None else {"busy_ratio": rates.gpu / 100, "dram_active_ratio": rates.memory / 100}
        return coarse | self._gpm(handle, uuid, "")

    def _instances(self, parent: dict[str, Any], handle: Any, minor: int | None) -> Iterator[dict[str, Any]]:
        nvml = self._nvml
        for at in range(self._ask("MaxMigDeviceCount", handle) or 0):
            # Places without an instance, and instances that a re-cut takes away while they are read.
            with contextlib.suppress(nvml.NVMLError):
                device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, at)
                instance = nvml.nvmlDeviceGetGpuInstanceId(device)
                model = _text(nvml.nvmlDeviceGetName(device))
                yield {
                    "gpu": parent["gpu"],
                    "uuid": _text(nvml.nvmlDeviceGetUUID(device)),
                    "model": parent["model"],
                    "partition": str(instance),
                    "profile": model.rpartition("MIG ")[2] if "MIG " in model else "",
                    "pci": "",
                    "aliases": [f"{parent['gpu']}:{at}", *self._claimed_as(handle, instance, minor)],
                    "values": self._memory(device) | self._gpm(handle, parent["uuid"], str(instance)),
                    "labelled": {},
                }

    def _claimed_as(self, handle: Any, instance: int, minor: int | None) -> list[str]:
        """What NVIDIA's driver for claims calls it: ``gpu-MINOR-mig-PROFILE-START``, without what stands between."""
        try:
            info = self._nvml.nvmlGpuInstanceGetInfo(self._nvml.nvmlDeviceGetGpuInstanceById(handle, instance))
        except (self._nvml.NVMLError, AttributeError):
            return []
        return [] if minor is None else [f"gpu-{minor}-mig-{info.profileId}-{info.placement.start}"]

    def _gpm(self, handle: Any, uuid: str, instance: str) -> Figures:
        """Between the last reading and this one; nothing in the first, and where the GPU has no GPM."""
        nvml = self._nvml
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                return {}
            sample = nvml.nvmlGpmSampleAlloc()
        except (nvml.NVMLError, AttributeError):
            return {}
        try:
            if instance:
                nvml.nvmlGpmMigSampleGet(handle, int(instance), sample)
            else:
                nvml.nvmlGpmSampleGet(handle, sample)
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(sample)
            return {}
        before, self._samples[uuid, instance] = self._samples.get((uuid, instance)), sample
        if before is None:
            return {}
        try:
            return self._between(before, sample, whole=not instance)
        except nvml.NVMLError:
            return {}
        finally:
            nvml.nvmlGpmSampleFree(before)

    def _between(self, before: Any, sample: Any, *, whole: bool) -> Figures:
        nvml = self._nvml
        asked = [
            ("busy_ratio", nvml.NVML_GPM_METRIC_GRAPHICS_UTIL, 0.01),
            ("sm_active_ratio", nvml.NVML_GPM_METRIC_SM_UTIL, 0.01),
            ("tensor_active_ratio", nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 0.01),
            ("dram_active_ratio", nvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 0.01),
        ]
        if whole:
            asked += [
                ("pcie_bytes_per_second", nvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, _MIB),
                ("pcie_bytes_per_second", nvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, _MIB),
                ("link_bytes_per_second", nvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, _MIB),
                ("link_bytes_per_second", nvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, _MIB),
            ]
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(asked)
        request.sample1, request.sample2 = before, sample
        for at, (_, number, _) in enumerate(asked):
            request.metrics[at].metricId = number
        nvml.nvmlGpmMetricsGet(request)
        figures: Figures = {}
        lacking = set()
        for at, (name, _, factor) in enumerate(asked):
            metric = request.metrics[at]
            if metric.nvmlReturn != 0 or metric.value != metric.value:
                lacking.add(name)
                continue
            value = metric.value * factor
            # The driver's shares exceed the whole by rounding.
            figures[name] = figures.get(name, 0.0) + (min(value, 1.0) if name.endswith("_ratio") else value)
        return {name: value for name, value in figures.items() if name not in lacking}

    def _register(self, handle: Any, uuid: str) -> None:
        address = ctypes.cast(handle, ctypes.c_void_p).value or 0
        if self._registered.get(address) == uuid:
            return
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            if self._events is None:
                self._events = self._nvml.nvmlEventSetCreate()
            self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, self._events)
            self._xids.setdefault(uuid, Counter())
        self._registered[address] = uuid

    def _drain(self) -> None:
        """XIDs since the last reading; what the driver cannot say (also that there is none) ends it."""
        if self._events is None:
            return
        with contextlib.suppress(self._nvml.NVMLError):
            for _ in range(_MOST_EVENTS):
                event = self._nvml.nvmlEventSetWait(self._events, 0)
                uuid = self._registered.get(ctypes.cast(event.device, ctypes.c_void_p).value or 0)
                if uuid is None or not event.eventType & self._nvml.nvmlEventTypeXidCriticalError:
                    continue
                self._last_xid[uuid] = float(event.eventData)
                counts, code = self._xids[uuid], str(event.eventData)
                counts[code if code in counts or len(counts) < _MOST_CODES else "other"] += 1

    def _ask(self, what: str, *arguments: Any) -> Any:
        """None for what this GPU or driver does not know or say."""
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{what}")(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else value * factor


def _address(name: Any) -> str:
    """``0000:3b:00.0`` of NVML's ``00000000:3B:00.0``."""
    domain, _, rest = _text(name).lower().partition(":")
    return f"{domain[-4:] if not domain[:-4].strip('0') else domain}:{rest}"


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def main() -> int:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        sys.stderr.write("nvidia-ml-py is not installed\n")
        return _EXIT_ABSENT
    except nvml.NVMLError as error:
        sys.stderr.write(f"NVML does not answer: {error}\n")
        missing = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return _EXIT_ABSENT if error.value in missing else 1
    reader = Reader(nvml)
    for line in sys.stdin:
        try:
            devices = reader.xids() if line == "xids\n" else reader.read()
        except nvml.NVMLError as error:
            sys.stderr.write(f"NVML does not answer any more: {error}\n")
            return 1
        sys.stdout.write(json.dumps(devices, separators=(",", ":")) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
