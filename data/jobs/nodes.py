"""Nodes and their free GPUs from a table: ``name, gpus`` and optionally ``free`` (all, without it)."""

import csv
from pathlib import Path

from kopt.core.scheduling.replicas import NodeGpus
from kopt.data.jobs.openb import TraceError

_COLUMNS = ("name", "gpus")


def read_node_gpus(path: Path) -> tuple[NodeGpus, ...]:
    """The nodes of a CSV file, in its order. Raises TraceError, which names the line and what was expected."""
    nodes: list[NodeGpus] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(f"{path}: no column {', '.join(missing)}; expected name, gpus and optionally free")
            for row in reader:
                nodes.append(_node(path, reader.line_num, row))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} cannot be read as a CSV file: {error}") from error
    if len({node.name for node in nodes}) < len(nodes):
        raise TraceError(f"{path}: a node is there twice")
    if not any(node.gpus for node in nodes):
        raise TraceError(f"{path} holds no node with GPUs")
    return tuple(nodes)


def _node(path: Path, line: int, row: dict[str, str | None]) -> NodeGpus:
    name, gpus = (row.get("name") or "").strip(), (row.get("gpus") or "").strip()
    free = (row.get("free") or "").strip() or gpus
    if not (name and _is_number(gpus) and _is_number(free)):
        raise TraceError(f"{path}, line {line}: expected a name and whole numbers of GPUs, not {list(row.values())}")
    try:
        return NodeGpus(name, int(gpus), int(free))
    except ValueError as error:
        raise TraceError(f"{path}, line {line}: {error}") from None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 9
