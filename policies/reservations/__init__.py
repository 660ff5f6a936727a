"""Reservations of future capacity: what may run on them until they start, what is held, reclaimed and released."""

from kopt.policies.reservations.accounting import advanced, is_unused, opened, result_of
from kopt.policies.reservations.backfill import PoolPlan, plan_pool
from kopt.policies.reservations.model import Claim, Pending, PoolSnapshot, Running
from kopt.policies.reservations.occurrences import RecurrenceError, occurrences, overbooked
from kopt.policies.reservations.placeholders import plan_placeholders

__all__ = [
    "Claim",
    "Pending",
    "PoolPlan",
    "PoolSnapshot",
    "RecurrenceError",
    "Running",
    "advanced",
    "is_unused",
    "occurrences",
    "opened",
    "overbooked",
    "plan_placeholders",
    "plan_pool",
    "result_of",
]
