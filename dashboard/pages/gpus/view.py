"""What the page of GPUs shows in words, and the document that its map is drawn from."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kopt.core.scheduling.devices import GpuDevice, GpuHolder
from kopt.core.scheduling.gpu_map import MapNode
from kopt.core.scheduling.queued import Queued
from kopt.core.units import WHOLE_GPU, format_gpus
from kopt.dashboard.pages.gpus.data import VisibleMap
from kopt.dashboard.pages.gpus.health import NodeHealthLine, health_line

MOST_NODES = 25
"""In the table; the map has all of them."""
IDLE_BELOW = 0.05
"""As ``kopt idle``: a GPU that is held and busy for less of the time."""
ELSEWHERE = "a pod of another namespace"
CODES = ("free", "held", "shared", "closed")
LONGEST_NAME = 253


@dataclass(frozen=True)
class GpuChoice:
    """What the reader asked for: a text in names of nodes, and one node, with one of its GPUs."""

    text: str = ""
    node: str = ""
    gpu: str = ""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> "GpuChoice":
        return cls(*(query.get(name, "")[:LONGEST_NAME] for name in ("q", "node", "gpu")))


@dataclass(frozen=True)
class HolderLine:
    """A pod on a GPU. ``pod`` is empty where its reader may not see it; ``job`` is what the page of queues calls its
    workload, empty where it lists none."""

    namespace: str
    pod: str
    gpus: str
    job: str
    assumed: bool


@dataclass(frozen=True)
class GpuLine:
    """A GPU; ``busy`` is None where it is not measured."""

    name: str
    model: str
    state: str
    busy: float | None
    holders: tuple[HolderLine, ...]
    problem: str
    is_selected: bool
    grade: str = ""
    """Of the health controller: suspect or condemned, empty for a healthy GPU."""


@dataclass(frozen=True)
class NodeLine:
    """A node in the table. ``free`` are whole GPUs that can be had."""

    name: str
    models: str
    gpus: int
    held: int
    free: int
    busy: float | None
    health: NodeHealthLine | None = None


@dataclass(frozen=True)
class GpusPage:
    """``idle`` are GPUs that are held and not used, None where nothing is measured."""

    visible: VisibleMap
    nodes: int
    gpus: int
    held: str
    free: int
    closed: int
    busy: float | None
    idle: int | None
    matching: int
    rows: tuple[NodeLine, ...]
    selected: str
    lines: tuple[GpuLine, ...]
    is_assumed: bool
    health: NodeHealthLine | None
    """Of the selected node."""
    knows_health: bool
    """Whether anything is said of the health of any node."""
    now_s: float


def gpus_page(visible: VisibleMap, queued: Sequence[Queued], choice: GpuChoice, now_s: float | None = None) -> GpusPage:
    """Names in it are those that the reader may know. ``now_s``: Unix seconds, of now by default."""
    now_s = time.time() if now_s is None else now_s
    nodes = list(visible.nodes())
    gpus = [gpu for _, node in nodes for gpu in node.gpus]
    states = Counter(gpu.state for gpu in gpus)
    measured = [(gpu, busy) for _, node in nodes for gpu, busy in zip(node.gpus, node.busy, strict=True)]
    busy = [share for gpu, share in measured if share is not None and gpu.holders]
    text = choice.text.casefold()
    matching = [(name, node) for name, node in nodes if text in name.casefold()]
    selected_node = next((node for name, node in nodes if name == choice.node), None)
    lines = () if selected_node is None else _lines(visible, selected_node, _jobs(queued), choice.gpu)
    return GpusPage(
        visible,
        len(nodes),
        len(gpus),
        f"{sum(holder.milli_gpu for gpu in gpus for holder in gpu.holders) / WHOLE_GPU:,g}",
        states["free"],
        states["closed"],
        _mean(busy),
        sum(share < IDLE_BELOW for share in busy) if visible.map.is_measured else None,
        len(matching),
        tuple(_row(visible, name, node, now_s) for name, node in matching[:MOST_NODES]),
        choice.node if selected_node is not None else "",
        lines,
        any(holder.assumed for gpu in gpus for holder in gpu.holders),
        None if selected_node is None else health_line(visible.standing_of(selected_node), now_s),
        any(visible.standing_of(node).grade is not None for _, node in nodes),
        now_s,
    )


def _mean(shares: Sequence[float]) -> float | None:
    return sum(shares) / len(shares) if shares else None


def _row(visible: VisibleMap, name: str, node: MapNode, now_s: float) -> NodeLine:
    models = sorted({gpu.model or gpu.resource for gpu in node.gpus})
    return NodeLine(
        name,
        ", ".join(models),
        len(node.gpus),
        sum(bool(gpu.holders) for gpu in node.gpus),
        sum(gpu.state == "free" for gpu in node.gpus),
        _mean([share for gpu, share in zip(node.gpus, node.busy, strict=True) if share is not None and gpu.holders]),
        health_line(visible.standing_of(node), now_s),
    )


def _jobs(queued: Sequence[Queued]) -> Mapping[tuple[str, str, str], str]:
    """Names on the page of queues, by namespace, kind in lower case and name."""
    return {(one.namespace, one.kind.lower(), one.name): one.full_name for one in queued}


def _lines(
    visible: VisibleMap, node: MapNode, jobs: Mapping[tuple[str, str, str], str], selected: str
) -> tuple[GpuLine, ...]:
    def holder_line(holder: GpuHolder) -> HolderLine:
        amount = format_gpus(holder.milli_gpu)
        if not visible.sees(holder.namespace):
            return HolderLine("", "", amount, "", holder.assumed)
        kind, name = node.jobs.get((holder.namespace, holder.pod), ("Pod", holder.pod))
        candidates = ((kind.lower(), name), ("pod", holder.pod))
        job = next((jobs[key] for pair in candidates if (key := (holder.namespace, *pair)) in jobs), "")
        return HolderLine(holder.namespace, holder.pod, amount, job, holder.assumed)

    grades = visible.standing_of(node).gpus
    return tuple(
        GpuLine(
            gpu.name,
            gpu.model or gpu.resource,
            gpu.state,
            busy,
            tuple(map(holder_line, gpu.holders)),
            gpu.problem,
            gpu.name == selected,
            grades[gpu.name].text.lower() if grades.get(gpu.name) else "",
        )
        for gpu, busy in zip(node.gpus, node.busy, strict=True)
    )


def map_document(visible: VisibleMap, epoch: str = "", since: int = 0) -> dict[str, Any]:
    """What the map is drawn from: all of it, or what has changed since a version of the same epoch.

    A node is its key, name, models, GPUs and pods; a GPU is the number of its model, of its state in ``codes``, per
    cent of the time in which it is busy (-1: not measured), its name, and the numbers of its pods; a pod is
    ``namespace/name``, empty for one that is not the reader's to see.
    """
    current = visible.epoch
    since = since if epoch == current else 0
    gone = [name for name, version in visible.map.gone.items() if version > since] if since else []
    return {
        "schema": "kopt/v1",
        "epoch": current,
        "version": visible.map.version,
        "since": since,
        "codes": CODES,
        "measured": visible.map.is_measured,
        "nodes": [_node(visible, name, node) for name, node in visible.nodes(since)],
        "gone": gone if visible.names_nodes else [],
    }


def _node(visible: VisibleMap, name: str, node: MapNode) -> list[Any]:
    models = list(dict.fromkeys(gpu.model or gpu.resource for gpu in node.gpus))
    pods = list(dict.fromkeys((holder.namespace, holder.pod) for gpu in node.gpus for holder in gpu.holders))
    numbers = {pod: number for number, pod in enumerate(pods)}

    def cell(gpu: GpuDevice, busy: float | None) -> list[Any]:
        holders = [numbers[holder.namespace, holder.pod] for holder in gpu.holders]
        percent = -1 if busy is None else round(busy * 100)
        return [models.index(gpu.model or gpu.resource), CODES.index(gpu.state), percent, gpu.name, holders]

    shown = ["/".join(pod) if visible.sees(pod[0]) else "" for pod in pods]
    return [
        visible.key_of(node),
        name,
        models,
        [cell(gpu, busy) for gpu, busy in zip(node.gpus, node.busy, strict=True)],
        shown,
    ]
