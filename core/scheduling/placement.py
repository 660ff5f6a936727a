"""What a pod asks of a node and what a node offers, as placement sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kopt.core.hardware.bandwidth import BandwidthMinimum
from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.units import Bytes

ANY_POOL = "*"
"""The pool of pods that ask for a part of a GPU by annotation: any resource of whole GPUs."""


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


@dataclass(frozen=True, slots=True)
class Ask:
    """One pod's request. ``units`` are whole units per GPU resource, empty for a pod that asks for a share.

    ``share_bytes`` is a share given in memory: how much of a GPU it is depends on the GPU.
    """

    request: PodRequest
    units: Mapping[str, int]
    share_bytes: Bytes = Bytes(0)

    @property
    def pool(self) -> str:
        """The pool to choose from: one GPU resource, any of whole GPUs, or none (``""``)."""
        if len(self.units) == 1:
            return next(iter(self.units))
        return ANY_POOL if self.request.gpus.count and not self.units else ""

    @property
    def uses_gpus(self) -> bool:
        return bool(self.units) or self.request.gpus.count > 0


@dataclass(frozen=True)
class FleetNode:
    """One node's capacity and the properties that rank it.

    ``gpus`` healthy GPU slots of one ``model`` with ``gpu_memory_bytes`` each. ``health`` (0 broken to 1 healthy),
    ``cost`` (any unit, comparable between nodes) and ``utilisation`` (0-1) are neutral where unknown. ``topology``
    names how its GPUs are linked; identical nodes share a name, empty means unknown. ``degraded``: some part of it is
    worse than it was; ``poor`` has the bits of the slots that such a part belongs to. ``domains`` are the network
    levels that it is in, outermost first.
    """

    name: str
    cpu_milli: int
    memory_bytes: Bytes
    gpus: int = 0
    model: str = ""
    gpu_memory_bytes: Bytes = Bytes(0)
    ready: bool = True
    health: float = 1.0
    cost: float = 0.0
    utilisation: float = 0.0
    topology: str = ""
    degraded: bool = False
    poor: int = 0
    domains: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name or min(self.cpu_milli, self.memory_bytes, self.gpus, self.gpu_memory_bytes) < 0:
            raise ValueError(f"node {self.name!r} needs a name and amounts that are not negative")
