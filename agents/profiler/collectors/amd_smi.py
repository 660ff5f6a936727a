"""AMD's GPUs through ``amd-smi``."""

import time
from dataclasses import replace

from kopt.agents.profiler.collectors.vendor_tool import output_of, tool_path
from kopt.agents.profiler.readings import Collector, Reading, SourceError
from kopt.formats.gpu_metrics import GpuSample, MetricsError, amd_smi


class AmdSmi:
    """Raises SourceError when the tool is not there or finds nothing."""

    name = "amd-smi"
    idles = True

    def __init__(self) -> None:
        self._path = tool_path("amd-smi")
        try:
            self._static = amd_smi.parse_static(output_of(self._path, *amd_smi.STATIC_ARGUMENTS))
        except MetricsError:
            self._static = {}
        self.read()

    def read(self) -> Reading:
        at_s = time.monotonic()
        try:
            gpus = amd_smi.parse_metric(output_of(self._path, *amd_smi.METRIC_ARGUMENTS))
            processes = amd_smi.parse_process(output_of(self._path, *amd_smi.PROCESS_ARGUMENTS))
        except MetricsError as error:
            raise SourceError(f"amd-smi: {error}") from error
        return Reading(at_s, tuple([self._named(gpu) for gpu in gpus]), processes)

    def close(self) -> None:
        """Nothing is held."""

    def _named(self, sample: GpuSample) -> GpuSample:
        name, driver = self._static.get(sample.gpu, ("", ""))
        return replace(sample, name=name, driver=driver)


COLLECTOR = Collector("amd-smi", AmdSmi)
