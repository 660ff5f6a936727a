"""Whether a workload fits: its quota by the arithmetic of Kueue, its pods by the feasibility of the extender."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from kopt.policies.diagnosis.situation import Bools, Ceiling, Ints, PodShape, Rule, Situation
from kopt.policies.placement.choose import roomiest_slots
from kopt.policies.placement.feasible import capacity
from kopt.policies.placement.state import FleetState, allocate
from kopt.policies.quota import Assignment, Mode, assign

GPU, CPU, MEMORY = "gpu", "cpu", "memory"
"""What nodes have of their own; other resources go by their names."""


@dataclass(frozen=True)
class Fit:
    """``room``: how many pods of each shape find room now; ``assignment``: Kueue's, None where it is not asked;
    ``exceeded``: limits of queues that it would exceed."""

    ok: bool
    room: tuple[int, ...] = ()
    assignment: Assignment | None = None
    exceeded: tuple[Ceiling, ...] = ()


def fits(situation: Situation) -> Fit:
    """Whether all of it can start now."""
    kueue = situation.kueue
    assignment = None if kueue is None else assign(kueue.demand, kueue.rules, kueue.tree, kueue.admitted)
    exceeded = tuple(
        ceiling for ceiling in situation.ceilings if ceiling.used + wanted_milli(situation) > ceiling.limit
    )
    room = node_room(situation, assignment=assignment)
    has_quota = assignment is None or assignment.mode is Mode.FIT
    has_nodes = all(pods >= shape.least for pods, shape in zip(room, situation.shapes, strict=True))
    has_turn = kueue is None or not (kueue.strict and kueue.ahead)
    return Fit(has_quota and has_nodes and has_turn and not exceeded, room, assignment, exceeded)


def wanted_milli(situation: Situation) -> int:
    """Milli-GPU of the pods that have to start together."""
    return sum(shape.least * int(shape.request.gpus.total) for shape in situation.shapes)


def node_room(
    situation: Situation,
    *,
    assignment: Assignment | None = None,
    without: Collection[Rule] = (),
    returned: Collection[str] = (),
) -> tuple[int, ...]:
    """How many pods of each shape find room together, at most all of them.

    ``without`` leaves rules out. ``returned`` are resources of which nodes have as much as if nothing ran there.
    Where nodes cannot be read there is room for all.
    """
    fleet = fleet_with(situation, returned)
    if fleet is None:
        return tuple(shape.count for shape in situation.shapes)
    shapes, several = situation.shapes, len(situation.shapes) > 1
    fleet = fleet.copy() if several else fleet
    room = [0] * len(shapes)
    for index in sorted(range(len(shapes)), key=lambda number: -int(shapes[number].request.gpus.total)):
        if not shapes[index].resource:
            # Only nodes with GPUs are kept, and what needs none has others to go to.
            room[index] = shapes[index].count
            continue
        rows = open_rows(situation, shapes[index], fleet, without, assignment)
        array = pods_per_row(shapes[index], fleet, rows, returned)
        room[index] = int(min(array.sum(), shapes[index].count))
        if several:
            _fill(fleet, shapes[index], array, room[index])
    return tuple(room)


def fleet_with(situation: Situation, returned: Collection[str]) -> FleetState | None:
    """The fleet with some resources as if nothing ran."""
    fleet, empty = situation.fleet, situation.empty if returned else None
    if fleet is None or empty is None:
        return fleet
    result = fleet.copy()
    if CPU in returned:
        result.cpu_free_milli = empty.cpu_free_milli.copy()
    if MEMORY in returned:
        result.memory_free_bytes = empty.memory_free_bytes.copy()
    if GPU in returned:
        result.gpu_free_milli = empty.gpu_free_milli.copy()
    return result


def open_rows(
    situation: Situation,
    shape: PodShape,
    fleet: FleetState,
    without: Collection[Rule] = (),
    assignment: Assignment | None = None,
) -> Bools:
    """The rows that no rule excludes, (rows,); of Kueue's flavours that were assigned, where those have nodes."""
    rows: Bools = fleet.ready.copy()
    for rule in shape.rules:
        if rule not in without:
            rows &= ~rule.excluded
    if assignment is not None and situation.kueue is not None:
        names = {name for name, _ in assignment.requests}
        masks = [situation.kueue.flavor_rows[name] for name in names if name in situation.kueue.flavor_rows]
        if masks:
            rows &= np.logical_or.reduce(masks)
    return rows


def pods_per_row(shape: PodShape, fleet: FleetState, rows: Bools, returned: Collection[str] = ()) -> Ints:
    """How many pods of a shape each row can take, (rows,)."""
    array = capacity(fleet, shape.request)
    for limit in shape.limits:
        free = limit.total if limit.resource in returned else limit.free
        array = np.minimum(array, np.maximum(free, 0) // max(1, limit.wanted))
    array[~rows] = 0
    return array


def _fill(fleet: FleetState, shape: PodShape, array: Ints, pods: int) -> None:
    """Allocate pods of a shape, on the rows with the least room first."""
    for row in np.argsort(array, kind="stable").tolist():
        for _ in range(min(pods, int(array[row]))):
            # Healthy GPUs before degraded ones with more left could leave shares of several without another one.
            allocate(fleet, row, roomiest_slots(fleet, row, shape.request), shape.request)
            pods -= 1
        if not pods:
            return
