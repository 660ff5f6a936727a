"""What ``make measure`` has measured: JSON lines in ``measurements/<gpu>-<torch>.jsonl`` → ``Measurement``.

``read_measurements()`` gives the last word on each entry, and ``memory_runs`` says the same as rows of the table that
the public data sets are read into.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from kopt.core.units import Bytes
from kopt.core.workload.sizing import AllocationKind
from kopt.data.memory.families import image_family
from kopt.data.memory.table import MAX_BYTES, Category, MemoryRun

MEASUREMENTS = Path(__file__).resolve().parent / "measurements"
SOURCE = "kaiwo-optimizer suite"
_IMAGES = ("cnn", "transformer")
_CATEGORIES = {
    "segmentation": Category.DETECTION,
    "reinforcement": Category.MLP,
    "recommender": Category.MLP,
    "gnn": Category.MLP,
    "rnn": Category.MLP,
    "speech": Category.TRANSFORMER,
    "diffusion": Category.CNN,
    "generative": Category.CNN,
    "contrastive": Category.CNN,
}
"""The suite's finer kinds → the kinds that errors are reported by."""


class MeasurementError(ValueError):
    """A line that is not a measurement; the message names file and line."""


class Ending(StrEnum):
    FINISHED = "finished"
    OUT_OF_MEMORY = "out-of-memory"
    """It ended because the GPU, or the capacity that was set, had no more."""
    FAILED = "failed"
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class Measurement:
    """One entry of the suite, once run. Amounts are bytes of the one GPU that it used.

    ``allocated`` and ``reserved`` are the caching allocator's peaks, ``process`` the most that the driver was seen to
    hold for the entry's processes; where the driver's process ids cannot be matched (``process_scope`` is ``device``),
    it is the whole GPU's use less its use before. ``capacity`` is what the entry could have at most: the GPU's, or a
    smaller one that was set for it. After running out of memory the peaks say what was reached, less than was needed.
    A program that caught running out and went on has FINISHED, with ``out_of_memory_events`` above zero.

    ``activity`` and ``bandwidth`` are mean shares, 0 to 1, over the steady state: ``readings`` looks between the
    second and the last optimizer step. ``seconds_per_step`` is the median time between steps.
    """

    name: str
    digest: str
    category: str
    family: str
    framework: str
    precision: str
    optimizer: str
    batch: int
    ending: Ending
    gpu: str
    driver: str
    capacity: Bytes
    torch: str
    cuda: str | None
    hip: str | None
    allocator_configuration: str
    at: str
    seconds: float
    steps: int
    allocated: Bytes | None = None
    reserved: Bytes | None = None
    process: Bytes | None = None
    process_scope: str = ""
    out_of_memory_events: int = 0
    allocation_retries: int = 0
    activity: float | None = None
    activity_kind: str = ""
    bandwidth: float | None = None
    readings: int = 0
    seconds_per_step: float | None = None
    error: str = ""
    tool: str = ""
    packages: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for amount in (self.allocated, self.reserved, self.process, self.capacity):
            if amount is not None and not 0 <= amount <= MAX_BYTES:
                raise ValueError(f"{amount} bytes is no amount of one GPU's memory")
        for share in (self.activity, self.bandwidth):
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{share} is no share from 0 to 1")

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        """What a measurement is of: two with the same key say the same thing twice."""
        return (self.digest, self.gpu, self.torch, int(self.capacity), self.allocator_configuration)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Measurement":
        """Raises ValueError for anything that is not one."""
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        known = {one.name for one in fields(Measurement)}
        for name in found.keys() - known:
            raise ValueError(f"unknown field {name[:40]!r}")
        try:
            return Measurement(**{**found, "ending": Ending(str(found.get("ending")))})
        except TypeError as error:
            raise ValueError(str(error).rpartition("__init__() ")[2]) from None


def path_for(folder: Path, gpu: str, torch: str) -> Path:
    """``<gpu>-<torch>.jsonl``, with names that any file system takes."""
    parts = (re.sub(r"[^A-Za-z0-9.+]+", "-", text).strip("-") for text in (gpu, torch))
    return folder / f"{'-'.join(parts)}.jsonl"


def append(path: Path, measurement: Measurement) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        stream.write(measurement.to_json() + "\n")


def read_measurements(folder: Path = MEASUREMENTS) -> tuple[Measurement, ...]:
    """Every ``*.jsonl`` of a folder; of several measurements of the same thing, the last. Empty where there is none."""
    latest: dict[tuple[str, str, str, int, str], Measurement] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for one in _lines(path):
            latest.pop(one.key, None)
            latest[one.key] = one
    return tuple(latest.values())


def memory_runs(measurements: Iterable[Measurement]) -> tuple[MemoryRun, ...]:
    """One row per figure. A run that ended without fitting is one row without an amount; failures are left out."""
    return tuple(run for one in measurements for run in _runs(one))


def _lines(path: Path) -> Iterator[Measurement]:
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield Measurement.from_json(line)
        except (ValueError, RecursionError) as error:
            # The machine may have died while the last line was written: that measurement is taken again.
            if number == len(lines):
                return
            raise MeasurementError(f"{path.name}, line {number}: {error}") from None


def _runs(one: Measurement) -> Iterator[MemoryRun]:
    family = image_family(one.family) if one.category in _IMAGES else one.family
    about: dict[str, Any] = {
        "name": one.name,
        "family": family,
        "source": SOURCE,
        "licence": "MIT",
        "gpu": one.gpu,
        "category": _CATEGORIES[one.category] if one.category in _CATEGORIES else Category(one.category),
        "arguments": {"framework": one.framework, "precision": one.precision, "batch": one.batch, "torch": one.torch},
    }
    if one.ending is Ending.OUT_OF_MEMORY:
        yield MemoryRun(metric=None, measured=None, out_of_memory=True, **about)
    elif one.ending is Ending.FINISHED:
        for kind in AllocationKind:
            amount = getattr(one, kind.value)
            if amount:
                yield MemoryRun(metric=kind, measured=Bytes(amount), censored=one.out_of_memory_events > 0, **about)
