"""What the cluster looks like to the planner of preemption, and to the reconciler's last check before it acts."""

from collections.abc import Mapping, Sequence

from kopt.cluster.workloads.kueue.objects import ClusterQueue, GpuPod, KueueWorkload
from kopt.controllers.preemption.ports import Cluster, ControllerSettings
from kopt.controllers.preemption.snapshot import QueueSnapshot, gang_of
from kopt.policies.preemption import RunningGang
from kopt.policies.quota import QuotaTree

_DAY_S, _PAST_S = 86_400.0, 60.0
NO_QUEUE = ClusterQueue("")


class QueueObserver:
    """Snapshots of ClusterQueues with their cohorts, now and of a moment ago, and gangs with their newest statuses.

    It decides nothing. ``remember`` has to be called at every reconcile: a Workload that has been evicted is still part
    of the snapshot of the moment before.
    """

    def __init__(self, cluster: Cluster, settings: ControllerSettings) -> None:
        self._cluster, self._settings = cluster, settings
        self._ran: dict[str, tuple[KueueWorkload, Sequence[GpuPod]]] = {}

    def remember(self, now_s: float) -> None:
        """Keep what runs now, for ``past_snapshot``."""
        by_uid = {workload.uid: workload for workload in self._cluster.workloads()}
        self._ran = {
            uid: last
            for uid, last in self._ran.items()
            if uid in by_uid and now_s - (by_uid[uid].evicted_at_s or now_s) < _PAST_S
        }
        self._ran |= {uid: (item, self._cluster.pods_of(item)) for uid, item in by_uid.items() if item.running}

    def snapshot(self, workload: KueueWorkload, now_s: float) -> QueueSnapshot:
        """The ClusterQueue of a Workload now, with its cohort."""
        queue = self._cluster.queue_of(workload) or NO_QUEUE
        members = self.members(queue)
        names = {member.name for member in members}
        own = [
            workload
            for workload in self._cluster.workloads()
            if workload.cluster_queue in names and not workload.pending
        ]
        counts = self._cluster.preemptions(now_s - _DAY_S)
        return QueueSnapshot(
            now_s,
            queue,
            own,
            {workload.uid: self._cluster.pods_of(workload) for workload in own if workload.running},
            {workload.uid: max(counts.get(workload.uid, 0), counts.get(workload.owner_uid, 0)) for workload in own},
            self._settings.policy.stale_s,
            workload.came_s,
            members,
            self._cluster.cohorts(),
            self._cluster.flavors(),
        )

    def past_snapshot(self, preemptor: KueueWorkload, now_s: float) -> QueueSnapshot:
        """Its ClusterQueue at the time a Workload was created: Kueue does not wait for us if we only observe."""
        queue = self._cluster.queue_of(preemptor) or NO_QUEUE
        members = self.members(queue)
        names = {member.name for member in members}
        own = {
            workload.uid: (workload, pods)
            for workload, pods in self._ran.values()
            if workload.cluster_queue in names
            and workload.uid != preemptor.uid
            and (workload.reserved_s or 0.0) <= preemptor.created_s
        }
        return QueueSnapshot(
            now_s,
            queue,
            [workload for workload, _ in own.values()],
            {uid: pods for uid, (_, pods) in own.items()},
            stale_s=self._settings.policy.stale_s,
            members=members,
            cohorts=self._cluster.cohorts(),
            flavors=self._cluster.flavors(),
        )

    def members(self, queue: ClusterQueue) -> list[ClusterQueue]:
        """The ClusterQueues of its cohort tree, itself among them."""
        if not queue.cohort:
            return [queue]
        tree = QuotaTree.of([*self._cluster.cohorts(), *(item.node for item in self._cluster.queues())])
        root = tree.lineage(queue.name)[-1:]
        return [item for item in self._cluster.queues() if tree.lineage(item.name)[-1:] == root]

    def gang(self, workload: KueueWorkload, now_s: float, pods: Sequence[GpuPod] | None = None) -> RunningGang | None:
        """The Workload's gang as it runs; None where it uses no GPUs or its queue is not known."""
        flavor_resource = next((use for use in workload.uses if use[1] == workload.gpu_resource), None)
        queue = self._cluster.queue_of(workload)
        if flavor_resource is None or queue is None:
            return None
        own = self._cluster.pods_of(workload) if pods is None else pods
        snapshot = QueueSnapshot(now_s, queue, (), {workload.uid: own}, {}, self._settings.policy.stale_s)
        return gang_of(workload, flavor_resource, snapshot)

    def still_safe(
        self, victims: Sequence[KueueWorkload], now_s: float, pods: Mapping[str, Sequence[GpuPod]] | None = None
    ) -> bool:
        """The last check of the victims; ``pods`` by the Workload's uid, as read from the API server."""
        gangs = [self.gang(workload, now_s, None if pods is None else pods[workload.uid]) for workload in victims]
        return all(gang and all(member.status and member.status.safe for member in gang.members) for gang in gangs)
