"""What a source of GPU metrics gives, one reading of everything at a time, and how a collector offers one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kopt.formats.gpu_metrics import GpuSample, ProcessSample


class SourceError(RuntimeError):
    """A source that cannot be used; the message says why and what to do."""


class Exhausted(Exception):
    """A recording that has no further reading."""


@dataclass(frozen=True)
class Reading:
    """All GPUs and the processes on them, at ``at_s`` seconds of the source's own clock.

    ``processes`` is None where the source cannot tell processes at all.
    """

    at_s: float
    gpus: tuple[GpuSample, ...]
    processes: tuple[ProcessSample, ...] | None = None


class Source(Protocol):
    """``name`` stands in the profile; ``idles``: a first reading shows what is used before the command runs."""

    name: str
    idles: bool

    def read(self) -> Reading:
        """A reading now. Raises SourceError or Exhausted."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Collector:
    """A way to the metrics of a running machine. ``open`` raises SourceError where the machine does not have it."""

    name: str
    open: Callable[[], Source]
