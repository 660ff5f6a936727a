"""Nodes and pods in the columns of Alibaba's GPU cluster trace of 2023 ("openb", cluster-trace-gpu-v2023).

Nodes: ``sn, cpu_milli, memory_mib, gpu, model``. Pods: ``name, cpu_milli, memory_mib, num_gpu, gpu_milli`` (of each
GPU) and optionally ``gpu_spec`` ("A|B" are alternatives), ``creation_time`` and ``deletion_time`` (seconds).
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kopt.core.gpu import Gpu
from kopt.core.scheduling.cluster import GpuRequest, Node
from kopt.core.scheduling.placement import PodRequest
from kopt.core.units import MIB, WHOLE_GPU, Bytes, MilliGpu

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_LARGEST = 1 << 50


class TraceError(ValueError):
    """A trace that cannot be read; the message names file, line and what was expected."""


@dataclass(frozen=True)
class TracePod:
    """One pod of a trace; times in seconds from the trace's start, None where the trace has none."""

    name: str
    request: PodRequest
    created_s: float | None = None
    deleted_s: float | None = None


def read_nodes(path: Path) -> tuple[Node, ...]:
    """All nodes, in the file's order. Raises TraceError."""
    nodes = tuple(_node(row) for row in _rows(path, NODE_COLUMNS))
    _refuse_doubles(path, [node.name for node in nodes], "nodes")
    return nodes


def read_pods(path: Path) -> tuple[TracePod, ...]:
    """All pods, in the file's order. Raises TraceError."""
    trace_pods = tuple(_pod(row) for row in _rows(path, POD_COLUMNS))
    _refuse_doubles(path, [pod.name for pod in trace_pods], "pods")
    return trace_pods


@dataclass(frozen=True)
class _Row:
    """One line: reading a cell fails with its file, line and column."""

    path: Path
    line: int
    cells: Mapping[str, str | None]

    def text(self, column: str) -> str:
        return (self.cells.get(column) or "").strip()

    def number(self, column: str, most: int = _LARGEST) -> int:
        try:
            value = int(self.text(column))
        except ValueError:
            raise self.error(f"{column} is {self.text(column)!r}, not a whole number") from None
        if not 0 <= value <= most:
            raise self.error(f"{column} is {value}, expected 0 to {most}")
        return value

    def seconds(self, column: str) -> float | None:
        try:
            return float(self.text(column)) if self.text(column) else None
        except ValueError:
            raise self.error(f"{column} is {self.text(column)!r}, not seconds") from None

    def error(self, what: str) -> TraceError:
        return TraceError(f"{self.path}, line {self.line}: {what}")


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[_Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(f"{path}: no column {', '.join(missing)}; expected {', '.join(columns)}")
            for cells in reader:
                yield _Row(path, reader.line_num, cells)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} cannot be read as a CSV file: {error}") from error


def _node(row: _Row) -> Node:
    name, count, model = row.text("sn"), row.number("gpu", 1024), row.text("model")
    if not name:
        raise row.error("a node needs a name (sn)")
    gpus = tuple(Gpu(index, model, Bytes(0)) for index in range(count))
    return Node(name, gpus, row.number("cpu_milli"), Bytes(row.number("memory_mib") * MIB))


def _pod(row: _Row) -> TracePod:
    name, count = row.text("name"), row.number("num_gpu", 1024)
    milli = row.number("gpu_milli", WHOLE_GPU) if count else int(WHOLE_GPU)
    models = tuple(dict.fromkeys(part for part in row.text("gpu_spec").split("|") if part))
    if count > 1 and milli != WHOLE_GPU:
        raise row.error("a share of a GPU is only for workloads on one GPU")
    try:
        gpus = GpuRequest(count, MilliGpu(milli), models=models) if count else GpuRequest()
        request = PodRequest(row.number("cpu_milli"), Bytes(row.number("memory_mib") * MIB), gpus)
    except ValueError as error:
        raise row.error(str(error)) from error
    if not name:
        raise row.error("a pod needs a name")
    return TracePod(name, request, row.seconds("creation_time"), row.seconds("deletion_time"))


def _refuse_doubles(path: Path, names: list[str], what: str) -> None:
    if len(set(names)) < len(names):
        double = next(name for index, name in enumerate(names) if name in names[:index])
        raise TraceError(f"{path}: {what} named {double!r} occur twice")
    if not names:
        raise TraceError(f"{path} holds no {what}")
