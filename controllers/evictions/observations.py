"""What informers have shown, kept for as long as evictions may be detected in it.

The version of an object that shows its eviction is kept, although a later one may follow before it is evaluated; and
so are deleted pods, with their last checkpoint status.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from kopt.cluster.client.resources import Key
from kopt.cluster.objects.kaiwo_workloads import GpuWorkload
from kopt.cluster.runtime.isolation import Subject
from kopt.cluster.workloads.tracked_pod import TrackedPod, group_anchor
from kopt.controllers.evictions.views import TrackedJob, TrackedPodGroup, TrackedWorkload
from kopt.core.scheduling.eviction import Notice, WorkloadRef

FORGOTTEN_AFTER_S = 900.0
"""Deleted objects are kept for so long."""
MOST_TIMES = 100
"""Of one workload the last evictions are kept: earlier ones have been recorded long before."""


@dataclass(frozen=True)
class Lost:
    """A pod that ran and was evicted or deleted. ``observed_at_s``: when that was first noticed, by our clock."""

    pod: TrackedPod
    at_s: float
    observed_at_s: float


class Evicted(NamedTuple):
    """KAI's event: this group was evicted for that one."""

    at_s: float
    for_whom: str
    message: str


class Observed:
    """``clock`` is monotonic. ``dirty`` are uids of workloads with changes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.pods: dict[str, TrackedPod] = {}
        self.jobs: dict[str, TrackedJob] = {}
        self.workloads: dict[str, TrackedWorkload] = {}
        self.groups: dict[Key, TrackedPodGroup] = {}
        self.lost: dict[str, Lost] = {}
        self.evicted: dict[str, dict[float, TrackedWorkload]] = defaultdict(dict)
        """By root and time: Workloads as they were evicted."""
        self.suspended: dict[str, dict[float, TrackedJob]] = defaultdict(dict)
        self.group_evictions: dict[Key, Evicted] = {}
        self.kaiwos: dict[Key, GpuWorkload] = {}
        """What Kaiwo measures, and deletes when it idles."""
        self.by_kaiwo: dict[str, GpuWorkload] = {}
        """By root: those that it has deleted."""
        self.notices: dict[str, Notice] = {}
        """The newest of each object, by uid."""
        self.first_suspended: set[str] = set()
        """Jobs that were suspended already when they were first seen."""
        self.dirty: set[str] = set()
        self._pods_of: dict[str, set[str]] = defaultdict(set)
        self._jobs_of: dict[str, set[str]] = defaultdict(set)
        self._owners: dict[str, WorkloadRef] = {}
        """Of Jobs, also of deleted ones: their pods go after them."""
        self._workloads_of: dict[str, set[str]] = defaultdict(set)
        self._groups_of: dict[str, set[Key]] = defaultdict(set)

    # --- What came ---------------------------------------------------------------------------------------------------

    def pod(self, old: TrackedPod | None, new: TrackedPod | None) -> None:
        pod = new or old
        assert pod is not None
        before = self.pods.get(pod.uid)
        if new is None:
            self.pods.pop(pod.uid, None)
            self._record_loss(before or pod)
        else:
            self.pods[pod.uid] = _with_memory(pod, before)
            self._pods_of[pod.anchor].add(pod.uid)
            self._notice(pod.uid, pod.notice)
            if pod.lost:
                self._record_loss(self.pods[pod.uid])
        self.dirty.add(self.root_of(pod).uid)

    def job(self, old: TrackedJob | None, new: TrackedJob | None) -> None:
        job = new or old
        assert job is not None
        root = job.owner or job.ref
        if new is None:
            self.jobs.pop(job.uid, None)
        else:
            if job.uid not in self.jobs and job.suspended:
                self.first_suspended.add(job.uid)
            self.jobs[job.uid] = job
            if job.owner is not None:
                self._jobs_of[job.owner.uid].add(job.uid)
                self._owners[job.uid] = job.owner
            if job.suspended and job.suspended_at_s is not None:
                self.suspended[root.uid].setdefault(job.suspended_at_s, job)
            self._notice(job.uid, job.notice)
        self.dirty.add(root.uid)

    def workload(self, old: TrackedWorkload | None, new: TrackedWorkload | None) -> None:
        workload = new or old
        assert workload is not None
        root = workload.owner or workload.ref
        if new is None:
            self.workloads.pop(workload.uid, None)
        else:
            self.workloads[workload.uid] = workload
            self._workloads_of[root.uid].add(workload.uid)
            if workload.evicted_at_s is not None and workload.ran:
                self.evicted[root.uid].setdefault(workload.evicted_at_s, workload)
            self._notice(workload.uid, workload.notice)
        self.dirty.add(root.uid)

    def group(self, old: TrackedPodGroup | None, new: TrackedPodGroup | None) -> None:
        group = new or old
        assert group is not None
        root = (group.owner or group.ref).uid
        if new is None:
            self.groups.pop(group.key, None)
        else:
            self.groups[group.key] = group
            self._groups_of[root].add(group.key)
        self.dirty.add(root)

    def kaiwo(self, old: GpuWorkload | None, new: GpuWorkload | None) -> None:
        tracked = new or old
        assert tracked is not None
        root = tracked.workload.uid
        if new is None:
            self.kaiwos.pop(tracked.key, None)
            self.by_kaiwo.pop(root, None)
        else:
            self.kaiwos[new.key] = new
            if new.was_preempted:
                self.by_kaiwo[root] = new
        self.dirty.add(root)

    def group_evicted(self, key: Key, result: Evicted) -> None:
        previous = self.group_evictions.get(key)
        if previous is None or previous.at_s <= result.at_s:
            self.group_evictions[key] = result
        if (group := self.groups.get(key)) is not None:
            self.dirty.add((group.owner or group.ref).uid)

    def forget(self) -> None:
        """Drop what was deleted long ago; called now and then."""
        now_s = self._clock()
        for uid in [
            uid
            for uid, lost in self.lost.items()
            if uid not in self.pods and now_s - lost.observed_at_s > FORGOTTEN_AFTER_S
        ]:
            anchor_uid = self.lost.pop(uid).pod.anchor
            self._pods_of[anchor_uid].discard(uid)
            if not self._pods_of[anchor_uid]:
                del self._pods_of[anchor_uid]
        present = {*self.pods, *self.jobs, *self.workloads}
        roots = {(job.owner or job.ref).uid for job in self.jobs.values()}
        roots |= {(kueue.owner or kueue.ref).uid for kueue in self.workloads.values()}
        for index in (self.evicted, self.suspended):
            for uid in [uid for uid in index if uid not in roots]:
                del index[uid]
            for of in index.values():
                for at_s in sorted(of)[:-MOST_TIMES]:
                    del of[at_s]
        for uid in [uid for uid in self.notices if uid not in present]:
            del self.notices[uid]
        for root in [root for root, keys in self._groups_of.items() if not keys & self.groups.keys()]:
            del self._groups_of[root]
        for key in [key for key in self.group_evictions if key not in self.groups]:
            del self.group_evictions[key]
        self.first_suspended &= self.jobs.keys()
        for index_of in (self._jobs_of, self._workloads_of):
            for uid in [uid for uid, of in index_of.items() if not of & present]:
                del index_of[uid]
        jobs = {uid for of in self._jobs_of.values() for uid in of}
        self._owners = {uid: owner for uid, owner in self._owners.items() if uid in jobs}

    # --- What belongs together ---------------------------------------------------------------------------------------

    def root_of(self, pod: TrackedPod) -> WorkloadRef:
        """The workload of a pod, as its queue sees it."""
        if pod.owner is not None:
            return self._owners.get(pod.owner.uid, pod.owner)
        if pod.kueue_group:
            key = (pod.key[0], pod.kueue_group)
            result = next((kueue for kueue in self.workloads.values() if kueue.key == key), None)
            return (
                result.ref if result is not None else WorkloadRef("kueue.x-k8s.io", "Workload", key[1], "/".join(key))
            )
        group = self.groups.get((pod.key[0], pod.group)) if pod.group else None
        if group is not None:
            return group.owner or group.ref
        return pod.ref

    def everything(self) -> set[str]:
        """The uids of all workloads."""
        result = {self.root_of(lost.pod).uid for lost in self.lost.values()}
        return (
            result
            | {*self.evicted, *self.suspended, *self.by_kaiwo}
            | {(job.owner or job.ref).uid for job in self.jobs.values()}
        )

    def jobs_of(self, root: str) -> list[TrackedJob]:
        uids = {root, *self._jobs_of.get(root, ())}
        return [self.jobs[uid] for uid in uids if uid in self.jobs]

    def subject_of(self, root: str) -> Subject:
        """The object with this uid, for failures that are about it; without a name where it was never seen."""
        owners: list[TrackedJob | TrackedWorkload] = [*self.jobs.values(), *self.workloads.values()]
        for owned in owners:
            for ref in (owned.ref, owned.owner):
                if ref is not None and ref.uid == root:
                    return Subject(ref.api_version, ref.kind, owned.key[0], ref.name, ref.uid)
        pod = next(self.pods_of(root), None)
        return Subject("v1", "Pod", *pod.key, pod.uid) if pod is not None else Subject("", "Workload", "", "", root)

    def workloads_of(self, root: str) -> list[TrackedWorkload]:
        return [self.workloads[uid] for uid in self._workloads_of.get(root, ()) if uid in self.workloads]

    def groups_of(self, root: str) -> list[TrackedPodGroup]:
        return [self.groups[key] for key in self._groups_of.get(root, ()) if key in self.groups]

    def pods_of(self, root: str) -> Iterator[TrackedPod]:
        """Including deleted ones."""
        for anchor_uid in self._anchors(root):
            for uid in sorted(self._pods_of.get(anchor_uid, ())):
                if uid in self.pods:
                    yield self.pods[uid]
                elif uid in self.lost:
                    yield self.lost[uid].pod

    def notices_of(self, root: str) -> list[Notice]:
        uids = [root, *self._jobs_of.get(root, ()), *self._workloads_of.get(root, ())]
        uids += [pod.uid for pod in self.pods_of(root)]
        return [self.notices[uid] for uid in dict.fromkeys(uids) if uid in self.notices]

    def _anchors(self, root: str) -> list[str]:
        anchors = [root, *self._jobs_of.get(root, ())]
        anchors += [
            group_anchor(*self.workloads[uid].key) for uid in self._workloads_of.get(root, ()) if uid in self.workloads
        ]
        anchors += [group_anchor(*group.key) for group in self.groups_of(root)]
        return anchors

    def _notice(self, uid: str, notice: Notice | None) -> None:
        previous = self.notices.get(uid)
        if notice is not None and (previous is None or previous.at_s <= notice.at_s):
            self.notices[uid] = notice

    def _record_loss(self, pod: TrackedPod) -> None:
        # Deleted without a trace before: forced by its user.
        at_s = pod.disruption.at_s if pod.disruption is not None else pod.deleted_at_s
        at_s = float("inf") if at_s is None else at_s
        previous = self.lost.get(pod.uid)
        if previous is None:
            self.lost[pod.uid] = Lost(pod, at_s, self._clock())
        else:
            # Later reports count; the time of the loss does not change.
            self.lost[pod.uid] = Lost(pod, min(at_s, previous.at_s), previous.observed_at_s)


def _with_memory(pod: TrackedPod, before: TrackedPod | None) -> TrackedPod:
    """A pod with its start time and last report, also once it has ended or is ending."""
    if before is None:
        return pod
    if before.ended and before.disruption is None:
        # The deletion of an ended pod is no eviction.
        pod = replace(pod, disruption=None)
    return replace(
        # A pod that ends because of its eviction had not ended before.
        pod,
        ended=pod.ended and (before.ended or not before.lost),
        started_at_s=pod.started_at_s or (before.started_at_s if pod.lost or pod.ended else None),
        report=pod.report or before.report,
        disruption=pod.disruption or before.disruption,
    )
