"""What a pod asks of a node, as placement sees it."""

from dataclasses import dataclass
from enum import StrEnum

from kopt.core.hardware.bandwidth import BandwidthMinimum
from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.units import Bytes


class TopologyPreference(StrEnum):
    """How a pod's GPUs should lie to one another; the names of ``GPUWorkload.spec.gpuRequirements.topology``."""

    ANY = "Any"
    NVLINK_OPTIMAL = "NVLinkOptimal"
    SAME_SWITCH = "SameSwitch"
    SAME_NUMA = "SameNUMA"
    SPREAD = "Spread"


@dataclass(frozen=True)
class PodRequest:
    """CPU (milli-cores), memory and GPUs of one pod, and how its GPUs should lie.

    ``topology_required`` refuses nodes that cannot keep the preference instead of ranking them lower.
    Raises ValueError for negative amounts.
    """

    cpu_milli: int = 0
    memory_bytes: Bytes = Bytes(0)
    gpus: GpuRequest = GpuRequest()
    topology: TopologyPreference = TopologyPreference.ANY
    topology_required: bool = False
    minimum: BandwidthMinimum | None = None
    """Nodes on which no set of free GPUs reaches it are refused, and with ``topology_required`` those of which that is
    not known; of no meaning for a single GPU."""

    def __post_init__(self) -> None:
        if self.cpu_milli < 0 or self.memory_bytes < 0:
            raise ValueError(f"a pod cannot ask for {self.cpu_milli} milli-CPU and {self.memory_bytes} bytes")

    @property
    def is_share(self) -> bool:
        """Does it ask for a part of one GPU?"""
        return self.gpus.count == 1 and self.gpus.share < 1000
