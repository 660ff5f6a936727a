"""``kopt topology``: what links a node's GPUs, read from the outputs of tools, without a server."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output
from kopt.cli.output import Format, show
from kopt.cli.progress import say
from kopt.cli.topology.show import show_command

if TYPE_CHECKING:
    from kopt.core.hardware.node_topology import NodeTopology
    from kopt.formats.topology import Parsed

app = typer.Typer(no_args_is_help=True, help="What links a node's GPUs to one another and to its network cards.")
_STDIN = "-"
_LARGEST_BYTES = 64 << 20

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="Outputs of tools, folders copied from /sys; - is standard input."),
]


@app.callback()
def topology() -> None:
    """What links a node's GPUs to one another and to its network cards."""


@app.command("parse")
def parse_command(files: Files, output: Output = Format.TABLE) -> None:
    """Any topology tool's output as one node: GPUs, links, network cards, switches.

    The tool is found by what it prints: nvidia-smi (topo -m, topo -p2p, nvlink -s, -q, -L, mig, csv), rocm-smi,
    amd-smi, NCCL's and RCCL's XML, KFD, PCI and InfiniBand folders of /sys, lspci, ibv_devinfo, ibstat, rdma link,
    ibdev2netdev, dcgm-exporter, AMD's exporter, gpustack-runtime; also fabrics (ibnetdiscover, topograph) and logs of
    nccl-tests.

    Several files are one node: GPUs are the same when their PCI addresses are. Colours, time stamps and messages around
    an output do no harm; an output that is cut or contradicts itself is refused with its line.

    Examples:

        nvidia-smi topo -m | kopt topology parse -

        kopt topology parse topo.txt nvlink.txt nvidia-smi-q.txt -o json

        rocm-smi --showtopo | kopt topology parse - -o json | jq '.links[] | select(.type == "XGMI")'

        kopt topology parse /sys/class/kfd/kfd/topology
    """
    whole = parsed(files)
    from kopt.cli.topology.view import answer

    if output is not Format.TABLE:
        for warning in whole.warnings:
            say(f"kopt: warning: {warning}")
    show(answer(whole), output)


app.command("show")(show_command)


def parsed(files: list[str]) -> "Parsed":
    """The files as one node, or as whatever the only one shows. Raises Refused with the name of the file."""
    if files.count(_STDIN) > 1:
        usage_error("standard input (-) can be read only once", "FILE")
    result = [(_named(name), _parsed(name)) for name in files]
    return result[0][1] if len(result) == 1 else _merged(result)


def nodes_in(files: list[str]) -> "list[NodeTopology]":
    """The nodes that files describe: each one's where all name different ones or were published (what ``kubectl get
    nodetopologies -o json`` prints), else the one that they are about together. Raises Refused."""
    from kopt.core.hardware.node_topology import NodeTopology

    if files.count(_STDIN) > 1:
        usage_error("standard input (-) can be read only once", "FILE")
    texts = {name: _text(name) for name in files if name == _STDIN or not Path(name).is_dir()}
    published = [node_topology for name in files for node_topology in _published(name, texts.get(name, ""))]
    if published:
        return published
    result = [(_named(name), _parsed(name, texts.get(name))) for name in files]
    names = {
        node_topology.node
        for _, node_topology in result
        if isinstance(node_topology, NodeTopology) and node_topology.node
    }
    if 1 < len(result) == len(names):
        return [node_topology for _, node_topology in result if isinstance(node_topology, NodeTopology)]
    whole = result[0][1] if len(result) == 1 else _merged(result)
    if not isinstance(whole, NodeTopology):
        raise Refused("this describes a fabric or measurements; give the output of a tool that shows one node")
    return [whole]


def _published(name: str, text: str) -> "list[NodeTopology]":
    """The ``NodeTopology`` objects in what kubectl printed as JSON."""
    if not text.lstrip().startswith("{") or '"NodeTopology' not in text:
        return []
    import json

    from kopt.cluster.objects.node_topology import topology_of

    try:
        document = json.loads(text)
        items = document["items"] if str(document.get("kind")).endswith("List") else [document]
        return [topology_of(item) for item in items if item.get("kind", "NodeTopology") == "NodeTopology"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(f"{_named(name)}: no NodeTopology objects as kubectl prints them ({error})") from error


def _named(name: str) -> str:
    return "standard input" if name == _STDIN else name


def _parsed(name: str, text: str | None = None) -> "Parsed":
    """``text`` is what was read of it before. Raises Refused with the name of the file."""
    from kopt.formats.topology import FormatError, parse, parse_tree

    try:
        if name != _STDIN and Path(name).is_dir():
            return parse_tree(_tree(Path(name)))
        text = _text(name) if text is None else text
        return _read_before(text) or parse(text, _yaml)
    except FormatError as error:
        raise Refused(f"{_named(name)}: {error}") from error


def _read_before(text: str) -> "Parsed | None":
    """The node in what this command printed as JSON."""
    if not text.lstrip().startswith("{") or '"kopt/v1"' not in text:
        return None
    import json

    from kopt.core.hardware.node_topology import NodeTopology

    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    ours = isinstance(document, dict) and document.get("schema") == "kopt/v1" and document.get("kind") == "node"
    return NodeTopology.from_dict(document) if ours else None


def _merged(result: "list[tuple[str, Parsed]]") -> "Parsed":
    from kopt.core.hardware.node_topology import NodeTopology, TopologyError
    from kopt.formats.topology import merged

    nodes = []
    for name, item in result:
        if not isinstance(item, NodeTopology):
            raise Refused(f"{name}: only what tools say of one node can be put together; give this file alone")
        nodes.append(item)
    try:
        return merged(nodes)
    except TopologyError as error:
        raise Refused(str(error)) from error


def _text(name: str) -> str:
    if name == _STDIN:
        data = sys.stdin.buffer.read(_LARGEST_BYTES + 1)
    else:
        path = Path(name)
        if not path.exists():
            raise Refused(f"{path}: there is no such file; name a tool's output, or - for standard input")
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise Refused(f"{_named(name)}: more than {_LARGEST_BYTES >> 20} MiB; give the output of one tool")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        # PowerShell writes what it redirects in UTF-16.
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8", errors="replace")


def _tree(folder: Path) -> dict[str, str]:
    from kopt.cli.topology.tree import read

    return read(folder)


def _yaml(text: str) -> Any:
    from kopt.cli.topology.tree import load_yaml

    return load_yaml(text)
