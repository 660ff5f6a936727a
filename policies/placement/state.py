"""The fleet as arrays: one row per node, one column per GPU slot, changed in place in O(GPUs of a node).

The caller keeps the state; every function of this package gets it as an argument. Amounts are integers (milli-CPU,
bytes, milli-GPU), so that releasing undoes placing exactly.
"""

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from kopt.core.scheduling.placement import FleetNode, PodRequest
from kopt.core.units import WHOLE_GPU

Ints = NDArray[np.int64]
NO_MODEL = -1
_LOG_LIMIT = 1 << 16
_BITS = (1 << 62) - 1
Likeness = tuple[bytes, int, int, int, int, int, bool]


class PlacementError(ValueError):
    """An invalid change of the fleet: unknown node, too little left, or more released than was placed."""


class FleetState:
    """Arrays over N rows (nodes; a removed node leaves an empty row for the next) and G GPU slots.

    ========================  ==========  ===================================================
    ``cpu_free_milli``        (N,) int64  milli-cores left
    ``memory_free_bytes``     (N,) int64  bytes left
    ``gpu_free_milli``        (N, G) i32  milli-GPU left per slot; 0 in slots that do not exist
    ``gpu_free_total``        (N,) int32  their sum
    ``gpu_count``             (N,) int32  slots of the node
    ``model``                 (N,) int32  index into ``models``; -1 without GPUs
    ``ready``                 (N,) bool   can take pods; False in empty rows
    ``health, cost, utilisation``  (N,) f64
    ``topology``              (N,) int32  index into ``topologies``; -1 unknown
    ``degraded``              (N,) bool   some part is worse than it was
    ``poor``                  (N,) int64  bits of the slots that it belongs to
    ========================  ==========  ===================================================

    Changed rows are logged, so that caches refresh only those: see `changed_since`.
    """

    def __init__(self, nodes: Iterable[FleetNode] = ()) -> None:
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.models: list[str] = []
        self.topologies: list[str] = []
        self.ill: set[int] = set()
        """Degraded rows: usually empty, which is quick to check."""
        self._unused: list[int] = []
        self._log: list[int] = []
        self._log_start = 0
        self._largest_cpu_milli = 0
        self.shape_version = 0
        """Rises when rows or slots are added, after which arrays have other shapes."""
        self._allocate(0, 0)
        listed = list(nodes)
        self._grow(len(listed), max((node.gpus for node in listed), default=0))
        for node in listed:
            self.set_node(node)

    def __len__(self) -> int:
        """Nodes, without empty rows."""
        return len(self.index)

    @property
    def rows(self) -> int:
        return len(self.names)

    @property
    def slots(self) -> int:
        return int(self.gpu_free_milli.shape[1])

    @property
    def largest_cpu_milli(self) -> int:
        """Milli-cores of the largest node there has been."""
        return self._largest_cpu_milli

    @property
    def version(self) -> int:
        """Rises with every change of a row."""
        return self._log_start + len(self._log)

    def likeness(self, row: int) -> Likeness:
        """What decides whether and how a pod fits a row; equal for rows that are interchangeable for every pod."""
        return (
            self.gpu_free_milli[row].tobytes(),
            int(self.cpu_free_milli[row]),
            int(self.memory_free_bytes[row]),
            int(self.gpu_count[row]),
            int(self.model[row]),
            int(self.gpu_memory_bytes[row]),
            bool(self.ready[row]),
        )

    def changed_since(self, version: int) -> Ints | None:
        """Rows changed after ``version``, each once; None if that is too long ago."""
        if version < self._log_start:
            return None
        rows = self._log[version - self._log_start :]
        # Usually a handful, for which numpy's sorting costs ten times Python's.
        return np.array(sorted(set(rows)) if len(rows) < 100 else np.unique(rows), dtype=np.int64)

    def set_node(self, node: FleetNode) -> int:
        """Add or change a node; what its pods hold stays allocated. Returns its row.

        A node that shrinks below what its pods hold has nothing free until they end (free amounts may be negative).
        """
        row = self.index.get(node.name)
        if row is None:
            row = self._new_row(node)
        if node.gpus > self.slots:
            self._grow(self.rows, node.gpus)
        self.cpu_free_milli[row] += node.cpu_milli - self.cpu_milli[row]
        self.memory_free_bytes[row] += node.memory_bytes - self.memory_bytes[row]
        before = int(self.gpu_count[row])
        self.gpu_free_milli[row, before : node.gpus] += WHOLE_GPU
        self.gpu_free_milli[row, node.gpus : before] -= WHOLE_GPU
        self.gpu_free_total[row] += WHOLE_GPU * (node.gpus - before)
        self.cpu_milli[row], self.memory_bytes[row], self.gpu_count[row] = node.cpu_milli, node.memory_bytes, node.gpus
        self.model[row] = _code(self.models, node.model) if node.gpus else NO_MODEL
        self.topology[row] = _code(self.topologies, node.topology) if node.topology else -1
        self.gpu_memory_bytes[row], self.ready[row] = node.gpu_memory_bytes, node.ready
        self.health[row], self.cost[row], self.utilisation[row] = node.health, node.cost, node.utilisation
        self.degraded[row], self.poor[row] = node.degraded, node.poor & _BITS
        (self.ill.add if node.degraded else self.ill.discard)(row)
        self._largest_cpu_milli = max(self._largest_cpu_milli, node.cpu_milli)
        self.touch(row)
        return row

    def copy(self) -> "FleetState":
        """The same nodes, of which pods can be placed and released without a trace here."""
        result = copy(self)
        result._log, result._log_start = [], self.version
        result.cpu_free_milli, result.memory_free_bytes = self.cpu_free_milli.copy(), self.memory_free_bytes.copy()
        result.gpu_free_milli, result.gpu_free_total = self.gpu_free_milli.copy(), self.gpu_free_total.copy()
        return result

    def remove_node(self, name: str) -> None:
        """Forget a node and what was placed there. Raises PlacementError for an unknown one."""
        row = self.row(name)
        del self.index[name]
        self.names[row] = ""
        for column in self._columns():
            column[row] = 0
        self.model[row] = self.topology[row] = -1
        self.ill.discard(row)
        self._unused.append(row)
        self.touch(row)

    def row(self, name: str) -> int:
        """The row of a node. Raises PlacementError for an unknown one."""
        try:
            return self.index[name]
        except KeyError:
            raise PlacementError(f"no node {name!r} in the fleet") from None

    def touch(self, row: int) -> None:
        """Log that a row changed (for callers that write a column themselves)."""
        self._log.append(row)
        if len(self._log) > _LOG_LIMIT:
            half = _LOG_LIMIT // 2
            del self._log[:half]
            self._log_start += half

    def _columns(self) -> tuple[NDArray[np.generic], ...]:
        return (
            self.cpu_milli,
            self.memory_bytes,
            self.cpu_free_milli,
            self.memory_free_bytes,
            self.gpu_free_milli,
            self.gpu_free_total,
            self.gpu_count,
            self.model,
            self.gpu_memory_bytes,
            self.ready,
            self.health,
            self.cost,
            self.utilisation,
            self.topology,
            self.degraded,
            self.poor,
        )

    def _allocate(self, rows: int, slots: int) -> None:
        self.cpu_milli, self.memory_bytes = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.cpu_free_milli, self.memory_free_bytes = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.gpu_free_milli = np.zeros((rows, slots), np.int32)
        self.gpu_free_total = np.zeros(rows, np.int32)
        self.gpu_count, self.model = np.zeros(rows, np.int32), np.full(rows, NO_MODEL, np.int32)
        self.gpu_memory_bytes, self.ready = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
        self.health, self.cost = np.zeros(rows), np.zeros(rows)
        self.utilisation, self.topology = np.zeros(rows), np.full(rows, -1, np.int32)
        self.degraded, self.poor = np.zeros(rows, np.bool_), np.zeros(rows, np.int64)

    def _grow(self, rows: int, slots: int) -> None:
        """Keep all values in arrays of at least this shape; rows double, so that growing is rare."""
        before, old_rows, old_slots = self._columns(), self.rows, self.slots
        if rows > old_rows:
            rows = max(rows, 2 * old_rows)
        self._allocate(max(rows, old_rows), max(slots, old_slots))
        for old, new in zip(before, self._columns(), strict=True):
            new[(slice(old_rows), slice(old_slots)) if old.ndim == 2 else slice(old_rows)] = old
        added = range(old_rows, len(self.ready))
        self.names.extend("" for _ in added)
        self._unused.extend(reversed(added))
        self.shape_version += 1

    def _new_row(self, node: FleetNode) -> int:
        if not self._unused:
            self._grow(self.rows + 1, node.gpus)
        row = self._unused.pop()
        self.names[row] = node.name
        self.index[node.name] = row
        return row


def allocate(state: FleetState, node: str | int, gpus: Sequence[int], request: PodRequest) -> None:
    """Allocate ``request`` on a node (name or row) and on its ``gpus`` (slot indexes).

    Raises PlacementError, with nothing changed, if anything is missing.
    """
    row, slots = _checked(state, node, gpus, request)
    if state.cpu_free_milli[row] < request.cpu_milli or state.memory_free_bytes[row] < request.memory_bytes:
        raise PlacementError(f"node {state.names[row]!r} has too little CPU or memory left for {request}")
    if any(state.gpu_free_milli[row, slot] < request.gpus.share for slot in slots):
        raise PlacementError(f"node {state.names[row]!r} has too little left on GPUs {slots} for {request}")
    _add(state, row, slots, request, -1)


def release(state: FleetState, node: str | int, gpus: Sequence[int], request: PodRequest) -> None:
    """Undo `allocate` exactly. Raises PlacementError, with nothing changed, if more would be free than exists."""
    row, slots = _checked(state, node, gpus, request)
    too_much = (
        state.cpu_free_milli[row] + request.cpu_milli > state.cpu_milli[row]
        or state.memory_free_bytes[row] + request.memory_bytes > state.memory_bytes[row]
        or any(state.gpu_free_milli[row, slot] + request.gpus.share > _whole(state, row, slot) for slot in slots)
    )
    if too_much:
        raise PlacementError(f"releasing {request} on node {state.names[row]!r} would free more than it has")
    _add(state, row, slots, request, 1)


def occupy(state: FleetState, node: str | int, gpus: Sequence[int], request: PodRequest) -> None:
    """Allocate what a pod already holds, even if it exceeds what is free: the cluster is the source of truth."""
    row, slots = _checked(state, node, gpus, request)
    _add(state, row, slots, request, -1)


def _checked(state: FleetState, node: str | int, gpus: Sequence[int], request: PodRequest) -> tuple[int, list[int]]:
    row = state.row(node) if isinstance(node, str) else node
    slots = list(gpus)
    if len(set(slots)) != len(slots) or len(slots) != request.gpus.count:
        raise PlacementError(f"{request.gpus.count} distinct GPUs are requested, {slots} were named")
    if any(not 0 <= slot < state.slots for slot in slots):
        raise PlacementError(f"node {state.names[row]!r} has {state.gpu_count[row]} GPUs, {slots} were named")
    return row, slots


def _whole(state: FleetState, row: int, slot: int) -> int:
    return WHOLE_GPU if slot < state.gpu_count[row] else 0


def _code(codes: list[str], name: str) -> int:
    if name not in codes:
        codes.append(name)
    return codes.index(name)


def _add(state: FleetState, row: int, slots: list[int], request: PodRequest, sign: int) -> None:
    state.cpu_free_milli[row] += sign * request.cpu_milli
    state.memory_free_bytes[row] += sign * request.memory_bytes
    for slot in slots:
        state.gpu_free_milli[row, slot] += sign * request.gpus.share
    state.gpu_free_total[row] += sign * len(slots) * request.gpus.share
    state.touch(row)
