"""Nodes and requests for GPUs, as policies and the simulator use them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kopt.core.gpu import Gpu
from kopt.core.units import Bytes, MilliGpu


@dataclass(frozen=True)
class Node:
    """A node with its GPUs and what is left of the rest. CPU is in milli-cores."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    cpu_free_milli: int = 0
    memory_free_bytes: Bytes = Bytes(0)
    labels: Mapping[str, str] = field(default_factory=dict)
    pool: str = ""
    ready: bool = True


@dataclass(frozen=True)
class GpuRequest:
    """``count`` GPUs, ``share`` of each."""

    count: int = 0
    share: MilliGpu = MilliGpu(1000)
    memory_bytes: Bytes = Bytes(0)
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.count < 0 or not 0 < self.share <= 1000:
            raise ValueError(f"{self.count} GPUs with {self.share} milli-GPU each is not a request")

    @property
    def total(self) -> MilliGpu:
        return MilliGpu(self.count * self.share)
