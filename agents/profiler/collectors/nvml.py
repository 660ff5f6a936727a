"""NVIDIA's GPUs through NVML (the package ``nvidia-ml-py``), a few milliseconds for a reading.

From Hopper on, GPM gives the share of busy SMs and of the DRAM bandwidth between two readings; before, NVML only knows
the share of the time in which any kernel ran, or memory was accessed.
"""

import importlib
import time
from typing import Any

from kopt.agents.profiler.readings import Collector, Reading, SourceError
from kopt.core.units import Bytes
from kopt.formats.gpu_metrics import GpuSample, ProcessSample


class NvmlSource:
    """Raises SourceError when the package or the driver is not there."""

    idles = True

    def __init__(self) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
        except ImportError as error:
            raise SourceError("nvidia-ml-py is not installed") from error
        try:
            self._nvml.nvmlInit()
            driver = _text(self._nvml.nvmlSystemGetDriverVersion())
            self._devices = [
                _Device(self._nvml, driver, self._nvml.nvmlDeviceGetHandleByIndex(index))
                for index in range(self._nvml.nvmlDeviceGetCount())
            ]
        except self._nvml.NVMLError as error:
            raise SourceError(f"NVML does not answer: {error}") from error
        if not self._devices:
            raise SourceError("NVML sees no GPU")
        self.name = "nvml-gpm" if any(device.measures for device in self._devices) else "nvml"

    def read(self) -> Reading:
        try:
            gpus = tuple([device.sample() for device in self._devices])
            processes = tuple([process for device in self._devices for process in device.processes()])
        except self._nvml.NVMLError as error:
            raise SourceError(f"NVML does not answer any more: {error}") from error
        return Reading(time.monotonic(), gpus, processes)

    def close(self) -> None:
        for device in self._devices:
            device.close()
        self._nvml.nvmlShutdown()


class _Device:
    def __init__(self, nvml: Any, driver: str, handle: Any) -> None:
        self._nvml, self._driver, self._handle = nvml, driver, handle
        self._uuid, self._name = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
        self._before: Any = self._gpm_sample() if self._has_gpm() else None

    @property
    def measures(self) -> bool:
        return self._before is not None

    def sample(self) -> GpuSample:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        activity, bandwidth = self._gpm() if self.measures else self._coarse()
        return GpuSample(
            self._uuid,
            self._name,
            Bytes(memory.used),
            Bytes(memory.total),
            activity=activity,
            bandwidth=bandwidth,
            driver=self._driver,
        )

    def processes(self) -> list[ProcessSample]:
        try:
            result = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError_NotSupported:
            return []
        return [
            ProcessSample(item.pid, self._uuid, None if item.usedGpuMemory is None else Bytes(item.usedGpuMemory))
            for item in result
        ]

    def close(self) -> None:
        if self._before is not None:
            self._nvml.nvmlGpmSampleFree(self._before)
            self._before = None

    def _coarse(self) -> tuple[float | None, float | None]:
        try:
            result = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
        except self._nvml.NVMLError_NotSupported:
            return None, None
        return min(result.gpu, 100) / 100, min(result.memory, 100) / 100

    def _has_gpm(self) -> bool:
        try:
            return bool(self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)
        except (self._nvml.NVMLError, AttributeError):
            return False

    def _gpm_sample(self) -> Any:
        """None where the driver knows GPM but does not let it be used, as in a partition."""
        sample = self._nvml.nvmlGpmSampleAlloc()
        try:
            self._nvml.nvmlGpmSampleGet(self._handle, sample)
        except self._nvml.NVMLError:
            self._nvml.nvmlGpmSampleFree(sample)
            return None
        return sample

    def _gpm(self) -> tuple[float | None, float | None]:
        now = self._gpm_sample()
        if now is None:
            return None, None
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = self._nvml.NVML_GPM_METRICS_GET_VERSION, 2
        request.sample1, request.sample2 = self._before, now
        request.metrics[0].metricId = self._nvml.NVML_GPM_METRIC_SM_UTIL
        request.metrics[1].metricId = self._nvml.NVML_GPM_METRIC_DRAM_BW_UTIL
        self._nvml.nvmlGpmMetricsGet(request)
        self._nvml.nvmlGpmSampleFree(self._before)
        self._before = now
        busy, moving = (_share(request.metrics[n]) for n in (0, 1))
        return busy, moving


def _share(metric: Any) -> float | None:
    """None for a metric that the device does not have, and where nothing was counted (not a number)."""
    if metric.nvmlReturn != 0 or metric.value != metric.value:
        return None
    return float(min(max(metric.value, 0.0), 100.0)) / 100


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


COLLECTOR = Collector("nvml", NvmlSource)
