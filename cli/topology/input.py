"""Files that describe nodes: outputs of tools, folders copied from /sys, what ``kubectl`` or these commands printed."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused, usage_error

if TYPE_CHECKING:
    from kopt.core.hardware.node_topology import NodeTopology
    from kopt.formats.topology import Parsed

_STDIN = "-"
_LARGEST_BYTES = 64 << 20


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

    from kopt.cluster.objects.custom.node_topology import topology_of

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
    from kopt.cli.topology.tree import load_yaml, read
    from kopt.formats.topology import FormatError, parse, parse_tree

    try:
        if name != _STDIN and Path(name).is_dir():
            return parse_tree(read(Path(name)))
        text = _text(name) if text is None else text
        return _read_before(text) or parse(text, load_yaml)
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
