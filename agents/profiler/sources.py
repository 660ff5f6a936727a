"""Which source of metrics a machine has."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from kopt.agents.profiler.amdsmi import AmdSmiLibrary
from kopt.agents.profiler.nvml import NvmlSource
from kopt.agents.profiler.readings import Source, SourceError
from kopt.agents.profiler.recorded import RecordedSource
from kopt.agents.profiler.tools import AmdSmi, NvidiaSmi, RocmSmi
from kopt.formats.gpu_metrics import MetricsError

SOURCE_VARIABLE = "KOPT_PROFILE_SOURCE"
"""``nvml``, ``nvidia-smi``, ``amdsmi``, ``amd-smi``, ``rocm-smi``, or ``csv:FILE`` for a recording."""

SOURCES: Mapping[str, Callable[[], Source]] = {
    "nvml": NvmlSource, "nvidia-smi": NvidiaSmi, "amdsmi": AmdSmiLibrary, "amd-smi": AmdSmi, "rocm-smi": RocmSmi,
}  # fmt: skip
"""In the order in which they are tried: the libraries are quicker than the tools."""


def find_source(asked: str = "", environ: Mapping[str, str] = os.environ) -> Source:
    """The source that is named, by argument or environment, else the first that works.

    Raises SourceError with what was tried and why it failed.
    """
    asked = asked or environ.get(SOURCE_VARIABLE, "")
    if asked.startswith("csv:"):
        try:
            return RecordedSource.of_file(Path(asked.removeprefix("csv:")))
        except (OSError, MetricsError) as error:
            raise SourceError(f"{asked}: {error}") from error
    if asked and asked not in SOURCES:
        raise SourceError(f"{asked!r} is no source of metrics; there are {', '.join(SOURCES)} and csv:FILE")
    failed = []
    for name in [asked] if asked else list(SOURCES):
        try:
            return SOURCES[name]()
        except SourceError as error:
            failed.append(f"{name}: {error}")
    raise SourceError(f"no GPU can be observed here ({'; '.join(failed)})")
