"""One reading of a GPU, or of a process on it."""

import math
from dataclasses import dataclass

from kopt.core.units import MIB, Bytes

MOST_BYTES = 1 << 50
"""No GPU has a pebibyte; larger figures are a tool's mistake."""
LONGEST_TEXT = 64 << 20
"""Characters of one output that are read."""


class MetricsError(ValueError):
    """Output that cannot be read; ``line`` counts from 1 and is 0 where no single line is to blame."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment. ``activity`` and ``bandwidth`` are shares from 0 to 1: of the time (or of the SMs or CUs)
    that were busy, and of the memory bandwidth or of the time in which memory was accessed, as the tool defines it.

    ``at`` is the tool's own time stamp as it wrote it, for output that was recorded over time; ``driver`` its version.
    """

    gpu: str
    name: str = ""
    used_bytes: Bytes | None = None
    total_bytes: Bytes | None = None
    reserved_bytes: Bytes | None = None
    activity: float | None = None
    bandwidth: float | None = None
    at: str = ""
    pod: str = ""
    driver: str = ""


@dataclass(frozen=True)
class ProcessSample:
    """Memory of one process on one GPU; ``used_bytes`` is None where the driver does not tell."""

    pid: int
    gpu: str
    used_bytes: Bytes | None
    name: str = ""
    at: str = ""


def amount_bytes(value: float, unit: str, line: int = 0) -> Bytes:
    """Bytes of an amount in a unit as GPU tools write it: their MB are MiB. Raises MetricsError."""
    factor = {"B": 1, "KB": 1 << 10, "KIB": 1 << 10, "MB": MIB, "MIB": MIB, "GB": 1 << 30, "GIB": 1 << 30}
    scale = factor.get(unit.upper())
    if scale is None:
        raise MetricsError(f"{unit!r} is no unit of memory", line)
    if not math.isfinite(value) or not 0 <= value * scale <= MOST_BYTES:
        raise MetricsError(f"{value:g} {unit} is no amount of GPU memory", line)
    return Bytes(round(value * scale))


def share(percent: float, line: int = 0) -> float:
    """A percentage as a share. Raises MetricsError for one outside of 0 to 100."""
    if not 0 <= percent <= 100:
        raise MetricsError(f"{percent:g} is no percentage", line)
    return percent / 100


def number(text: str, what: str, line: int = 0) -> float:
    """A decimal number as it stands. Raises MetricsError."""
    try:
        result = float(text)
    except ValueError:
        result = math.nan
    if not math.isfinite(result) or "_" in text:
        raise MetricsError(f"{what} is {text[:60]!r}, not a number", line)
    return result


def checked(text: str) -> str:
    """The text, if it is of a size that can be an output. Raises MetricsError."""
    if len(text) > LONGEST_TEXT:
        raise MetricsError(f"{len(text) >> 20} MiB of text; give it in parts of at most {LONGEST_TEXT >> 20}")
    if not text.strip():
        raise MetricsError("there is nothing in it; did the tool run?")
    return text
