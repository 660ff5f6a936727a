"""AMD's GPUs through ``rocm-smi``."""

import time

from kopt.agents.profiler.collectors.vendor_tool import output_of, tool_path
from kopt.agents.profiler.readings import Collector, Reading, SourceError
from kopt.formats.gpu_metrics import MetricsError, rocm_smi


class RocmSmi:
    """Raises SourceError when the tool is not there or finds nothing."""

    name = "rocm-smi"
    idles = True

    def __init__(self) -> None:
        self._path = tool_path("rocm-smi")
        self.read()

    def read(self) -> Reading:
        at_s = time.monotonic()
        try:
            gpus, processes = rocm_smi.parse(output_of(self._path, *rocm_smi.ARGUMENTS))
        except MetricsError as error:
            raise SourceError(f"rocm-smi: {error}") from error
        return Reading(at_s, gpus, processes)

    def close(self) -> None:
        """Nothing is held."""


COLLECTOR = Collector("rocm-smi", RocmSmi)
