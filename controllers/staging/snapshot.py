"""The snapshot on which one reconcile decides."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kopt.cluster.client.resources import Key
from kopt.controllers.staging.ports import Cluster, DataObject, Progresses, StagingSettings, keys_of
from kopt.controllers.staging.views import (
    DownloadJob,
    DownloadPod,
    QueuedWorkload,
    RequestingWorkload,
    StagingNode,
)
from kopt.core.decision import Mode
from kopt.core.staging.staged_data import Amounts, ClaimFolder, Copy, DataPhase, NodeCache, StagedData
from kopt.policies.admission.mode import effective_mode
from kopt.policies.staging.cache import Cached, over_budget, to_evict
from kopt.policies.staging.copies import Run, Verb
from kopt.policies.staging.decide import DataSnapshot, needs_room
from kopt.policies.staging.nodes import CacheNode
from kopt.policies.staging.pod import as_users_know_it

_LOG_GRACE_S = 10.0
_SLOW_S = 60.0
"""A pod starts, or ends, within this time."""
Location = tuple[str, str]
"""Where copies share disk space: (namespace, claim), or ("", node)."""


@dataclass(frozen=True)
class StagingSnapshot:
    """The state at one time. ``jobs``: the newest of our Jobs by the uid of its StagedData, then by location."""

    data_objects: Mapping[Key, DataObject]
    workloads: tuple[RequestingWorkload, ...]
    users: Mapping[Key, tuple[RequestingWorkload, ...]]
    jobs: Mapping[str, Mapping[str, tuple[DownloadJob, Run]]]
    nodes: tuple[StagingNode, ...]
    kueue: Mapping[str, tuple[QueuedWorkload, ...]]
    """Kueue's Workloads by their owner's uid."""
    evicted: frozenset[Key]
    making_room: frozenset[Key]
    """The data for which others are evicted from a full disk."""
    cached: Mapping[Location, Sequence[Cached]]
    folders: Mapping[tuple[str, ClaimFolder], int]
    """How many StagedData keep a copy in a folder of a claim, by namespace and folder."""
    unsettled: bool = False
    """A Job has ended whose pod has not reported its result yet."""

    def data_snapshot(self, staged: DataObject, settings: StagingSettings, now_s: float = 0.0) -> DataSnapshot:
        """What the policy is asked about one StagedData."""
        data = staged.data
        users = self.users.get(data.key, ())
        runs = {
            location: replace(run, message=as_users_know_it(run.message, data, settings.pods))
            for location, (_, run) in self.jobs.get(data.uid, {}).items()
        }
        if data.key in self.making_room:
            soon_s = now_s + settings.rules.first_pause_s
            copies = tuple(
                replace(copy, retry_at_s=min(copy.retry_at_s or soon_s, soon_s)) if needs_room(copy) else copy
                for copy in data.copies
            )
            data = replace(data, copies=copies)
        return DataSnapshot(
            data,
            runs,
            tuple(workload.user for workload in users),
            tuple(gang for workload in users for gang in workload.gangs),
            self._nodes(data, settings),
            data.key in self.evicted,
            self._is_shared(data),
        )

    def job_of(self, data: StagedData, location: str) -> DownloadJob | None:
        result = self.jobs.get(data.uid, {}).get(location)
        return result[0] if result else None

    def running(self, verb: Verb) -> Counter[str]:
        """Number of our Jobs that do this now, by namespace; those whose pods cannot start do not count."""
        result = [(job, run) for of in self.jobs.values() for job, run in of.values() if not run.ended]
        return Counter(job.key[0] for job, run in result if not run.pending_reason and run.verb is verb)

    def _nodes(self, data: StagedData, settings: StagingSettings) -> tuple[CacheNode, ...]:
        destination = data.spec.destination
        if not isinstance(destination, NodeCache):
            return ()
        budget = settings.rules.node_budget_bytes

        def room(name: str) -> int | None:
            used = sum(
                cached.bytes for cached in self.cached.get(("", name), ()) if cached.in_use and cached.key != data.key
            )
            return None if budget is None else budget - used

        return tuple(
            CacheNode(
                node.name,
                room(node.name),
                node.gpus,
                node.usable and set(destination.selector) <= set(node.labels),
                node.machine,
            )
            for node in self.nodes
        )

    def _is_shared(self, data: StagedData) -> bool:
        """Whether another StagedData keeps its copy in the same folder."""
        folder = data.spec.destination
        if not isinstance(folder, ClaimFolder):
            return False
        return self.folders.get((data.namespace, folder), 0) > _keeps_folder(data)


def _keeps_folder(data: StagedData) -> bool:
    return data.phase is not DataPhase.EVICTED and bool(not data.deleting or data.users)


def snapshot_of(cluster: Cluster, progress: Progresses, settings: StagingSettings, now_s: float) -> StagingSnapshot:
    data_objects = {data.data.key: data for data in cluster.data()}
    workloads = tuple(sorted(cluster.workloads(), key=lambda workload: (workload.key, workload.resource.kind)))
    users: dict[Key, list[RequestingWorkload]] = defaultdict(list)
    for workload in workloads:
        if not workload.finished:
            for key in keys_of(workload):
                users[key].append(workload)
    pods: dict[str, list[DownloadPod]] = defaultdict(list)
    for pod in cluster.pods():
        pods[pod.job_uid].append(pod)
    jobs: dict[str, dict[str, tuple[DownloadJob, Run]]] = defaultdict(dict)
    for job in sorted(cluster.jobs(), key=lambda item: item.run.attempt):
        jobs[job.data_uid][job.run.location] = (job, _run(job, pods.get(job.uid, ()), progress, now_s))
    queued: dict[str, tuple[QueuedWorkload, ...]] = {}
    for kueue in cluster.kueue():
        queued[kueue.owner_uid] = (*queued.get(kueue.owner_uid, ()), kueue)
    folders = Counter(
        (data.data.namespace, data.data.spec.destination)
        for data in data_objects.values()
        if isinstance(data.data.spec.destination, ClaimFolder) and _keeps_folder(data.data)
    )
    cached = cached_copies(data_objects.values(), users)
    evicted, making_room = _evicted(data_objects, users, cached, settings, now_s)
    return StagingSnapshot(
        data_objects,
        workloads,
        {key: tuple(several) for key, several in users.items()},
        jobs,
        tuple(cluster.nodes()),
        queued,
        evicted,
        making_room,
        cached,
        folders,
        any(job.run.ended and not run.ended for of in jobs.values() for job, run in of.values()),
    )


def mode_of(cluster: Cluster, namespace: str, own: str, settings: StagingSettings) -> tuple[Mode, bool]:
    """The effective mode in a namespace, and whether it has opted in."""
    space = cluster.namespace(namespace)
    return effective_mode(own, space.mode, settings.mode, settings.workload_may_lower), space.managed


def cached_copies(data_objects: Iterable[DataObject], users: Mapping[Key, object]) -> dict[Location, list[Cached]]:
    """Copies by location."""
    cacheds: dict[Location, list[Cached]] = defaultdict(list)
    for staged in data_objects:
        data = staged.data
        for copy in data.copies:
            size = _size(data, copy)
            if size and not copy.removed:
                last_s = data.last_used_at_s or copy.ready_at_s or data.created_at_s
                in_use = bool(users.get(data.key)) or copy.phase is DataPhase.STAGING
                cacheds[_location(data, copy)].append(Cached(data.key, size, last_s, in_use))
    return cacheds


def _evicted(
    data_objects: Mapping[Key, DataObject],
    users: Mapping[Key, object],
    cached: Mapping[Location, Sequence[Cached]],
    settings: StagingSettings,
    now_s: float,
) -> tuple[frozenset[Key], frozenset[Key]]:
    """Whose copies make room, by the budget of nodes, for a disk that is full, or because nobody came for long; and for
    whom."""
    rules, making_room = settings.rules, set[Key]()
    result = {
        item.key
        for location, several in cached.items()
        if not location[0]
        for item in over_budget(several, rules.node_budget_bytes)
    }
    for key, staged in data_objects.items():
        for copy in staged.data.copies:
            if users.get(key) and (needed := needs_room(copy)):
                evicted = {item.key for item in to_evict(cached.get(_location(staged.data, copy), ()), needed)}
                result |= evicted
                making_room |= {key} if evicted else set()
    if rules.keep_unused_s is not None:
        result |= {
            item.key
            for several in cached.values()
            for item in several
            if not item.in_use and now_s - item.last_used_s >= rules.keep_unused_s
        }
    return frozenset(result), frozenset(making_room)


def _location(data: StagedData, copy: Copy) -> Location:
    destination = data.spec.destination
    return (data.namespace, destination.claim) if isinstance(destination, ClaimFolder) else ("", copy.location)


def _size(data: StagedData, copy: Copy) -> int:
    return (copy.amounts.bytes if copy.amounts else 0) or data.spec.size_bytes or 0


def _stuck(pod: DownloadPod, now_s: float) -> str:
    """Why a pod does not work; empty if it does, or soon may."""
    if pod.deleted_at_s is not None and not pod.ended and now_s - pod.deleted_at_s >= _SLOW_S:
        return (
            f"its pod {pod.key[1]} is to end, and node {pod.node} does not confirm it; if the node is lost, delete it, "
            "or the pod with --force"
        )
    begins = not pod.pending_reason and not pod.running and not pod.ended and pod.scheduled_s is not None
    if begins and now_s - (pod.scheduled_s or now_s) >= _SLOW_S:
        return (
            f"its pod has been on node {pod.node} for more than a minute and has not begun; `kubectl describe pod "
            f"{pod.key[1]}` says why (mostly a volume that cannot be mounted)"
        )
    return pod.pending_reason


def _run(job: DownloadJob, pods: Iterable[DownloadPod], progress: Progresses, now_s: float) -> Run:
    """A Job with what its newest pod reported. Its end counts once the pod's result is there, or overdue."""
    run = job.run
    newest = max(pods, key=lambda pod: (not pod.ended, pod.ended_at_s, pod.started_s), default=None)
    if newest is not None:
        run = replace(
            run, amounts=progress.amounts(newest.uid), pending_reason=run.pending_reason or _stuck(newest, now_s)
        )
    result = newest.result if newest is not None else None
    if not run.ended:
        return run
    if newest is None or result is None or result.complete is not run.ok:
        died = newest.died if newest is not None else ""
        return replace(run, ended=now_s - run.ended_at_s >= _LOG_GRACE_S, message=died or run.message)
    done = run.amounts
    if result.complete and run.verb is Verb.STAGE:
        done = Amounts(result.bytes, result.bytes, result.objects, result.objects, at_s=newest.ended_at_s)
    return replace(
        run,
        reason=result.reason,
        message=result.message,
        digest=result.digest,
        amounts=done,
        ended_at_s=newest.ended_at_s or run.ended_at_s,
    )
