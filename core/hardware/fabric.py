"""What links the nodes of a cluster: switches, network cards and the cables between them."""

from dataclasses import asdict, dataclass
from typing import Any

from kopt.core.hardware.node_topology import SCHEMA, TopologyError


@dataclass(frozen=True)
class FabricSwitch:
    """A switch; ``key`` is what cables name it by, ``labels`` what the tool says of it beside."""

    key: str
    name: str = ""
    ports: int | None = None
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class FabricHost:
    """A network card in a node (``node`` as the card's description says, or empty), or a node as a whole."""

    key: str
    name: str = ""
    node: str = ""
    domain: str = ""
    """The NVLink domain that the node is in."""


@dataclass(frozen=True)
class Cable:
    """From port to port; 0 where ports are not known. ``lanes`` and ``speed`` as the tool says: 4, NDR."""

    a: str
    b: str
    a_port: int = 0
    b_port: int = 0
    lanes: int | None = None
    speed: str = ""


@dataclass(frozen=True)
class Fabric:
    """Raises TopologyError for a key that stands twice, and for a cable to what is not there."""

    tool: str
    switches: tuple[FabricSwitch, ...]
    hosts: tuple[FabricHost, ...]
    cables: tuple[Cable, ...]
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        keys = [switch.key for switch in self.switches] + [host.key for host in self.hosts]
        devices = set(keys)
        if len(devices) != len(keys):
            raise TopologyError("the fabric names a switch or a host twice")
        if any(cable.a not in devices or cable.b not in devices for cable in self.cables):
            raise TopologyError("a cable of the fabric leads to what is not there")

    def to_dict(self) -> dict[str, Any]:
        """The document of ``kopt topology parse``."""
        result = asdict(self)
        result["switches"] = [{**item, "labels": dict(item["labels"])} for item in result["switches"]]
        return {"schema": SCHEMA, "kind": "fabric", **result}
