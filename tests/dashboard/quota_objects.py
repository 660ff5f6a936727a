"""Queues, reservations and a week of use, for the page of quotas."""

from kopt.core.scheduling.queue_standing import (
    QueueHistory,
    QueueStanding,
    QueueTreeState,
    ReservationStanding,
)
from kopt.core.scheduling.reservation import Occurrence, Result
from kopt.dashboard.pages.quotas.data import STEP_S, STEPS, Quotas

DAY_S = 86_400.0


def queue(name: str, parent: str = "", **more: object) -> QueueStanding:
    """A leaf of 8 GPUs that uses 10, two of them borrowed, and of which two workloads wait for 4."""
    fields: dict[str, object] = {
        "depth": 1 if parent else 0,
        "quota": 8000,
        "limit": None,
        "guarantee": 0,
        "use": 10_000,
        "pending_gpus": 4000,
        "pending": 2,
        "borrowing": 2000,
        "lacks": 0,
        "ideal": 8000,
        "is_leaf": True,
        "namespaces": frozenset({"n"}),
    }
    return QueueStanding(name, parent, **(fields | more))  # type: ignore[arg-type]


def reservation(name: str, start_s: float, phase: str = "Scheduled", **more: object) -> ReservationStanding:
    """Of 8 GPUs for four hours."""
    fields: dict[str, object] = {"message": "It can be kept."}
    return ReservationStanding(
        name,
        "evaluation",
        "h100",
        8,
        start_s,
        start_s + 4 * 3600,
        phase,
        **(fields | more),  # type: ignore[arg-type]
    )


def quotas(now_s: float, name: str = "research") -> Quotas:
    """A department with two queues, one of another namespace, and two reservations."""
    past = Result(Occurrence(now_s - DAY_S, now_s - DAY_S + 3600), now_s - DAY_S + 90, 0.8, 0.7, 1)
    tree = QueueTreeState(
        cluster=True,
        now_s=now_s,
        queues=(
            queue("ai", is_leaf=False, use=14_000, pending_gpus=4000, borrowing=0, quota=16_000),
            queue(name, "ai"),
            queue("secret", "ai", use=4000, pending_gpus=0, pending=0, borrowing=0, namespaces=frozenset({"other"})),
        ),
        reservations=(
            reservation(f"n/{name}", now_s + DAY_S, "Backfilled", held=2, backfilled_share=0.75, results=(past,)),
            reservation("other/hidden", now_s + 2 * DAY_S, message=name),
        ),
        local_queues={("n", "gpus"): name, ("other", "gpus"): "secret"},
        skipped=(name,),
        problems=(name,),
    )
    used = tuple(None if step < 20 else 1000.0 * (step % 12) for step in range(STEPS))
    start_s = now_s // STEP_S * STEP_S - (STEPS - 1) * STEP_S
    waited = {"ai": used, name: (0.0, *used[1:]), "secret": used}
    return Quotas(tree, QueueHistory(start_s, STEP_S, {"ai": used, name: used, "secret": used}, waited))
