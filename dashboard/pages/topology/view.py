"""The page of topologies: a node as a picture, what any set of its GPUs reaches together, and the best set of k."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import plotly.graph_objects as go

from kopt.core.hardware.bandwidth import BandwidthError, BandwidthEstimate, Collective
from kopt.core.hardware.node_topology import DegradedPart, NodeTopology, TopologyError
from kopt.core.reason import Reason
from kopt.dashboard.data.sources import ClusterNode, Nodes
from kopt.dashboard.pages.topology.figure import drawn, heat_map
from kopt.dashboard.pages.topology.form import SIZES, TopologyQuery
from kopt.dashboard.pages.topology.picture import picture
from kopt.formats.topology import FormatError, parse
from kopt.models.bandwidth.predictor import BandwidthQuestion
from kopt.topology.from_node import machine_from
from kopt.topology.graph import Machine
from kopt.topology.sets.best import SetChoice
from kopt.topology.sets.within_node import choose_gpus

MOST_COMPARED = 16
"""Of more GPUs the best set is a matter of seconds; ``kopt bandwidth place`` takes them."""
MOST_PAIRED = 32
MOST_GPUS = 128
MOST_LISTED = 100
_AROUND = 1
_LONGEST_LINE = 160


class Predict(Protocol):
    """The bandwidth predictor's one question."""

    def estimate(self, request: BandwidthQuestion) -> BandwidthEstimate: ...


@dataclass(frozen=True)
class Problem:
    """Why a text shows no node; ``excerpt`` are the lines around the place, with their numbers."""

    message: str
    excerpt: tuple[tuple[int, str], ...] = ()
    column: int = 0
    line: int = 0


@dataclass(frozen=True)
class Reached:
    """What the set reaches in one collective, by size: GB/s of bus bandwidth with its interval."""

    collective: Collective
    by_size: tuple[BandwidthEstimate, ...]


@dataclass(frozen=True)
class NodeCard:
    """One node with its charts. ``chosen`` are the GPUs asked about, ``predicted_gpus`` those predicted: all of them
    where nothing is chosen."""

    topology: NodeTopology
    model: str
    degraded: tuple[DegradedPart, ...]
    chosen: tuple[int, ...]
    predicted_gpus: tuple[int, ...]
    counts: tuple[int, ...]
    charts: Mapping[str, go.Figure]
    remarks: tuple[str, ...]
    reached: tuple[Reached, ...] = ()
    reasons: tuple[Reason, ...] = ()
    best: Reason | None = None


@dataclass(frozen=True)
class TopologyPage:
    nodes: Nodes
    card: NodeCard | None = None
    problem: Problem | None = None

    @property
    def listed(self) -> tuple[ClusterNode, ...]:
        """Those with something degraded first."""
        ordered = sorted(
            self.nodes.nodes, key=lambda cluster_node: (not cluster_node.degraded, cluster_node.topology.node)
        )
        return tuple(ordered[:MOST_LISTED])


def topology_page(nodes: Nodes, request: TopologyQuery, predictor: Predict | str) -> TopologyPage:
    """``predictor`` as a sentence says why there is none. Nothing that is asked makes this raise."""
    result = _selected_node(nodes, request)
    if result is None or isinstance(result, Problem):
        return TopologyPage(nodes, problem=result)
    try:
        machine = machine_from(result.topology, gpu=request.gpu)
        return TopologyPage(nodes, _card(result, machine, request, predictor))
    except (TopologyError, BandwidthError) as error:
        return TopologyPage(nodes, problem=Problem(f"{error}; give the output of a tool that shows GPUs."))


def _selected_node(nodes: Nodes, request: TopologyQuery) -> ClusterNode | Problem | None:
    if request.problem:
        return Problem(request.problem)
    if request.text.strip():
        return _pasted(request.text)
    if request.node:
        named = next((cluster_node for cluster_node in nodes.nodes if cluster_node.topology.node == request.node), None)
        return named or Problem("No node of this name has published its topology.")
    return nodes.nodes[0] if nodes.nodes else None


def _pasted(text: str) -> ClusterNode | Problem:
    try:
        result = parse(text)
    except FormatError as error:
        return Problem(str(error), _excerpt(text, error.line), error.column, error.line)
    if not isinstance(result, NodeTopology):
        return Problem("This output describes a fabric or measurements; paste what a tool shows of one node.")
    if len(result.gpus) > MOST_GPUS:
        return Problem(f"{len(result.gpus)} GPUs are too many to draw; {MOST_GPUS} are drawn.")
    return ClusterNode(result)


def _excerpt(text: str, line: int) -> tuple[tuple[int, str], ...]:
    lines = text.replace("\r\n", "\n").split("\n")
    if not 1 <= line <= len(lines):
        return ()
    first = max(1, line - _AROUND)
    near = lines[first - 1 : line + _AROUND]
    return tuple((first + number, name[:_LONGEST_LINE]) for number, name in enumerate(near))


def _card(node: ClusterNode, machine: Machine, request: TopologyQuery, predictor: Predict | str) -> NodeCard:
    indexes = tuple(sorted(gpu.index for gpu in node.topology.gpus))
    best, remarks = _best(machine, indexes, request) if request.best else (None, [])
    chosen = best.gpus if best else tuple(gpu for gpu in indexes if gpu in request.gpus)
    drawing = picture(node.topology, machine.node, chosen, node.degraded)
    charts = {"node": drawn(drawing)}
    remarks += [*drawing.remarks, *(f"not known: {name}" for name in machine.node.unknown), *node.topology.warnings]
    predicted_gpus = chosen if len(chosen) > 1 else indexes
    reached: tuple[Reached, ...] = ()
    if isinstance(predictor, str):
        remarks.append(predictor)
    elif len(indexes) > 1:
        reached = _reached(machine, predicted_gpus, predictor)
        if len(indexes) <= MOST_PAIRED:
            charts["pairs"] = heat_map(indexes, _pairs(machine, indexes, request, predictor))
    return NodeCard(
        node.topology,
        machine.node.gpu.name,
        node.degraded,
        chosen,
        predicted_gpus,
        tuple(range(2, len(indexes) + 1)),
        charts,
        tuple(dict.fromkeys(remarks)),
        reached,
        _reasons(reached, request),
        best.reason(len(indexes)) if best else None,
    )


def _best(machine: Machine, indexes: Sequence[int], request: TopologyQuery) -> tuple[SetChoice | None, list[str]]:
    if len(indexes) > MOST_COMPARED:
        return None, [
            f"Of {len(indexes)} GPUs `kopt bandwidth place` finds the best set; here {MOST_COMPARED} at most."
        ]
    return choose_gpus(machine, indexes, min(request.count, len(indexes)), request.collective, request.size_bytes), []


def _reached(machine: Machine, gpus: tuple[int, ...], predictor: Predict) -> tuple[Reached, ...]:
    return tuple(
        Reached(kind, tuple(predictor.estimate(BandwidthQuestion(machine, gpus, kind, size)) for size in SIZES))
        for kind in Collective
    )


def _reasons(reached: Sequence[Reached], request: TopologyQuery) -> tuple[Reason, ...]:
    """Why, of the collective and size that were asked for."""
    answers = (
        bandwidth_estimate
        for row in reached
        if row.collective is request.collective
        for bandwidth_estimate in row.by_size
    )
    return next(
        (
            bandwidth_estimate.reasons
            for bandwidth_estimate in answers
            if bandwidth_estimate.bytes == request.size_bytes
        ),
        (),
    )


def _pairs(
    machine: Machine, indexes: Sequence[int], request: TopologyQuery, predictor: Predict
) -> dict[tuple[int, int], float]:
    questions = {
        pair: BandwidthQuestion(machine, pair, request.collective, request.size_bytes)
        for pair in combinations(indexes, 2)
    }
    return {
        pair: predictor.estimate(bandwidth_question).bus_gigabytes_per_s
        for pair, bandwidth_question in questions.items()
    }
