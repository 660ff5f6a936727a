"""The page of topologies: a node as a picture, what any set of its GPUs reaches together, and the best set of k."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import plotly.graph_objects as go

from kopt.core.bandwidth import BandwidthError, BandwidthEstimate, Collective
from kopt.core.reason import Reason
from kopt.core.topology import DegradedPart, NodeTopology, TopologyError
from kopt.dashboard.sources import ClusterNode, Nodes
from kopt.dashboard.topology_asked import SIZES, Asked
from kopt.dashboard.topology_figure import drawn, heat_map
from kopt.dashboard.topology_picture import picture
from kopt.formats.topology import FormatError, parse
from kopt.models.bandwidth.predictor import BandwidthQuestion
from kopt.policies.bandwidth.graph import Machine
from kopt.policies.bandwidth.topology import machine_from
from kopt.policies.topology.sets import SetChoice
from kopt.policies.topology.within import choose_gpus

MOST_COMPARED = 16
"""Of more GPUs the best set is a matter of seconds; ``kopt bandwidth place`` takes them."""
MOST_PAIRED = 32
MOST_GPUS = 128
NODES_SHOWN = 100
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
    """One node with its charts. ``chosen`` are the GPUs asked about, ``asked_gpus`` those predicted: all of them where
    nothing is chosen."""

    topology: NodeTopology
    model: str
    degraded: tuple[DegradedPart, ...]
    chosen: tuple[int, ...]
    asked_gpus: tuple[int, ...]
    counts: tuple[int, ...]
    charts: Mapping[str, go.Figure]
    notes: tuple[str, ...]
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
        ordered = sorted(self.nodes.found, key=lambda one: (not one.degraded, one.topology.node))
        return tuple(ordered[:NODES_SHOWN])


def topology_page(nodes: Nodes, asked: Asked, predictor: Predict | str) -> TopologyPage:
    """``predictor`` as a sentence says why there is none. Nothing that is asked makes this raise."""
    found = _found(nodes, asked)
    if found is None or isinstance(found, Problem):
        return TopologyPage(nodes, problem=found)
    try:
        machine = machine_from(found.topology, gpu=asked.gpu)
        return TopologyPage(nodes, _card(found, machine, asked, predictor))
    except (TopologyError, BandwidthError) as error:
        return TopologyPage(nodes, problem=Problem(f"{error}; give the output of a tool that shows GPUs."))


def _found(nodes: Nodes, asked: Asked) -> ClusterNode | Problem | None:
    if asked.problem:
        return Problem(asked.problem)
    if asked.text.strip():
        return _pasted(asked.text)
    if asked.node:
        named = next((one for one in nodes.found if one.topology.node == asked.node), None)
        return named or Problem("No node of this name has published its topology.")
    return nodes.found[0] if nodes.found else None


def _pasted(text: str) -> ClusterNode | Problem:
    try:
        found = parse(text)
    except FormatError as error:
        return Problem(str(error), _excerpt(text, error.line), error.column, error.line)
    if not isinstance(found, NodeTopology):
        return Problem("This tells of a fabric or of measurements; give the output of a tool that shows one node.")
    if len(found.gpus) > MOST_GPUS:
        return Problem(f"{len(found.gpus)} GPUs are too many to draw; {MOST_GPUS} are drawn.")
    return ClusterNode(found)


def _excerpt(text: str, line: int) -> tuple[tuple[int, str], ...]:
    lines = text.replace("\r\n", "\n").split("\n")
    if not 1 <= line <= len(lines):
        return ()
    first = max(1, line - _AROUND)
    near = lines[first - 1 : line + _AROUND]
    return tuple((first + number, one[:_LONGEST_LINE]) for number, one in enumerate(near))


def _card(node: ClusterNode, machine: Machine, asked: Asked, predictor: Predict | str) -> NodeCard:
    there = tuple(sorted(gpu.index for gpu in node.topology.gpus))
    best, notes = _best(machine, there, asked) if asked.best else (None, [])
    chosen = best.gpus if best else tuple(gpu for gpu in there if gpu in asked.gpus)
    drawing = picture(node.topology, machine.node, chosen, node.degraded)
    charts = {"node": drawn(drawing)}
    notes += [*drawing.notes, *(f"not known: {one}" for one in machine.node.unknown), *node.topology.warnings]
    asked_gpus = chosen if len(chosen) > 1 else there
    reached: tuple[Reached, ...] = ()
    if isinstance(predictor, str):
        notes.append(predictor)
    elif len(there) > 1:
        reached = _reached(machine, asked_gpus, predictor)
        if len(there) <= MOST_PAIRED:
            charts["pairs"] = heat_map(there, _pairs(machine, there, asked, predictor))
    return NodeCard(
        node.topology, machine.node.gpu.name, node.degraded, chosen, asked_gpus, tuple(range(2, len(there) + 1)),
        charts, tuple(dict.fromkeys(notes)), reached, _reasons(reached, asked),
        best.reason(len(there)) if best else None,
    )  # fmt: skip


def _best(machine: Machine, there: Sequence[int], asked: Asked) -> tuple[SetChoice | None, list[str]]:
    if len(there) > MOST_COMPARED:
        return None, [f"Of {len(there)} GPUs `kopt bandwidth place` finds the best set; here {MOST_COMPARED} at most."]
    return choose_gpus(machine, there, min(asked.count, len(there)), asked.collective, asked.size_bytes), []


def _reached(machine: Machine, gpus: tuple[int, ...], predictor: Predict) -> tuple[Reached, ...]:
    return tuple(
        Reached(kind, tuple(predictor.estimate(BandwidthQuestion(machine, gpus, kind, size)) for size in SIZES))
        for kind in Collective
    )


def _reasons(reached: Sequence[Reached], asked: Asked) -> tuple[Reason, ...]:
    """Why, of the collective and size that were asked for."""
    answers = (one for row in reached if row.collective is asked.collective for one in row.by_size)
    return next((one.reasons for one in answers if one.bytes == asked.size_bytes), ())


def _pairs(machine: Machine, there: Sequence[int], asked: Asked, predictor: Predict) -> dict[tuple[int, int], float]:
    questions = {
        pair: BandwidthQuestion(machine, pair, asked.collective, asked.size_bytes) for pair in combinations(there, 2)
    }
    return {pair: predictor.estimate(one).bus_gigabytes_per_s for pair, one in questions.items()}
