"""Which source of metrics a machine has."""

import os
from collections.abc import Mapping
from pathlib import Path

from kopt.agents.profiler.collectors.collectors import COLLECTORS
from kopt.agents.profiler.readings import Source, SourceError
from kopt.agents.profiler.recorded import RecordedSource
from kopt.formats.gpu_metrics import MetricsError

SOURCE_VARIABLE = "KOPT_PROFILE_SOURCE"
"""The name of one of ``COLLECTORS``, or ``csv:FILE`` for a recording."""


def find_source(name: str = "", environ: Mapping[str, str] = os.environ) -> Source:
    """The source that is named, by argument or environment, else the first that works.

    Raises SourceError with what was tried and why it failed.
    """
    name = name or environ.get(SOURCE_VARIABLE, "")
    if name.startswith("csv:"):
        try:
            return RecordedSource.of_file(Path(name.removeprefix("csv:")))
        except (OSError, MetricsError) as error:
            raise SourceError(f"{name}: {error}") from error
    collectors = [collector for collector in COLLECTORS if name in ("", collector.name)]
    if not collectors:
        names = ", ".join(collector.name for collector in COLLECTORS)
        raise SourceError(f"{name!r} is no source of metrics; there are {names} and csv:FILE")
    failed = []
    for collector in collectors:
        try:
            return collector.open()
        except SourceError as error:
            failed.append(f"{collector.name}: {error}")
    raise SourceError(f"no GPU can be observed here ({'; '.join(failed)})")
