"""Replays a trace through the caching allocator and says when memory peaked, in which phase, and what it held then."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kopt.core.units import GIB, Bytes
from kopt.core.workload.sizing import MemoryBreakdown
from kopt.tracing.allocator import MIN_BLOCK_BYTES, CachingAllocator, OutOfMemory
from kopt.tracing.allocator_settings import AllocatorSettings
from kopt.tracing.events import EVENT, MODULE, SUBJECT, A, B, Convolution, Event, Pass, Role, Rows, Trace
from kopt.tracing.workspaces import fourier_bytes, layout_bytes, unfolded_bytes

Amounts = NDArray[np.int64]

ROLES = tuple(Role)
LARGE_CARD_BYTES = 80 * GIB
"""Where it is not known on which card a script runs."""
_TRANSIENT = -1 << 60
"""No storage's number, and no kept workspace's."""
_MEMORY = (Event.ALLOC, Event.FREE, Event.WORKSPACE, Event.EMPTY_CACHE)


@dataclass(frozen=True)
class PhasePeak:
    """The most that was allocated and reserved while one phase of one step lasted; ``begins`` is its first event."""

    name: str
    step: int
    begins: int
    allocated_bytes: Bytes
    reserved_bytes: Bytes


@dataclass(frozen=True)
class ModuleShare:
    """Bytes alive at the peak that were allocated while a module ran; ``""`` is outside of any."""

    name: str
    bytes: Bytes


@dataclass(frozen=True)
class Timeline:
    """Memory of one process over the events that change it.

    ``places`` (n,) are rows of the trace; ``allocated`` and ``reserved`` (n,) are bytes after each; ``by_role``
    (n, roles) splits the allocated ones. ``out_of_memory`` tells that the capacity did not suffice: the replay then
    ends early. ``retries`` counts allocations that first had to give cached memory back.
    """

    places: Amounts
    allocated: Amounts
    reserved: Amounts
    by_role: Amounts
    peak: int
    breakdown: MemoryBreakdown
    phases: tuple[PhasePeak, ...]
    modules: tuple[ModuleShare, ...]
    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes
    requested_bytes: Bytes
    retries: int = 0
    out_of_memory: str = ""
    unknown_settings: tuple[str, ...] = ()
    workspace_bytes: Bytes = Bytes(0)
    """Of the convolution that takes most while it runs."""
    search_bytes: Bytes = Bytes(0)
    """How much more a search for the fastest algorithms may hold than the replay's, as far as the card has room."""

    def phase_peaks(self) -> Mapping[str, PhasePeak]:
        """The highest peak of each phase over all steps."""
        highest: dict[str, PhasePeak] = {}
        for phase in self.phases:
            if phase.name not in highest or phase.allocated_bytes > highest[phase.name].allocated_bytes:
                highest[phase.name] = phase
        return highest

    def grows(self) -> float:
        """By what part the peak grew from the last step but one to the last; 0 with fewer than three steps."""
        peaks: dict[int, int] = {}
        for phase in self.phases:
            peaks[phase.step] = max(peaks.get(phase.step, 0), int(phase.allocated_bytes))
        steps = sorted(peaks)
        if len(steps) < 3 or not peaks[steps[-2]]:
            return 0.0
        return peaks[steps[-1]] / peaks[steps[-2]] - 1


def replay(
    trace: Trace,
    *,
    rank: int = 0,
    capacity_bytes: int | None = None,
    settings: AllocatorSettings | None = None,
    card_bytes: int = LARGE_CARD_BYTES,
    capability: tuple[int, int] | None = None,
) -> Timeline:
    """The timeline of one rank. ``settings`` default to those of the script's environment.

    ``capacity_bytes`` is what the allocator can have of the device: close to it cached memory is given back, beyond
    it the replay stops. A convolution's workspace takes what is free of ``card_bytes``, and no more; how large it is
    depends on the compute ``capability`` of an NVIDIA GPU.
    """
    rows = trace.of_rank(rank)
    settings = settings or AllocatorSettings.parse(trace.hello.allocator_conf)
    allocator = CachingAllocator(settings, capacity_bytes)
    used = _convolutions(rows)
    workspaces = _Workspaces(
        _workspaces(used, trace.convolutions, capability), min(card_bytes, capacity_bytes or card_bytes)
    )
    places = np.flatnonzero(np.isin(rows[:, EVENT], _MEMORY) | _using(rows, workspaces.amounts))
    allocated, reserved, failed = _run(rows, places, allocator, workspaces)
    places = places[: len(allocated)]
    by_role = _by_role(rows, places)
    peak = int(np.argmax(allocated)) if len(allocated) else 0
    tensors = int(allocated[peak]) if len(allocated) else 0
    return Timeline(
        places,
        allocated,
        reserved,
        by_role,
        peak,
        _breakdown(by_role[peak] if len(by_role) else np.zeros(len(ROLES), np.int64), tensors, allocator.peak_reserved),
        _phases(rows, trace.names, places, allocated, reserved),
        _modules(rows, trace.names, int(places[peak]) if len(places) else 0),
        Bytes(allocator.peak_allocated),
        Bytes(allocator.peak_reserved),
        Bytes(int(by_role.sum(1).max()) if len(by_role) else 0),
        allocator.retries,
        failed,
        settings.unknown,
        Bytes(max((amount for amount, _ in workspaces.amounts.values()), default=0)),
        Bytes(min(_search_bytes(used, trace.convolutions), max(0, workspaces.card_bytes - allocator.peak_reserved))),
    )


def _convolutions(rows: Rows) -> list[tuple[int, int]]:
    """The shape of each convolution and what it computes (``Pass``)."""
    used = np.unique(rows[rows[:, EVENT] == Event.CONVOLUTION][:, [SUBJECT, A]], axis=0)
    return [(shape, directions) for shape, directions in used.tolist()]


def _search_bytes(used: Sequence[tuple[int, int]], convolutions: Mapping[int, Convolution]) -> int:
    """The most that a search holds in frequencies or, while more is alive than in the replay, of unfolded pictures."""
    searched = [convolutions[shape] for shape, directions in used if directions & Pass.SEARCHED]
    return max((max(fourier_bytes(each), unfolded_bytes(each)) for each in searched), default=0)


def _workspaces(
    used: Sequence[tuple[int, int]], convolutions: Mapping[int, Convolution], capability: tuple[int, int] | None
) -> dict[tuple[int, int], tuple[int, int]]:
    """By the shape of a convolution and what it computes, of those that take any: bytes while it runs, and bytes of the
    search for the fastest algorithm before it runs first."""
    amounts = {}
    for shape, directions in used:
        amount = layout_bytes(convolutions[shape], directions, capability)
        search = max(amount, unfolded_bytes(convolutions[shape])) if directions & Pass.SEARCHED else 0
        if amount or search:
            amounts[shape, directions] = amount, search
    return amounts


def _using(rows: Rows, amounts: Mapping[tuple[int, int], tuple[int, int]]) -> NDArray[np.bool_]:
    """Which rows (n,) are convolutions that take a workspace."""
    using: NDArray[np.bool_] = np.zeros(len(rows), bool)
    runs = np.flatnonzero(rows[:, EVENT] == Event.CONVOLUTION)
    using[runs] = [(shape, directions) in amounts for shape, directions in rows[runs][:, [SUBJECT, A]].tolist()]
    return using


def _run(
    rows: Rows, places: Amounts, allocator: CachingAllocator, transient: "_Workspaces"
) -> tuple[Amounts, Amounts, str]:
    """Bytes allocated and reserved after each memory event (of a convolution: while it runs), and why the replay
    stopped early, if it did."""
    allocated, reserved = [], []
    workspaces: dict[tuple[int, int], tuple[int, int]] = {}
    recorded = np.flatnonzero(rows[:, EVENT] == Event.RECORD_STREAM)
    wanted = np.sort(np.concatenate([places, recorded])) if len(recorded) else places
    table = rows[wanted][:, [EVENT, SUBJECT, A, B]].tolist()
    try:
        for event, subject, a, b in table:
            if event == Event.ALLOC:
                allocator.malloc(subject, a, b)
            elif event == Event.FREE:
                allocator.free(subject)
            elif event == Event.RECORD_STREAM:
                allocator.record_stream(subject, b)
                continue
            elif event == Event.EMPTY_CACHE:
                allocator.empty_cache()
            elif event == Event.CONVOLUTION:
                allocated.append(transient.run(allocator, (subject, a), b))
                reserved.append(allocator.reserved)
                continue
            else:
                _workspace(allocator, workspaces, (subject, b), a)
            allocated.append(allocator.allocated)
            reserved.append(allocator.reserved)
    except OutOfMemory as error:
        return np.array(allocated, np.int64), np.array(reserved, np.int64), str(error)
    return np.array(allocated, np.int64), np.array(reserved, np.int64), ""


@dataclass(frozen=True)
class _Workspaces:
    """Workspaces of convolutions while they run, as far as the card has room: otherwise another algorithm is taken.

    A search is made once for each convolution; PyTorch then gives all cached memory back.
    """

    amounts: Mapping[tuple[int, int], tuple[int, int]]
    card_bytes: int
    searched: set[tuple[int, int]] = field(default_factory=set)

    def run(self, allocator: CachingAllocator, which: tuple[int, int], stream: int) -> int:
        """Bytes allocated while it lasts."""
        amount, search = self.amounts[which]
        during = allocator.allocated
        if search and which not in self.searched:
            self.searched.add(which)
            during = self._hold(allocator, search, stream)
            allocator.empty_cache()
        return max(during, self._hold(allocator, amount, stream)) if amount else during

    def _hold(self, allocator: CachingAllocator, amount: int, stream: int) -> int:
        if allocator.reserved + amount > self.card_bytes:
            allocator.empty_cache()
        if allocator.reserved + amount <= self.card_bytes:
            with contextlib.suppress(OutOfMemory):
                allocator.malloc(_TRANSIENT, amount, stream)
        during = allocator.allocated
        allocator.free(_TRANSIENT)
        return during


def _workspace(
    allocator: CachingAllocator, extents: dict[tuple[int, int], tuple[int, int]], key: tuple[int, int], amount: int
) -> None:
    """A library's workspace is kept once it was needed, and replaced when more is needed."""
    storage, size = extents.get(key, (0, 0))
    if amount <= size:
        return
    if storage:
        allocator.free(storage)
    extents[key] = (-1 - len(extents) - amount, amount)
    allocator.malloc(extents[key][0], amount, key[1])


def _by_role(rows: Rows, places: Amounts) -> Amounts:
    """Bytes alive after each memory event by role, (n, roles); a storage has the role it was given last."""
    if not len(places):
        return np.zeros((0, len(ROLES)), np.int64)
    event, subject = rows[:, EVENT], rows[:, SUBJECT]
    made = np.flatnonzero(event == Event.ALLOC)
    order = made[np.argsort(subject[made])]
    ids = subject[order]
    sizes = -(-rows[order, A] // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
    roles = np.zeros(len(ids), np.int64)
    role_rows = np.flatnonzero(event == Event.ROLE)
    roles[np.searchsorted(ids, subject[role_rows])] = rows[role_rows, A]
    deltas = np.zeros((len(places), len(ROLES)), np.int64)
    kinds, about = event[places], subject[places]
    for kind, sign in ((Event.ALLOC, 1), (Event.FREE, -1)):
        at = np.flatnonzero(kinds == kind)
        which = np.searchsorted(ids, about[at])
        deltas[at, roles[which]] = sign * sizes[which]
    total: Amounts = np.cumsum(deltas, axis=0)
    return total


def _breakdown(by_role: Amounts, allocated: int, reserved: int) -> MemoryBreakdown:
    """Roles at the peak. Workspaces and what blocks are larger than their tensors count as temporary."""
    bytes_by_role = {role: int(by_role[role]) for role in ROLES}
    lasting = sum(bytes_by_role.values()) - bytes_by_role[Role.TEMPORARY]
    return MemoryBreakdown(
        weights=Bytes(bytes_by_role[Role.WEIGHTS] + bytes_by_role[Role.BUFFERS]),
        gradients=Bytes(bytes_by_role[Role.GRADIENTS]),
        optimizer=Bytes(bytes_by_role[Role.OPTIMIZER]),
        activations=Bytes(bytes_by_role[Role.ACTIVATIONS] + bytes_by_role[Role.INPUTS]),
        temporary=Bytes(max(0, allocated - lasting)),
        framework=Bytes(max(0, reserved - allocated)),
    )


def _phases(
    rows: Rows, names: Mapping[int, str], places: Amounts, allocated: Amounts, reserved: Amounts
) -> tuple[PhasePeak, ...]:
    phase_rows = np.flatnonzero(rows[:, EVENT] == Event.PHASE)
    starts = np.searchsorted(places, phase_rows)
    phase_peaks = []
    for n, row in enumerate(phase_rows.tolist()):
        start, end = int(starts[n]), int(starts[n + 1]) if n + 1 < len(phase_rows) else len(places)
        if start < end:
            peaks = (Bytes(int(amounts[start:end].max())) for amounts in (allocated, reserved))
            phase_peaks.append(PhasePeak(names[int(rows[row, SUBJECT])], int(rows[row, A]), start, *peaks))
    return tuple(phase_peaks)


def _modules(rows: Rows, names: Mapping[int, str], row: int) -> tuple[ModuleShare, ...]:
    """What is alive after row ``row`` by the module that allocated it, the largest first."""
    past = rows[: row + 1]
    made = past[past[:, EVENT] == Event.ALLOC]
    freed = past[past[:, EVENT] == Event.FREE, SUBJECT]
    alive = made[~np.isin(made[:, SUBJECT], freed)]
    modules, where = np.unique(alive[:, MODULE], return_inverse=True)
    amounts = np.bincount(where, weights=alive[:, A]).astype(np.int64)
    return tuple(
        ModuleShare(names[int(modules[n])], Bytes(int(amounts[n]))) for n in np.argsort(-amounts, kind="stable")
    )


def by_depth(modules: Sequence[ModuleShare], most: int) -> tuple[ModuleShare, ...]:
    """The same bytes under at most ``most`` names, paths cut as little as that allows; the rest under ``"others"``."""
    depth = max((module.name.count(".") + 1 for module in modules), default=1)
    grouped: dict[str, int] = {}
    while True:
        grouped.clear()
        for module in modules:
            key = ".".join(module.name.split(".")[:depth])
            grouped[key] = grouped.get(key, 0) + int(module.bytes)
        if len(grouped) <= most or depth == 1:
            break
        depth -= 1
    ordered = sorted(grouped.items(), key=lambda item: -item[1])
    kept = [ModuleShare(name, Bytes(amount)) for name, amount in ordered[: most - (len(ordered) > most)]]
    if len(ordered) > len(kept):
        kept.append(ModuleShare("others", Bytes(sum(amount for _, amount in ordered[len(kept) :]))))
    return tuple(kept)
