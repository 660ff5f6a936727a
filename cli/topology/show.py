"""``kopt topology show``: the picture of a node, with what a set of its GPUs reaches."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.collective_options import Gpu, Kind, Model, Size, bytes_of, collective_of, indexes
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, show
from kopt.core.hardware.bandwidth import BandwidthEstimate
from kopt.core.hardware.node_topology import DegradedPart, NodeTopology
from kopt.core.units import format_bytes

if TYPE_CHECKING:
    from kopt.cluster.client.resources import Object
    from kopt.topology.graph import Machine

_PICTURES = (".svg", ".png", ".pdf", ".html")


@dataclass(frozen=True)
class DescribedNode:
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
    kind: Kind = "all_reduce",
    size: Size = "1GiB",
    gpu: Gpu = "",
    model: Model = "champion",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
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
                usage_error(f"name one of {', '.join(node.topology.node for node in nodes) or 'no nodes'}", "NODE")
            show(_listed(nodes), output)
            return
    described = _read(what, kubeconfig) if what else nodes[0]
    selection = indexes(gpus) if gpus else ()
    bandwidth_estimate = _predicted(described.topology, selection, kind, size, gpu, model) if selection else None
    if out is not None:
        _draw(described, selection, bandwidth_estimate, gpu, out)
    show(_answer(described, bandwidth_estimate, out), output)


def _check(out: Path | None) -> None:
    if out is not None and out.suffix.lower() not in _PICTURES:
        usage_error(f"{out.name}: a picture ends in {', '.join(_PICTURES)}", "--out")
    if out is not None and not out.absolute().parent.is_dir():
        raise Refused(f"{out.parent}: there is no such folder to draw into")


def _read(what: list[str], kubeconfig: Path | None) -> DescribedNode:
    from kopt.cli.topology.input import parsed

    if len(what) == 1 and what[0] != "-" and not Path(what[0]).exists():
        return _node_in_cluster(what[0], kubeconfig)
    result = parsed(what)
    if not isinstance(result, NodeTopology):
        raise Refused("this describes a fabric or measurements; give the output of a tool that shows one node")
    return DescribedNode(result)


def _node_in_cluster(name: str, kubeconfig: Path | None) -> DescribedNode:
    from kopt.cluster.client.api import NoCluster, NotFound, connect
    from kopt.cluster.client.resources import NODE_TOPOLOGIES

    async def ask() -> "Object":
        async with connect(kubeconfig) as kube:
            return await kube.get(NODE_TOPOLOGIES, name)

    try:
        return _described(asyncio.run(ask()))
    except NoCluster as error:
        raise Refused(f"{name}: there is no such file, and for a node: {error.message}") from error
    except NotFound as error:
        raise Refused(f"the cluster has no NodeTopology {name}; `kopt agent topology` publishes them") from error
    except ValueError as error:
        raise Refused(f"{name}: {error}") from error


def nodes_in_cluster(kubeconfig: Path | None = None) -> list[DescribedNode]:
    """Every node whose topology is published. Raises NoCluster, ApiError."""
    from kopt.cluster.client.api import connect
    from kopt.cluster.client.resources import NODE_TOPOLOGIES

    async def ask() -> "Sequence[Object]":
        async with connect(kubeconfig) as kube:
            return (await kube.list(NODE_TOPOLOGIES)).items

    return [_described(item) for item in asyncio.run(ask())]


def _described(document: "Object") -> DescribedNode:
    from kopt.cluster.objects.custom.node_topology import degraded_of, topology_of

    return DescribedNode(topology_of(document), degraded_of(document))


def _predicted(
    node: NodeTopology, selection: tuple[int, ...], kind: str, size: str, gpu: str, model: str
) -> BandwidthEstimate:
    from kopt.models.bandwidth.loading import load_bandwidth
    from kopt.sdk import bandwidth as ask
    from kopt.serving.base.environment import load_settings

    loaded = load_bandwidth(model, load_settings())
    return ask.bandwidth(node, selection, collective_of(kind), bytes_of(size), gpu=gpu, model=loaded)


def _draw(
    described: DescribedNode,
    selection: tuple[int, ...],
    bandwidth_estimate: BandwidthEstimate | None,
    gpu: str,
    out: Path,
) -> None:
    from kopt.dashboard.pages.topology.picture import picture
    from kopt.topology.from_node import machine_from

    machine = machine_from(described.topology, gpu=gpu)
    drawing = picture(described.topology, machine.node, selection, described.degraded)
    title = _title(described.topology, machine)
    lines = [*([sentence(bandwidth_estimate)] if bandwidth_estimate else []), *drawing.remarks[:4]]
    lines += [f"not known: {', '.join(machine.node.unknown)}"] if machine.node.unknown else []
    if out.suffix.lower() == ".html":
        from kopt.dashboard.pages.topology.figure import drawn, write_html

        write_html(drawn(drawing), out, title, lines)
        return
    from kopt.dashboard.pages.topology.drawing import draw

    draw(drawing, out, title, lines)


def _title(node: NodeTopology, machine: "Machine") -> str:
    what = f"{len(node.gpus)} × {machine.node.gpu.name or 'GPU'}"
    return f"{node.node}: {what}" if node.node else what


def sentence(bandwidth_estimate: BandwidthEstimate) -> str:
    """``GPUs 0, 1: all_reduce of 1 GiB at 71 GB/s bus bandwidth (60 to 80)``."""
    bus, low, high = (
        f"{value:.3g}"
        for value in (
            bandwidth_estimate.bus_gigabytes_per_s,
            bandwidth_estimate.bus_low_gigabytes_per_s,
            bandwidth_estimate.bus_high_gigabytes_per_s,
        )
    )
    where = f"GPUs {', '.join(map(str, bandwidth_estimate.gpus))}"
    return (
        f"{where}: {bandwidth_estimate.collective} of {format_bytes(bandwidth_estimate.bytes)} at {bus} GB/s "
        f"bus bandwidth ({bandwidth_estimate.probability:.0%} between {low} and {high})"
    )


def _answer(described: DescribedNode, bandwidth_estimate: BandwidthEstimate | None, out: Path | None) -> Answer:
    from kopt.cli.topology.view import answer

    table = answer(described.topology)
    remarks = [
        *table.remarks,
        *(
            f"degraded: {degraded_part.part}: {degraded_part.now:g} of {degraded_part.was:g}"
            for degraded_part in described.degraded
        ),
    ]
    remarks += (
        [sentence(bandwidth_estimate), *(reason.message for reason in bandwidth_estimate.reasons)]
        if bandwidth_estimate
        else []
    )
    remarks += [f"drawn: {out}"] if out is not None else []
    degraded = [
        {"part": degraded_part.part, "was": degraded_part.was, "now": degraded_part.now}
        for degraded_part in described.degraded
    ]
    document = {
        **(table.document or {}),
        "degraded": degraded,
        "predicted": bandwidth_estimate.to_dict() if bandwidth_estimate else None,
    }
    return replace(table, remarks=remarks, document=document)


def _listed(nodes: Sequence[DescribedNode]) -> Answer:
    rows = [
        NodeRow(
            node.topology.node,
            len(node.topology.gpus),
            _model(node.topology),
            len(node.topology.nics),
            len(node.degraded),
        )
        for node in nodes
    ]
    return Answer("nodes", rows, empty="no node has published its topology; `kopt agent topology` does")


def _model(node: NodeTopology) -> str:
    return ", ".join(sorted({gpu.name for gpu in node.gpus if gpu.name}))
