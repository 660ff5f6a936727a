"""The outcome of an eviction, by what is observed of its workload now."""

from dataclasses import replace

from kopt.cluster.objects.kaiwo_workloads import KAIWO
from kopt.cluster.workloads.tracked_pod import TrackedPod
from kopt.controllers.evictions.observations import Observed
from kopt.core.scheduling.eviction import Entry, Eviction, Phase, Return, System, Verified

UNVERIFIED_AFTER_S = 900.0
"""A log without a step for so long after its workload resumed will not have one."""
_NOBODY_S = 86_400.0
_WATCHED = ("Job", "Pod", "Workload", "PodGroup")


def outcome(observed: Observed, line: Entry, *, newest: bool, now_s: float) -> Return:
    """``newest``: the workload was not evicted again since. ``now_s``: Unix seconds."""
    eviction, was = line.eviction, line.outcome
    root = eviction.workload.uid
    if was.phase is Phase.FINISHED:
        return was
    if _finished(observed, root):
        return replace(was, phase=Phase.FINISHED)
    if _has_vanished(observed, eviction, now_s):
        return replace(was, phase=Phase.GONE)
    if was.phase is Phase.GONE:
        # Its next status had not been observed yet.
        was = replace(was, phase=Phase.WAITING if was.resumed_at_s is None else Phase.RESUMED, message="")
    if was.phase is Phase.RESUMED:
        return _verified(observed, eviction, was, now_s) if newest else was
    if not newest:
        return Return(Phase.GONE, message="It was evicted again before it was seen to run.")
    resumed_at_s = _resumed_at(observed, eviction)
    if resumed_at_s is None:
        return was
    return _verified(observed, eviction, replace(was, phase=Phase.RESUMED, resumed_at_s=resumed_at_s), now_s)


def _finished(observed: Observed, root: str) -> bool:
    workloads, jobs = observed.workloads_of(root), observed.jobs_of(root)
    if any(kueue.finished for kueue in workloads):
        return True
    own = [job for job in jobs if job.uid == root]
    return bool(own) and all(job.finished for job in own)


def _has_vanished(observed: Observed, eviction: Eviction, now_s: float) -> bool:
    root, kind = eviction.workload.uid, eviction.workload.kind
    if eviction.by == KAIWO:
        # It deletes the workload itself: nothing brings that one back.
        return not any(pod.uid in observed.pods and not pod.lost for pod in observed.pods_of(root))
    if kind == "Job" and eviction.workload.api_version.startswith("batch/"):
        job = observed.jobs.get(root)
        return job is None or job.deleting
    if (
        observed.workloads_of(root)
        or observed.groups_of(root)
        or any(pod.uid in observed.pods for pod in observed.pods_of(root))
    ):
        # A pod without an owner does not come back.
        return kind == "Pod" and (root not in observed.pods or observed.pods[root].lost)
    if kind in _WATCHED or eviction.system in (System.KUEUE, System.KAI):
        return True
    # Its owner is of a kind that is not watched: why it has no pods is unknown.
    return now_s - eviction.evicted_at_s > _NOBODY_S


def back(observed: Observed, eviction: Eviction) -> list[TrackedPod]:
    """Running pods that were created after the eviction."""
    pods = [pod for pod in observed.pods_of(eviction.workload.uid) if pod.uid in observed.pods and not pod.lost]
    return [pod for pod in pods if pod.started_at_s is not None and pod.started_at_s >= eviction.evicted_at_s]


def _resumed_at(observed: Observed, eviction: Eviction) -> float | None:
    """Since when all of it runs again; None while it does not."""
    root = eviction.workload.uid
    workloads, jobs = observed.workloads_of(root), observed.jobs_of(root)
    # A workload that lost pods only, with their node, was admitted all the time.
    if any(kueue.evicted_at_s is not None or kueue.admitted_at_s is None for kueue in workloads):
        return None
    if any(job.suspended for job in jobs):
        return None
    pods = [pod for pod in observed.pods_of(root) if pod.uid in observed.pods and not pod.lost and not pod.ended]
    running = [pod for pod in pods if pod.started_at_s is not None]
    needed = sum(job.pods for job in jobs) or sum(kueue.pods for kueue in workloads) or max(1, len(pods))
    new = back(observed, eviction)
    if len(running) < needed or not new:
        return None
    return max(pod.started_at_s or 0.0 for pod in new)


def _verified(observed: Observed, eviction: Eviction, was: Return, now_s: float) -> Return:
    """Whether it resumed from its checkpoint. A first step beyond the last known saved one needs a later checkpoint."""
    if was.verified is not None:
        return was
    durable = eviction.last_durable_step
    steps = [
        pod.report.first_step
        for pod in back(observed, eviction)
        if pod.report is not None and pod.report.first_step is not None
    ]
    if steps:
        first = min(steps)
        if durable is None:
            return replace(
                was,
                resumed_step=first,
                verified=Verified.UNKNOWN,
                message="No checkpoint of it was known when it was evicted.",
            )
        if first >= durable:
            return replace(was, resumed_step=first, verified=Verified.YES)
        return replace(
            was,
            resumed_step=first,
            verified=Verified.NO,
            message=f"It resumed at step {first}, although step {durable} had been saved.",
        )
    if now_s - (was.resumed_at_s or 0.0) > UNVERIFIED_AFTER_S:
        return replace(was, verified=Verified.UNKNOWN, message="Its log does not show at which step it resumed.")
    return was
