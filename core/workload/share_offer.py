"""What the nodes of a cluster offer shares of GPUs by."""

from dataclasses import dataclass

from kopt.core.units import WHOLE_GPU
from kopt.core.workload.gpu_share import ShareExecutor


@dataclass(frozen=True)
class ShareOffer:
    """Shares of the GPUs of a node, all of one model. ``gpu_mib``: memory of each, 0 where nothing tells."""

    executor: ShareExecutor
    gpu_mib: int = 0
    replicas: int = 0
    """Equal parts that a device plugin has cut each GPU into."""
    resource: str = "nvidia.com/gpu"
    """What pods ask a device plugin for."""
    driver: str = ""
    """Of dynamic resource allocation, as are the next three."""
    device_class: str = ""
    memory_capacity: str = ""
    """Name of the capacity in bytes; empty where devices have none that can be shared."""
    compute_capacity: str = ""
    compute_units: int = 0
    """Of ``compute_capacity``, how many are a whole GPU."""
    distinct: str = ""
    """Attribute by which the devices of a node differ, with its domain; empty where there is none."""
    gpus: int = 0
    """Of the node, 0 where nothing tells."""

    @property
    def replica_milli(self) -> int:
        return WHOLE_GPU // self.replicas if self.replicas else WHOLE_GPU

    @property
    def replica_mib(self) -> int:
        return self.gpu_mib // self.replicas if self.replicas else self.gpu_mib

    @property
    def is_dra(self) -> bool:
        return self.executor in (ShareExecutor.DRA, ShareExecutor.DRA_HAMI)


@dataclass(frozen=True)
class NodeOffers:
    """One node. More than one offer means that several authorities would hand out the same GPUs."""

    node: str
    offers: tuple[ShareOffer, ...]

    @property
    def offer(self) -> ShareOffer | None:
        return self.offers[0] if len(self.offers) == 1 else None
