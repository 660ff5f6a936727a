"""GPUs as hardware: a model of the catalogue, and one device on a node."""

from dataclasses import dataclass
from enum import StrEnum

from kopt.core.units import WHOLE_GPU, Bytes, MilliGpu


class Vendor(StrEnum):
    AMD = "amd"
    NVIDIA = "nvidia"


@dataclass(frozen=True)
class PartitionProfile:
    """One way to cut a GPU: ``count`` equal or named instances of ``memory_bytes`` and ``compute_units``."""

    name: str
    memory_bytes: Bytes
    compute_units: int
    count: int


@dataclass(frozen=True)
class GpuModel:
    """A GPU model as its vendor describes it.

    ``memory_bytes`` is the marketed capacity; ``usable_bytes`` what a process can have after the driver's
    share. ``compute_units`` counts SMs (NVIDIA) or CUs (AMD). Link speeds are per direction, GB/s = 1e9 bytes/s,
    summed over a GPU's links. ``source`` names the public document.
    """

    name: str
    vendor: Vendor
    memory_bytes: Bytes
    usable_bytes: Bytes
    compute_units: int
    memory_gbps: float
    link: str
    link_gbps: float
    pcie_gbps: float
    aliases: tuple[str, ...] = ()
    partitions: tuple[PartitionProfile, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Gpu:
    """One device of a node. ``allocated`` is what bound pods hold of its 1,000 milli-GPU."""

    index: int
    model: str
    memory_bytes: Bytes
    uuid: str = ""
    pci: str = ""
    numa: int | None = None
    partition: str = ""
    allocated: MilliGpu = MilliGpu(0)
    healthy: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.allocated <= WHOLE_GPU:
            raise ValueError(f"GPU {self.index}: {self.allocated} milli-GPU allocated of {WHOLE_GPU}")

    @property
    def free(self) -> MilliGpu:
        return MilliGpu(WHOLE_GPU - self.allocated if self.healthy else 0)
