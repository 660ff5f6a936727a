"""What was done to a job before, by us and by others: evictions, loans, sizes, placement, and what we said of it."""

from collections.abc import Iterator

from kopt.cluster.requests import FRACTION_ANNOTATION
from kopt.controllers.extender.binding import INDICES_ANNOTATION
from kopt.controllers.overview import ranks
from kopt.controllers.overview.facts import Facts, Finding, annotated
from kopt.controllers.overview.gather import event_at
from kopt.controllers.overview.queues import State
from kopt.controllers.overview.words import ago, gpus, listed, moment, ordinal, sentence, span
from kopt.controllers.preemption.reading import seconds
from kopt.controllers.webhook.frameworks import QUEUE_SOURCE
from kopt.controllers.webhook.mutating import SCHEDULER_ADVICE
from kopt.controllers.webhook.objects import text
from kopt.core.evictions import Cause, Entry, Phase, System, Verified
from kopt.core.overview import PoolState

_MOST_LINES = 3
_MOST_EVENTS = 3
_CAUSES = {
    Cause.PREEMPTED: "was pre-empted", Cause.LENDING: "was evicted, as GPUs that were lent to it were taken back",
    Cause.DRAINED: "was evicted, as its node or its queue was emptied", Cause.NODE_LOST: "lost its node",
    Cause.DEACTIVATED: "was deactivated", Cause.SUSPENDED: "was suspended", Cause.DELETED: "lost its pods",
    Cause.UNKNOWN: "was evicted",
}  # fmt: skip


def evicted(facts: Facts) -> Iterator[Finding]:
    """Its own lines of the ledger, the newest first; that which waits to return before everything that is over."""
    lines = facts.lines
    for line in lines[:_MOST_LINES]:
        yield _line(line, facts)
    if len(lines) > _MOST_LINES:
        known = [one.eviction.lost_gpu_s for one in lines if one.eviction.lost_gpu_s is not None]
        lost = f"; {_gpu_time(sum(known))} of work were lost in all of them" if known else ""
        yield Finding(ranks.HISTORY, "EVICTIONS", f"It was evicted {len(lines)} times in all{lost}.",
                      next=f"kopt evictions -n {facts.root.key[0]}")  # fmt: skip


def room(facts: Facts) -> Iterator[Finding]:
    """Who was evicted for it."""
    made = [one for one in facts.ledger if one.eviction.for_whom in facts.names
            and one.eviction.workload.uid not in facts.uids]  # fmt: skip
    if made:
        newest_s = max(one.eviction.evicted_at_s for one in made)
        names = [f"{one.eviction.namespace}/{one.eviction.workload.name}" for one in made]
        total = sum(one.eviction.gpus for one in made)
        yield Finding(ranks.HISTORY, "ROOM_MADE", f"Room was made for it, {ago(newest_s, facts.now_s)}: "
                      f"{listed(names)} gave {gpus(total)} back.", since_s=newest_s)  # fmt: skip


def loans(facts: Facts) -> Iterator[Finding]:
    """Pools that lend to its queue."""
    for one in facts.own:
        names = (one.queue, one.local_queue, f"{one.namespace}/{one.local_queue}")
        for pool in facts.pools:
            if pool.lends_to(names, one.flavors):
                yield _loan(pool, one.state, facts)


def decided(facts: Facts) -> Iterator[Finding]:
    """Sizes, GPUs, queue and scheduler that components of ours gave it."""
    told: set[str] = set()
    sentences = {
        "kaiwo.ai/recommended-reason": "Its size: {}", FRACTION_ANNOTATION: "It was given {} of a GPU.",
        INDICES_ANNOTATION: "It was placed on the GPUs {} of its node.",
        "kaiwo.ai/sizing-error": "Its size: {}", SCHEDULER_ADVICE: "The scheduler {} would fit it better.",
    }  # fmt: skip
    for name, words in sentences.items():
        for one, value in annotated(facts, name):
            said = words.format(sentence(value) if words.endswith("{}") else value[:200])
            if said not in told and len(told) < 6:
                told.add(said)
                yield Finding(ranks.DECIDED, "DECIDED", said, one.label)
    source = text(facts.root.labels, QUEUE_SOURCE)
    if source:
        yield Finding(ranks.DECIDED, "QUEUE_GIVEN", f"Its queue {facts.queue} was given to it by the webhook (from the "
                      f"{source}).", facts.root.label)  # fmt: skip


def events(facts: Facts) -> Iterator[Finding]:
    """What components of ours have said of it, the newest first."""
    told: set[str] = set()
    for one in facts.events:
        note = text(one, "note")
        if not note or note in told or len(told) >= _MOST_EVENTS:
            continue
        told.add(note)
        at_s = seconds(event_at(one))
        who = text(one, "reportingController").removeprefix("kaiwo.ai/")
        when = "" if at_s is None else f", {ago(at_s, facts.now_s)}"
        regarding = f"{text(one, 'regarding', 'kind')} {text(one, 'regarding', 'name')}"
        yield Finding(ranks.EVENTS, "EVENT", f"{who}{when}: {sentence(note)}", regarding, at_s)


def unread(facts: Facts) -> Iterator[Finding]:
    if facts.unread:
        yield Finding(ranks.UNREAD, "UNREAD", f"You may not read {', '.join(facts.unread)} here; what these say is "
                      "missing above.")  # fmt: skip


def _line(line: Entry, facts: Facts) -> Finding:
    one, after = line.eviction, line.outcome
    waits = after.phase is Phase.WAITING
    words = f"It {_CAUSES[one.cause]} {ago(one.evicted_at_s, facts.now_s)}"
    words += f" by {one.by}" if one.by else ""
    words += f", for {one.for_whom}" if one.for_whom and one.for_whom not in facts.names else ""
    words += f", and gave {gpus(one.gpus)} back."
    if one.reason:
        words += f" {sentence(one.reason)}"
    words += _lost(line)
    words += f" {_back(line, facts)}"
    next_ = "Nothing has to be done: its queue takes it again." if waits and one.system is not System.NONE else ""
    return Finding(ranks.EVICTED if waits else ranks.HISTORY, f"EVICTED_{after.phase.upper()}", words.rstrip(),
                   f"Eviction {one.namespace}/{one.name}", one.evicted_at_s, next_)  # fmt: skip


def _lost(line: Entry) -> str:
    one = line.eviction
    if one.lost_gpu_s is None:
        return " Nothing is known of its checkpoints."
    step = "" if one.last_durable_step is None else f", step {one.last_durable_step:,} was saved"
    return f" Lost: {_gpu_time(one.lost_gpu_s)} of work{step}."


def _back(line: Entry, facts: Facts) -> str:
    one, after = line.eviction, line.outcome
    if after.phase is Phase.WAITING:
        waiting = sorted(other.eviction.order for other in facts.ledger if other.outcome.phase is Phase.WAITING
                         and other.eviction.cause is one.cause and other.eviction.system is one.system)  # fmt: skip
        number = waiting.index(one.order) + 1 if one.order in waiting else 1
        return f"It returns as the {ordinal(number)} of {len(waiting)}."
    if after.phase is Phase.RESUMED:
        took = "" if after.resumed_at_s is None else f" after {span(after.resumed_at_s - one.evicted_at_s)}"
        step = "" if after.resumed_step is None else f" at step {after.resumed_step:,}"
        proof = {Verified.YES: ", where its checkpoint was (seen in its log)", Verified.NO: ", which is NOT where its "
                 "checkpoint was"}.get(after.verified or Verified.UNKNOWN, "")  # fmt: skip
        return f"It was back{took}{step}{proof}. {sentence(after.message)}".rstrip()
    return {Phase.FINISHED: "It has finished since.", Phase.GONE: "It is gone since."}[after.phase]


def _loan(pool: PoolState, state: State, facts: Facts) -> Finding:
    names = {"/".join(one) for one in ((own.namespace, own.workload) for own in facts.own)} | facts.names
    rank = ranks.BORROWS if state in (State.RUNNING, State.STARTING) else ranks.QUEUE + 1
    back = pool.reclaiming
    if back is not None:
        limit = "" if back.by_s is None else f" until {moment(back.by_s, facts.now_s)}"
        mine = " It is among those that give them back." if names & set(back.victims) else ""
        what = "" if back.gpus is None else f"{gpus(round(back.gpus * 1000))} "
        return Finding(rank, "POOL_RECLAIMS", f"LendingPool {pool.name}, which lends to its queue, takes {what}back"
                       f"{limit}.{mine} {_why(pool)}".rstrip(), f"LendingPool {pool.name}", back.since_s)  # fmt: skip
    lent = "not known how many" if pool.lent is None else f"{pool.lent:g}"
    used = "" if pool.borrowed is None else f", {pool.borrowed:g} of them in use"
    return Finding(rank, "POOL_LENDS", f"LendingPool {pool.name} lends its queue {lent} GPUs{used}. "
                   f"{_why(pool)}".rstrip(), f"LendingPool {pool.name}", pool.decided_at_s)  # fmt: skip


def _why(pool: PoolState) -> str:
    return sentence(pool.reasons[0].message) if pool.reasons else ""


def _gpu_time(gpu_s: float) -> str:
    for size, word in ((3600.0, "GPU-hours"), (60.0, "GPU-minutes")):
        if gpu_s >= 2 * size:
            return f"{gpu_s / size:.3g} {word}"
    return f"{gpu_s:.0f} GPU-seconds"
