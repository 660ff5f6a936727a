"""Evaluates sets of GPUs by any estimate; and the fallback estimate, which needs no model.

That one is the analytic layer of ``topology`` alone, with intervals that hold nine times in ten on measured
machines of known hardware. No numpy: the client answers with it where the endpoint does not.
"""

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence

from kopt.core.hardware.bandwidth import MAX_BYTES, BandwidthError, BandwidthEstimate
from kopt.core.hardware.node_topology import NodeTopology, TopologyError
from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.formats.topology import parse
from kopt.serving.client.bandwidth_placement import NodeTraffic, answer_places
from kopt.serving.contract.bandwidth.answers import (
    BandwidthQuery,
    BandwidthResponse,
    BestSetOut,
    SetOut,
    WrongQuestion,
    meets,
)
from kopt.serving.contract.common import ModelOut, reasons_out
from kopt.topology.collective_cost import analytic
from kopt.topology.from_node import machine_of_node
from kopt.topology.graph import Machine
from kopt.topology.set_links import gpu_set
from kopt.topology.sets.best import SetChoice, best_set
from kopt.topology.sets.within_node import bus_gbps, limit_of

FALLBACK_MODEL = ModelVersion("links", "1")
PROBABILITY = 0.9
_LARGE_BYTES = 64 << 20
_SPREAD, _SPREAD_LARGE, _SPREAD_UNKNOWN = 1.3, 0.85, 1.0
"""Half an interval in log units: 90 % quantiles of how far measured times lie from the analytic ones (machine classes
weigh alike), below and from 64 MiB on; what is unknown of the hardware comes on top, as in the model's intervals."""

Estimate = Callable[[tuple[int, ...]], BandwidthEstimate]
Still = Callable[[], None]
"""Raises TimeoutError once the deadline has passed."""
Choices = MutableMapping[object, SetChoice | None]
"""Cache of chosen sets, for one machine."""


def fallback_bandwidth(query: BandwidthQuery, why: Reason, still: Still = lambda: None) -> BandwidthResponse:
    """The query answered without a model, marked. Raises WrongQuestion for what no endpoint would answer."""
    node, machine = _read(query, query.topology, "topology")
    offered = [
        machine
        if offered_node.topology is None
        else _read(query, offered_node.topology, f"offers.{number}.topology")[1]
        for number, offered_node in enumerate(query.offers)
    ]
    return physical(query, machine, node.warnings, why, still, offered=offered)


def _read(
    query: BandwidthQuery, topology: NodeTopology | Mapping[str, object] | str, field: str
) -> tuple[NodeTopology, Machine]:
    """Raises WrongQuestion for what is no node's topology."""
    try:
        node = _node(topology)
        return node, machine_of_node(node, gpu=query.gpu, nics=query.nics, software=query.software)
    except WrongQuestion as error:
        raise WrongQuestion(error.field.replace("topology", field, 1), error.message) from error
    except (ValueError, TypeError, ArithmeticError) as error:
        raise WrongQuestion(field, str(error)) from error


def physical(
    query: BandwidthQuery,
    machine: Machine,
    warnings: Sequence[str],
    why: Reason,
    still: Still,
    choices: Choices | None = None,
    *,
    offered: Sequence[Machine] = (),
) -> BandwidthResponse:
    """The marked fallback on machines that were read before; ``offered`` are those of the query's offers."""

    def estimate(of: Machine, gpus: tuple[int, ...], nodes: int) -> BandwidthEstimate:
        return _estimate(query, of, gpus, nodes)

    def of_set(gpus: tuple[int, ...]) -> BandwidthEstimate:
        return _estimate(query, machine, gpus, query.nodes)

    sets, best = answer_sets(query, machine, of_set, still, choices, sure=False)
    placement = answer_places(query, offered, estimate, still, sure=False)
    return BandwidthResponse(
        collective=query.collective,
        bytes=query.bytes,
        nodes=query.nodes,
        sets=sets,
        best=best,
        placement=placement,
        model=ModelOut.of(FALLBACK_MODEL),
        fallback=True,
        reasons=reasons_out((why,)),
        warnings=tuple(warnings),
    )


def answer_sets(
    query: BandwidthQuery,
    machine: Machine,
    estimate: Estimate,
    still: Still,
    choices: Choices | None = None,
    *,
    sure: bool = True,
) -> tuple[tuple[SetOut, ...], BestSetOut | None]:
    """Every set and the best one, each by ``estimate``. Raises WrongQuestion with the field, TimeoutError of
    ``still``."""
    if not query.gpu_sets and query.count is None:
        raise WrongQuestion("gpu_sets", "name the sets of GPUs, or say with count how many are to be chosen")
    if query.free is not None and query.count is None:
        raise WrongQuestion("count", "say how many of the free GPUs are to be chosen")
    if query.nodes > 1 and machine.network is None:
        raise WrongQuestion("nics", "several nodes, but no network card is known; say which, like 8x NDR400 IB")
    if not 1 <= query.bytes <= MAX_BYTES:
        raise WrongQuestion("bytes", f"from 1 to {MAX_BYTES:,} bytes are understood")

    traffic = NodeTraffic.of_question(query, machine)

    def evaluated(gpus: tuple[int, ...], field: str, *before: Reason) -> SetOut:
        still()
        try:
            bandwidth_estimate = traffic.on(estimate(tuple(gpus)))
        except BandwidthError as error:
            raise WrongQuestion(field, str(error)) from None
        met = meets(bandwidth_estimate, query.minimum_gigabytes_per_s, query.of, sure=sure)
        return SetOut.of(bandwidth_estimate, met, *before)

    sets = tuple(evaluated(gpus, f"gpu_sets.{number}") for number, gpus in enumerate(query.gpu_sets))
    choice, free = _choice(query, traffic, still, {} if choices is None else choices)
    if choice is None:
        return sets, None
    best = BestSetOut(
        **vars(evaluated(choice.gpus, "count", choice.reason(free))),
        worst_gigabytes_per_s=choice.slowest_gbps,
        rest_gigabytes_per_s=choice.rest_gbps,
        considered=choice.considered,
        exact=choice.exact,
    )
    return sets, best


def _choice(
    query: BandwidthQuery, traffic: NodeTraffic, still: Still, choices: Choices
) -> tuple[SetChoice | None, int]:
    """The set that ``topology.sets.within_node.choose_gpus`` takes, within the deadline; and how many GPUs are free."""
    if query.count is None or query.offers:
        return None, 0
    machine = traffic.loaded
    present = machine.node.gpus
    free = tuple(sorted(set(present if query.free is None else query.free)))
    missing = sorted(set(free) - set(present))
    if missing:
        raise WrongQuestion("free", f"GPU {missing[0]} is not there; the node has {', '.join(map(str, present))}")
    if query.count < 1 or query.count * query.nodes < 2:
        raise WrongQuestion("count", "a collective needs two GPUs at least")
    if query.count > len(free):
        raise WrongQuestion("count", f"{query.count} GPUs are asked for, and {len(free)} are free")

    def value(gpus: tuple[int, ...]) -> float:
        still()
        return bus_gbps(machine, gpus, query.nodes, kind=query.collective, size_bytes=query.bytes)

    cache_key = (free, query.count, query.collective, query.bytes, query.nodes, traffic.loads)
    if cache_key not in choices:
        # What links within the node allow bounds nothing that crosses the network.
        limit = limit_of(machine, query.count, query.collective, query.bytes) if query.nodes == 1 else None
        choices[cache_key] = best_set(machine.node, free, query.count, value, limit)
    return choices[cache_key], len(free)


def _estimate(query: BandwidthQuery, machine: Machine, gpus: tuple[int, ...], nodes: int) -> BandwidthEstimate:
    """Raises BandwidthError."""
    result = gpu_set(machine, gpus, nodes)
    physics = analytic(result, query.collective, query.bytes)
    base_spread = _SPREAD_LARGE if query.bytes >= _LARGE_BYTES else _SPREAD
    spread = math.exp(math.hypot(base_spread, _SPREAD_UNKNOWN if result.unknown else 0.0))
    took_us, algorithm_gbps = physics.latency_us, query.bytes / physics.latency_us / 1e3
    gbps = algorithm_gbps * query.collective.bus_factor(result.ranks)
    text = f"By links and algorithms alone: {physics.algorithm} at {physics.gigabytes_per_s:.3g} GB/s."
    reasons = [Reason("ANALYTIC", text, {"analytic_us": took_us, "ring_gigabytes_per_s": result.ring_gbps})]
    if result.unknown:
        what = ", ".join(result.unknown)
        reasons.append(Reason("UNKNOWN_TOPOLOGY", f"Unknown topology, so the interval is wide: {what}."))
    return BandwidthEstimate(
        gpus,
        nodes,
        query.collective,
        query.bytes,
        took_us,
        took_us / spread,
        took_us * spread,
        algorithm_gbps,
        gbps,
        gbps / spread,
        gbps * spread,
        result.ring_gbps or result.network_gbps,
        PROBABILITY,
        physics.algorithm,
        bool(result.unknown),
        FALLBACK_MODEL,
        tuple(reasons),
    )


def _node(topology: NodeTopology | Mapping[str, object] | str) -> NodeTopology:
    """Raises WrongQuestion for what is no node's topology."""
    if isinstance(topology, NodeTopology):
        return topology
    if isinstance(topology, str):
        return node_in(topology)
    try:
        return NodeTopology.from_dict(topology)
    except (TopologyError, ArithmeticError) as error:
        raise WrongQuestion("topology", str(error)) from error


def node_in(text: str) -> NodeTopology:
    """The node that a tool's output describes. Raises WrongQuestion."""
    try:
        node_topology = parse(text)
    except ValueError as error:
        raise WrongQuestion("topology.text", str(error)) from error
    if not isinstance(node_topology, NodeTopology):
        raise WrongQuestion("topology.text", "this tells of a fabric or of measurements, not of a node")
    return node_topology
