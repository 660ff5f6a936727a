"""How a job's pods are: ended, failing, starting, running; and what is asked of it while it runs."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from kopt.cluster.evictions import EVICTING_ANNOTATION, notice_of
from kopt.controllers.overview import ranks
from kopt.controllers.overview.documents import decoded
from kopt.controllers.overview.facts import Facts, Finding, annotated
from kopt.controllers.overview.queues import condition, is_true, turned_s
from kopt.controllers.overview.words import ago, moment, sentence, since, span
from kopt.controllers.preemption.reading import seconds
from kopt.controllers.webhook.objects import at, items, mapping, text

SAVE_ANNOTATION = "kaiwo.ai/save-requested"
_ENDED = {"Complete": "FINISHED", "Succeeded": "FINISHED", "SuccessCriteriaMet": "FINISHED", "Completed": "FINISHED",
          "Failed": "FAILED"}  # fmt: skip
_BAD_WAITS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CrashLoopBackOff", "CreateContainerConfigError",
              "CreateContainerError", "RunContainerError", "ErrImageNeverPull", "StartError"}  # fmt: skip
_STATE, _SAFE, _REASON = "kaiwo.ai/checkpoint-state", "kaiwo.ai/checkpoint-safe", "kaiwo.ai/checkpoint-reason"
_STEP, _SAVED, _OBSERVED = ("kaiwo.ai/last-checkpoint-step", "kaiwo.ai/last-checkpoint-time",
                            "kaiwo.ai/checkpoint-observed-at")  # fmt: skip


def ended(facts: Facts) -> Iterator[Finding]:
    root = facts.root.document
    for _, one in items(root, "status", "conditions"):
        code = _ENDED.get(text(one, "type"))
        if code is not None and text(one, "status") == "True":
            yield _end(code, text(one, "reason"), text(one, "message"), turned_s(one), facts)
            return
    phase = text(root, "status", "phase")
    if facts.root.resource.kind == "Pod" and phase in ("Succeeded", "Failed"):
        yield _end(_ENDED[phase], text(root, "status", "reason"), text(root, "status", "message"), None, facts)


def leaving(facts: Facts) -> Iterator[Finding]:
    since_s = seconds(text(facts.root.document, "metadata", "deletionTimestamp"))
    if since_s is not None:
        finalizers = [str(one) for _, one in items(facts.root.document, "metadata", "finalizers")]
        waits = f" It waits for {', '.join(finalizers[:3])}." if finalizers else ""
        yield Finding(ranks.LEAVING, "DELETED", f"It is being deleted{since(since_s, facts.now_s)}.{waits}",
                      facts.root.label, since_s)  # fmt: skip


def failing(facts: Facts) -> Iterator[Finding]:
    """Containers that cannot start, and how those that crashed last did; one sentence for each reason."""
    told: set[str] = set()
    for pod in facts.pods:
        for _, one in _containers(pod):
            waiting = text(one, "state", "waiting", "reason")
            last = mapping(one, "state", "terminated") or mapping(one, "lastState", "terminated")
            crashed = bool(last) and at(last, "exitCode") not in (0, None)
            if waiting not in _BAD_WAITS and not crashed:
                continue
            key = f"{text(one, 'name')} {waiting} {text(last, 'reason')}"
            if key not in told:
                told.add(key)
                yield _failure(pod, one, waiting, last if crashed else {}, facts.now_s)


def running(facts: Facts) -> Iterator[Finding]:
    alive = [pod for pod in facts.pods if text(pod, "status", "phase") in ("Pending", "Running")]
    placed = [pod for pod in alive if text(pod, "spec", "nodeName")]
    ready = [pod for pod in placed if is_true(condition(pod, "Ready")) or text(pod, "status", "phase") == "Running"]
    if not placed:
        return
    nodes = Counter(text(pod, "spec", "nodeName") for pod in placed)
    where = ", ".join(list(nodes)[:3]) + (f" and {len(nodes) - 3} more nodes" if len(nodes) > 3 else "")
    starts = [one for pod in ready if (one := seconds(text(pod, "status", "startTime"))) is not None]
    if len(ready) == len(alive):
        how_many = f"all {len(alive)} pods run" if len(alive) > 1 else "its pod runs"
        yield Finding(ranks.RUNS, "RUNS", f"It runs: {how_many} on {where}"
                      f"{since(max(starts, default=None), facts.now_s)}.", facts.root.label,
                      max(starts, default=None))  # fmt: skip
    elif len(placed) == len(alive):
        yield Finding(ranks.STARTING, "STARTS", f"{len(ready)} of its {len(alive)} pods run, the others start on "
                      f"{where}.", facts.root.label)  # fmt: skip
    yield from _checkpoints(ready, facts)


def asked(facts: Facts) -> Iterator[Finding]:
    """To save, and to make room."""
    told: set[str] = set()
    for one, written in annotated(facts, SAVE_ANNOTATION):
        found = decoded(one.annotations, SAVE_ANNOTATION)
        until_s = seconds(text(found, "until"))
        if not isinstance(found, dict) or written in told or (until_s is not None and until_s < facts.now_s):
            continue
        told.add(written)
        by, limit = text(found, "by") or "somebody", "" if until_s is None else f" by {moment(until_s, facts.now_s)}"
        yield Finding(ranks.ASKED, "SAVE_ASKED", f"It was asked by {by} to save a checkpoint{limit}. "
                      f"{sentence(text(found, 'reason'))}".rstrip(), one.label, seconds(text(found, "at")))  # fmt: skip
    for one, written in annotated(facts, EVICTING_ANNOTATION):
        notice = notice_of(one.document)
        if notice is None or written in told or not facts.pods or facts.now_s - notice.at_s > 3600:
            continue
        told.add(written)
        for_whom = f" for {notice.for_whom}" if notice.for_whom else ""
        yield Finding(ranks.ASKED, "TOLD_TO_GO", f"It was told by {notice.by} to make room{for_whom}, "
                      f"{ago(notice.at_s, facts.now_s)}. {sentence(notice.reason)}".rstrip(), one.label,
                      notice.at_s)  # fmt: skip


def _end(code: str, reason: str, message: str, since_s: float | None, facts: Facts) -> Finding:
    when = "" if since_s is None else f" at {moment(since_s, facts.now_s)} ({ago(since_s, facts.now_s)})"
    if code == "FINISHED":
        return Finding(ranks.ENDED, code, f"It has finished{when}.", facts.root.label, since_s)
    why = ": ".join(filter(None, (reason, sentence(message)))) or "nobody says why."
    return Finding(ranks.ENDED, code, f"It has failed{when}: {why}", facts.root.label, since_s,
                   f"See its last lines: kubectl -n {facts.root.key[0]} logs "
                   f"{facts.root.resource.kind.lower()}/{facts.root.key[1]}")  # fmt: skip


def _containers(pod: Any) -> Iterator[tuple[str | int, Any]]:
    yield from items(pod, "status", "initContainerStatuses")
    yield from items(pod, "status", "containerStatuses")


def _failure(pod: Any, one: Any, waiting: str, last: Any, now_s: float) -> Finding:
    name, container = text(pod, "metadata", "name"), text(one, "name")
    words = f"Container {container} of pod {name}"
    if waiting in _BAD_WAITS:
        words += f" does not start ({waiting}). {sentence(text(one, 'state', 'waiting', 'message'))}".rstrip()
    at_s, reason = seconds(text(last, "finishedAt")), text(last, "reason")
    if last:
        words += "." if words[-1] not in ".!?…)" else "" if words[-1] != ")" else "."
        when = "" if at_s is None else f" {ago(at_s, now_s)}"
        words += f" It ended{when} with exit status {at(last, 'exitCode')}" + (f" ({reason})." if reason else ".")
    next_ = "See `kubectl logs --previous`."
    if reason == "OOMKilled":
        next_ = "Its memory (not that of the GPU) did not suffice: ask for more in resources.limits.memory."
    elif "mage" in waiting:
        next_ = "Correct the image's name, or the secret that may pull it."
    restarts = at(one, "restartCount")
    words += f" {restarts} restarts so far." if isinstance(restarts, int) and restarts > 0 else ""
    running_ = bool(mapping(one, "state", "running"))
    return Finding(ranks.HISTORY if running_ else ranks.FAILING, "CONTAINER_FAILS", words, f"Pod {name}", at_s,
                   "" if running_ else next_)  # fmt: skip


def _checkpoints(pods: list[Any], facts: Facts) -> Iterator[Finding]:
    """The last word of log agents, of the pod that was heard of last."""
    told = [(seconds(text(pod, "metadata", "annotations", _OBSERVED)) or 0.0, pod) for pod in pods
            if text(pod, "metadata", "annotations", _STATE)]  # fmt: skip
    if not told:
        return
    at_s, pod = max(told, key=lambda one: one[0])
    notes = mapping(pod, "metadata", "annotations")
    step, saved_s = text(notes, _STEP), seconds(text(notes, _SAVED))
    saved = "no checkpoint of it was seen" if saved_s is None else (
        f"its last checkpoint{f' of step {step}' if step else ''} is {span(facts.now_s - saved_s)} old")  # fmt: skip
    safe = "safe to stop now" if text(notes, _SAFE) == "true" else "not safe to stop now"
    old = f", told {ago(at_s, facts.now_s)}" if facts.now_s - at_s > 120 else ""
    yield Finding(ranks.BORROWS, "CHECKPOINTS", f"By its log it is in state {text(notes, _STATE)}{old}, {safe}, and "
                  f"{saved}.", f"Pod {text(pod, 'metadata', 'name')}", at_s)  # fmt: skip
