"""The snapshot a decision is made from: one pending Workload and its ClusterQueue. Pure.

Supported are queues outside of cohorts with one flavor per resource: there Kueue preempts within the queue only, and
its victims depend on nothing but priority.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kopt.cluster.workloads.gpu_requests import milli_of
from kopt.cluster.workloads.kueue import ClusterQueue, GpuPod, KueueWorkload
from kopt.controllers.preemption.checkpoint_status import members_of
from kopt.controllers.preemption.save_requests import Saving
from kopt.core.reason import Reason
from kopt.core.units import MilliGpu
from kopt.policies.checkpoint_request import USUAL_S, SaveState
from kopt.policies.preemption import Preemptor, QueueShare, RunningGang, Snapshot

HIGHEST_PRIORITY = 2**31 - 2
MOST_CANDIDATES = 24
"""Gangs that the policy's search considers: it compares sets, for every time that may be cheaper."""
_PREEMPTS = ("LowerPriority", "LowerOrNewerEqualPriority")


@dataclass(frozen=True)
class QueueSnapshot:
    """A ClusterQueue at one time. ``workloads`` are those with a quota reservation; ``pods`` and ``preemptions`` (all
    within a day) by the Workload's uid. Save requests that ended before ``asked_since_s`` do not count."""

    now_s: float
    queue: ClusterQueue
    workloads: Sequence[KueueWorkload]
    pods: Mapping[str, Sequence[GpuPod]] = field(default_factory=dict)
    preemptions: Mapping[str, int] = field(default_factory=dict)
    stale_s: float = 75.0
    asked_since_s: float = float("-inf")

    @property
    def used(self) -> Counter[tuple[str, str]]:
        total: Counter[tuple[str, str]] = Counter()
        for workload in self.workloads:
            if not workload.pending and not workload.finished:
                total.update(workload.uses)
        return total

    def saving(self, workload: KueueWorkload) -> Saving:
        return Saving.of(self.pods.get(workload.uid, ()), self.now_s, self.asked_since_s)


def refusal(preemptor: KueueWorkload, snapshot: QueueSnapshot) -> Reason | None:
    """Why we cannot select Kueue's victims for a Workload; None if we can."""
    queue, resource = snapshot.queue, preemptor.gpu_resource
    if not resource:
        return Reason("NOT_ONE_RESOURCE", f"{preemptor.name} does not request GPUs of exactly one resource.")
    if not queue.active:
        return Reason("QUEUE_STOPPED", f"ClusterQueue {queue.name} admits nothing now.")
    if queue.preempts not in _PREEMPTS:
        return Reason("QUEUE_NEVER_PREEMPTS", f"ClusterQueue {queue.name} has withinClusterQueue: {queue.preempts}.")
    if workload := next(
        (workload for workload in (preemptor, *snapshot.workloads) if workload.mirrored and not workload.finished), None
    ):
        return Reason(
            "MULTIKUEUE",
            f"MultiKueue would delete the job of {workload.name} if its priority differed from that in the other "
            "cluster even for a moment.",
        )
    if queue.cohort:
        return Reason(
            "COHORT",
            f"ClusterQueue {queue.name} is in cohort {queue.cohort}, where Kueue's victims do not depend on "
            "priority alone.",
        )
    if preemptor.priority > HIGHEST_PRIORITY:
        return Reason("PRIORITY_TOO_HIGH", f"No workload can be shielded from priority {preemptor.priority}.")
    for name in sorted(queue.resources & preemptor.requests.keys()):
        if len(queue.flavors(name)) != 1:
            return Reason(
                "SEVERAL_FLAVOURS",
                f"ClusterQueue {queue.name} has {len(queue.flavors(name))} flavors of "
                f"{name}; which one Kueue will choose is unknown.",
            )
    if not queue.flavors(resource):
        return Reason("NOT_IN_QUEUE", f"ClusterQueue {queue.name} has no {resource}.")
    if lacking(preemptor, snapshot, freed=snapshot.used):
        return Reason("TOO_LARGE", f"{preemptor.name} requests more than all of ClusterQueue {queue.name}.")
    return None


def lacking(
    preemptor: KueueWorkload, snapshot: QueueSnapshot, freed: Mapping[tuple[str, str], int] | None = None
) -> list[str]:
    """Resources of which the queue has too little for a Workload once ``freed`` is returned."""
    used, returned = snapshot.used, freed or {}
    return sorted(
        resource
        for flavor_resource, quota in snapshot.queue.quota.items()
        if (resource := flavor_resource[1]) in preemptor.requests
        and used[flavor_resource] - returned.get(flavor_resource, 0) + preemptor.requests[resource] > quota
    )


def would_preempt(preemptor: KueueWorkload, snapshot: QueueSnapshot) -> bool:
    """Whether Kueue would preempt now: there is too little quota, and a running Workload of lower priority."""
    if refusal(preemptor, snapshot) or not lacking(preemptor, snapshot):
        return False
    return any(workload.running and workload.priority < preemptor.priority for workload in snapshot.workloads)


def snapshot_for(preemptor: KueueWorkload, snapshot: QueueSnapshot, budget_s: float) -> Snapshot:
    """The policy's snapshot for a Workload without ``refusal``. Free GPUs are those of the queue's quota, on whatever
    nodes; negative if the quota was reduced."""
    flavor_resource = _flavor_resource(preemptor, snapshot.queue)
    used = snapshot.used[flavor_resource]
    quota = snapshot.queue.quota[flavor_resource]
    name = snapshot.queue.name
    share = QueueShare(name, _gpus(flavor_resource, quota), _gpus(flavor_resource, used))
    gpus = _gpus(flavor_resource, preemptor.requests[flavor_resource[1]])
    return Snapshot(
        Preemptor(preemptor.name, name, preemptor.priority, gpus, preemptor.came_s, budget_s),
        shortlist([gang_of(workload, flavor_resource, snapshot) for workload in candidates(preemptor, snapshot)], gpus),
        snapshot.now_s,
        {name: share},
        {"": share.guaranteed - share.used},
    )


def candidates(preemptor: KueueWorkload, snapshot: QueueSnapshot) -> list[KueueWorkload]:
    """Workloads running in the queue on the requested kind of GPU, of the lowest priorities that have enough.

    A victim with a higher priority than these would preempt them in turn.
    """
    flavor_resource = _flavor_resource(preemptor, snapshot.queue)
    running = [
        workload
        for workload in snapshot.workloads
        if workload.running and workload.uses.get(flavor_resource) and workload.uid != preemptor.uid
    ]
    missing = preemptor.requests[flavor_resource[1]] - (
        snapshot.queue.quota[flavor_resource] - snapshot.used[flavor_resource]
    )
    for level in sorted({workload.priority for workload in running}):
        missing -= sum(workload.uses[flavor_resource] for workload in running if workload.priority == level)
        if missing <= 0:
            return [workload for workload in running if workload.priority <= level]
    return running


def shortlist(gangs: Sequence[RunningGang], wanted: int) -> tuple[RunningGang, ...]:
    """The gangs to search: the cheapest now, and the newest, which Kueue would preempt; of both at least as many as
    free what is requested. All gangs if they are few."""
    if len(gangs) <= MOST_CANDIDATES:
        return tuple(gangs)
    selected: dict[str, RunningGang] = {}
    for order in (sorted(gangs, key=_lost_gpu_s), sorted(gangs, key=lambda gang: (gang.priority, -gang.started_at_s))):
        freed = 0
        for number, running_gang in enumerate(order):
            if number >= MOST_CANDIDATES // 2 and freed >= wanted:
                break
            selected[running_gang.name] = running_gang
            freed += running_gang.gpus
    return tuple(selected.values())


def _lost_gpu_s(gang: RunningGang) -> tuple[bool, float, str]:
    """Gangs that are safe to kill first, by GPU-seconds lost per GPU; then those that may become safe."""
    job_statuses = [member.status for member in gang.members]
    risks = [job_status.work_at_risk_gpu_seconds for job_status in job_statuses if job_status and job_status.safe]
    loss = sum(estimate.value for estimate in risks if estimate) / max(1, gang.gpus)
    return (
        len(risks) < len(job_statuses),
        loss if any(job_status and job_status.evidence for job_status in job_statuses) else float("inf"),
        gang.name,
    )


def gang_of(workload: KueueWorkload, flavor_resource: tuple[str, str], snapshot: QueueSnapshot) -> RunningGang:
    gpus = _gpus(flavor_resource, workload.uses[flavor_resource])
    members = members_of(gpus, snapshot.pods.get(workload.uid, ()), snapshot.now_s, snapshot.stale_s)
    saving = snapshot.saving(workload)
    return RunningGang(
        workload.name,
        snapshot.queue.name,
        workload.priority,
        members,
        workload.reserved_s or 0.0,
        preemptible=workload.holder in ("", "preemption"),
        preemptions=snapshot.preemptions.get(workload.uid, 0),
        saves_s=USUAL_S if saving.state is SaveState.ASKABLE else None,
        saved_at_s=saving.saved_at_s,
    )


def freed_by(victims: Iterable[KueueWorkload]) -> Counter[tuple[str, str]]:
    total: Counter[tuple[str, str]] = Counter()
    for workload in victims:
        total.update(workload.uses)
    return total


def to_shield(preemptor: KueueWorkload, snapshot: QueueSnapshot, spared: Iterable[str]) -> list[KueueWorkload]:
    """Workloads that Kueue could preempt and must not: all below the shielding priority, except ``spared`` uids."""
    named = set(spared)
    return [
        workload
        for workload in snapshot.workloads
        if workload.running
        and workload.uid not in named
        and workload.uid != preemptor.uid
        and workload.priority <= preemptor.priority
        and not workload.mirrored
    ]


def too_little(preemptor: KueueWorkload, missing: Sequence[str]) -> Reason:
    text = f"{preemptor.name} also lacks {', '.join(missing)}, which is not considered; Kueue applies its own rules."
    return Reason("OTHER_RESOURCES", text)


def _flavor_resource(preemptor: KueueWorkload, queue: ClusterQueue) -> tuple[str, str]:
    resource = preemptor.gpu_resource
    return queue.flavors(resource)[0], resource


def _gpus(flavor_resource: tuple[str, str], thousandths: int) -> MilliGpu:
    return MilliGpu(thousandths * milli_of(flavor_resource[1], 1) // 1000)
