"""The one GPU that the suite is measured on, as the product's profiler sees it."""

from dataclasses import dataclass, replace

from kopt.agents.profiler.readings import Reading, Source, SourceError
from kopt.agents.profiler.sources import find_source
from kopt.core.units import Bytes


class NoGpuError(RuntimeError):
    """There is no GPU, or nothing that sees it; the message says what is missing."""


@dataclass(frozen=True)
class GpuIdentity:
    """A GPU as its driver names it; ``capacity_bytes`` is the whole memory, the driver's own part included."""

    name: str
    driver: str
    capacity_bytes: Bytes


class MeasuredGpu:
    """One GPU of a source, by its place in the tool's order; ``readings`` keeps what was read. Raises NoGpuError."""

    idles = True

    def __init__(self, source: Source, index: int = 0) -> None:
        self._source, self._index = source, index
        self.readings: list[Reading] = []
        self.name = source.name
        try:
            (gpu,) = self.read().gpus
        except SourceError as error:
            raise NoGpuError(str(error)) from error
        if not gpu.name or not gpu.total_bytes:
            raise NoGpuError(f"{source.name} does not say which GPU this is, or how much memory it has")
        self.identity = GpuIdentity(gpu.name, gpu.driver, gpu.total_bytes)

    @property
    def activity_kind(self) -> str:
        """What its activity is a share of: ``busy SMs``, or ``busy time`` (of any kernel at all, which is more)."""
        return "busy SMs" if self.name == "nvml-gpm" else "busy time"

    def read(self) -> Reading:
        """A reading of this GPU and its processes. Raises SourceError."""
        found = self._source.read()
        if self._index >= len(found.gpus):
            raise SourceError(f"there is no GPU {self._index}: {self._source.name} sees {len(found.gpus)}")
        gpu = found.gpus[self._index]
        # Where a tool tells a process's memory as one sum, it is of this GPU: programs see no other.
        mine = [replace(one, gpu=gpu.gpu) for one in found.processes or () if one.gpu in ("", gpu.gpu)]
        self.readings.append(Reading(found.at_s, (gpu,), tuple(mine)))
        return self.readings[-1]

    def close(self) -> None:
        self._source.close()


def find_gpu(index: int = 0) -> MeasuredGpu:
    """The GPU by whatever library or tool answers first. Raises NoGpuError with each one's reason."""
    try:
        source = find_source(environ={})
    except SourceError as error:
        raise NoGpuError(
            f"no GPU to measure on: {error}. Run it on a machine with a GPU and its driver, with --python naming an "
            "interpreter whose torch can use that GPU."
        ) from error
    return MeasuredGpu(source, index)
