"""The GPUs of a cluster as a map: node by node, who holds each and how busy it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kopt.core.decision import Mode
from kopt.core.hardware.health import Entry, Grade
from kopt.core.scheduling.devices import GpuDevice, GpuHolder

PodKey = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True)
class GpuActivity:
    """What an exporter says of a GPU: the share of the time in which it computes, and the pod that has it, empty where
    it names none."""

    busy: float
    pod: PodKey = ("", "")


@dataclass(frozen=True)
class Statement:
    """What somebody (``by``) says of a GPU, or of the node where ``gpu`` is empty: a taint, a condition."""

    gpu: str
    by: str
    text: str


@dataclass(frozen=True)
class NodeStanding:
    """How healthy a node is: the grade by the health controller with its evidence, None where there is
    none, and ``statements`` of it and of others as they stand on objects of the cluster."""

    grade: Grade | None = None
    score: float = 1.0
    mode: Mode = Mode.OBSERVE
    since_s: float = 0.0
    gpus: Mapping[str, Grade] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    statements: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class MapNode:
    """A node. ``busy`` has a share for each of ``gpus``, None where it is not measured; ``jobs`` are kind and name of
    what owns the pods on it. ``version`` is that of the map in which it last changed."""

    name: str
    gpus: tuple[GpuDevice, ...]
    busy: tuple[float | None, ...]
    jobs: Mapping[PodKey, tuple[str, str]] = field(default_factory=dict)
    version: int = 0
    standing: NodeStanding = NodeStanding()

    def is_like(self, other: "MapNode | None") -> bool:
        """Whether it shows the same as another version."""
        return other is not None and replace(other, version=self.version) == self


@dataclass(frozen=True)
class GpuMap:
    """All nodes with GPUs, by name. ``gone`` are nodes that are no more, by the version in which they went.

    ``is_measured`` is False where nobody says how busy GPUs are; then the map shows who holds them. ``problems`` are
    sentences for the reader.
    """

    cluster: bool = False
    ready: bool = True
    """False until nodes and pods have been read once."""
    version: int = 0
    nodes: Mapping[str, MapNode] = field(default_factory=dict)
    gone: Mapping[str, int] = field(default_factory=dict)
    complete_since: int = 0
    """Nodes that went before are forgotten: who knows an older version reads all of the map."""
    is_measured: bool = False
    problems: tuple[str, ...] = ()

    @property
    def namespaces(self) -> frozenset[str]:
        """Of the pods that hold GPUs."""
        return frozenset(
            holder.namespace for node in self.nodes.values() for gpu in node.gpus for holder in gpu.holders
        )


def map_node(
    name: str,
    gpus: Sequence[GpuDevice],
    activity: Mapping[str, GpuActivity],
    jobs: Mapping[PodKey, tuple[str, str]],
    version: int,
    standing: NodeStanding = NodeStanding(),
) -> MapNode:
    """A node from its GPUs and what an exporter says about them, by index: a pod that it names is where it says."""
    settled = _settled(list(gpus), activity)
    busy = tuple(activity[gpu.name].busy if gpu.name in activity else None for gpu in settled)
    return MapNode(name, tuple(settled), busy, jobs, version, standing)


def _settled(gpus: list[GpuDevice], activity: Mapping[str, GpuActivity]) -> list[GpuDevice]:
    """Moves pods of which it was assumed which GPU they hold to those that the exporter names. What GPUs of one node
    hold is exchanged, so that none is held twice."""
    for at, gpu in enumerate(gpus):
        pod = activity[gpu.name].pod if gpu.name in activity else ("", "")
        if not pod[1] or pod in map(_pod, gpu.holders):
            continue
        for other_at, other in enumerate(gpus):
            is_free_to_move = (
                [_pod(holder) for holder in other.holders] == [pod]
                and all(holder.assumed for holder in (*other.holders, *gpu.holders))
                and other.resource == gpu.resource
                and activity.get(other.name, GpuActivity(0.0)).pod != pod
            )
            if is_free_to_move:
                gpus[at], gpus[other_at] = _holding(gpu, other), _holding(other, gpu)
                break
    return [_named(gpu, activity.get(gpu.name)) for gpu in gpus]


def _holding(gpu: GpuDevice, like: GpuDevice) -> GpuDevice:
    # That one of a node's free GPUs is not offered is said of whichever is free; what is known of a GPU stays with it.
    return replace(
        gpu,
        holders=like.holders,
        free_milli_gpu=like.free_milli_gpu,
        takes_pods=like.takes_pods,
        shortfall=like.shortfall,
    )


def _named(gpu: GpuDevice, reported: GpuActivity | None) -> GpuDevice:
    """Nothing is assumed any more about a pod that the exporter names."""
    if reported is None or not reported.pod[1]:
        return gpu
    holders = tuple(replace(holder, assumed=holder.assumed and _pod(holder) != reported.pod) for holder in gpu.holders)
    return replace(gpu, holders=holders)


def _pod(holder: GpuHolder) -> PodKey:
    return holder.namespace, holder.pod
