"""Readings that were recorded: ``nvidia-smi … --format=csv -l 1 > FILE``, or exposition text scraped over time."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from kopt.agents.profiler.readings import Exhausted, Reading
from kopt.formats.gpu_metrics import GpuSample, MetricsError, nvidia_smi

_STAMP = re.compile(r"(\d{4})[/-](\d{2})[/-](\d{2})[ T](\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?)")


def read_csv(text: str, interval_s: float = 1.0) -> tuple[Reading, ...]:
    """Readings of a log of ``--query-gpu``. Without time stamps the rows are taken to be ``interval_s`` apart.

    Raises MetricsError for rows that cannot be read, and for time that goes back.
    """
    readings = tuple(_grouped(nvidia_smi.parse_query_gpu(text), interval_s))
    for before, after in itertools.pairwise(readings):
        if after.at_s < before.at_s:
            raise MetricsError(f"time goes back by {before.at_s - after.at_s:g} s; is it two logs in one file?")
    if not readings:
        raise MetricsError("there is a header and no row")
    return readings


def _grouped(samples: Iterable[GpuSample], interval_s: float) -> Iterator[Reading]:
    """A GPU that comes again begins the next reading."""
    group: list[GpuSample] = []
    count = 0
    for sample in samples:
        if any(gpu_sample.gpu == sample.gpu for gpu_sample in group):
            yield _reading(group, count * interval_s)
            group, count = [], count + 1
        group.append(sample)
    if group:
        yield _reading(group, count * interval_s)


def _reading(group: Sequence[GpuSample], default_s: float) -> Reading:
    stamp = group[0].at
    if not stamp:
        return Reading(default_s, tuple(group))
    match = _STAMP.fullmatch(stamp)
    if match is None:
        raise MetricsError(f"{stamp[:60]!r} is no time stamp of nvidia-smi")
    try:
        at = datetime.fromisoformat(f"{match[1]}-{match[2]}-{match[3]}T{match[4]}+00:00")
    except ValueError as error:
        raise MetricsError(f"{stamp[:60]!r} is no time ({error})") from error
    return Reading(at.timestamp(), tuple(group))


class RecordedSource:
    """Gives one recorded reading after the other, whatever the clock says, and then raises Exhausted."""

    name = "recorded"
    idles = False

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._readings = iter(tuple(readings))

    @classmethod
    def of_file(cls, path: Path) -> "RecordedSource":
        """Raises MetricsError or OSError."""
        return cls(read_csv(path.read_text(encoding="utf-8", errors="replace")))

    def read(self) -> Reading:
        try:
            return next(self._readings)
        except StopIteration:
            raise Exhausted from None

    def close(self) -> None:
        """Nothing is held."""
