"""Which jobs may start while GPUs are reserved, how many GPUs are held, and how many have to be reclaimed.

A job may start if, at the start of every reservation that it would reach, all that still runs then fits beside what is
reserved. What ends before with the probability that is asked for does not reach it; nor does what can be stopped within
the lead, as long as that has not begun. This is EASY backfilling (Lifka, The ANL/IBM SP scheduling system, 1995) with
reservations in place of the first job that waits, and quantiles in place of estimates.

Between two starts nothing is claimed anew and jobs only end, so that the starts are all times that have to be checked.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kopt.core.reason import Reason
from kopt.core.units import format_gpus
from kopt.policies.reservations.model import Claim, Pending, PoolSnapshot, Running


@dataclass(frozen=True)
class Reclaim:
    """``gpus`` have to come free for ``claim`` by ``by_s``."""

    claim: str
    gpus: int
    by_s: float


@dataclass(frozen=True)
class PoolPlan:
    """``admitted``: what may start, in order. ``refused``: why the others may not; of these ``blocked`` could start now
    all the same and have to be kept from it. ``holds``: idle GPUs by claim. ``first``: of the jobs that do not end
    in time those that started last, beside which the reservations do not fit: these are reclaimed before others."""

    admitted: tuple[str, ...]
    refused: dict[str, Reason] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()
    holds: dict[str, int] = field(default_factory=dict)
    reclaims: tuple[Reclaim, ...] = ()
    first: tuple[str, ...] = ()


@dataclass
class _Start:
    """A time at which a claim starts, or now where it has; and what runs then. ``owned``: by claims' owners."""

    at_s: float
    claims: tuple[Claim, ...]
    lead_from_s: float
    others: int = 0
    owned: dict[str, int] = field(default_factory=dict)

    def is_reached(self, job: Running | Pending, now_s: float) -> bool:
        """Whether a job that runs from now on still has its GPUs then."""
        remaining_s = job.remaining_s if isinstance(job, Running) else job.run_s
        if remaining_s is not None and now_s + remaining_s <= self.at_s:
            return False
        return not (job.is_killable and now_s < self.lead_from_s)

    def add(self, job: Running | Pending) -> None:
        if any(claim.owner == job.owner for claim in self.claims):
            self.owned[job.owner] = self.owned.get(job.owner, 0) + job.gpus
        else:
            self.others += job.gpus

    def demand(self, more: Pending | None = None) -> int:
        """What runs then, and what is reserved beyond that: an owner's jobs use its own reservations."""
        reserved: dict[str, int] = {}
        for claim in self.claims:
            reserved[claim.owner] = reserved.get(claim.owner, 0) + claim.gpus
        owned, others = dict(self.owned), self.others
        if more is not None and more.owner in reserved:
            owned[more.owner] = owned.get(more.owner, 0) + more.gpus
        elif more is not None:
            others += more.gpus
        return others + sum(max(gpus, owned.get(owner, 0)) for owner, gpus in reserved.items())


def plan_pool(snapshot: PoolSnapshot) -> PoolPlan:
    """The plan for one pool."""
    starts = _starts(snapshot)
    for start in starts:
        for job in snapshot.running:
            if start.is_reached(job, snapshot.now_s):
                start.add(job)
    reclaims = tuple(_reclaims(snapshot, starts))
    admitted, refused = list[Pending](), dict[str, Reason]()
    for pending in snapshot.pending:
        reached = [start for start in starts if start.is_reached(pending, snapshot.now_s)]
        full = next((start for start in reached if not _has_room(start, pending, snapshot.gpus)), None)
        if full is not None:
            refused[pending.name] = _refusal(pending, full, snapshot)
            continue
        admitted.append(pending)
        for start in reached:
            start.add(pending)
    holds, idle = _holds(snapshot, admitted)
    blocked = tuple(
        job.name
        for job in snapshot.pending
        if job.name in refused and (job.is_blocked or job.preempts or job.gpus <= idle)
    )
    names = tuple(job.name for job in admitted)
    return PoolPlan(names, refused, blocked, holds, reclaims, _beyond(snapshot, starts))


def _starts(snapshot: PoolSnapshot) -> list[_Start]:
    result = []
    for at_s in sorted({max(snapshot.now_s, claim.start_s) for claim in snapshot.claims}):
        claims = tuple(claim for claim in snapshot.claims if claim.start_s <= at_s < claim.until_s)
        new = [claim for claim in claims if max(snapshot.now_s, claim.start_s) == at_s]
        if claims:
            lead_from_s = min((claim.start_s - claim.lead_s for claim in new), default=at_s)
            result.append(_Start(at_s, claims, lead_from_s))
    return result


def _has_room(start: _Start, pending: Pending, gpus: int) -> bool:
    """What is too much already is no reason against a job that does not add to it: its owner's own."""
    return start.demand(pending) <= max(gpus, start.demand())


def _refusal(pending: Pending, start: _Start, snapshot: PoolSnapshot) -> Reason:
    names = ", ".join(claim.name for claim in start.claims)
    ends = "it is not known when it ends" if pending.run_s is None else f"it may run for {pending.run_s / 60:.0f} min"
    beside = max(0, snapshot.gpus - (start.demand() - start.others))
    text = (
        f"{pending.name} would still run when {names} starts in {max(0.0, start.at_s - snapshot.now_s) / 60:.0f} min "
        f"({ends}), and beside it there is room for {format_gpus(beside)}, of which others have "
        f"{format_gpus(start.others)}."
    )
    figures = {"start_s": start.at_s, "gpus": pending.gpus, "beside": beside, "others": start.others}
    return Reason("RESERVED", text, figures)


def _holds(snapshot: PoolSnapshot, admitted: Iterable[Pending]) -> tuple[dict[str, int], int]:
    """Idle GPUs by claim, once those that may start have theirs; and what is idle beside them."""
    free = max(0, min(snapshot.free, snapshot.gpus))
    for pending in admitted:
        free -= pending.gpus if pending.gpus <= free else 0
    owned: dict[str, int] = {}
    for job in snapshot.running:
        owned[job.owner] = owned.get(job.owner, 0) + job.gpus
    holds: dict[str, int] = {}
    for claim in sorted(snapshot.claims, key=lambda claim: (claim.start_s, claim.name)):
        used = 0
        if claim.start_s <= snapshot.now_s:
            used = min(claim.gpus, owned.get(claim.owner, 0))
            owned[claim.owner] = owned.get(claim.owner, 0) - used
        if claim.until_s > snapshot.now_s:
            holds[claim.name] = min(free, claim.gpus - used)
            free -= holds[claim.name]
    return holds, min(snapshot.free, snapshot.gpus) - sum(holds.values())


def _reclaims(snapshot: PoolSnapshot, starts: Iterable[_Start]) -> Iterable[Reclaim]:
    for start in starts:
        missing = start.demand() - snapshot.gpus
        if missing > 0 and snapshot.now_s >= start.lead_from_s:
            claim = max(start.claims, key=lambda claim: claim.start_s)
            reserved = sum(claim.gpus for claim in start.claims)
            yield Reclaim(claim.name, min(missing, reserved), start.at_s)


def _beyond(snapshot: PoolSnapshot, starts: Iterable[_Start]) -> tuple[str, ...]:
    """Of those that reach a start whose lead has begun: the last ones, until the others fit beside what is reserved."""
    due = [start for start in starts if snapshot.now_s >= start.lead_from_s]
    owners = {claim.owner for claim in snapshot.claims}
    beside = snapshot.gpus - max((sum(claim.gpus for claim in start.claims) for start in due), default=0)
    result = []
    for job in sorted(snapshot.running, key=lambda job: (job.started_s, job.name)):
        if job.owner in owners or not any(start.is_reached(job, snapshot.now_s) for start in due):
            continue
        if job.gpus > beside:
            result.append(job.name)
        else:
            beside -= job.gpus
    return tuple(reversed(result))
