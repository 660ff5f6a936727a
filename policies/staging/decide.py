"""One StagedData: its copies as they are to be told of, and the Jobs to begin and to end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kopt.core.staged_data import CLAIM, Copy, DataPhase, NodeCache, StagedData, User
from kopt.core.staging import Source, StagingError, Trouble
from kopt.policies.staging.copies import Next, Run, Step, Verb, advance
from kopt.policies.staging.nodes import CacheNode, Gang, chosen, copies_needed
from kopt.policies.staging.rules import StagingRules


@dataclass(frozen=True)
class Known:
    """What is known of one StagedData. ``runs``: the newest Job for each place; ``nodes``: all nodes, as far as they
    may hold a copy of it; ``evict``: it has to make room; ``folder_gone``: its claim is gone, or others use the same
    folder, so there is nothing to take away."""

    data: StagedData
    runs: Mapping[str, Run] = field(default_factory=dict)
    users: tuple[User, ...] = ()
    gangs: tuple[Gang, ...] = ()
    nodes: Sequence[CacheNode] = ()
    evict: bool = False
    folder_gone: bool = False


@dataclass(frozen=True)
class Order:
    """A Job to begin or to end."""

    place: str
    step: Step
    verb: Verb
    attempt: int


@dataclass(frozen=True)
class Outcome:
    """``lost`` are nodes that are gone, or were set up anew, with their copies; ``free``: nothing of it is left
    anywhere."""

    data: StagedData
    orders: tuple[Order, ...] = ()
    again_s: float | None = None
    lost: tuple[str, ...] = ()
    free: bool = False


def decide(known: Known, now_s: float, rules: StagingRules) -> Outcome:
    """The next of a StagedData, with what changes of users and uses."""
    data = _used(known.data, known.users, now_s)
    wanted = is_wanted(known)
    places, missing = _places(known) if wanted else ((), "")
    copies = {one.place: one for one in data.copies}
    there = {CLAIM: ""} | {one.name: one.machine for one in known.nodes}
    gone = {place for place in copies if place not in there}
    for place in places:
        copies.setdefault(place, Copy(place))
    copies = {place: _of_machine(one, there.get(place, ""), known.runs.get(place)) for place, one in copies.items()}
    anew = {one.place for one in data.copies if one.digest and copies[one.place].attempts > one.attempts}
    hurried = bool(data.again) and data.again != data.again_seen
    found = {
        place: _next(known, one, wanted=wanted and (place in places or place == CLAIM), kept=wanted, now_s=now_s,
                     rules=rules, hurried=hurried)
        for place, one in copies.items() if place not in gone
    }  # fmt: skip
    orders = tuple(
        Order(place, one.step, one.verb, one.copy.attempts + (one.step is Step.BEGIN))
        for place, one in sorted(found.items()) if one.step is not Step.NOTHING
    )  # fmt: skip
    kept = tuple(one.copy for place, one in sorted(found.items()) if not (place != CLAIM and _is_dropped(one.copy)))
    begun = any(one.step is Step.BEGIN for one in orders)
    data = replace(data, copies=kept, missing=missing, again_seen=data.again if begun else data.again_seen)
    times = [one.again_s for one in found.values() if one.again_s is not None]
    free = not wanted and all(one.gone for one in kept) and not orders
    return Outcome(data, orders, min(times, default=None), tuple(sorted(gone | anew)), free)


def is_wanted(known: Known) -> bool:
    """Whether its copies are to be there: somebody uses them, also one that is being deleted, or nobody has asked for
    their room so far."""
    data = known.data
    evicted = bool(data.copies) and all(one.phase is DataPhase.EVICTED for one in data.copies)
    return bool(known.users) or not (evicted or known.evict or data.deleting)


def needed_nodes(known: Known) -> int:
    """How many nodes have to have a copy before anybody who waits is let go."""
    destination = known.data.spec.destination
    if not isinstance(destination, NodeCache):
        return 1
    return max(1, copies_needed(destination.copies, known.gangs, known.nodes))


def is_ready(known: Known) -> bool:
    """Whether who waits may be let go: enough copies are complete where pods may go now, and none of these is being
    taken away by a Job that its status does not tell of yet."""
    there = {CLAIM: ""} | {one.name: one.machine for one in known.nodes if one.fits}
    complete = [
        one for one in known.data.copies if one.phase is DataPhase.READY and one.generation == known.data.generation
        and one.place in there and _is_on(one, there[one.place]) and not _is_leaving(one, known.runs.get(one.place))
    ]  # fmt: skip
    return len(complete) >= needed_nodes(known)


def _places(known: Known) -> tuple[tuple[str, ...], str]:
    """Where copies are wanted, and what is missing for all of them."""
    if not isinstance(known.data.spec.destination, NodeCache):
        return (CLAIM,), ""
    wanted, size = needed_nodes(known), known.data.spec.size_bytes or 0
    held = {one.place for one in known.data.copies if not one.gone or one.attempts}
    found = tuple(chosen(wanted, known.nodes, held, size))
    short = f"{wanted} nodes with room for a copy are needed, and {len(found)} are there"
    return found, short if len(found) < wanted else ""


def _next(known: Known, copy: Copy, *, wanted: bool, kept: bool, now_s: float, rules: StagingRules,
          hurried: bool) -> Next:  # fmt: skip
    run = known.runs.get(copy.place)
    if kept and not wanted:
        # On a node that takes nothing new just now: what is there stays.
        return Next(copy)
    if not wanted and known.folder_gone and (run is None or run.ended):
        return Next(replace(copy, phase=DataPhase.EVICTED, gone=True, digest="", amounts=None, ready_at_s=None))
    if wanted and (problem := _problem(known.data.spec.source)):
        return Next(replace(copy, phase=DataPhase.FAILED, reason=Trouble.BAD_REQUEST, message=problem))
    generation = known.data.generation
    return advance(copy, run, wanted=wanted, generation=generation, now_s=now_s, rules=rules, hurried=hurried)


def _is_leaving(copy: Copy, run: Run | None) -> bool:
    return run is not None and run.verb is not Verb.STAGE and run.attempt >= copy.attempts


def _is_on(copy: Copy, machine: str) -> bool:
    """As far as anything tells."""
    return not machine or not copy.machine or machine == copy.machine


def _of_machine(copy: Copy, machine: str, run: Run | None) -> Copy:
    """The copy on the machine that has the node's name now. A download that is under way begins anew there by itself;
    what is told of one that has ended was on the other's disk."""
    if not machine or machine == copy.machine:
        return copy
    if _is_on(copy, machine) or (run is not None and not run.ended):
        return replace(copy, machine=machine)
    return Copy(copy.place, attempts=copy.attempts + 1, gone=False, machine=machine)


def _problem(source: str) -> str:
    """Why no download could read it; empty where one could."""
    try:
        Source.parse(source)
    except StagingError as error:
        return str(error)
    return ""


def _is_dropped(copy: Copy) -> bool:
    """A node's copy of which nothing is left, and no Job may be on its way any more."""
    return copy.phase is DataPhase.EVICTED and copy.gone


def _used(data: StagedData, users: tuple[User, ...], now_s: float) -> StagedData:
    last_s = now_s if data.users and not users else data.last_used_at_s
    return replace(data, users=tuple(sorted(users)), last_used_at_s=last_s)


def needs_room(copy: Copy) -> int:
    """Bytes that a full disk kept from being fetched; 0 for every other state."""
    if copy.reason is not Trouble.NO_ROOM:
        return 0
    return max(1, copy.amounts.bytes - copy.amounts.bytes_done) if copy.amounts else 1
