"""The vendors' command-line tools, where their libraries are not at hand: slower, and everywhere."""

import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace

from kopt.agents.profiler.readings import Reading, SourceError
from kopt.formats.gpu_metrics import GpuSample, MetricsError, amd_smi, nvidia_smi, rocm_smi

_LIMIT_S = 20.0


class NvidiaSmi:
    """``nvidia-smi``. Raises SourceError when it is not there or finds nothing."""

    name = "nvidia-smi"
    idles = True

    def __init__(self) -> None:
        self._path = _find("nvidia-smi")
        self.read()

    def read(self) -> Reading:
        at_s = time.monotonic()
        gpus = _run(self._path, f"--query-gpu={','.join(nvidia_smi.GPU_COLUMNS)}", "--format=csv")
        apps = _run(self._path, f"--query-compute-apps={','.join(nvidia_smi.PROCESS_COLUMNS)}", "--format=csv")
        try:
            return Reading(at_s, nvidia_smi.parse_query_gpu(gpus), nvidia_smi.parse_compute_apps(apps))
        except MetricsError as error:
            raise SourceError(f"nvidia-smi: {error}") from error

    def close(self) -> None:
        """Nothing is held."""


class AmdSmi:
    """``amd-smi``. Raises SourceError as above."""

    name = "amd-smi"
    idles = True

    def __init__(self) -> None:
        self._path = _find("amd-smi")
        try:
            self._static = amd_smi.parse_static(_run(self._path, *amd_smi.STATIC_ARGUMENTS))
        except MetricsError:
            self._static = {}
        self.read()

    def read(self) -> Reading:
        at_s = time.monotonic()
        try:
            gpus = amd_smi.parse_metric(_run(self._path, *amd_smi.METRIC_ARGUMENTS))
            processes = amd_smi.parse_process(_run(self._path, *amd_smi.PROCESS_ARGUMENTS))
        except MetricsError as error:
            raise SourceError(f"amd-smi: {error}") from error
        return Reading(at_s, tuple([self._named(one) for one in gpus]), processes)

    def close(self) -> None:
        """Nothing is held."""

    def _named(self, sample: GpuSample) -> GpuSample:
        name, driver = self._static.get(sample.gpu, ("", ""))
        return replace(sample, name=name, driver=driver)


class RocmSmi:
    """``rocm-smi``. Raises SourceError as above."""

    name = "rocm-smi"
    idles = True

    def __init__(self) -> None:
        self._path = _find("rocm-smi")
        self.read()

    def read(self) -> Reading:
        at_s = time.monotonic()
        try:
            gpus, processes = rocm_smi.parse(_run(self._path, *rocm_smi.ARGUMENTS))
        except MetricsError as error:
            raise SourceError(f"rocm-smi: {error}") from error
        return Reading(at_s, gpus, processes)

    def close(self) -> None:
        """Nothing is held."""


def _find(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        raise SourceError(f"{tool} is not on the PATH")
    return path


def _run(path: str, *arguments: str) -> str:
    command: Sequence[str] = (path, *arguments)
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{path}: {error}") from error
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        said = (done.stderr.decode(errors="replace") or text).strip()[-300:]
        raise SourceError(f"{path} ended with {done.returncode}: {said}")
    return text
