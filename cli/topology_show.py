"""``kopt topology show``: the picture of a node, with what a set of its GPUs reaches."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.bandwidth import Gpu, Kind, Model, Size, asked_bytes, asked_collective, indexes
from kopt.cli.edge import Refused, usage_error
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.running import Kubeconfig
from kopt.core.bandwidth import BandwidthEstimate
from kopt.core.topology import DegradedPart, NodeTopology
from kopt.core.units import format_bytes

if TYPE_CHECKING:
    from kopt.cluster.resources import Object
    from kopt.policies.bandwidth.graph import Machine

_PICTURES = (".svg", ".png", ".pdf", ".html")


@dataclass(frozen=True)
class Shown:
    """A node, and what its object says is degraded; files say nothing of that."""

    topology: NodeTopology
    degraded: tuple[DegradedPart, ...] = ()


@dataclass(frozen=True)
class NodeRow:
    node: str = column("node")
    gpus: int = column("GPUs")
    model: str = column("model")
    cards: int = column("cards")
    degraded: int = column("degraded parts")


def show_command(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NODE|FILE...]", help="A node of the cluster, or outputs of tools as for parse."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Draw the node as .svg, .png, .pdf or .html.")
    ] = None,
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="LIST", help="Highlight these and predict them: 0,1,2,3 or 0-3.")
    ] = "",
    kind: Kind = "all_reduce", size: Size = "1GiB", gpu: Gpu = "", model: Model = "champion",
    kubeconfig: Kubeconfig = None, output: Output = Format.TABLE,
) -> None:  # fmt: skip
    """A node's GPUs, links and cards as a table and as a picture; without NODE the nodes of the cluster.

    The picture has the GPUs in a ring by NUMA node and PCIe switch, links as wide as their bandwidth, network cards
    beside their GPUs, and links that are worse than they were (of nodes in the cluster) dashed. --gpus highlights a set
    and says what it is predicted to reach together. Files are read as `kopt topology parse` reads them.

    Examples:

        kopt topology show gpu-7 --out gpu-7.svg

        nvidia-smi topo -m | kopt topology show - --out node.png --gpus 0,1,2,3 --gpu H100

        kopt topology show topo.txt nvlink.txt --out node.html
    """
    _check(out)
    if not what:
        nodes = nodes_in_cluster(kubeconfig)
        if len(nodes) != 1:
            if out is not None or gpus:
                usage_error(f"name one of {', '.join(one.topology.node for one in nodes) or 'no nodes'}", "NODE")
            show(_listed(nodes), output)
            return
    shown = _read(what, kubeconfig) if what else nodes[0]
    chosen = indexes(gpus) if gpus else ()
    found = _predicted(shown.topology, chosen, kind, size, gpu, model) if chosen else None
    if out is not None:
        _draw(shown, chosen, found, gpu, out)
    show(_answer(shown, found, out), output)


def _check(out: Path | None) -> None:
    if out is not None and out.suffix.lower() not in _PICTURES:
        usage_error(f"{out.name}: a picture ends in {', '.join(_PICTURES)}", "--out")
    if out is not None and not out.absolute().parent.is_dir():
        raise Refused(f"{out.parent}: there is no such folder to draw into")


def _read(what: list[str], kubeconfig: Path | None) -> Shown:
    from kopt.cli.topology import parsed

    if len(what) == 1 and what[0] != "-" and not Path(what[0]).exists():
        return _node_in_cluster(what[0], kubeconfig)
    found = parsed(what)
    if not isinstance(found, NodeTopology):
        raise Refused("this tells of a fabric or of measurements; give the output of a tool that shows one node")
    return Shown(found)


def _node_in_cluster(name: str, kubeconfig: Path | None) -> Shown:
    from kopt.cluster.api import NoCluster, NotFound, connect
    from kopt.cluster.resources import NODE_TOPOLOGIES

    async def ask() -> "Object":
        async with connect(kubeconfig) as kube:
            return await kube.get(NODE_TOPOLOGIES, name)

    try:
        return _shown(asyncio.run(ask()))
    except NoCluster as error:
        raise Refused(f"{name}: there is no such file, and for a node: {error.message}") from error
    except NotFound as error:
        raise Refused(f"the cluster has no NodeTopology {name}; `kopt agent topology` publishes them") from error
    except ValueError as error:
        raise Refused(f"{name}: {error}") from error


def nodes_in_cluster(kubeconfig: Path | None = None) -> list[Shown]:
    """Every node whose topology is published. Raises NoCluster, ApiError."""
    from kopt.cluster.api import connect
    from kopt.cluster.resources import NODE_TOPOLOGIES

    async def ask() -> "Sequence[Object]":
        async with connect(kubeconfig) as kube:
            return (await kube.list(NODE_TOPOLOGIES)).items

    return [_shown(one) for one in asyncio.run(ask())]


def _shown(document: "Object") -> Shown:
    from kopt.cluster.node_topologies import degraded_of, topology_of

    return Shown(topology_of(document), degraded_of(document))


def _predicted(
    node: NodeTopology, chosen: tuple[int, ...], kind: str, size: str, gpu: str, model: str
) -> BandwidthEstimate:
    from kopt.models.bandwidth import ask
    from kopt.serving.environment import load_settings

    loaded = ask.load(model, load_settings())
    return ask.bandwidth(node, chosen, asked_collective(kind), asked_bytes(size), gpu=gpu, model=loaded)


def _draw(shown: Shown, chosen: tuple[int, ...], found: BandwidthEstimate | None, gpu: str, out: Path) -> None:
    from kopt.dashboard.topology_picture import picture
    from kopt.policies.bandwidth.topology import machine_from

    machine = machine_from(shown.topology, gpu=gpu)
    drawing = picture(shown.topology, machine.node, chosen, shown.degraded)
    title = _title(shown.topology, machine)
    lines = [*([sentence(found)] if found else []), *drawing.notes[:4]]
    lines += [f"not known: {', '.join(machine.node.unknown)}"] if machine.node.unknown else []
    if out.suffix.lower() == ".html":
        from kopt.dashboard.topology_figure import drawn, write_html

        write_html(drawn(drawing), out, title, lines)
        return
    from kopt.dashboard.topology_drawing import draw

    draw(drawing, out, title, lines)


def _title(node: NodeTopology, machine: "Machine") -> str:
    what = f"{len(node.gpus)} × {machine.node.gpu.name or 'GPU'}"
    return f"{node.node}: {what}" if node.node else what


def sentence(found: BandwidthEstimate) -> str:
    """``GPUs 0, 1: all_reduce of 1 GiB at 71 GB/s bus bandwidth (60 to 80)``."""
    bus, low, high = (
        f"{value:.3g}"
        for value in (found.bus_gigabytes_per_s, found.bus_low_gigabytes_per_s, found.bus_high_gigabytes_per_s)
    )
    where = f"GPUs {', '.join(map(str, found.gpus))}"
    return (f"{where}: {found.collective} of {format_bytes(found.bytes)} at {bus} GB/s bus bandwidth "
            f"({found.probability:.0%} between {low} and {high})")  # fmt: skip


def _answer(shown: Shown, found: BandwidthEstimate | None, out: Path | None) -> Answer:
    from kopt.cli.topology_view import answer

    table = answer(shown.topology)
    notes = [*table.notes, *(f"degraded: {one.part}: {one.now:g} of {one.was:g}" for one in shown.degraded)]
    notes += [sentence(found), *(one.message for one in found.reasons)] if found else []
    notes += [f"drawn: {out}"] if out is not None else []
    degraded = [{"part": one.part, "was": one.was, "now": one.now} for one in shown.degraded]
    document = {**(table.document or {}), "degraded": degraded, "predicted": found.to_dict() if found else None}
    return replace(table, notes=notes, document=document)


def _listed(nodes: Sequence[Shown]) -> Answer:
    rows = [
        NodeRow(one.topology.node, len(one.topology.gpus), _model(one.topology), len(one.topology.nics),
                len(one.degraded))
        for one in nodes
    ]  # fmt: skip
    return Answer("nodes", rows, empty="no node has published its topology; `kopt agent topology` does")


def _model(node: NodeTopology) -> str:
    return ", ".join(sorted({gpu.name for gpu in node.gpus if gpu.name}))
