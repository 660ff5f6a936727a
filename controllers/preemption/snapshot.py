"""The snapshot a decision is made from: one pending Workload, its ClusterQueue, and the cohort that this lies in. Pure.

Victims count only for the limits of quota that they free: in a flavour that the Workload can be given, and in a queue
from which its own may take quota back (``policies.quota``).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from kopt.cluster.checkpoints.save_requests import Saving
from kopt.cluster.checkpoints.status import members_of
from kopt.cluster.workloads.kueue.objects import ClusterQueue, Flavor, GpuPod, KueueWorkload
from kopt.cluster.workloads.kueue.queues import admitted_of, demand_of
from kopt.cluster.workloads.requests.gpus import gpus_in
from kopt.core.reason import Reason
from kopt.core.scheduling.classify import preemption_bar
from kopt.core.scheduling.quota import Admitted, Demand, QuotaNode
from kopt.core.workload.save_state import USUAL_S, SaveState
from kopt.policies.preemption import Preemptor, QueueShare, RunningGang, Snapshot
from kopt.policies.preemption.search import Need
from kopt.policies.quota import Assignment, Limits, Mode, QuotaTree, assign, limits

HIGHEST_PRIORITY = 2**31 - 2
MOST_CANDIDATES = 24
"""Gangs that the policy's search considers: it compares sets, for every time that may be cheaper."""
_PREEMPTS = ("LowerPriority", "LowerOrNewerEqualPriority")
_RECLAIMS = (*_PREEMPTS, "Any")


@dataclass(frozen=True)
class QueueSnapshot:
    """A ClusterQueue at one time. ``workloads`` are those with a quota reservation; ``pods`` and ``preemptions`` (all
    within a day) by the Workload's uid. Save requests that ended before ``requests_since_s`` do not count.

    ``members``: the other ClusterQueues of its cohort tree, whose workloads are among ``workloads``; ``cohorts``: the
    nodes between. ``flavors``: the ResourceFlavors by name; None: all have the same kind of nodes.
    """

    now_s: float
    queue: ClusterQueue
    workloads: Sequence[KueueWorkload]
    pods: Mapping[str, Sequence[GpuPod]] = field(default_factory=dict)
    preemptions: Mapping[str, int] = field(default_factory=dict)
    stale_s: float = 75.0
    requests_since_s: float = float("-inf")
    members: Sequence[ClusterQueue] = ()
    cohorts: Sequence[QuotaNode] = ()
    flavors: Mapping[str, Flavor] | None = None

    @cached_property
    def admitted(self) -> list[Admitted]:
        return [admitted_of(workload) for workload in self.workloads if not workload.pending and not workload.finished]

    @cached_property
    def tree(self) -> QuotaTree:
        """The quota of the cohort tree with its usage."""
        queues = [self.queue, *(queue for queue in self.members if queue.name != self.queue.name)]
        return QuotaTree.of([*self.cohorts, *(queue.node for queue in queues)], self.admitted)

    def demand(self, workload: KueueWorkload) -> Demand:
        return demand_of(workload, self.queue, self.flavors)

    def assignment(self, workload: KueueWorkload, raised: Collection[str] = ()) -> Assignment:
        """What Kueue would do about a Workload now, if those of these names were shielded from it."""
        shield = workload.priority + 1
        admitted = [replace(item, priority=shield) if item.name in raised else item for item in self.admitted]
        return assign(self.demand(workload), self.queue.rules, self.tree, admitted)

    def gpu_flavors(self, workload: KueueWorkload) -> list[str]:
        """The flavours that all pods of a Workload with GPUs may be given, in the queue's order."""
        resource = workload.gpu_resource
        sets = [pods.flavors for pods in self.demand(workload).pod_sets if pods.requests.get(resource)]
        return [name for name in self.queue.flavors(resource) if all(name in allowed for allowed in sets)]

    def saving(self, workload: KueueWorkload) -> Saving:
        return Saving.of(self.pods.get(workload.uid, ()), self.now_s, self.requests_since_s)


def refusal(preemptor: KueueWorkload, snapshot: QueueSnapshot) -> Reason | None:
    """Why we cannot select Kueue's victims for a Workload; None if we can."""
    queue, resource = snapshot.queue, preemptor.gpu_resource
    if not resource:
        return Reason("NOT_ONE_RESOURCE", f"{preemptor.name} does not request GPUs of exactly one resource.")
    if not queue.active:
        return Reason("QUEUE_STOPPED", f"ClusterQueue {queue.name} admits nothing now.")
    if queue.rules.within not in _PREEMPTS and not (queue.cohort and queue.rules.reclaim in _RECLAIMS):
        return Reason(
            "QUEUE_NEVER_PREEMPTS", f"ClusterQueue {queue.name} has withinClusterQueue: {queue.rules.within}."
        )
    if workload := next(
        (workload for workload in (preemptor, *snapshot.workloads) if workload.mirrored and not workload.finished), None
    ):
        return Reason(
            "MULTIKUEUE",
            f"MultiKueue would delete the job of {workload.name} if its priority differed from that in the other "
            "cluster even for a moment.",
        )
    if workload := next((each for each in (preemptor, *snapshot.workloads) if each.is_ordered), None):
        return Reason(
            "ORDER_STANDS", f"The priority of {workload.name} is its rank in an order, until it has its own back."
        )
    if queue.fair:
        return Reason("COHORT", f"Kueue shares fairly in ClusterQueue {queue.name}; its victims are not by priority.")
    if preemptor.priority > HIGHEST_PRIORITY:
        return Reason("PRIORITY_TOO_HIGH", f"No workload can be shielded from priority {preemptor.priority}.")
    if not queue.flavors(resource):
        return Reason("NOT_IN_QUEUE", f"ClusterQueue {queue.name} has no {resource}.")
    if not snapshot.gpu_flavors(preemptor) or (queue.preference and len(queue.flavors(resource)) > 1):
        names = ", ".join(queue.flavors(resource))
        text = (
            f"None of the flavors of ClusterQueue {queue.name} ({names}) is known to suit all pods of {preemptor.name}."
        )
        return Reason("SEVERAL_FLAVOURS", text)
    if snapshot.assignment(preemptor).mode is Mode.NO_FIT:
        return _too_large(preemptor, snapshot)
    return None


def _too_large(preemptor: KueueWorkload, snapshot: QueueSnapshot) -> Reason:
    queue, names = snapshot.queue, ", ".join(snapshot.gpu_flavors(preemptor))
    if not queue.cohort and len(queue.flavors(preemptor.gpu_resource)) == 1:
        return Reason("TOO_LARGE", f"{preemptor.name} requests more than all of ClusterQueue {queue.name}.")
    where = f" or may take back in cohort {queue.cohort}" if queue.cohort else ""
    text = f"{preemptor.name} requests more than all that ClusterQueue {queue.name} has{where}, in flavor {names}."
    return Reason("TOO_LARGE", text)


def lacking(preemptor: KueueWorkload, snapshot: QueueSnapshot, victims: Iterable[KueueWorkload] = ()) -> list[str]:
    """Resources of which the queue has too little for a Workload, in every flavour, once ``victims`` are gone."""
    tree = snapshot.tree
    admissions = [admitted_of(workload) for workload in victims]
    for workload in admissions:
        tree.add(workload.queue, workload.uses, -1)
    result = sorted(
        resource
        for resource in snapshot.queue.resources
        if (wanted := preemptor.requests.get(resource, 0))
        and all(
            wanted > tree.available(snapshot.queue.name, (name, resource)) for name in snapshot.queue.flavors(resource)
        )
    )
    for workload in admissions:
        tree.add(workload.queue, workload.uses)
    return result


def would_preempt(preemptor: KueueWorkload, snapshot: QueueSnapshot) -> bool:
    """Whether Kueue would preempt a running Workload of lower priority now."""
    if refusal(preemptor, snapshot):
        return False
    return any(victim.priority < preemptor.priority for victim in snapshot.assignment(preemptor).victims)


def differs(preemptor: KueueWorkload, snapshot: QueueSnapshot, victims: Sequence[KueueWorkload]) -> Reason | None:
    """Why Kueue would not preempt exactly these while all others are shielded; None if it would."""
    names = {workload.name for workload in victims}
    raised = {workload.name for workload in to_shield(preemptor, snapshot, {workload.uid for workload in victims})}
    own = {victim.name for victim in snapshot.assignment(preemptor, raised).victims}
    if own == names:
        return None
    if missing := lacking(preemptor, snapshot, victims):
        return too_little(preemptor, missing)
    text = (
        f"{', '.join(sorted(names))} would lose least, and Kueue would preempt {', '.join(sorted(own)) or 'nobody'} in "
        f"cohort {snapshot.queue.cohort or snapshot.queue.name} whatever their priority; it is left to Kueue."
    )
    return Reason("COHORT", text)


def snapshot_for(preemptor: KueueWorkload, snapshot: QueueSnapshot, budget_s: float) -> Snapshot:
    """The policy's snapshot for a Workload without ``refusal``. Free GPUs are those of quota, by the limits that apply,
    on whatever nodes; negative if a quota was reduced."""
    resource, queue = preemptor.gpu_resource, snapshot.queue.name
    flavors = snapshot.gpu_flavors(preemptor)
    bounds = limits(
        snapshot.demand(preemptor), snapshot.queue.rules, snapshot.tree, snapshot.admitted, resource, flavors
    )
    gpus = gpus_in(resource, preemptor.requests[resource])
    own, *others = [_share_name(queue, name, snapshot.queue.flavors(resource)) for name in flavors]
    free = {key: gpus_in(resource, amount) for key, amount in bounds.free.items()}
    need = Need(1, gpus, free, rooms=tuple(bounds.rooms))
    gangs = _gangs(preemptor, snapshot, bounds)
    if snapshot.queue.rules.reclaim == "Any":
        # Kueue takes quota back from other queues first, and no priority shields their workloads.
        reclaimed = [gang for gang in gangs if gang.queue not in (own, *others)]
        gangs = reclaimed if _suffice(reclaimed, need) else gangs
    return Snapshot(
        Preemptor(
            preemptor.name, own, preemptor.priority, gpus, preemptor.came_s, budget_s, alternatives=tuple(others)
        ),
        shortlist(_lowest(gangs, need), gpus),
        snapshot.now_s,
        _shares(snapshot, resource, flavors),
        free,
        tuple(bounds.rooms),
    )


def _gangs(preemptor: KueueWorkload, snapshot: QueueSnapshot, bounds: Limits) -> list[RunningGang]:
    """Workloads that free quota which the preemptor needs."""
    resource, names = preemptor.gpu_resource, snapshot.queue.flavors(preemptor.gpu_resource)
    result = []
    for workload in snapshot.workloads:
        frees = bounds.frees.get(workload.name)
        if frees and workload.running and workload.uid != preemptor.uid:
            flavor = bounds.flavors[workload.name]
            gang = gang_of(workload, (flavor, resource), snapshot)
            result.append(replace(gang, queue=_share_name(workload.cluster_queue, flavor, names), frees=frees))
    return result


def _lowest(gangs: Sequence[RunningGang], need: Need) -> list[RunningGang]:
    """Those of the lowest priorities that free enough.

    A victim with a higher priority than these would preempt them in turn.
    """
    for level in sorted({gang.priority for gang in gangs}):
        lowest = [gang for gang in gangs if gang.priority <= level]
        if _suffice(lowest, need):
            return lowest
    return list(gangs)


def _suffice(gangs: Iterable[RunningGang], need: Need) -> bool:
    free = Counter(need.free)
    for gang in gangs:
        for key, amount in gang.freed:
            free[key] += amount
    return need.met_by(free)


def _shares(snapshot: QueueSnapshot, resource: str, flavors: Sequence[str]) -> dict[str, QueueShare]:
    """What each queue and cohort of the tree is guaranteed and uses, in each flavour."""
    tree, names = snapshot.tree, snapshot.queue.flavors(resource)
    shares = [
        QueueShare(
            _share_name(key, flavor, names),
            gpus_in(resource, tree.subtree(key, (flavor, resource))),
            gpus_in(resource, tree.used(key, (flavor, resource))),
            parent=_share_name(node.parent, flavor, names) if node.parent else "",
        )
        for flavor in flavors
        for key, node in tree.nodes.items()
    ]
    return {share.name: share for share in shares}


def _share_name(key: str, flavor: str, flavors: Sequence[str]) -> str:
    return key if len(flavors) == 1 else f"{key} (flavor {flavor})"


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
    gpus = gpus_in(flavor_resource[1], workload.uses[flavor_resource])
    members = members_of(gpus, snapshot.pods.get(workload.uid, ()), snapshot.now_s, snapshot.stale_s)
    saving = snapshot.saving(workload)
    return RunningGang(
        workload.name,
        workload.cluster_queue,
        workload.priority,
        members,
        workload.reserved_s or 0.0,
        preemptible=workload.holder in ("", "preemption"),
        preemptions=snapshot.preemptions.get(workload.uid, 0),
        saves_s=USUAL_S if saving.state is SaveState.ASKABLE else None,
        saved_at_s=saving.saved_at_s,
        barred_by_class=preemption_bar(workload.name, workload.classified),
    )


def to_shield(preemptor: KueueWorkload, snapshot: QueueSnapshot, spared: Iterable[str]) -> list[KueueWorkload]:
    """Workloads that Kueue could preempt and must not: all below the shielding priority, except ``spared`` uids."""
    named, rules = set(spared), snapshot.queue.rules
    flavors = {name for pods in snapshot.demand(preemptor).pod_sets for name in pods.flavors}
    return [
        workload
        for workload in snapshot.workloads
        if workload.running
        and workload.uid not in named
        and workload.uid != preemptor.uid
        and workload.priority <= preemptor.priority
        and not workload.mirrored
        and (workload.cluster_queue == snapshot.queue.name or rules.reclaim in _RECLAIMS)
        and any(flavor in flavors for flavor, _ in workload.uses)
    ]


def too_little(preemptor: KueueWorkload, missing: Sequence[str]) -> Reason:
    text = f"{preemptor.name} also lacks {', '.join(missing)}, which is not considered; Kueue applies its own rules."
    return Reason("OTHER_RESOURCES", text)
