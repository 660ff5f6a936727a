"""The cluster as policies see it: nodes, workloads, queues, and the snapshot that holds them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kopt.core.gpu import Gpu
from kopt.core.units import Bytes, MilliGpu


class WorkloadClass(StrEnum):
    """What a workload is for; pre-emption, packing and queue order depend on it."""

    INTERACTIVE = "interactive"
    TRAINING = "training"
    INFERENCE = "inference"


class Phase(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    FINISHED = "finished"


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

    @property
    def free_gpu(self) -> MilliGpu:
        return MilliGpu(sum(gpu.free for gpu in self.gpus) if self.ready else 0)


@dataclass(frozen=True)
class GpuRequest:
    """``count`` GPUs, ``share`` of each; fractions are only for a single GPU."""

    count: int = 0
    share: MilliGpu = MilliGpu(1000)
    memory_bytes: Bytes = Bytes(0)
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.count < 0 or not 0 < self.share <= 1000:
            raise ValueError(f"{self.count} GPUs with {self.share} milli-GPU each is not a request")
        if self.count > 1 and self.share != 1000:
            raise ValueError("a share of a GPU is only for workloads on one GPU")

    @property
    def total(self) -> MilliGpu:
        return MilliGpu(self.count * self.share)


@dataclass(frozen=True)
class Workload:
    """A job or service: pods that live and die together (``gang``), its queue and its request per pod."""

    name: str
    namespace: str
    uid: str
    request: GpuRequest
    queue: str = ""
    kind: WorkloadClass = WorkloadClass.TRAINING
    phase: Phase = Phase.PENDING
    pods: int = 1
    gang: bool = False
    priority: int = 0
    preemptible: bool = False
    nodes: tuple[str, ...] = ()
    created_at_s: float = 0.0


@dataclass(frozen=True)
class Queue:
    """A queue of the tree. ``guaranteed`` is never lowered by a prediction (product promise 4)."""

    name: str
    parent: str = ""
    guaranteed: MilliGpu = MilliGpu(0)
    limit: MilliGpu | None = None
    over_quota_weight: int = 1
    priority: int = 0
    used: MilliGpu = MilliGpu(0)


@dataclass(frozen=True)
class Snapshot:
    """The cluster at one instant; policies work on it and never on the live cluster."""

    taken_at_s: float
    nodes: tuple[Node, ...] = ()
    workloads: tuple[Workload, ...] = ()
    queues: tuple[Queue, ...] = ()

    @property
    def free_gpu(self) -> MilliGpu:
        return MilliGpu(sum(node.free_gpu for node in self.nodes))
