"""Questions about collectives between GPUs, and their answers.

A bandwidth is one of three kinds and always named: *algorithm* (message by time), *bus* (what nccl-tests prints
beside it: scaled so that it can be held against a link) and *link* (the specification of the wires). GB/s = 1e9.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from kopt.core.hardware.node_topology import SCHEMA
from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason

MAX_BYTES = 2**44
"""Larger messages than 16 TiB are a slip of the unit."""


class BandwidthError(ValueError):
    """A question that cannot be asked; the message names the field."""


class BandwidthKind(StrEnum):
    ALGORITHM = "algorithm"
    BUS = "bus"
    LINK = "link"


@dataclass(frozen=True)
class BandwidthMinimum:
    """What a set of GPUs must reach: for ``LINK`` by the specification of the links that a GPU has to the others of the
    set, both directions added as data sheets do; else as predicted for an all-reduce of 1 GiB."""

    kind: BandwidthKind
    gigabytes_per_s: float


class Collective(StrEnum):
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_TO_ALL = "all_to_all"
    SENDRECV = "sendrecv"

    def bus_factor(self, ranks: int) -> float:
        """Bus by algorithm bandwidth, as nccl-tests' PERFORMANCE.md derives it. ``message`` is the whole buffer: what
        all ranks together hold for all-gather, what each begins with otherwise."""
        if self is Collective.ALL_REDUCE:
            return 2 * (ranks - 1) / ranks
        if self in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL):
            return (ranks - 1) / ranks
        return 1.0


def collective(name: str) -> Collective:
    """``all_reduce``, ``AllReduce`` and ``all-reduce`` alike. Raises BandwidthError with the names there are."""
    key = name.strip().lower().replace("-", "").replace("_", "").replace(" ", "")
    for item in Collective:
        if item.value.replace("_", "") == key:
            return item
    names = ", ".join(collective.value for collective in Collective)
    raise BandwidthError(f"collective {name[:60]!r} is none of {names}")


@dataclass(frozen=True)
class MeasuredCollective:
    """One collective as nccl-tests or rccl-tests timed it on this machine. No ``gpus`` and no ``nodes``: as in the
    question."""

    gpus: tuple[int, ...]
    collective: Collective
    bytes: int
    latency_us: float
    nodes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "gpus": list(self.gpus),
            "collective": self.collective.value,
            "bytes": self.bytes,
            "latency_us": self.latency_us,
        }
        return result if self.nodes is None else result | {"nodes": self.nodes}


class Transport(StrEnum):
    """How GPUs of different nodes reach each other."""

    RDMA = "rdma"
    """InfiniBand or RoCE verbs, with GPUDirect."""
    PLUGIN = "plugin"
    """A network plugin of the vendor: OFI on Slingshot and EFA."""
    TCPX = "tcpx"
    """GPUDirect over TCP."""
    SOCKETS = "sockets"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Software:
    """The software profile: settings alone can change a result five- to tenfold.

    ``tuned`` says that settings were fitted to the machine; ``version`` is the library's (0, 0) where not known;
    ``algorithm`` a forced one (ring, tree); ``in_process``: one process drives all GPUs of a node.
    """

    transport: Transport = Transport.UNKNOWN
    tuned: bool | None = None
    version: tuple[int, int] = (0, 0)
    algorithm: str = ""
    in_process: bool = False
    direct: bool = False
    """GPUDirect was asked for by a setting."""
    sharp: bool = False
    """The network's switches reduce (SHARP)."""
    staged: bool = False
    """GPUDirect is said to be off: what crosses the network passes the host's memory."""


@dataclass(frozen=True)
class BandwidthEstimate:
    """The answer for one set of GPUs, collective and size; ``low`` and ``high`` hold the bus bandwidth with
    ``probability``, ``latency_low_us`` and ``latency_high_us`` the time. ``link`` is the specification per GPU and
    direction, ``unknown`` says that the GPU, link or network is not known and the interval is wide for that."""

    gpus: tuple[int, ...]
    nodes: int
    collective: Collective
    bytes: int
    latency_us: float
    latency_low_us: float
    latency_high_us: float
    algorithm_gigabytes_per_s: float
    bus_gigabytes_per_s: float
    bus_low_gigabytes_per_s: float
    bus_high_gigabytes_per_s: float
    link_gigabytes_per_s: float
    probability: float
    algorithm: str
    unknown: bool
    model: ModelVersion
    reasons: tuple[Reason, ...] = ()

    def meets(self, minimum_gigabytes_per_s: float, kind: BandwidthKind = BandwidthKind.BUS) -> bool:
        """Is the expected bandwidth of this kind at least the minimum?"""
        result: Mapping[BandwidthKind, float] = {
            BandwidthKind.ALGORITHM: self.algorithm_gigabytes_per_s,
            BandwidthKind.BUS: self.bus_gigabytes_per_s,
            BandwidthKind.LINK: self.link_gigabytes_per_s,
        }
        return result[kind] >= minimum_gigabytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """The document of ``kopt bandwidth estimate``."""
        result = asdict(self)
        result["model"] = self.model.to_dict()
        result["reasons"] = [reason.to_dict() for reason in self.reasons]
        return {"schema": SCHEMA, **result}

    def _repr_html_(self) -> str:
        """A line for notebooks."""
        return (
            f"<p>{self.collective} of {self.bytes:,} bytes on {len(self.gpus)} GPUs of {self.nodes} node(s): "
            f"<b>{self.bus_gigabytes_per_s:.4g} GB/s</b> bus bandwidth "
            f"({self.bus_low_gigabytes_per_s:.4g} to {self.bus_high_gigabytes_per_s:.4g}), "
            f"{self.latency_us:.4g} µs</p>"
        )
