"""One StagedData: its copies as they are reported, and the Jobs to start and to stop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kopt.core.staging.manifest import Source, StagingError, Trouble
from kopt.core.staging.staged_data import CLAIM, Copy, DataPhase, NodeCache, StagedData, User
from kopt.policies.staging.copies import Next, Run, Step, Verb, advance
from kopt.policies.staging.nodes import CacheNode, Gang, choose_nodes, copies_needed
from kopt.policies.staging.rules import StagingRules
from kopt.policies.staging.shares import Wish


@dataclass(frozen=True)
class DataSnapshot:
    """The state of one StagedData. ``runs``: the newest Job for each location; ``nodes``: all nodes that may hold a
    copy; ``evict``: its space is needed; ``folder_deleted``: its claim is gone, or others use the same folder, so there
    is nothing to remove."""

    data: StagedData
    runs: Mapping[str, Run] = field(default_factory=dict)
    users: tuple[User, ...] = ()
    gangs: tuple[Gang, ...] = ()
    nodes: Sequence[CacheNode] = ()
    evict: bool = False
    folder_deleted: bool = False


@dataclass(frozen=True)
class Order:
    """A Job to start or to stop."""

    location: str
    step: Step
    verb: Verb
    attempt: int


@dataclass(frozen=True)
class Outcome:
    """``lost`` are nodes that are gone or were reinstalled, with their copies; ``free``: no copy of it is left."""

    data: StagedData
    orders: tuple[Order, ...] = ()
    again_s: float | None = None
    lost: tuple[str, ...] = ()
    free: bool = False


def decide(snapshot: DataSnapshot, now_s: float, rules: StagingRules) -> Outcome:
    """The next steps for a StagedData, and its changed users."""
    data = _used(snapshot.data, snapshot.users, now_s)
    wanted = is_wanted(snapshot)
    locations, missing = _locations(snapshot) if wanted else ((), "")
    copies = {copy.location: copy for copy in data.copies}
    machines = {CLAIM: ""} | {node.name: node.machine for node in snapshot.nodes}
    vanished = {name for name in copies if name not in machines}
    for location in locations:
        copies.setdefault(location, Copy(location))
    copies = {
        location: _of_machine(copy, machines.get(location, ""), snapshot.runs.get(location))
        for location, copy in copies.items()
    }
    anew = {copy.location for copy in data.copies if copy.digest and copies[copy.location].attempts > copy.attempts}
    hurried = bool(data.again) and data.again != data.again_handled
    steps = {
        location: _next(
            snapshot,
            copy,
            wanted=wanted and (location in locations or location == CLAIM),
            kept=wanted,
            now_s=now_s,
            rules=rules,
            hurried=hurried,
        )
        for location, copy in copies.items()
        if location not in vanished
    }
    orders = tuple(
        Order(location, following.step, following.verb, following.copy.attempts + (following.step is Step.BEGIN))
        for location, following in sorted(steps.items())
        if following.step is not Step.NOTHING
    )
    kept_copies = tuple(
        step.copy for location, step in sorted(steps.items()) if not (location != CLAIM and _is_dropped(step.copy))
    )
    begun = any(order.step is Step.BEGIN for order in orders)
    data = replace(data, copies=kept_copies, missing=missing, again_handled=data.again if begun else data.again_handled)
    times = [step.again_s for step in steps.values() if step.again_s is not None]
    free = not wanted and all(copy.removed for copy in kept_copies) and not orders
    return Outcome(data, orders, min(times, default=None), tuple(sorted(vanished | anew)), free)


def wishes(snapshot: DataSnapshot, outcome: Outcome) -> tuple[Wish, ...]:
    """The downloads that could start now, with their position in the queue: failed ones come after waiting ones."""
    data, copies = snapshot.data, {copy.location: copy for copy in outcome.data.copies}
    begin = [order.location for order in outcome.orders if order.step is Step.BEGIN and order.verb is Verb.STAGE]
    return tuple(
        Wish(data.namespace, f"{data.uid}/{location}", max(data.created_at_s, copies[location].retry_at_s or 0.0))
        for location in begin
    )


def is_wanted(snapshot: DataSnapshot) -> bool:
    """Whether its copies should exist: it has users, even while being deleted, or its space is not needed yet."""
    data = snapshot.data
    evicted = bool(data.copies) and all(copy.phase is DataPhase.EVICTED for copy in data.copies)
    return bool(snapshot.users) or not (evicted or snapshot.evict or data.deleting)


def needed_nodes(snapshot: DataSnapshot) -> int:
    """How many nodes need a copy before waiting workloads are released."""
    destination = snapshot.data.spec.destination
    if not isinstance(destination, NodeCache):
        return 1
    return max(1, copies_needed(destination.copies, snapshot.gangs, snapshot.nodes))


def is_ready(snapshot: DataSnapshot) -> bool:
    """Whether waiting workloads may be released: enough copies are complete on nodes that accept pods now, and none of
    them is being removed by a Job that its status does not show yet."""
    machines = {CLAIM: ""} | {node.name: node.machine for node in snapshot.nodes if node.fits}
    complete = [
        copy
        for copy in snapshot.data.copies
        if copy.phase is DataPhase.READY
        and copy.generation == snapshot.data.generation
        and copy.location in machines
        and _is_on(copy, machines[copy.location])
        and not _is_being_removed(copy, snapshot.runs.get(copy.location))
    ]
    return len(complete) >= needed_nodes(snapshot)


def _locations(snapshot: DataSnapshot) -> tuple[tuple[str, ...], str]:
    """Where copies are wanted, and what is missing for the others."""
    if not isinstance(snapshot.data.spec.destination, NodeCache):
        return (CLAIM,), ""
    wanted, size = needed_nodes(snapshot), snapshot.data.spec.size_bytes or 0
    held = {copy.location for copy in snapshot.data.copies if not copy.removed or copy.attempts}
    result = tuple(choose_nodes(wanted, snapshot.nodes, held, size))
    short = f"{wanted} nodes with room for a copy are needed, and {len(result)} are available"
    return result, short if len(result) < wanted else ""


def _next(
    snapshot: DataSnapshot, copy: Copy, *, wanted: bool, kept: bool, now_s: float, rules: StagingRules, hurried: bool
) -> Next:
    run = snapshot.runs.get(copy.location)
    if kept and not wanted:
        # The node accepts nothing new at the moment: an existing copy stays.
        return Next(copy)
    if not wanted and snapshot.folder_deleted and (run is None or run.ended):
        return Next(replace(copy, phase=DataPhase.EVICTED, removed=True, digest="", amounts=None, ready_at_s=None))
    if wanted and (problem := _problem(snapshot.data.spec.source)):
        return Next(replace(copy, phase=DataPhase.FAILED, reason=Trouble.BAD_REQUEST, message=problem))
    generation = snapshot.data.generation
    return advance(copy, run, wanted=wanted, generation=generation, now_s=now_s, rules=rules, hurried=hurried)


def _is_being_removed(copy: Copy, run: Run | None) -> bool:
    return run is not None and run.verb is not Verb.STAGE and run.attempt >= copy.attempts


def _is_on(copy: Copy, machine: str) -> bool:
    """Whether the copy is on this machine, as far as both are known."""
    return not machine or not copy.machine or machine == copy.machine


def _of_machine(copy: Copy, machine: str, run: Run | None) -> Copy:
    """The copy on the machine that has the node's name now. A running download starts over there by itself; a finished
    one was on the disk of the other machine."""
    if not machine or machine == copy.machine:
        return copy
    if _is_on(copy, machine) or (run is not None and not run.ended):
        return replace(copy, machine=machine)
    return Copy(copy.location, attempts=copy.attempts + 1, removed=False, machine=machine)


def _problem(source: str) -> str:
    """Why the source cannot be downloaded; empty if it can."""
    try:
        Source.parse(source)
    except StagingError as error:
        return str(error)
    return ""


def _is_dropped(copy: Copy) -> bool:
    """Whether nothing is left of a node's copy, and no Job for it can still be running."""
    return copy.phase is DataPhase.EVICTED and copy.removed


def _used(data: StagedData, users: tuple[User, ...], now_s: float) -> StagedData:
    last_s = now_s if data.users and not users else data.last_used_at_s
    return replace(data, users=tuple(sorted(users)), last_used_at_s=last_s)


def needs_room(copy: Copy) -> int:
    """Bytes that could not be downloaded because of a full disk; 0 in every other state."""
    if copy.reason is not Trouble.NO_ROOM:
        return 0
    return max(1, copy.amounts.bytes - copy.amounts.bytes_done) if copy.amounts else 1
