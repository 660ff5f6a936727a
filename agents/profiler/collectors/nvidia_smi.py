"""NVIDIA's GPUs through ``nvidia-smi``."""

import time

from kopt.agents.profiler.collectors.vendor_tool import output_of, tool_path
from kopt.agents.profiler.readings import Collector, Reading, SourceError
from kopt.formats.gpu_metrics import MetricsError, nvidia_smi


class NvidiaSmi:
    """Raises SourceError when the tool is not there or finds nothing."""

    name = "nvidia-smi"
    idles = True

    def __init__(self) -> None:
        self._path = tool_path("nvidia-smi")
        self.read()

    def read(self) -> Reading:
        at_s = time.monotonic()
        gpus = output_of(self._path, f"--query-gpu={','.join(nvidia_smi.GPU_COLUMNS)}", "--format=csv")
        apps = output_of(self._path, f"--query-compute-apps={','.join(nvidia_smi.PROCESS_COLUMNS)}", "--format=csv")
        try:
            return Reading(at_s, nvidia_smi.parse_query_gpu(gpus), nvidia_smi.parse_compute_apps(apps))
        except MetricsError as error:
            raise SourceError(f"nvidia-smi: {error}") from error

    def close(self) -> None:
        """Nothing is held."""


COLLECTOR = Collector("nvidia-smi", NvidiaSmi)
