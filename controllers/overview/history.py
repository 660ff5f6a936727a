"""What was done to a job before, by us and by others: evictions, loans, sizes, placement, and events."""

from collections.abc import Iterator

from kopt.cluster.holds.original_request import FRACTION_ANNOTATION
from kopt.cluster.objects.annotations import INDICES_ANNOTATION, RECOMMENDED_POOLS_ANNOTATION, SCHEDULER_ANNOTATION
from kopt.cluster.objects.fields import text
from kopt.cluster.workloads.frameworks import QUEUE_SOURCE
from kopt.cluster.workloads.workload import read_workload
from kopt.controllers.overview.collect import event_at
from kopt.controllers.overview.findings import order as ranks
from kopt.controllers.overview.job import Finding, JobSnapshot, annotated
from kopt.controllers.overview.text import ago, clock_time, gpus, listed, ordinal, sentence, span
from kopt.core.scheduling.eviction import Cause, Entry, Phase, System, Verified
from kopt.core.scheduling.overview import PoolState
from kopt.core.scheduling.queued import State
from kopt.core.times import seconds_or_none
from kopt.core.units import counted
from kopt.core.workload.checkpoint import CLAIMED, Source, claimed
from kopt.policies.admission.pools import POOLS_ANNOTATION

_MOST_EVICTIONS = 3
_MOST_EVENTS = 3
_CAUSES = {
    Cause.PREEMPTED: "was pre-empted",
    Cause.LENDING: "was evicted, as GPUs that were lent to it were taken back",
    Cause.DRAINED: "was evicted, as its node or its queue was emptied",
    Cause.NODE_LOST: "lost its node",
    Cause.DEACTIVATED: "was deactivated",
    Cause.SUSPENDED: "was suspended",
    Cause.DELETED: "lost its pods",
    Cause.UNKNOWN: "was evicted",
}


def evicted(job: JobSnapshot) -> Iterator[Finding]:
    """Its evictions, the newest first; one that is pending before those that are over."""
    evictions = job.own_evictions
    for line in evictions[:_MOST_EVICTIONS]:
        yield _line(line, job)
    if len(evictions) > _MOST_EVICTIONS:
        losses = [entry.eviction.lost_gpu_s for entry in evictions if entry.eviction.lost_gpu_s is not None]
        claims = any(entry.eviction.source is Source.CLAIM for entry in evictions)
        loss = f"; {_gpu_time(sum(losses))} of work were lost in all of them" if losses else ""
        loss += f" (some of it {CLAIMED})" if loss and claims else ""
        yield Finding(
            ranks.HISTORY,
            "EVICTIONS",
            f"It was evicted {len(evictions)} times in all{loss}.",
            next=f"kopt evictions -n {job.root.key[0]}",
        )


def room(job: JobSnapshot) -> Iterator[Finding]:
    """Workloads that were evicted for it."""
    made = [
        entry
        for entry in job.evictions
        if entry.eviction.for_whom in job.names and entry.eviction.workload.uid not in job.uids
    ]
    if made:
        newest_s = max(entry.eviction.evicted_at_s for entry in made)
        names = [f"{entry.eviction.namespace}/{entry.eviction.workload.name}" for entry in made]
        total = sum(entry.eviction.gpus for entry in made)
        yield Finding(
            ranks.HISTORY,
            "ROOM_MADE",
            f"Room was made for it, {ago(newest_s, job.now_s)}: {listed(names)} gave {gpus(total)} back.",
            since_s=newest_s,
        )


def loans(job: JobSnapshot) -> Iterator[Finding]:
    """Pools that lend to its queue."""
    for queued in job.own:
        names = (queued.queue, queued.local_queue, f"{queued.namespace}/{queued.local_queue}")
        for pool in job.pools:
            if pool.lends_to(names, queued.flavors):
                yield _loan(pool, queued.state, job)


def decided(job: JobSnapshot) -> Iterator[Finding]:
    """Sizes, GPUs, queue and scheduler that components of ours gave it."""
    emitted: set[str] = set()
    sentences = {
        "kaiwo.ai/recommended-reason": "Its size: {}",
        FRACTION_ANNOTATION: "It was given {} of a GPU.",
        INDICES_ANNOTATION: "It was placed on the GPUs {} of its node.",
        "kaiwo.ai/sizing-error": "Its size: {}",
        SCHEDULER_ANNOTATION: "The scheduler {} would fit it better.",
        POOLS_ANNOTATION: "It names the node pools {}.",
        RECOMMENDED_POOLS_ANNOTATION: "In mode enforce it would be limited to the node pools {}.",
    }
    for name, template in sentences.items():
        for thing, value in annotated(job, name):
            message = template.format(sentence(value) if template.endswith("{}") else value[:200])
            if message not in emitted and len(emitted) < 6:
                emitted.add(message)
                yield Finding(ranks.DECIDED, "DECIDED", message, thing.label)
    source = text(job.root.labels, QUEUE_SOURCE)
    if source:
        yield Finding(
            ranks.DECIDED,
            "QUEUE_GIVEN",
            f"Its queue {job.queue} was set by the webhook (from the {source}).",
            job.root.label,
        )


def workload_class(job: JobSnapshot) -> Iterator[Finding]:
    """What it is for, where it is a workload of a kind that we know."""
    root = job.root
    workload = read_workload(root.document, root.resource.group, root.resource.kind, *root.key)
    if workload is not None and workload.uses_gpus:
        class_ = workload.classified
        yield Finding(ranks.DECIDED, "CLASS", f"It is {class_.workload_class}. {class_.why}", root.label)


def events(job: JobSnapshot) -> Iterator[Finding]:
    """Events of our components about it, the newest first."""
    emitted: set[str] = set()
    for event in job.events:
        message = text(event, "note")
        if not message or message in emitted or len(emitted) >= _MOST_EVENTS:
            continue
        emitted.add(message)
        at_s = seconds_or_none(event_at(event))
        who = text(event, "reportingController").removeprefix("kaiwo.ai/")
        when = "" if at_s is None else f", {ago(at_s, job.now_s)}"
        regarding = f"{text(event, 'regarding', 'kind')} {text(event, 'regarding', 'name')}"
        yield Finding(ranks.EVENTS, "EVENT", f"{who}{when}: {sentence(message)}", regarding, at_s)


def unread(job: JobSnapshot) -> Iterator[Finding]:
    if job.unread:
        yield Finding(
            ranks.UNREAD, "UNREAD", f"You may not read {', '.join(job.unread)} here; what these say is missing above."
        )


def _line(line: Entry, job: JobSnapshot) -> Finding:
    eviction, after = line.eviction, line.outcome
    waits = after.phase is Phase.WAITING
    summary = f"It {_CAUSES[eviction.cause]} {ago(eviction.evicted_at_s, job.now_s)}"
    summary += f" by {eviction.by}" if eviction.by else ""
    summary += f", for {eviction.for_whom}" if eviction.for_whom and eviction.for_whom not in job.names else ""
    summary += f", and gave {gpus(eviction.gpus)} back."
    if eviction.reason:
        summary += f" {sentence(eviction.reason)}"
    summary += _lost(line)
    summary += f" {_back(line, job)}"
    next_ = "Nothing has to be done: its queue takes it again." if waits and eviction.system is not System.NONE else ""
    return Finding(
        ranks.EVICTED if waits else ranks.HISTORY,
        f"EVICTED_{after.phase.upper()}",
        summary.rstrip(),
        f"Eviction {eviction.namespace}/{eviction.name}",
        eviction.evicted_at_s,
        next_,
        eviction.source,
    )


def _lost(line: Entry) -> str:
    eviction = line.eviction
    if eviction.lost_gpu_s is None:
        return " Nothing is known of its checkpoints."
    step = "" if eviction.last_durable_step is None else f", step {eviction.last_durable_step:,} was saved"
    return f" Lost: {_gpu_time(eviction.lost_gpu_s)} of work{step}{claimed(eviction.source)}."


def _back(line: Entry, job: JobSnapshot) -> str:
    eviction, after = line.eviction, line.outcome
    if after.phase is Phase.WAITING:
        orders = sorted(
            other.eviction.order
            for other in job.evictions
            if other.outcome.phase is Phase.WAITING
            and other.eviction.cause is eviction.cause
            and other.eviction.system is eviction.system
        )
        number = orders.index(eviction.order) + 1 if eviction.order in orders else 1
        return f"It returns as the {ordinal(number)} of {len(orders)}."
    if after.phase is Phase.RESUMED:
        took = "" if after.resumed_at_s is None else f" after {span(after.resumed_at_s - eviction.evicted_at_s)}"
        step = "" if after.resumed_step is None else f" at step {after.resumed_step:,}"
        proof = {
            Verified.YES: ", where its checkpoint was (seen in its log)",
            Verified.NO: ", which is NOT where its checkpoint was",
        }.get(after.verified or Verified.UNKNOWN, "")
        return f"It was back{took}{step}{proof}. {sentence(after.message)}".rstrip()
    return {Phase.FINISHED: "It has finished since.", Phase.GONE: "It is gone since."}[after.phase]


def _loan(pool: PoolState, state: State, job: JobSnapshot) -> Finding:
    names = {"/".join(item) for item in ((own.namespace, own.workload) for own in job.own)} | job.names
    rank = ranks.BORROWS if state in (State.RUNNING, State.STARTING) else ranks.QUEUE + 1
    back = pool.reclaiming
    if back is not None:
        limit = "" if back.by_s is None else f" until {clock_time(back.by_s, job.now_s)}"
        mine = " It is among those that give them back." if names & set(back.victims) else ""
        what = "" if back.gpus is None else f"{gpus(round(back.gpus * 1000))} "
        return Finding(
            rank,
            "POOL_RECLAIMS",
            f"LendingPool {pool.name}, which lends to its queue, takes {what}back{limit}.{mine} {_why(pool)}".rstrip(),
            f"LendingPool {pool.name}",
            back.since_s,
        )
    lent = "not known how many" if pool.lent is None else f"{pool.lent:g}"
    used = "" if pool.borrowed is None else f", {pool.borrowed:g} of them in use"
    return Finding(
        rank,
        "POOL_LENDS",
        f"LendingPool {pool.name} lends its queue {counted(lent, 'GPU')}{used}. {_why(pool)}".rstrip(),
        f"LendingPool {pool.name}",
        pool.decided_at_s,
    )


def _why(pool: PoolState) -> str:
    return sentence(pool.reasons[0].message) if pool.reasons else ""


def _gpu_time(gpu_s: float) -> str:
    for size, unit in ((3600.0, "GPU-hours"), (60.0, "GPU-minutes")):
        if gpu_s >= 2 * size:
            return f"{gpu_s / size:.3g} {unit}"
    return f"{gpu_s:.0f} GPU-seconds"
