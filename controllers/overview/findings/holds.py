"""What holds a job: a dry run, missing data, a pending preemption decision, a reclaimed loan."""

from collections.abc import Iterator, Mapping
from typing import Any

from kopt.cluster.client.resources import PODS
from kopt.cluster.holds.hold import holder_of, undo_of
from kopt.cluster.objects.annotations import mapping_of
from kopt.cluster.objects.conditions import condition, is_true, turned_s
from kopt.cluster.objects.custom.reservation import WAITS_ANNOTATION
from kopt.cluster.objects.custom.staged_data import request_of
from kopt.cluster.objects.eviction import notice_of
from kopt.cluster.objects.fields import text, texts
from kopt.cluster.workloads.kueue.objects import DECISION_ANNOTATION
from kopt.controllers.overview.documents import StagingAnnotation, number, staging_annotation
from kopt.controllers.overview.findings import order as ranks
from kopt.controllers.overview.job import Finding, JobSnapshot, Thing, annotated
from kopt.controllers.overview.text import ago, clock_time, listed, sentence, since, span
from kopt.core.scheduling.overview import StagedState
from kopt.core.times import seconds_or_none
from kopt.core.units import format_bytes

_SIZING_STATE, _RECOMMENDED = "kaiwo.ai/sizing-state", "kaiwo.ai/recommended-reason"
_PHASES = {
    "stop": "its queue is to stop it first, so that a dry run can measure what it needs",
    "profile": "a dry run measures what it needs on a small part of a GPU",
    "retry": "it ran out of memory with the share that it was given, and is tried again with more",
}
_MEANS: Mapping[str, str] = {
    "Denied": "Give the StagedData a secret with credentials that may read the source (spec.credentials.secretName).",
    "NotFound": "Correct the source: there is no such object.",
    "NoRoom": "Make room at the destination, or name a larger volume.",
    "SourceChanged": "The source changed while it was copied; it is copied again once it no longer changes.",
    "Corrupt": "Check the source or the checksum that was given: the copy does not match it.",
    "BadRequest": "Correct the source or the destination.",
    "Destination": "Check that the destination is writable and contains nothing else.",
    "Unreachable": "Nothing has to be done if the source comes back; otherwise check its address and the network.",
}


def held(job: JobSnapshot) -> Iterator[Finding]:
    """Marks of holders, each once; covered Workloads run, they are not held."""
    emitted: set[str] = set()
    for thing in job.things:
        holder = holder_of(thing.document)
        if not holder or holder in emitted or _is_shielded(thing):
            continue
        emitted.add(holder)
        yield _HOLDERS.get(holder, _unknown)(job, thing, holder)


def data(job: JobSnapshot) -> Iterator[Finding]:
    """Staged data that a job asks for, one sentence for each."""
    problems = dict.fromkeys(problem for thing in job.things if (problem := request_of(thing.document).problem))
    for problem in problems:
        yield Finding(
            ranks.DATA,
            "DATA_NOT_UNDERSTOOD",
            f"Its request for data cannot be read: {sentence(problem)}",
            next="Correct the annotation.",
        )
    by_name = {staged_state.name: staged_state for staged_state in job.staged}
    for name in job.requested_data:
        if (state := by_name.get(name)) is not None:
            yield _staged(state, job)
        elif not any("stageddata" in item for item in job.unread):
            yield Finding(
                ranks.DATA,
                "DATA_UNKNOWN",
                f"It asks for staged data {name}, which does not exist in its namespace.",
                next=f"Create StagedData {name}, or correct the annotation kaiwo.ai/staged-data.",
            )


def preemption(job: JobSnapshot) -> Iterator[Finding]:
    """Preemption decisions on its Workload, or on pods without a queue; each decision once."""
    emitted: set[str] = set()
    for thing, written in annotated(job, DECISION_ANNOTATION):
        if written in emitted:
            continue
        emitted.add(written)
        result = mapping_of(thing.annotations, DECISION_ANNOTATION)
        decision = text(result, "verdict")
        if decision and (_waits(thing) or decision == "preempt"):
            rank = ranks.PREEMPTION if _waits(thing) else ranks.HISTORY
            yield Finding(
                rank,
                f"PREEMPTION_{decision.upper()}"[:40],
                _decision_text(result, decision, job.now_s),
                thing.label,
                seconds_or_none(text(result, "at")),
            )


def _is_shielded(thing: Thing) -> bool:
    return number(undo_of(thing.document), "raised") is not None


def _waits(thing: Thing) -> bool:
    if thing.resource == PODS:
        return not text(thing.document, "spec", "nodeName")
    return not is_true(condition(thing.document, "QuotaReserved"))


def _profiling(job: JobSnapshot, thing: Thing, _: str) -> Finding:
    state = next((mapping_of(each.annotations, _SIZING_STATE) for each, _ in annotated(job, _SIZING_STATE)), None)
    reported_s = number(state, "since_s")
    since_s = _since_s(thing) if reported_s is None else reported_s
    why = _PHASES.get(text(state, "phase"), "what it needs is not known yet")
    return Finding(
        ranks.HELD,
        "HELD_PROFILING",
        f"It is held by sizing{since(since_s, job.now_s)}: {why}.",
        thing.label,
        since_s,
        "Nothing has to be done: it continues with the measured size, or unchanged where "
        'nothing can be. The annotation kaiwo.ai/profiling: "false" keeps a job out.',
    )


def _staging(job: JobSnapshot, thing: Thing, _: str) -> Finding:
    annotations = (staging_annotation(each.document) for each in job.things)
    annotation = next((result for result in annotations if result is not None), StagingAnnotation("held"))
    data_names = listed([*(annotation.data or job.requested_data)]) or "its data"
    failure = next((each for each in job.staged if each.phase == "Failed"), None)
    code, reason, message = "HELD_STAGING", "", ""
    if annotation.state == "failed" or failure:
        code, reason = "HELD_STAGING_FAILED", annotation.reason or (failure.reason if failure else "")
        message = annotation.message or (failure.message if failure else "")
    summary = f"It is held by staging{since(_since_s(thing), job.now_s)}: {data_names} "
    if code == "HELD_STAGING":
        summary += f"is being downloaded{_far(annotation)}. No GPU is reserved meanwhile."
    else:
        summary += f"could not be downloaded ({reason or 'no reason given'}). {sentence(message)}".rstrip()
    next_ = (
        _MEANS.get(reason, "See the StagedData's message.")
        if reason or message
        else ("Nothing has to be done: it is released to its queue when the data is complete.")
    )
    return Finding(ranks.HELD, code, summary, thing.label, _since_s(thing), next_)


def _preempting(job: JobSnapshot, thing: Thing, _: str) -> Finding:
    decision = mapping_of(thing.annotations, DECISION_ANNOTATION)
    until_s = seconds_or_none(text(decision, "until"))
    waits = text(decision, "verdict") == "wait" and until_s is not None
    why = (
        f"it waits for a moment at which less work is lost, until {clock_time(until_s, job.now_s)} at most"
        if waits and until_s is not None
        else "its victims are being selected"
    )
    return Finding(
        ranks.HELD,
        "HELD_PREEMPTION",
        f"It is held by pre-emption{since(_since_s(thing), job.now_s)}: {why}.",
        thing.label,
        _since_s(thing),
        "Nothing has to be done: it returns to its queue when the decision is made, or the wait is over.",
    )


def _lending(job: JobSnapshot, thing: Thing, _: str) -> Finding:
    queues = {name for its in job.own for name in (its.queue, its.local_queue, f"{its.namespace}/{its.local_queue}")}
    # Other pools are not named; if the queue is unknown and there is only one pool, that one is meant.
    pools = [pool for pool in job.pools if pool.lends_to(tuple(queues)) or (not queues and len(job.pools) == 1)]
    why = f"LendingPool {pools[0].name} has taken back what it lent" if pools else "what was lent to it was taken back"
    return Finding(
        ranks.HELD,
        "HELD_LENDING",
        f"It is held by lending{since(_since_s(thing), job.now_s)}: {why}; it returns when the pool lends again.",
        thing.label,
        _since_s(thing),
        "Nothing has to be done. To run it now, submit it to a queue with a quota of its own.",
    )


def _gang(job: JobSnapshot, thing: Thing, _: str) -> Finding:
    notice = notice_of(thing.document)
    other = f" for {notice.for_whom}" if notice is not None and notice.for_whom else ""
    return Finding(
        ranks.HELD,
        "HELD_GANGS",
        f"It is held by gangs{since(_since_s(thing), job.now_s)}: it gave up its nodes{other}, as each held what "
        "the other needed; it returns when that has started.",
        thing.label,
        _since_s(thing),
        "Nothing has to be done: it is given back after `gangs.back` at the latest.",
    )


def _reservation(job: JobSnapshot, thing: Thing, _: str) -> Finding:
    notice = mapping_of(thing.annotations, WAITS_ANNOTATION)
    since_s = seconds_or_none(text(notice, "since")) or _since_s(thing)
    return Finding(
        ranks.HELD,
        "HELD_RESERVATIONS",
        f"It is held for a reservation{since(since_s, job.now_s)}: {text(notice, 'reason') or 'its GPUs are reserved'}",
        thing.label,
        since_s,
        "Nothing has to be done. With a limit (kueue.x-k8s.io/max-exec-time-seconds) one that ends in time starts.",
    )


def _reclaimed(job: JobSnapshot, thing: Thing, _: str) -> Finding:
    notice = notice_of(thing.document)
    other = notice.for_whom if notice is not None and notice.for_whom else "a workload of that queue"
    return Finding(
        ranks.HELD,
        "HELD_RECLAIM",
        f"It is held by queues{since(_since_s(thing), job.now_s)}: it ran on quota that another queue took back for "
        f"{other}; it returns to its queue when that runs.",
        thing.label,
        _since_s(thing),
        "Nothing has to be done: it is given back after ten minutes at the latest.",
    )


def _unknown(job: JobSnapshot, thing: Thing, holder: str) -> Finding:
    return Finding(
        ranks.HELD,
        "HELD",
        f"It is held by {holder}{since(_since_s(thing), job.now_s)}.",
        thing.label,
        _since_s(thing),
        "`kopt off` gives back everything that is held.",
    )


_HOLDERS = {
    "profiling": _profiling,
    "staging": _staging,
    "preemption": _preempting,
    "lending": _lending,
    "gangs": _gang,
    "reservations": _reservation,
    "reclaim": _reclaimed,
}


def _since_s(thing: Thing) -> float | None:
    """Since when it stands still: its own condition, else the day that it was made."""
    suspended = condition(thing.document, "Suspended")
    if is_true(suspended):
        return turned_s(suspended)
    evicted = condition(thing.document, "Evicted")
    if is_true(evicted):
        return turned_s(evicted)
    return seconds_or_none(text(thing.document, "metadata", "creationTimestamp"))


def _far(annotation: StagingAnnotation) -> str:
    if not annotation.bytes or annotation.bytes_done is None:
        return ""
    remaining = "" if annotation.remaining_s is None else f", about {span(annotation.remaining_s)} left"
    share = min(1.0, annotation.bytes_done / annotation.bytes)
    return f" ({share:.0%} of {format_bytes(annotation.bytes)}{remaining})"


def _staged(staged_state: StagedState, job: JobSnapshot) -> Finding:
    about, name = f"StagedData {staged_state.namespace}/{staged_state.name}", f"Data {staged_state.name}"
    destination = f" to {staged_state.destination}" if staged_state.destination else ""
    if staged_state.phase == "Ready":
        size = f", {format_bytes(staged_state.bytes)}" if staged_state.bytes else ""
        when = f" since {clock_time(staged_state.ready_at_s, job.now_s)}" if staged_state.ready_at_s is not None else ""
        return Finding(
            ranks.DECIDED, "DATA_READY", f"{name} is whole{when}{size}{destination}.", about, staged_state.ready_at_s
        )
    if staged_state.phase == "Failed":
        attempts = (
            f" after {staged_state.attempts} attempts" if staged_state.attempts and staged_state.attempts > 1 else ""
        )
        later_s = (
            staged_state.retry_at_s
            if staged_state.retry_at_s is not None and staged_state.retry_at_s > job.now_s
            else None
        )
        again = "" if later_s is None else f" It is tried again {ago(later_s, job.now_s)}."
        return Finding(
            ranks.DATA,
            "DATA_FAILED",
            f"{name} from {staged_state.source} failed{attempts} "
            f"({staged_state.reason or 'no reason given'}). {sentence(staged_state.message)}".rstrip()
            + again,
            about,
            staged_state.at_s,
            _MEANS.get(staged_state.reason, "See the StagedData's message."),
        )
    if staged_state.phase == "Evicted":
        return Finding(
            ranks.DATA,
            "DATA_EVICTED",
            f"{name} was evicted from its cache to make room; it is downloaded again when it is requested.",
            about,
            staged_state.at_s,
        )
    if staged_state.phase == "Staging":
        return Finding(
            ranks.DATA,
            "DATA_STAGING",
            f"{name} is being downloaded from {staged_state.source}{destination}: "
            f"{_progress(staged_state, job.now_s)}.",
            about,
            staged_state.at_s,
        )
    return Finding(
        ranks.DATA,
        "DATA_WAITING",
        f"{name} from {staged_state.source} is not being downloaded yet. {sentence(staged_state.message)}".rstrip(),
        about,
        staged_state.at_s,
    )


def _progress(staged_state: StagedState, now_s: float) -> str:
    share = staged_state.share
    parts = (
        ["its size is unknown"]
        if share is None or not staged_state.bytes
        else [f"{share:.0%} of {format_bytes(staged_state.bytes)}"]
    )
    if staged_state.bytes_per_second:
        parts.append(f"{format_bytes(int(staged_state.bytes_per_second))}/s")
    if staged_state.remaining_s is not None:
        parts.append(f"about {span(staged_state.remaining_s)} left")
    if staged_state.at_s is not None and now_s - staged_state.at_s > 120:
        parts.append(f"reported {ago(staged_state.at_s, now_s)}")
    return ", ".join(parts)


def _decision_text(result: Any, decision: str, now_s: float) -> str:
    until_s = seconds_or_none(text(result, "until"))
    reason, victims = sentence(text(result, "reason")), listed([*texts(result, "victims")])
    loss = number(result, "lostGpuSeconds")
    cost = "" if loss is None else f", which loses {span(loss)} of GPU time"
    if decision == "preempt":
        summary = f"Preemption selected {victims or 'no victims'} to make room for it{cost}."
    elif decision == "wait":
        limit = "" if until_s is None else f", until {clock_time(until_s, now_s)} at most"
        summary = f"Pre-emption waits for a better moment{limit}."
    elif decision == "advice":
        native = listed([*texts(result, "native")])
        summary = f"Preemption would select {victims or 'no victims'} to make room for it{cost}; nothing was done"
        summary += f", and Kueue takes {native} by its own rule." if native else "."
    elif decision == "lapsed":
        summary = "The selected victims did not suffice in time; the queue's own rule applies."
    elif decision == "leave":
        summary = "Preemption leaves it to the queue's own rule."
    else:
        summary = f"Pre-emption: {decision}."
    return f"{summary} {reason}".rstrip()
