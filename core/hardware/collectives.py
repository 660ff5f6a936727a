"""Collectives as they were measured, and the rings and trees that a library found for them."""

from dataclasses import asdict, dataclass
from typing import Any

from kopt.core.hardware.node_topology import SCHEMA
from kopt.core.units import Bytes


@dataclass(frozen=True)
class CollectiveRank:
    """One rank of a measured job: the GPU that it ran on."""

    rank: int
    host: str
    gpu: int
    pci: str = ""
    name: str = ""


@dataclass(frozen=True)
class CollectiveMeasurement:
    """One size, out of place or in place. Bandwidths in GB/s (1e9): ``algbw`` is size by time, ``busbw`` scaled to what
    a link carries. Small ones read 0.0 as they are rounded: use the latency there. ``wrong`` counts wrong values."""

    bytes: Bytes
    dtype: str
    reduction: str
    in_place: bool
    latency_us: float
    algbw_gigabytes_per_s: float
    busbw_gigabytes_per_s: float
    wrong: int | None = None


@dataclass(frozen=True)
class CollectiveRun:
    """One table of nccl-tests or rccl-tests. ``collective`` is empty where the log does not say."""

    collective: str
    ranks: tuple[CollectiveRank, ...]
    rows: tuple[CollectiveMeasurement, ...]
    average_busbw_gigabytes_per_s: float | None = None

    @property
    def hosts(self) -> int:
        return len({rank.host for rank in self.ranks})


@dataclass(frozen=True)
class CollectiveLog:
    """The runs of one log."""

    tool: str
    runs: tuple[CollectiveRun, ...]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The document of ``kopt topology parse``."""
        return {"schema": SCHEMA, "kind": "collectives", **asdict(self)}


@dataclass(frozen=True)
class CollectiveGraph:
    """What NCCL's search found for one pattern: so many channels at so many GB/s within and between nodes, and per
    channel the devices in order (``gpu 0``, ``net 0``)."""

    id: int
    pattern: int
    speed_within_gigabytes_per_s: float
    speed_between_gigabytes_per_s: float
    type_within: str
    type_between: str
    channels: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class CollectiveGraphs:
    """``NCCL_GRAPH_DUMP_FILE``."""

    tool: str
    graphs: tuple[CollectiveGraph, ...]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The document of ``kopt topology parse``."""
        return {"schema": SCHEMA, "kind": "graphs", **asdict(self)}


@dataclass(frozen=True)
class PortTest:
    """One row of ``ib_write_bw`` and its like between two network cards."""

    device: str
    operation: str
    bytes: Bytes
    iterations: int
    peak_gbit_per_s: float
    average_gbit_per_s: float
    link_layer: str = ""


@dataclass(frozen=True)
class PortTests:
    """One log of perftest."""

    tool: str
    tests: tuple[PortTest, ...]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The document of ``kopt topology parse``."""
        return {"schema": SCHEMA, "kind": "port-tests", **asdict(self)}
