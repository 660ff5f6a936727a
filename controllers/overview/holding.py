"""Who keeps a job back: a dry run, data that is not there yet, a decision about whom to pre-empt, a loan taken back."""

from collections.abc import Iterator, Mapping
from typing import Any

from kopt.cluster.held import UNDO_ANNOTATION, holder_of
from kopt.cluster.resources import PODS
from kopt.cluster.staged_data import request_of
from kopt.controllers.overview import ranks
from kopt.controllers.overview.documents import StagingNote, decoded, number, staging_note
from kopt.controllers.overview.facts import Facts, Finding, Thing, annotated
from kopt.controllers.overview.queues import condition, is_true, turned_s
from kopt.controllers.overview.words import ago, listed, moment, sentence, since, span
from kopt.controllers.preemption.reading import seconds
from kopt.controllers.preemption.views import DECISION_ANNOTATION
from kopt.controllers.webhook.objects import text, texts
from kopt.core.overview import StagedState
from kopt.core.units import format_bytes

_SIZING_STATE, _RECOMMENDED = "kaiwo.ai/sizing-state", "kaiwo.ai/recommended-reason"
_PHASES = {
    "stop": "its queue is to stop it first, so that a dry run can measure what it needs",
    "profile": "a dry run measures what it needs on a small part of a GPU",
    "retry": "it ran out of memory with the share that it was given, and is tried again with more",
}  # fmt: skip
_MEANS: Mapping[str, str] = {
    "Denied": "Give the StagedData a secret with credentials that may read the source (spec.credentials.secretName).",
    "NotFound": "Correct the source: there is no such object.",
    "NoRoom": "Make room at the destination, or name a larger volume.",
    "SourceChanged": "The source changed while it was copied; it is copied anew once it holds still.",
    "Corrupt": "Check the source or the checksum that was given: the copy does not match it.",
    "BadRequest": "Correct the source or the destination.",
    "Destination": "See that the destination can be written and holds nothing else.",
    "Unreachable": "Nothing has to be done if the source comes back; otherwise see to its address and the network.",
}  # fmt: skip


def held(facts: Facts) -> Iterator[Finding]:
    """Marks of holders, each once; covered Workloads run, they are not held."""
    told: set[str] = set()
    for one in facts.things:
        holder = holder_of(one.document)
        if not holder or holder in told or _is_cover(one):
            continue
        told.add(holder)
        yield _HOLDERS.get(holder, _unknown)(facts, one, holder)


def data(facts: Facts) -> Iterator[Finding]:
    """Staged data that a job asks for, one sentence for each."""
    problems = dict.fromkeys(problem for one in facts.things if (problem := request_of(one.document).problem))
    for problem in problems:
        yield Finding(ranks.DATA, "DATA_NOT_UNDERSTOOD", f"What it asks for cannot be understood: {sentence(problem)}",
                      next="Correct the annotation.")  # fmt: skip
    there = {one.name: one for one in facts.staged}
    for name in facts.asks_for_data:
        if (found := there.get(name)) is not None:
            yield _staged(found, facts)
        elif not any("stageddata" in one for one in facts.unread):
            yield Finding(ranks.DATA, "DATA_UNKNOWN", f"It asks for staged data {name}, which does not exist in its "
                          "namespace.", next=f"Create StagedData {name}, or correct the annotation "
                          "kaiwo.ai/staged-data.")  # fmt: skip


def preemption(facts: Facts) -> Iterator[Finding]:
    """What stands on its Workload, or on pods of no queue, about whom it may pre-empt; each verdict once."""
    told: set[str] = set()
    for one, written in annotated(facts, DECISION_ANNOTATION):
        if written in told:
            continue
        told.add(written)
        found = decoded(one.annotations, DECISION_ANNOTATION)
        verdict = text(found, "verdict")
        if verdict and (_waits(one) or verdict == "preempt"):
            rank = ranks.PREEMPTION if _waits(one) else ranks.HISTORY
            yield Finding(rank, f"PREEMPTION_{verdict.upper()}"[:40], _verdict(found, verdict, facts.now_s), one.label,
                          seconds(text(found, "at")))  # fmt: skip


def _is_cover(one: Thing) -> bool:
    return number(decoded(one.annotations, UNDO_ANNOTATION), "raised") is not None


def _waits(one: Thing) -> bool:
    if one.resource == PODS:
        return not text(one.document, "spec", "nodeName")
    return not is_true(condition(one.document, "QuotaReserved"))


def _profiling(facts: Facts, one: Thing, _: str) -> Finding:
    state = next((decoded(each.annotations, _SIZING_STATE) for each, _ in annotated(facts, _SIZING_STATE)), None)
    told_s = number(state, "since_s")
    since_s = _since_s(one) if told_s is None else told_s
    why = _PHASES.get(text(state, "phase"), "what it needs is not known yet")
    return Finding(ranks.HELD, "HELD_PROFILING", f"It is held by profiling{since(since_s, facts.now_s)}: {why}.",
                   one.label, since_s, "Nothing has to be done: it goes on with what was measured, or as it is where "
                   "nothing can be. The annotation kaiwo.ai/profiling: \"false\" keeps a job out.")  # fmt: skip


def _staging(facts: Facts, one: Thing, _: str) -> Finding:
    notes = (staging_note(each.document) for each in facts.things)
    note = next((found for found in notes if found is not None), StagingNote("held"))
    data_names = listed([*(note.data or facts.asks_for_data)]) or "its data"
    trouble = next((each for each in facts.staged if each.phase == "Failed"), None)
    code, reason, message = "HELD_STAGING", "", ""
    if note.state == "failed" or trouble:
        code, reason = "HELD_STAGING_FAILED", note.reason or (trouble.reason if trouble else "")
        message = note.message or (trouble.message if trouble else "")
    words = f"It is held by staging{since(_since_s(one), facts.now_s)}: {data_names} "
    if code == "HELD_STAGING":
        words += f"is being brought{_far(note)}. No GPU is reserved meanwhile."
    else:
        words += f"could not be brought ({reason or 'no reason given'}). {sentence(message)}".rstrip()
    next_ = _MEANS.get(reason, "See the StagedData's message.") if reason or message else (
        "Nothing has to be done: it is let into its queue when the data is whole.")  # fmt: skip
    return Finding(ranks.HELD, code, words, one.label, _since_s(one), next_)


def _preempting(facts: Facts, one: Thing, _: str) -> Finding:
    verdict = decoded(one.annotations, DECISION_ANNOTATION)
    until_s = seconds(text(verdict, "until"))
    waits = text(verdict, "verdict") == "wait" and until_s is not None
    why = (f"it waits for a moment at which less work is lost, until {moment(until_s, facts.now_s)} at most"
           if waits and until_s is not None else "whom it may pre-empt is being decided")  # fmt: skip
    return Finding(ranks.HELD, "HELD_PREEMPTION",
                   f"It is held by pre-emption{since(_since_s(one), facts.now_s)}: {why}.", one.label, _since_s(one),
                   "Nothing has to be done: its queue has it back when the decision is made, or the wait is "
                   "over.")  # fmt: skip


def _lending(facts: Facts, one: Thing, _: str) -> Finding:
    queues = {name for its in facts.own for name in (its.queue, its.local_queue, f"{its.namespace}/{its.local_queue}")}
    # Of another pool nobody should be told; where nobody knows its queue, the only one there is meant.
    pools = [pool for pool in facts.pools if pool.lends_to(tuple(queues)) or (not queues and len(facts.pools) == 1)]
    why = f"LendingPool {pools[0].name} has taken back what it lent" if pools else "what was lent to it was taken back"
    return Finding(ranks.HELD, "HELD_LENDING", f"It is held by lending{since(_since_s(one), facts.now_s)}: {why}; it "
                   "returns when the pool lends again.", one.label, _since_s(one),
                   "Nothing has to be done. To run it now, submit it to a queue with a quota of its own.")  # fmt: skip


def _unknown(facts: Facts, one: Thing, holder: str) -> Finding:
    return Finding(ranks.HELD, "HELD", f"It is held by {holder}{since(_since_s(one), facts.now_s)}.", one.label,
                   _since_s(one), "`kopt off` gives back everything that is held.")  # fmt: skip


_HOLDERS = {"profiling": _profiling, "staging": _staging, "preemption": _preempting, "lending": _lending}


def _since_s(one: Thing) -> float | None:
    """Since when it stands still: its own condition, else the day that it was made."""
    suspended = condition(one.document, "Suspended")
    if is_true(suspended):
        return turned_s(suspended)
    evicted = condition(one.document, "Evicted")
    if is_true(evicted):
        return turned_s(evicted)
    return seconds(text(one.document, "metadata", "creationTimestamp"))


def _far(note: StagingNote) -> str:
    if not note.bytes or note.bytes_done is None:
        return ""
    left = "" if note.seconds_left is None else f", about {span(note.seconds_left)} left"
    share = min(1.0, note.bytes_done / note.bytes)
    return f" ({share:.0%} of {format_bytes(note.bytes)}{left})"


def _staged(one: StagedState, facts: Facts) -> Finding:
    about, name = f"StagedData {one.namespace}/{one.name}", f"Data {one.name}"
    place = f" to {one.destination}" if one.destination else ""
    if one.phase == "Ready":
        size = f", {format_bytes(one.bytes)}" if one.bytes else ""
        when = f" since {moment(one.ready_at_s, facts.now_s)}" if one.ready_at_s is not None else ""
        return Finding(ranks.DECIDED, "DATA_READY", f"{name} is whole{when}{size}{place}.", about, one.ready_at_s)
    if one.phase == "Failed":
        tries = f" after {one.attempts} attempts" if one.attempts and one.attempts > 1 else ""
        later_s = one.retry_at_s if one.retry_at_s is not None and one.retry_at_s > facts.now_s else None
        again = "" if later_s is None else f" It is tried again {ago(later_s, facts.now_s)}."
        return Finding(ranks.DATA, "DATA_FAILED", f"{name} from {one.source} failed{tries} "
                       f"({one.reason or 'no reason given'}). {sentence(one.message)}".rstrip() + again, about,
                       one.at_s, _MEANS.get(one.reason, "See the StagedData's message."))  # fmt: skip
    if one.phase == "Evicted":
        return Finding(ranks.DATA, "DATA_EVICTED", f"{name} was evicted from its cache to make room; it is brought "
                       "again when it is asked for.", about, one.at_s)  # fmt: skip
    if one.phase == "Staging":
        return Finding(ranks.DATA, "DATA_STAGING", f"{name} is being brought from {one.source}{place}: "
                       f"{_progress(one, facts.now_s)}.", about, one.at_s)  # fmt: skip
    return Finding(ranks.DATA, "DATA_WAITING", f"{name} from {one.source} has not been begun with. "
                   f"{sentence(one.message)}".rstrip(), about, one.at_s)  # fmt: skip


def _progress(one: StagedState, now_s: float) -> str:
    share = one.share
    words = ["nothing is told of its size"] if share is None or not one.bytes else [
        f"{share:.0%} of {format_bytes(one.bytes)}"]  # fmt: skip
    if one.bytes_per_second:
        words.append(f"{format_bytes(int(one.bytes_per_second))}/s")
    if one.seconds_left is not None:
        words.append(f"about {span(one.seconds_left)} left")
    if one.at_s is not None and now_s - one.at_s > 120:
        words.append(f"told {ago(one.at_s, now_s)}")
    return ", ".join(words)


def _verdict(found: Any, verdict: str, now_s: float) -> str:
    until_s = seconds(text(found, "until"))
    reason, victims = sentence(text(found, "reason")), listed([*texts(found, "victims")])
    lost = number(found, "lostGpuSeconds")
    cost = "" if lost is None else f", which loses {span(lost)} of GPU time"
    if verdict == "preempt":
        words = f"Pre-emption chose {victims or 'nobody'} to make room for it{cost}."
    elif verdict == "wait":
        limit = "" if until_s is None else f", until {moment(until_s, now_s)} at most"
        words = f"Pre-emption waits for a better moment{limit}."
    elif verdict == "advice":
        native = listed([*texts(found, "native")])
        words = f"Pre-emption would choose {victims or 'nobody'} to make room for it{cost}; nothing was done"
        words += f", and Kueue takes {native} by its own rule." if native else "."
    elif verdict == "lapsed":
        words = "It is left to the queue's own rule, as what pre-emption had chosen did not suffice in time."
    elif verdict == "leave":
        words = "Pre-emption leaves it to the queue's own rule."
    else:
        words = f"Pre-emption: {verdict}."
    return f"{words} {reason}".rstrip()
