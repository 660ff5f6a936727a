"""The answer to why a job does not run, was evicted, moved or resized: findings in order, and what to do next."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kopt.cluster.objects.fields import text
from kopt.controllers.overview import history
from kopt.controllers.overview.findings import holds as holding
from kopt.controllers.overview.findings import order as ranks
from kopt.controllers.overview.findings import pods as living
from kopt.controllers.overview.findings import queues as queueing
from kopt.controllers.overview.findings import resizes
from kopt.controllers.overview.job import Finding, JobSnapshot
from kopt.controllers.overview.text import ago
from kopt.core.times import seconds_or_none

FINDERS: tuple[Callable[[JobSnapshot], Iterator[Finding]], ...] = (
    living.ended,
    living.deleted,
    living.failing,
    holding.held,
    holding.data,
    history.evicted,
    holding.preemption,
    queueing.queue,
    queueing.scheduler,
    queueing.no_pods,
    living.running,
    living.requested,
    resizes.resized,
    history.loans,
    history.room,
    history.decided,
    history.workload_class,
    history.events,
    history.unread,
)


class Now(StrEnum):
    """The state of a job."""

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
    ranks.DELETED: Now.DELETED,
    ranks.FAILING: Now.FAILING,
    ranks.HELD: Now.HELD,
    ranks.EVICTED: Now.EVICTED,
    ranks.DATA: Now.WAITING,
    ranks.NO_QUEUE: Now.BLOCKED,
    ranks.PREEMPTION: Now.WAITING,
    ranks.QUEUE: Now.WAITING,
    ranks.CHECKS: Now.WAITING,
    ranks.SCHEDULER: Now.WAITING,
    ranks.STARTING: Now.STARTING,
    ranks.RUNS: Now.RUNNING,
}


@dataclass(frozen=True)
class Why:
    """The answer. ``summary`` is one sentence; ``next`` what a person can do, empty where nothing."""

    now: Now
    summary: str
    findings: tuple[Finding, ...]
    next: str = ""


def why(job: JobSnapshot) -> Why:
    """Never raises, whatever the objects contain."""
    findings = sorted((finding for finder in FINDERS for finding in finder(job)), key=lambda finding: finding.rank)
    if findings and findings[0].rank == ranks.ENDED:
        # What kept it from running is over.
        findings = [
            finding
            for finding in findings
            if finding.rank in (ranks.ENDED, ranks.FAILING) or finding.rank >= ranks.HISTORY
        ]
    elif any(finding.rank == ranks.RUNS for finding in findings):
        findings = [finding for finding in findings if finding.rank >= ranks.STARTING or finding.rank <= ranks.HELD]
    now = _now(findings)
    next_ = next((finding.next for finding in findings if finding.next), "")
    return Why(now, _summary(job, now), tuple(findings), next_)


def _now(findings: list[Finding]) -> Now:
    if findings and findings[0].rank == ranks.ENDED:
        return Now.FINISHED if findings[0].code == "FINISHED" else Now.FAILED
    return next((_BY_RANK[finding.rank] for finding in findings if finding.rank in _BY_RANK), Now.UNKNOWN)


def _summary(job: JobSnapshot, now: Now) -> str:
    about = job.root if now in (Now.FINISHED, Now.FAILED) else job.target
    of = "" if job.target.uid == job.root.uid else f" (of {job.root.label})"
    created_s = seconds_or_none(text(job.root.document, "metadata", "creationTimestamp"))
    age = "" if created_s is None else f"; it was created {ago(created_s, job.now_s)}"
    verb = f"has {now.value}" if now in (Now.FINISHED, Now.FAILED) else now.value
    name = job.target.label + of if about is job.target else f"{job.target.label}{of}"
    return f"{name} {verb}{'' if now in (Now.FINISHED, Now.FAILED, Now.RUNNING) else age}."
