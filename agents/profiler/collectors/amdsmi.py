"""AMD's GPUs through ``amdsmi``, the Python library that comes with ROCm."""

import importlib
import time
from typing import Any

from kopt.agents.profiler.readings import Collector, Reading, SourceError
from kopt.core.units import MIB, Bytes
from kopt.formats.gpu_metrics import GpuSample, ProcessSample


class AmdSmiLibrary:
    """Raises SourceError when the library or the driver is not there."""

    name = "amdsmi"
    idles = True

    def __init__(self) -> None:
        try:
            # Beside a tool that is broken, the library's own loader raises KeyError or OSError.
            self._smi: Any = importlib.import_module("amdsmi")
        except (ImportError, KeyError, OSError) as error:
            raise SourceError(f"amdsmi cannot be imported: {error}") from error
        try:
            self._smi.amdsmi_init()
            self._handles = [(str(n), handle) for n, handle in enumerate(self._smi.amdsmi_get_processor_handles())]
            self._static = {n: self._name_and_driver(handle) for n, handle in self._handles}
        except self._smi.AmdSmiException as error:
            raise SourceError(f"amdsmi does not answer: {error}") from error
        if not self._handles:
            raise SourceError("amdsmi sees no GPU")

    def read(self) -> Reading:
        try:
            gpus = tuple([self._gpu(index, handle) for index, handle in self._handles])
            processes = tuple(
                [process for index, handle in self._handles for process in self._processes(index, handle)]
            )
        except self._smi.AmdSmiException as error:
            raise SourceError(f"amdsmi does not answer any more: {error}") from error
        return Reading(time.monotonic(), gpus, processes)

    def close(self) -> None:
        self._smi.amdsmi_shut_down()

    def _name_and_driver(self, handle: Any) -> tuple[str, str]:
        name = self._smi.amdsmi_get_gpu_asic_info(handle).get("market_name", "")
        driver = self._smi.amdsmi_get_gpu_driver_info(handle).get("driver_version", "")
        return str(name), str(driver)

    def _gpu(self, index: str, handle: Any) -> GpuSample:
        memory = self._smi.amdsmi_get_gpu_vram_usage(handle)
        activity = self._smi.amdsmi_get_gpu_activity(handle)
        name, driver = self._static[index]
        return GpuSample(
            index,
            name,
            Bytes(int(memory["vram_used"]) * MIB),
            Bytes(int(memory["vram_total"]) * MIB),
            activity=_share(activity.get("gfx_activity")),
            bandwidth=_share(activity.get("umc_activity")),
            driver=driver,
        )

    def _processes(self, index: str, handle: Any) -> list[ProcessSample]:
        processes = []
        for item in self._smi.amdsmi_get_gpu_process_list(handle):
            # Until ROCm 6.0 the list held handles, which a second call made into this.
            info = item if isinstance(item, dict) else self._smi.amdsmi_get_gpu_process_info(handle, item)
            used = info.get("memory_usage", {}).get("vram_mem", info.get("mem"))
            processes.append(ProcessSample(int(info["pid"]), index, Bytes(used) if isinstance(used, int) else None))
        return processes


def _share(percent: Any) -> float | None:
    """Partitions (CPX and the like) have no activity of their own: N/A, or all bits set."""
    return percent / 100 if isinstance(percent, int | float) and 0 <= percent <= 100 else None


COLLECTOR = Collector("amdsmi", AmdSmiLibrary)
