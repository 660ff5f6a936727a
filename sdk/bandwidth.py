"""``kopt.bandwidth(topology, gpus)``: what a set of GPUs reaches together, without a server.

    import kopt
    found = kopt.bandwidth(open("topo.txt").read(), [0, 1, 2, 3], gpu="H100")
    print(found.bus_gigabytes_per_s, found.bus_low_gigabytes_per_s, found.reasons[0].message)

``kopt bandwidth estimate -o json`` prints ``to_dict()``.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kopt.core.hardware.bandwidth import BandwidthError, BandwidthEstimate, Collective, MeasuredCollective
from kopt.core.hardware.bandwidth import collective as collective_of
from kopt.core.hardware.node_topology import NodeTopology, TopologyError
from kopt.core.hardware.traffic import LinkTraffic
from kopt.core.settings import Settings
from kopt.topology.from_node import machine_of_node
from kopt.topology.traffic import node_loads, stale_links, under_traffic

if TYPE_CHECKING:
    from kopt.models.bandwidth.predictor import BandwidthPredictor

GIB = 2**30


def bandwidth(
    topology: NodeTopology | Mapping[str, Any] | str,
    gpus: Sequence[int],
    collective: Collective | str = Collective.ALL_REDUCE,
    bytes: int = GIB,
    *,
    nodes: int = 1,
    gpu: str = "",
    nics: str = "",
    software: str = "",
    probes: Sequence[MeasuredCollective] = (),
    traffic: Sequence[LinkTraffic] = (),
    model: "str | BandwidthPredictor" = "champion",
    settings: Settings | None = None,
) -> BandwidthEstimate:
    """Latency, algorithm and bus bandwidth of one collective on ``gpus`` of each of ``nodes`` nodes.

    ``topology`` is a node, the document of ``kopt topology parse`` or a tool's output. ``gpu`` names the model where
    the tool did not, ``nics`` the network cards (8x NDR400 IB), ``software`` the library and its settings (nccl 2.27,
    aws-ofi-nccl), ``probes`` what was measured on this machine, which the answer follows, ``traffic`` what other jobs
    put on the links of every node now. Raises BandwidthError for GPUs, sizes or links that are not there,
    TopologyError for what is no topology.
    """
    from kopt.models.bandwidth.loading import load_bandwidth
    from kopt.models.bandwidth.predictor import BandwidthQuestion

    predictor = load_bandwidth(model, settings) if isinstance(model, str) else model
    kind = collective if isinstance(collective, Collective) else collective_of(collective)
    machine = machine_of_node(node_of(topology), gpu=gpu, nics=nics, software=software)
    for probe in probes:
        predictor = predictor.observing(machine, probe, tuple(gpus), nodes)
    estimate = predictor.estimate(BandwidthQuestion(machine, tuple(gpus), kind, bytes, nodes))
    if any(item.uplink for item in traffic):
        raise BandwidthError("uplinks are crossed between nodes with names, which /v1/bandwidth chooses among (offers)")
    return under_traffic(estimate, machine, node_loads(machine, traffic), stale=stale_links(traffic))


def node_of(topology: NodeTopology | Mapping[str, Any] | str) -> NodeTopology:
    """Raises TopologyError for what is no node: a fabric, a log, a document of something else."""
    if isinstance(topology, NodeTopology):
        return topology
    if isinstance(topology, str):
        document = _document(topology)
        if document is None:
            return _parsed(topology)
        topology = document
    if not isinstance(topology, Mapping) or topology.get("kind", "node") != "node" or "gpus" not in topology:
        raise TopologyError("this is no node's topology; give a tool's output or what `kopt topology parse` printed")
    return NodeTopology.from_dict(topology)


def _document(text: str) -> Mapping[str, Any] | None:
    """What ``kopt topology parse -o json`` printed; None for anything else."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        result = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return result if isinstance(result, dict) and result.get("schema") == "kopt/v1" else None


def _parsed(text: str) -> NodeTopology:
    from kopt.formats.topology import parse

    result = parse(text)
    if not isinstance(result, NodeTopology):
        raise TopologyError("this tells of a fabric or of measurements, not of a node; give a node's topology")
    return result
