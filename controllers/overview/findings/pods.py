"""How a job's pods are: ended, failing, starting, running; and what is asked of it while it runs."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from kopt.cluster.objects.annotations import mapping_of
from kopt.cluster.objects.conditions import condition, is_true, turned_s
from kopt.cluster.objects.custom.checkpoint import source_of
from kopt.cluster.objects.eviction import EVICTING_ANNOTATION, notice_of
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.controllers.overview.findings import order as ranks
from kopt.controllers.overview.job import Finding, JobSnapshot, annotated
from kopt.controllers.overview.text import ago, clock_time, sentence, since, span
from kopt.core.times import seconds_or_none
from kopt.core.workload.checkpoint import CLAIMED, Source

SAVE_ANNOTATION = "kaiwo.ai/save-requested"
_ENDED = {
    "Complete": "FINISHED",
    "Succeeded": "FINISHED",
    "SuccessCriteriaMet": "FINISHED",
    "Completed": "FINISHED",
    "Failed": "FAILED",
}
_BAD_WAITS = {
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "ErrImageNeverPull",
    "StartError",
}
_STATE, _SAFE, _REASON = "kaiwo.ai/checkpoint-state", "kaiwo.ai/checkpoint-safe", "kaiwo.ai/checkpoint-reason"
_STEP, _SAVED, _OBSERVED = (
    "kaiwo.ai/last-checkpoint-step",
    "kaiwo.ai/last-checkpoint-time",
    "kaiwo.ai/checkpoint-observed-at",
)


def ended(job: JobSnapshot) -> Iterator[Finding]:
    root = job.root.document
    for _, item in items(root, "status", "conditions"):
        code = _ENDED.get(text(item, "type"))
        if code is not None and text(item, "status") == "True":
            yield _end(code, text(item, "reason"), text(item, "message"), turned_s(item), job)
            return
    phase = text(root, "status", "phase")
    if job.root.resource.kind == "Pod" and phase in ("Succeeded", "Failed"):
        yield _end(_ENDED[phase], text(root, "status", "reason"), text(root, "status", "message"), None, job)


def deleted(job: JobSnapshot) -> Iterator[Finding]:
    since_s = seconds_or_none(text(job.root.document, "metadata", "deletionTimestamp"))
    if since_s is not None:
        finalizers = [str(item) for _, item in items(job.root.document, "metadata", "finalizers")]
        waits = f" It waits for {', '.join(finalizers[:3])}." if finalizers else ""
        yield Finding(
            ranks.DELETED,
            "DELETED",
            f"It is being deleted{since(since_s, job.now_s)}.{waits}",
            job.root.label,
            since_s,
        )


def failing(job: JobSnapshot) -> Iterator[Finding]:
    """Containers that cannot start, and how those that crashed last did; one sentence for each reason."""
    emitted: set[str] = set()
    for pod in job.pods:
        for _, item in _containers(pod):
            wait_reason = text(item, "state", "waiting", "reason")
            last = mapping(item, "state", "terminated") or mapping(item, "lastState", "terminated")
            crashed = bool(last) and at(last, "exitCode") not in (0, None)
            if wait_reason not in _BAD_WAITS and not crashed:
                continue
            key = f"{text(item, 'name')} {wait_reason} {text(last, 'reason')}"
            if key not in emitted:
                emitted.add(key)
                yield _failure(pod, item, wait_reason, last if crashed else {}, job.now_s)


def running(job: JobSnapshot) -> Iterator[Finding]:
    alive = [pod for pod in job.pods if text(pod, "status", "phase") in ("Pending", "Running")]
    placed = [pod for pod in alive if text(pod, "spec", "nodeName")]
    ready = [pod for pod in placed if is_true(condition(pod, "Ready")) or text(pod, "status", "phase") == "Running"]
    if not placed:
        return
    nodes = Counter(text(pod, "spec", "nodeName") for pod in placed)
    where = ", ".join(list(nodes)[:3]) + (f" and {len(nodes) - 3} more nodes" if len(nodes) > 3 else "")
    starts = [value for pod in ready if (value := seconds_or_none(text(pod, "status", "startTime"))) is not None]
    if len(ready) == len(alive):
        how_many = f"all {len(alive)} pods run" if len(alive) > 1 else "its pod runs"
        yield Finding(
            ranks.RUNS,
            "RUNS",
            f"It runs: {how_many} on {where}{since(max(starts, default=None), job.now_s)}.",
            job.root.label,
            max(starts, default=None),
        )
    elif len(placed) == len(alive):
        yield Finding(
            ranks.STARTING,
            "STARTS",
            f"{len(ready)} of its {len(alive)} pods run, the others start on {where}.",
            job.root.label,
        )
    yield from _checkpoints(ready, job)


def requested(job: JobSnapshot) -> Iterator[Finding]:
    """To save, and to make room."""
    emitted: set[str] = set()
    for thing, written in annotated(job, SAVE_ANNOTATION):
        result = mapping_of(thing.annotations, SAVE_ANNOTATION)
        until_s = seconds_or_none(text(result, "until"))
        if not result or written in emitted or (until_s is not None and until_s < job.now_s):
            continue
        emitted.add(written)
        by, limit = text(result, "by") or "somebody", "" if until_s is None else f" by {clock_time(until_s, job.now_s)}"
        yield Finding(
            ranks.REQUESTED,
            "SAVE_ASKED",
            f"It was asked by {by} to save a checkpoint{limit}. {sentence(text(result, 'reason'))}".rstrip(),
            thing.label,
            seconds_or_none(text(result, "at")),
        )
    for thing, written in annotated(job, EVICTING_ANNOTATION):
        notice = notice_of(thing.document)
        if notice is None or written in emitted or not job.pods or job.now_s - notice.at_s > 3600:
            continue
        emitted.add(written)
        for_whom = f" for {notice.for_whom}" if notice.for_whom else ""
        yield Finding(
            ranks.REQUESTED,
            "TOLD_TO_GO",
            f"It was selected by {notice.by} to make room{for_whom}, "
            f"{ago(notice.at_s, job.now_s)}. {sentence(notice.reason)}".rstrip(),
            thing.label,
            notice.at_s,
        )


def _end(code: str, reason: str, message: str, since_s: float | None, job: JobSnapshot) -> Finding:
    when = "" if since_s is None else f" at {clock_time(since_s, job.now_s)} ({ago(since_s, job.now_s)})"
    if code == "FINISHED":
        return Finding(ranks.ENDED, code, f"It has finished{when}.", job.root.label, since_s)
    why = ": ".join(filter(None, (reason, sentence(message)))) or "no reason is given."
    return Finding(
        ranks.ENDED,
        code,
        f"It has failed{when}: {why}",
        job.root.label,
        since_s,
        f"See its last lines: kubectl -n {job.root.key[0]} logs {job.root.resource.kind.lower()}/{job.root.key[1]}",
    )


def _containers(pod: Any) -> Iterator[tuple[str | int, Any]]:
    yield from items(pod, "status", "initContainerStatuses")
    yield from items(pod, "status", "containerStatuses")


def _failure(pod: Any, item: Any, wait_reason: str, last: Any, now_s: float) -> Finding:
    name, container = text(pod, "metadata", "name"), text(item, "name")
    summary = f"Container {container} of pod {name}"
    if wait_reason in _BAD_WAITS:
        summary += f" does not start ({wait_reason}). {sentence(text(item, 'state', 'waiting', 'message'))}".rstrip()
    at_s, reason = seconds_or_none(text(last, "finishedAt")), text(last, "reason")
    if last:
        summary += "." if summary[-1] not in ".!?…)" else "" if summary[-1] != ")" else "."
        when = "" if at_s is None else f" {ago(at_s, now_s)}"
        summary += f" It ended{when} with exit status {at(last, 'exitCode')}" + (f" ({reason})." if reason else ".")
    next_ = "See `kubectl logs --previous`."
    if reason == "OOMKilled":
        next_ = "Its memory (not that of the GPU) did not suffice: request more in resources.limits.memory."
    elif "mage" in wait_reason:
        next_ = "Correct the image's name, or the secret that may pull it."
    restarts = at(item, "restartCount")
    summary += f" {restarts} restarts so far." if isinstance(restarts, int) and restarts > 0 else ""
    running_ = bool(mapping(item, "state", "running"))
    return Finding(
        ranks.HISTORY if running_ else ranks.FAILING,
        "CONTAINER_FAILS",
        summary,
        f"Pod {name}",
        at_s,
        "" if running_ else next_,
    )


def _checkpoints(pods: list[Any], job: JobSnapshot) -> Iterator[Finding]:
    """The last checkpoint status by log agents or by the pods' owner, of the pod with the newest one."""
    observed = [
        (seconds_or_none(text(pod, "metadata", "annotations", _OBSERVED)) or 0.0, pod)
        for pod in pods
        if text(pod, "metadata", "annotations", _STATE)
    ]
    if not observed:
        return
    at_s, pod = max(observed, key=lambda item: item[0])
    annotations = mapping(pod, "metadata", "annotations")
    step, saved_s = text(annotations, _STEP), seconds_or_none(text(annotations, _SAVED))
    saved = (
        "no checkpoint of it was seen"
        if saved_s is None
        else (f"its last checkpoint{f' of step {step}' if step else ''} is {span(job.now_s - saved_s)} old")
    )
    safe = "safe to stop now" if text(annotations, _SAFE) == "true" else "not safe to stop now"
    old = f", reported {ago(at_s, job.now_s)}" if at_s and job.now_s - at_s > 120 else ""
    source = source_of(annotations)
    by = f"As {CLAIMED}" if source is Source.CLAIM else "By its log"
    yield Finding(
        ranks.BORROWS,
        "CHECKPOINTS",
        f"{by} it is in state {text(annotations, _STATE)}{old}, {safe}, and {saved}.",
        f"Pod {text(pod, 'metadata', 'name')}",
        at_s or None,
        source=source,
    )
