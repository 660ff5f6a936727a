"""Which evictions of a workload there were, from what was seen of it. Nothing here asks a clock or a server."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kopt.cluster.evictions import name_of
from kopt.controllers.ledger.seen import Lost, Seen
from kopt.controllers.ledger.views import JobView, KueueView
from kopt.core.evictions import Cause, Entry, Eviction, Notice, Phase, System, WorkloadRef
from kopt.policies.evictions import LastWord, lost_gpu_s, order_of_return

TOGETHER_S = 60.0
"""Pods of a workload that go within so long of each other go by one eviction."""
GATHER_S = 0.4
"""Pods of a gang are told to go one after the other: so long after the last of them they are judged."""
_NOTICE_S = 900.0
_AFTER_S = 5.0
_CERTAIN_S = 60.0
_PREEMPTOR = re.compile(r"\(UID: ([^,()]+), JobUID: ([^,()]+)\)")
_KUEUE_CAUSES = {
    "Preempted": Cause.PREEMPTED, "ClusterQueueStopped": Cause.DRAINED, "LocalQueueStopped": Cause.DRAINED,
    "NodeFailures": Cause.NODE_LOST,
}  # fmt: skip
_POD_CAUSES = {
    "PreemptionByScheduler": (Cause.PREEMPTED, "kube-scheduler"),
    "EvictionByEvictionAPI": (Cause.DRAINED, "eviction API"),
    "DeletionByTaintManager": (Cause.NODE_LOST, "taint manager"),
    "DeletionByPodGC": (Cause.NODE_LOST, "pod garbage collector"),
    "TerminationByKubelet": (Cause.DRAINED, "kubelet"),
}  # fmt: skip
_SCHEDULERS = {System.KAI: "kai-scheduler", System.VOLCANO: "volcano"}


@dataclass(frozen=True)
class Sighting:
    """An eviction that was seen. ``by_pods``: nothing but its pods says so; its time is that of the first of them."""

    namespace: str
    workload: WorkloadRef
    system: System
    at_s: float
    cause: Cause
    by: str
    for_whom: str
    reason: str
    gpus: int
    by_pods: bool = False


def evictions(
    seen: Seen, root: str, known: Iterable[Entry], now_s: float, from_s: float = 0.0
) -> tuple[list[Eviction], float]:
    """Those of a workload that are not in ``known``, its lines, yet; and in how many seconds to look again.

    ``now_s`` is by the clock of ``seen``. What was before ``from_s`` (Unix seconds) has been dropped from the ledger.
    """
    lines = list(known)
    # What is older than the newest line is written, although its line may be pruned by now.
    newest_s = max((line.eviction.evicted_at_s for line in lines), default=from_s)

    def is_new(one: Sighting) -> bool:
        return one.at_s >= newest_s and not any(_same(one, line) for line in lines)

    told = [*_by_kueue(seen, root), *_by_suspension(seen, root)]
    gathered, again_s = _by_pods(seen, root, now_s)
    others = [one for one in gathered if not any(abs(one.at_s - it.at_s) <= TOGETHER_S for it in told)]
    found: list[Eviction] = []
    for one in sorted(filter(is_new, (*told, *others)), key=lambda one: one.at_s):
        before_s = max(newest_s, found[-1].evicted_at_s if found else 0.0)
        found.append(_written(seen, root, one, before_s))
    return found, again_s


def _written(seen: Seen, root: str, one: Sighting, before_s: float) -> Eviction:
    """``before_s``: when it was evicted before. A notice is of the first eviction after it, and may stay behind."""
    notices = [
        it for it in seen.notices_of(root) if it.at_s > before_s and -_AFTER_S <= one.at_s - it.at_s <= _NOTICE_S
    ]  # fmt: skip
    ours = max(notices, key=lambda it: it.at_s, default=None)
    if ours is not None:
        one = _as_noticed(one, ours, seen)
    word = last_word(seen, root, one.at_s)
    lost = lost_gpu_s(word, one.gpus, one.at_s)
    return Eviction(
        one.namespace, name_of(one.workload, one.system, one.at_s), one.workload, one.system, one.at_s, one.cause,
        one.by, one.for_whom, one.reason, one.gpus, order_of_return(one.at_s, lost, one.gpus),
        word.step if word else None, word.durable_at_s if word else None, lost,
    )  # fmt: skip


def _as_noticed(one: Sighting, ours: Notice, seen: Seen) -> Sighting:
    for_whom = ours.for_whom or one.for_whom
    # Who acts on Kueue's Workloads names those; people know the Job.
    named = next((it for it in seen.workloads.values() if "/".join(it.key) == for_whom and it.owner is not None), None)
    if named is not None and named.owner is not None:
        for_whom = f"{named.key[0]}/{named.owner.name}"
    return replace(one, cause=ours.cause, by=ours.by or one.by, for_whom=for_whom, reason=ours.reason or one.reason)


def last_word(seen: Seen, root: str, at_s: float) -> LastWord | None:
    """What its pods told last before they went."""
    words = [
        pod.word for pod in seen.pods_of(root)
        if pod.word is not None and pod.word.observed_at_s <= at_s + _AFTER_S
    ]  # fmt: skip
    return max(words, key=lambda one: one.observed_at_s, default=None)


def _same(one: Sighting, line: Entry) -> bool:
    known, back_s = line.eviction, line.outcome.resumed_at_s
    if abs(known.evicted_at_s - one.at_s) < 1.0:
        return True
    by_kueue = one.system is System.KUEUE and not one.by_pods
    if by_kueue and (known.system is System.KUEUE or (back_s is not None and back_s <= one.at_s)):
        # Kueue gives each of its evictions a time.
        return False
    if abs(known.evicted_at_s - one.at_s) <= TOGETHER_S:
        return True
    if by_kueue:
        # Pods of it were lost before and it kept its quota, until now.
        return False
    # While it is not back it cannot lose GPUs again.
    waits = line.outcome.phase is Phase.WAITING or (back_s is not None and one.at_s < back_s)
    return waits and one.at_s > known.evicted_at_s


def _by_kueue(seen: Seen, root: str) -> list[Sighting]:
    return [
        Sighting(view.key[0], view.owner or view.ref, System.KUEUE, at_s, _kueue_cause(view),
                 _holder(view.holder, "kueue"), _preemptor(seen, view),
                 view.evicted_message or view.evicted_reason, view.gpus)
        for at_s, view in seen.evicted.get(root, {}).items() if not view.finished
    ]  # fmt: skip


def _kueue_cause(view: KueueView) -> Cause:
    reason = view.evicted_reason
    return Cause.DEACTIVATED if reason.startswith("Deactivated") else _KUEUE_CAUSES.get(reason, Cause.UNKNOWN)


def _preemptor(seen: Seen, view: KueueView) -> str:
    """Kueue names whom it made room for by uid."""
    found = _PREEMPTOR.search(view.evicted_message) or _PREEMPTOR.search(view.preempted_message)
    if found is None or view.evicted_reason != "Preempted":
        return ""
    other = seen.workloads.get(found[1])
    if other is not None:
        return f"{other.key[0]}/{(other.owner or other.ref).name}"
    job = seen.jobs.get(found[2])
    return "/".join(job.key) if job is not None else ""


def _by_suspension(seen: Seen, root: str) -> list[Sighting]:
    if seen.workloads_of(root):
        return []
    return [
        Sighting(job.key[0], job.owner or job.ref, System.NONE, at_s, Cause.SUSPENDED, _holder(job.holder, ""), "",
                 "The Job was suspended.", job.gpus)
        for at_s, job in seen.suspended.get(root, {}).items()
        if not job.queued and not job.finished and _ran(seen, job, at_s)
    ]  # fmt: skip


def _ran(seen: Seen, job: JobView, at_s: float) -> bool:
    """Whether it was suspended while it ran; one that is created suspended loses nothing."""
    pods = [pod for pod in seen.pods_of(job.uid) if pod.started_at_s is not None and pod.started_at_s <= at_s + 1]
    return bool(pods) or (job.uid in seen.first_suspended and at_s - job.created_at_s > _CERTAIN_S)


def _holder(name: str, other: str) -> str:
    return f"kopt-{name}" if name else other


def _by_pods(seen: Seen, root: str, now_s: float) -> tuple[list[Sighting], float]:
    gone = [seen.lost[pod.uid] for pod in seen.pods_of(root) if pod.uid in seen.lost]
    gone = sorted((one for one in gone if _is_taken(seen, root, one)), key=lambda one: one.at_s)
    if gone and (left_s := GATHER_S - (now_s - max(one.seen_s for one in gone))) > 0:
        return [], left_s
    clusters: list[list[Lost]] = []
    for one in gone:
        if clusters and one.at_s - clusters[-1][-1].at_s <= TOGETHER_S:
            clusters[-1].append(one)
        else:
            clusters.append([one])
    return [_of_pods(seen, one) for one in clusters], float("inf")


def _is_taken(seen: Seen, root: str, one: Lost) -> bool:
    """Whether its GPUs were taken from it: not so when it had ended, or its owner wants no such pod."""
    pod = one.pod
    if one.at_s == float("inf") or (pod.ended and pod.disruption is None) or pod.started_at_s is None:
        return False
    told = pod.disruption is not None or pod.node_lost or pod.notice is not None or _kai_event(seen, one) is not None
    if any(view.finished for view in seen.workloads_of(root)):
        return False
    if pod.owner is not None and pod.owner.kind == "Job":
        job = seen.jobs.get(pod.owner.uid)
        at_rest = seen.suspended.get(root, {})
        if job is None or job.suspended or job.ending or job.finished or job.deleting:
            return False
        # Those that began after it have nothing to do with it: Kueue's Jobs are born suspended.
        return not any(abs(one.at_s - at_s) <= TOGETHER_S and pod.started_at_s < at_s for at_s in at_rest)
    # Others delete pods of theirs as they please, without a word.
    return told


def _kai_event(seen: Seen, one: Lost) -> str | None:
    """For whom KAI says that it took a pod's gang away."""
    key = (one.pod.key[0], one.pod.group)
    found = seen.group_evictions.get(key) if one.pod.group else None
    return None if found is None or abs(found.at_s - one.at_s) > TOGETHER_S else found.for_whom


def _of_pods(seen: Seen, gone: list[Lost]) -> Sighting:
    # What says the most about why: a condition before a deletion.
    first = min(gone, key=lambda one: (one.pod.disruption is None, one.at_s, one.pod.uid))
    pod, for_whom = first.pod, next((it for one in gone if (it := _kai_event(seen, one)) is not None), None)
    reason = pod.disruption.message if pod.disruption is not None else ""
    cause, by = _POD_CAUSES.get(pod.disruption.reason, (Cause.UNKNOWN, "")) if pod.disruption else (Cause.DELETED, "")
    if pod.node_lost:
        cause = Cause.NODE_LOST
    if for_whom is not None or (cause is Cause.PREEMPTED and pod.system in _SCHEDULERS):
        cause, by = Cause.PREEMPTED, _SCHEDULERS.get(pod.system, by)
        reason = reason or seen.group_evictions[pod.key[0], pod.group].message
    names = f"{len(gone)} of its pods were" if len(gone) > 1 else f"Pod {pod.key[1]} was"
    return Sighting(
        pod.key[0], seen.root_of(pod), pod.system, min(one.at_s for one in gone), cause, by,
        _group_owner(seen, for_whom or ""), reason or f"{names} deleted.", sum(one.pod.gpus for one in gone),
        by_pods=True,
    )  # fmt: skip


def _group_owner(seen: Seen, name: str) -> str:
    namespace, _, group = name.partition("/")
    found = seen.groups.get((namespace, group))
    return f"{namespace}/{found.owner.name}" if found is not None and found.owner is not None else name
