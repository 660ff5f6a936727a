"""The answer to why a job does not run, was evicted, moved or resized: findings in order, and what to do next."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kopt.controllers.overview import history, holding, living, queueing, ranks
from kopt.controllers.overview.facts import Facts, Finding
from kopt.controllers.overview.words import ago
from kopt.controllers.preemption.reading import seconds
from kopt.controllers.webhook.objects import text

FINDERS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    living.ended, living.leaving, living.failing, holding.held, holding.data, history.evicted, holding.preemption,
    queueing.queue, queueing.scheduler, queueing.no_pods, living.running, living.asked, history.loans, history.room,
    history.decided, history.events, history.unread,
)  # fmt: skip


class Now(StrEnum):
    """How a job is, in a word."""

    FINISHED = "finished"
    FAILED = "failed"
    DELETED = "is being deleted"
    FAILING = "cannot start"
    HELD = "is held"
    EVICTED = "was evicted and waits to return"
    BLOCKED = "cannot be admitted"
    WAITING = "waits"
    STARTING = "starts"
    RUNNING = "runs"
    UNKNOWN = "does not say why it does not run"


_BY_RANK = {
    ranks.LEAVING: Now.DELETED, ranks.FAILING: Now.FAILING, ranks.HELD: Now.HELD, ranks.EVICTED: Now.EVICTED,
    ranks.DATA: Now.WAITING, ranks.NO_QUEUE: Now.BLOCKED, ranks.PREEMPTION: Now.WAITING, ranks.QUEUE: Now.WAITING,
    ranks.CHECKS: Now.WAITING, ranks.SCHEDULER: Now.WAITING, ranks.STARTING: Now.STARTING, ranks.RUNS: Now.RUNNING,
}  # fmt: skip


@dataclass(frozen=True)
class Why:
    """The answer. ``summary`` is one sentence; ``next`` what a person can do, empty where nothing."""

    now: Now
    summary: str
    findings: tuple[Finding, ...]
    next: str = ""


def why(facts: Facts) -> Why:
    """Nothing that anybody may have written into the objects makes this raise."""
    found = sorted((one for finder in FINDERS for one in finder(facts)), key=lambda one: one.rank)
    if found and found[0].rank == ranks.ENDED:
        # What kept it from running is over.
        found = [one for one in found if one.rank in (ranks.ENDED, ranks.FAILING) or one.rank >= ranks.HISTORY]
    elif any(one.rank == ranks.RUNS for one in found):
        found = [one for one in found if one.rank >= ranks.STARTING or one.rank <= ranks.HELD]
    now = _now(found)
    next_ = next((one.next for one in found if one.next), "")
    return Why(now, _summary(facts, now), tuple(found), next_)


def _now(found: list[Finding]) -> Now:
    if found and found[0].rank == ranks.ENDED:
        return Now.FINISHED if found[0].code == "FINISHED" else Now.FAILED
    return next((_BY_RANK[one.rank] for one in found if one.rank in _BY_RANK), Now.UNKNOWN)


def _summary(facts: Facts, now: Now) -> str:
    about = facts.root if now in (Now.FINISHED, Now.FAILED) else facts.target
    of = "" if facts.target.uid == facts.root.uid else f" (of {facts.root.label})"
    created_s = seconds(text(facts.root.document, "metadata", "creationTimestamp"))
    age = "" if created_s is None else f"; it was created {ago(created_s, facts.now_s)}"
    verb = f"has {now.value}" if now in (Now.FINISHED, Now.FAILED) else now.value
    name = facts.target.label + of if about is facts.target else f"{facts.target.label}{of}"
    return f"{name} {verb}{'' if now in (Now.FINISHED, Now.FAILED, Now.RUNNING) else age}."
