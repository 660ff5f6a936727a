"""Reservations under an engine that takes a queue's quota back by itself: placeholders in the owner's queue.

Nothing is kept from starting there, so that what is held before the lead would only stand idle. When the lead begins
all of it is claimed: the engine gives the placeholders what is idle, and then what others have borrowed of the quota.
"""

from collections import Counter

from kopt.policies.reservations.backfill import PoolPlan
from kopt.policies.reservations.model import Pending, PoolSnapshot, Running


def plan_placeholders(snapshot: PoolSnapshot) -> PoolPlan:
    """``holds`` are wanted, idle or not: none before a lead; then all of a claim, and from its start what its owner's
    jobs neither have nor wait for. Whatever its owner waits for may start."""
    owned: Counter[str] = Counter()
    jobs: list[Running | Pending] = [*snapshot.running, *snapshot.pending]
    for job in jobs:
        owned[job.owner] += job.gpus
    holds = {}
    for claim in sorted(snapshot.claims, key=lambda claim: (claim.start_s, claim.name)):
        is_due = claim.start_s - claim.lead_s <= snapshot.now_s < claim.until_s
        used = min(claim.gpus, owned[claim.owner]) if is_due and claim.start_s <= snapshot.now_s else 0
        owned[claim.owner] -= used
        holds[claim.name] = claim.gpus - used if is_due else 0
    return PoolPlan(tuple(job.name for job in snapshot.pending), holds=holds)
