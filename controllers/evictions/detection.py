"""Detects evictions of a workload in what was observed of it. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kopt.cluster.objects.eviction import name_of
from kopt.cluster.objects.kaiwo_workloads import KAIWO
from kopt.controllers.evictions.observations import Lost, Observed
from kopt.controllers.evictions.views import TrackedJob, TrackedWorkload
from kopt.core.scheduling.eviction import Cause, Entry, Eviction, LastReport, Notice, Phase, System, WorkloadRef
from kopt.policies.evictions import lost_gpu_s, order_of_return

TOGETHER_S = 60.0
"""Pods of a workload that are lost within this time count as one eviction."""
GATHER_S = 0.4
"""Pods of a gang are evicted one after the other: they are evaluated so long after the last of them."""
_NOTICE_S = 900.0
_AFTER_S = 5.0
_CERTAIN_S = 60.0
_PREEMPTOR = re.compile(r"\(UID: ([^,()]+), JobUID: ([^,()]+)\)")
_KUEUE_CAUSES = {
    "Preempted": Cause.PREEMPTED,
    "ClusterQueueStopped": Cause.DRAINED,
    "LocalQueueStopped": Cause.DRAINED,
    "NodeFailures": Cause.NODE_LOST,
}
_POD_CAUSES = {
    "PreemptionByScheduler": (Cause.PREEMPTED, "kube-scheduler"),
    "EvictionByEvictionAPI": (Cause.DRAINED, "eviction API"),
    "DeletionByTaintManager": (Cause.NODE_LOST, "taint manager"),
    "DeletionByPodGC": (Cause.NODE_LOST, "pod garbage collector"),
    "TerminationByKubelet": (Cause.DRAINED, "kubelet"),
}
_SCHEDULERS = {System.KAI: "kai-scheduler", System.VOLCANO: "volcano"}


@dataclass(frozen=True)
class Sighting:
    """A detected eviction. ``by_pods``: by its pods alone; its time is that of the first of them."""

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
    observed: Observed, root: str, recorded: Iterable[Entry], now_s: float, from_s: float = 0.0
) -> tuple[list[Eviction], float]:
    """Those of a workload that are not in ``recorded``, its stored ones, and in how many seconds to check again.

    ``now_s`` is by the clock of ``observed``. Records from before ``from_s`` (Unix seconds) have been pruned.
    """
    lines = list(recorded)
    # Evictions before the newest record are recorded, although their records may be pruned by now.
    newest_s = max((line.eviction.evicted_at_s for line in lines), default=from_s)

    def is_new(sighting: Sighting) -> bool:
        return sighting.at_s >= newest_s and not any(_same(sighting, line) for line in lines)

    reported = [*_by_kueue(observed, root), *_by_suspension(observed, root), *_by_kaiwo(observed, root)]
    gathered, again_s = _by_pods(observed, root, now_s)
    others = [
        sighting for sighting in gathered if not any(abs(sighting.at_s - it.at_s) <= TOGETHER_S for it in reported)
    ]
    result: list[Eviction] = []
    for sighting in sorted(filter(is_new, (*reported, *others)), key=lambda sighting: sighting.at_s):
        before_s = max(newest_s, result[-1].evicted_at_s if result else 0.0)
        result.append(_written(observed, root, sighting, before_s))
    return result, again_s


def _written(observed: Observed, root: str, sighting: Sighting, before_s: float) -> Eviction:
    """``before_s``: its previous eviction. A notice belongs to the first eviction after it, and may be left over."""
    notices = [
        it
        for it in observed.notices_of(root)
        if it.at_s > before_s and -_AFTER_S <= sighting.at_s - it.at_s <= _NOTICE_S
    ]
    ours = max(notices, key=lambda it: it.at_s, default=None)
    if ours is not None:
        sighting = _as_noticed(sighting, ours, observed)
    report = last_report(observed, root, sighting.at_s)
    lost = lost_gpu_s(report, sighting.gpus, sighting.at_s, began_at_s(observed, root, sighting.at_s))
    return Eviction(
        sighting.namespace,
        name_of(sighting.workload, sighting.system, sighting.at_s),
        sighting.workload,
        sighting.system,
        sighting.at_s,
        sighting.cause,
        sighting.by,
        sighting.for_whom,
        sighting.reason,
        sighting.gpus,
        order_of_return(sighting.at_s, lost, sighting.gpus),
        report.step if report else None,
        report.durable_at_s if report else None,
        lost,
        report.source if report else None,
    )


def _as_noticed(sighting: Sighting, ours: Notice, observed: Observed) -> Sighting:
    for_whom = ours.for_whom or sighting.for_whom
    # Notices name Kueue's Workloads; people know the Job.
    named = next(
        (it for it in observed.workloads.values() if "/".join(it.key) == for_whom and it.owner is not None), None
    )
    if named is not None and named.owner is not None:
        for_whom = f"{named.key[0]}/{named.owner.name}"
    return replace(
        sighting, cause=ours.cause, by=ours.by or sighting.by, for_whom=for_whom, reason=ours.reason or sighting.reason
    )


def last_report(observed: Observed, root: str, at_s: float) -> LastReport | None:
    """What its pods reported last before they were evicted."""
    reports = [
        pod.report
        for pod in observed.pods_of(root)
        if pod.report is not None
        and pod.report.observed_at_s <= at_s + _AFTER_S
        and (pod.report.durable_at_s is None or pod.report.durable_at_s <= at_s + _CERTAIN_S)
    ]
    return max(reports, key=lambda report: report.observed_at_s, default=None)


def began_at_s(observed: Observed, root: str, at_s: float) -> float | None:
    """Start time of the pods that it lost, by their kubelets; None if unknown."""
    starts = [pod.started_at_s for pod in observed.pods_of(root) if pod.started_at_s is not None]
    return min((start for start in starts if start <= at_s), default=None)


def _same(sighting: Sighting, line: Entry) -> bool:
    eviction, back_s = line.eviction, line.outcome.resumed_at_s
    if abs(eviction.evicted_at_s - sighting.at_s) < 1.0:
        return True
    by_kueue = sighting.system is System.KUEUE and not sighting.by_pods
    if by_kueue and (eviction.system is System.KUEUE or (back_s is not None and back_s <= sighting.at_s)):
        # Kueue gives each of its evictions a time.
        return False
    if abs(eviction.evicted_at_s - sighting.at_s) <= TOGETHER_S:
        return True
    if by_kueue:
        # It lost pods before and kept its quota until now.
        return False
    # Before it has resumed it cannot lose GPUs again.
    waits = line.outcome.phase is Phase.WAITING or (back_s is not None and sighting.at_s < back_s)
    return waits and sighting.at_s > eviction.evicted_at_s


def _by_kueue(observed: Observed, root: str) -> list[Sighting]:
    return [
        Sighting(
            workload.key[0],
            workload.owner or workload.ref,
            System.KUEUE,
            at_s,
            _kueue_cause(workload),
            _holder(workload.holder, "kueue"),
            _preemptor(observed, workload),
            workload.evicted_message or workload.evicted_reason,
            workload.gpus,
        )
        for at_s, workload in observed.evicted.get(root, {}).items()
        if not workload.finished
    ]


def _kueue_cause(workload: TrackedWorkload) -> Cause:
    reason = workload.evicted_reason
    return Cause.DEACTIVATED if reason.startswith("Deactivated") else _KUEUE_CAUSES.get(reason, Cause.UNKNOWN)


def _preemptor(observed: Observed, workload: TrackedWorkload) -> str:
    """Kueue names the preemptor by uid."""
    match = _PREEMPTOR.search(workload.evicted_message) or _PREEMPTOR.search(workload.preempted_message)
    if match is None or workload.evicted_reason != "Preempted":
        return ""
    other = observed.workloads.get(match[1])
    if other is not None:
        return f"{other.key[0]}/{(other.owner or other.ref).name}"
    job = observed.jobs.get(match[2])
    return "/".join(job.key) if job is not None else ""


def _by_suspension(observed: Observed, root: str) -> list[Sighting]:
    if observed.workloads_of(root):
        return []
    return [
        Sighting(
            job.key[0],
            job.owner or job.ref,
            System.NONE,
            at_s,
            Cause.SUSPENDED,
            _holder(job.holder, ""),
            "",
            "The Job was suspended.",
            job.gpus,
        )
        for at_s, job in observed.suspended.get(root, {}).items()
        if not job.queued and not job.finished and _ran(observed, job, at_s)
    ]


def _by_kaiwo(observed: Observed, root: str) -> list[Sighting]:
    """What Kaiwo has deleted, for it says so where the owner is gone and nothing else does."""
    tracked = observed.by_kaiwo.get(root)
    if tracked is None or tracked.preempted_at_s is None:
        return []
    other = next((each for each in observed.kaiwos.values() if each.key[1] == tracked.for_whom), None)
    for_whom = tracked.for_whom if other is None else f"{other.key[0]}/{other.workload.name}"
    return [
        Sighting(
            tracked.key[0],
            tracked.workload,
            System.NONE,
            tracked.preempted_at_s,
            Cause.PREEMPTED,
            KAIWO,
            for_whom,
            tracked.reason or "Kaiwo deleted it, as its GPUs were idle.",
            tracked.gpus,
        )
    ]


def _ran(observed: Observed, job: TrackedJob, at_s: float) -> bool:
    """Whether it was suspended while it ran; a Job that is created suspended loses nothing."""
    pods = [pod for pod in observed.pods_of(job.uid) if pod.started_at_s is not None and pod.started_at_s <= at_s + 1]
    return bool(pods) or (job.uid in observed.first_suspended and at_s - job.created_at_s > _CERTAIN_S)


def _holder(name: str, other: str) -> str:
    return f"kopt-{name}" if name else other


def _by_pods(observed: Observed, root: str, now_s: float) -> tuple[list[Sighting], float]:
    lost_pods = [observed.lost[pod.uid] for pod in observed.pods_of(root) if pod.uid in observed.lost]
    lost_pods = sorted((lost for lost in lost_pods if _is_eviction(observed, root, lost)), key=lambda lost: lost.at_s)
    if lost_pods and (remaining_s := GATHER_S - (now_s - max(lost.observed_at_s for lost in lost_pods))) > 0:
        return [], remaining_s
    clusters: list[list[Lost]] = []
    for lost in lost_pods:
        if clusters and lost.at_s - clusters[-1][-1].at_s <= TOGETHER_S:
            clusters[-1].append(lost)
        else:
            clusters.append([lost])
    return [_of_pods(observed, cluster) for cluster in clusters], float("inf")


def _is_eviction(observed: Observed, root: str, lost: Lost) -> bool:
    """Whether the workload lost GPUs: not if the pod had ended, or its owner wants no such pod."""
    pod = lost.pod
    if lost.at_s == float("inf") or (pod.ended and pod.disruption is None) or pod.started_at_s is None:
        return False
    evicted = (
        pod.disruption is not None or pod.node_lost or pod.notice is not None or _kai_event(observed, lost) is not None
    )
    if any(workload.finished for workload in observed.workloads_of(root)):
        return False
    if pod.owner is not None and pod.owner.kind == "Job":
        job = observed.jobs.get(pod.owner.uid)
        at_rest = observed.suspended.get(root, {})
        if job is None or job.suspended or job.ending or job.finished or job.deleting:
            return False
        # Pods that began after it are not affected: Kueue's Jobs are created suspended.
        return not any(abs(lost.at_s - at_s) <= TOGETHER_S and pod.started_at_s < at_s for at_s in at_rest)
    # Other owners delete their pods at will, without a trace.
    return evicted


def _kai_event(observed: Observed, lost: Lost) -> str | None:
    """The preemptor for which KAI evicted a pod's gang, by its event."""
    key = (lost.pod.key[0], lost.pod.group)
    result = observed.group_evictions.get(key) if lost.pod.group else None
    return None if result is None or abs(result.at_s - lost.at_s) > TOGETHER_S else result.for_whom


def _of_pods(observed: Observed, lost_pods: list[Lost]) -> Sighting:
    # The pod that says most about the cause: one with a condition before a deleted one.
    first = min(lost_pods, key=lambda lost: (lost.pod.disruption is None, lost.at_s, lost.pod.uid))
    pod, for_whom = first.pod, next((it for lost in lost_pods if (it := _kai_event(observed, lost)) is not None), None)
    reason = pod.disruption.message if pod.disruption is not None else ""
    cause, by = _POD_CAUSES.get(pod.disruption.reason, (Cause.UNKNOWN, "")) if pod.disruption else (Cause.DELETED, "")
    if pod.node_lost:
        cause = Cause.NODE_LOST
    if for_whom is not None or (cause is Cause.PREEMPTED and pod.system in _SCHEDULERS):
        cause, by = Cause.PREEMPTED, _SCHEDULERS.get(pod.system, by)
        reason = reason or observed.group_evictions[pod.key[0], pod.group].message
    names = f"{len(lost_pods)} of its pods were" if len(lost_pods) > 1 else f"Pod {pod.key[1]} was"
    return Sighting(
        pod.key[0],
        observed.root_of(pod),
        pod.system,
        min(lost.at_s for lost in lost_pods),
        cause,
        by,
        _group_owner(observed, for_whom or ""),
        reason or f"{names} deleted.",
        sum(lost.pod.gpus for lost in lost_pods),
        by_pods=True,
    )


def _group_owner(observed: Observed, name: str) -> str:
    namespace, _, group = name.partition("/")
    result = observed.groups.get((namespace, group))
    return f"{namespace}/{result.owner.name}" if result is not None and result.owner is not None else name
