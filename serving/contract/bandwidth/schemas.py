"""The typed requests of ``/v1/bandwidth``, written before the code behind them; strict.

Only the node's document may have fields that are not known here: agents newer than the endpoint write them.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from kopt.core.hardware.bandwidth import MAX_BYTES, BandwidthKind, Collective, collective
from kopt.core.hardware.node_topology import LinkType
from kopt.serving.contract.common import SCHEMA

MAX_SETS = 256
MAX_GPUS = 128
"""Of a node, partitions counted."""
MAX_TEXT = 1 << 20
"""Characters of a tool's output."""
MAX_PROBES = 32
MAX_OFFERS = 2048
MAX_SLOW = 4096
MAX_TRAFFIC = 32_768
_MAX_GPU_LINKS = MAX_GPUS * (MAX_GPUS - 1) // 2


def _named(value: Any) -> Any:
    return collective(value) if isinstance(value, str) else value


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


Index = Annotated[int, Field(ge=0, lt=4096)]
Whole = Annotated[int, Field(ge=0, le=1_000_000)]
Numa = Annotated[int, Field(ge=-1, lt=4096)]
Speed = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
NodeName = Annotated[str, Field(min_length=1, max_length=253)]
Word = Annotated[str, Field(max_length=256)]
Kind = Annotated[Collective, BeforeValidator(_named)]
"""``all_reduce``, ``AllReduce`` and ``all-reduce`` alike."""
Message = Annotated[int, Field(ge=1, le=MAX_BYTES)]
Nodes = Annotated[int, Field(ge=1, le=100_000)]
# fail_fast: one error for a list of a million wrong items, not a million errors.
GpuSetIn = Annotated[list[Index], Field(min_length=1, max_length=MAX_GPUS, fail_fast=True)]
_GPUS = Field(max_length=MAX_GPUS, fail_fast=True)
_GPU_LINKS = Field(max_length=_MAX_GPU_LINKS, fail_fast=True)


class TopologyGpuIn(_Document):
    index: Index
    name: Word = ""
    pci: Word = ""
    numa: Numa | None = None
    memory_bytes: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    partition: Word = ""
    uuid: Word = ""
    instances: Annotated[list[Word], _GPUS] = []
    ports: Whole | None = None
    port_gigabytes_per_s: Speed | None = None


class TopologyLinkIn(_Document):
    """GPU ``a`` to GPU ``b``, one per pair; GB/s (1e9) of all ``count`` links together, per direction."""

    a: Index
    b: Index
    type: LinkType
    count: Whole | None = None
    weight: Whole | None = None
    hops: Whole | None = None
    gigabytes_per_s: Speed | None = None


class TopologyNicIn(_Document):
    name: Word
    pci: Word = ""
    numa: Numa | None = None
    gbit_per_s: Speed | None = None
    state: Word = ""
    link_layer: Word = ""
    interface: Word = ""


class NicAffinityIn(_Document):
    gpu: Index
    nic: Word
    type: LinkType


class TopologySwitchIn(_Document):
    name: Word = ""
    gpus: Annotated[list[Index], _GPUS]


class PeerAccessIn(_Document):
    a: Index
    b: Index
    status: Word


class NodeIn(_Document):
    """The document of ``kopt topology parse -o json``, and what the topology agent publishes of a node."""

    schema_: Literal["kopt/v1"] = Field(SCHEMA, alias="schema")
    kind: Literal["node"] = "node"
    node: Word = ""
    tool: Word = ""
    vendor: Word = ""
    gpus: Annotated[list[TopologyGpuIn], Field(min_length=1, max_length=MAX_GPUS, fail_fast=True)]
    links: Annotated[list[TopologyLinkIn], _GPU_LINKS] = []
    nics: Annotated[list[TopologyNicIn], Field(max_length=256, fail_fast=True)] = []
    nic_affinity: Annotated[list[NicAffinityIn], Field(max_length=32_768, fail_fast=True)] = []
    switches: Annotated[list[TopologySwitchIn], Field(max_length=256, fail_fast=True)] = []
    peers: Annotated[list[PeerAccessIn], _GPU_LINKS] = []
    warnings: Annotated[list[Annotated[str, Field(max_length=2000)]], Field(max_length=256, fail_fast=True)] = []


class ToolOutputIn(_Strict):
    """What a tool printed, ``nvidia-smi topo -m`` say; found by what it looks like."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]


def _topology_kind(value: Any) -> str | None:
    if isinstance(value, dict):
        return "output" if "text" in value else "node"
    return "output" if isinstance(value, ToolOutputIn) else "node" if isinstance(value, NodeIn) else None


AnyTopology = Annotated[
    Annotated[NodeIn, Tag("node")] | Annotated[ToolOutputIn, Tag("output")], Discriminator(_topology_kind)
]


class ProbeIn(_Strict):
    """A collective that was timed on this machine, as nccl-tests and rccl-tests print it."""

    gpus: GpuSetIn
    collective: Kind = Collective.ALL_REDUCE
    bytes: Message
    latency_us: Annotated[float, Field(gt=0, le=1e10, allow_inf_nan=False)]
    nodes: Nodes | None = None
    """As in the question if absent."""


class OfferIn(_Strict):
    """A node with what is free on it."""

    name: NodeName
    free: Annotated[list[Index], Field(max_length=MAX_GPUS, fail_fast=True)] | None = None
    """All of its GPUs if absent."""
    domains: Annotated[list[Word], Field(max_length=8, fail_fast=True)] = []
    """The levels of the network that it is in, outermost first: block b1, rack r3."""
    topology: AnyTopology | None = None
    """As that of the request if absent."""


class SlowPairIn(_Strict):
    """Two offered nodes that were measured to reach less together than such pairs do."""

    nodes: Annotated[list[NodeName], Field(min_length=2, max_length=2)]
    gigabytes_per_s: Speed
    """Of bus bandwidth; 0 where the test failed."""


class TrafficIn(_Strict):
    """What other jobs put on a link now, as a rate of its busier direction."""

    link: Annotated[str, Field(min_length=1, max_length=256)]
    """A card (mlx5_0), GPU3 for the GPU's own links, GPU3/PCIe, or ``uplink r3`` for what leaves the level r3."""
    gigabytes_per_s: Speed
    flows: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Jobs that share the link already."""
    node: Annotated[str, Field(max_length=253)] = ""
    """An offered node; the same on every node if empty."""
    capacity_gigabytes_per_s: Annotated[float, Field(gt=0, le=1_000_000_000, allow_inf_nan=False)] | None = None
    """Of an uplink, which no topology tells."""
    age_s: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    """Rates older than ten minutes count as none, and the answer says so."""


class BandwidthRequest(_Strict):
    """What sets of a node's GPUs reach together, and which to take of those that are free."""

    topology: AnyTopology
    gpu_sets: Annotated[list[GpuSetIn], Field(max_length=MAX_SETS, fail_fast=True)] = []
    """Indexes in the topology; all of a set do the collective together, on each of ``nodes`` nodes."""
    collective: Kind = Collective.ALL_REDUCE
    bytes: Message = 1 << 30
    """The whole buffer: what all ranks together hold for all-gather, what each begins with otherwise."""
    nodes: Nodes = 1
    """So many nodes like this one."""
    gpu: Word = ""
    """The GPU model, where the tool does not name it: MI300X."""
    nics: Word = ""
    """Network cards of a node: 8x NDR400 IB."""
    software: Word = ""
    """The library and its settings: nccl 2.27, aws-ofi-nccl."""
    minimum_gigabytes_per_s: Speed | None = None
    of: BandwidthKind = BandwidthKind.BUS
    """The bandwidth that the minimum means; ``link`` is the specification per GPU, one way."""
    count: Annotated[int, Field(ge=1, le=MAX_GPUS * MAX_OFFERS)] | None = None
    """Choose so many of the free GPUs: the fastest together, which leave a fast set for the next job. Without
    ``offers`` so many on each of ``nodes`` nodes like this one, with them so many in all."""
    free: Annotated[list[Index], Field(min_length=1, max_length=MAX_GPUS, fail_fast=True)] | None = None
    """All of the node's if absent."""
    offers: Annotated[list[OfferIn], Field(max_length=MAX_OFFERS, fail_fast=True)] = []
    """Choose among these nodes: one where it holds all, else as many GPUs of each of a few, near each other."""
    slow: Annotated[list[SlowPairIn], Field(max_length=MAX_SLOW, fail_fast=True)] = []
    """Keep these apart where others would do."""
    traffic: Annotated[list[TrafficIn], Field(max_length=MAX_TRAFFIC, fail_fast=True)] = []
    """What other jobs put on links now: predictions and choices are of what it leaves."""
    probes: Annotated[list[ProbeIn], Field(max_length=MAX_PROBES, fail_fast=True)] = []
    """Pull these answers, and no others, towards what was measured."""
    cluster: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Pull them towards what healthy pairs of such nodes of this cluster were measured to reach, as
    ``/v1/bandwidth/pairs`` was told; pairs that it was told are slow count as ``slow``."""
    deadline_ms: Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)] | None = None
    """As the header ``X-Kopt-Deadline-Ms``; the shorter counts."""


BANDWIDTH_REQUEST = TypeAdapter(BandwidthRequest)
