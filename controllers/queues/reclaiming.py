"""What a conservative queue of Kueue's waits for, and who has borrowed, as ``policies.queues.reclaim`` needs it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import KUEUE_WORKLOADS, PODS, Object
from kopt.cluster.objects.eviction import notice_of
from kopt.cluster.objects.fields import count, items, mapping, text
from kopt.cluster.workloads.kueue.objects import GpuPod, KueueWorkload
from kopt.cluster.workloads.kueue.queues import read_cluster_queue
from kopt.cluster.workloads.kueue.reading import amount, local_queue_target, read_kueue_workload
from kopt.cluster.workloads.queue_trees.live import LiveQueues, read_live
from kopt.controllers.queues.borrowers import (
    HOLDER,
    Borrower,
    LiveQuotas,
    QuotaRoom,
    borrower_of,
    is_ours_to_evict,
    pods_by_workload,
)
from kopt.core.scheduling.queue_tree import Engine, Reclaim
from kopt.core.times import seconds_or_none
from kopt.policies.queues import QueueTree
from kopt.policies.queues.reclaim import (
    DEFAULT_GRACE_S,
    PACE,
    OwnerState,
    Pace,
    ReclaimDecision,
    delayed_reclaim,
    in_order,
)

_MOST_LOOKED_AT = 100
"""Workloads of one queue that are decided about in one pass, the oldest ones."""


@dataclass(frozen=True)
class Step:
    """What is decided for one workload that waits."""

    owner: str
    waits: KueueWorkload
    decision: ReclaimDecision


@dataclass(frozen=True)
class Reclaiming:
    """By conservative queue, what is reported of it; what is decided for its workloads, and the borrowers that these
    decisions name."""

    decisions: Mapping[str, ReclaimDecision] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    borrowers: Mapping[str, Borrower] = field(default_factory=dict)


async def reclaims_due(
    kube: Kube, tree: QueueTree, documents: Mapping[str, Object], now_s: float, pace: Pace = PACE
) -> Reclaiming:
    """``documents`` are the KaiwoQueues, in whose status the last reclaim stands.

    All workloads whose grace is over are served together, so that a queue does not have its quota back one workload
    after the other, each with the time that victims take to end; and one that nobody can make room for does not hold up
    the others.
    """
    owners = [
        name
        for name, queue in tree.queues.items()
        if queue.reclaim is Reclaim.CONSERVATIVE and tree.is_leaf(name) and queue.parent
    ]
    if not owners:
        return Reclaiming()
    live = await read_live(kube, Engine.KUEUE)
    pending = any(_pending(live, name) for name in owners)
    workloads = [read_kueue_workload(item) for item in (await kube.list(KUEUE_WORKLOADS)).items] if pending else []
    waits = {name: _waiting(live, name, workloads, now_s) for name in owners}
    pods = await _pods(kube, tree, waits, workloads, now_s)
    admitted = [each for each in workloads if each.reserved_s is not None and not each.finished]
    quotas, attempts = LiveQuotas(live, admitted), _attempts(workloads)
    decisions, steps, borrowers = dict[str, ReclaimDecision](), list[Step](), dict[str, Borrower]()
    for name in owners:
        plain = _owner(tree, name, documents, is_full=bool(waits[name]))
        own = _borrowed(live, tree, name, admitted, pods, now_s, pace) if waits[name] else []
        of_queue = _steps(plain, waits[name], own, quotas, attempts, now_s, pace)
        steps += of_queue
        borrowers |= {each.run.name: each for each in own}
        nothing = delayed_reclaim(plain, (), _NO_ROOM, now_s, pace)
        decisions[name] = in_order([step.decision for step in of_queue] or [nothing])
    return Reclaiming(decisions, steps, borrowers)


def _steps(
    plain: OwnerState,
    waits: Sequence[KueueWorkload],
    borrowed: Sequence[Borrower],
    quotas: LiveQuotas,
    attempts: Mapping[str, float],
    now_s: float,
    pace: Pace,
) -> list[Step]:
    """For each workload that fits the queue's own quota beside what it uses and what is decided for older ones, up to
    the first whose grace is not over."""
    result = list[Step]()
    for workload in waits:
        free = quotas.free_of_own(plain.name)
        if any(value > free.get(name, 0) for name, value in workload.requests.items() if name != "pods"):
            continue
        since_s, attempted_s = waits_since_s(workload), attempts.get(workload.name)
        owner = replace(plain, waits_since_s=since_s, attempted_s=attempted_s)
        runs = [each.run for each in borrowed if each.run.name in quotas.admitted]
        room = QuotaRoom(quotas, plain.name, workload)
        decision = delayed_reclaim(owner, runs, room, now_s, pace)
        result.append(Step(plain.name, workload, decision))
        if decision.reason.code == "IN_GRACE" or len(result) == _MOST_LOOKED_AT:
            break
        if decision.is_served:
            terminating = [run.name for run in runs if run.terminating] if not room.fits(decision.claimed) else []
            quotas.decide(plain.name, workload, [*terminating, *decision.claimed])
    return result


class _Nowhere:
    def fits(self, evicted: Collection[str]) -> bool:
        return False

    def lends(self, name: str, evicted: Collection[str]) -> bool:
        return False

    def shortfall(self, name: str, evicted: Collection[str]) -> float:
        return 0.0


_NO_ROOM = _Nowhere()


def _owner(tree: QueueTree, name: str, documents: Mapping[str, Object], *, is_full: bool) -> OwnerState:
    grace_s = tree.queues[name].grace_s
    last = seconds_or_none(text(documents.get(name, {}), "status", "lastReclaimTime"))
    return OwnerState(name, DEFAULT_GRACE_S if grace_s is None else grace_s, reclaimed_s=last, is_full=is_full)


def _attempts(workloads: Sequence[KueueWorkload]) -> Mapping[str, float]:
    """When borrowers were first evicted for a workload, of those that are held for it."""
    result = dict[str, float]()
    for workload in workloads:
        notice = notice_of(workload.document) if workload.holder == HOLDER else None
        if notice is not None:
            result[notice.for_whom] = min(result.get(notice.for_whom, notice.at_s), notice.at_s)
    return result


async def _pods(
    kube: Kube,
    tree: QueueTree,
    waits: Mapping[str, Sequence[KueueWorkload]],
    workloads: list[KueueWorkload],
    now_s: float,
) -> Mapping[str, list[GpuPod]]:
    """Read only where a grace is over: pods are many."""
    graces = {name: tree.queues[name].grace_s for name in waits}
    due = any(
        now_s - waits_since_s(own[0]) >= (DEFAULT_GRACE_S if (grace := graces[name]) is None else grace)
        for name, own in waits.items()
        if own
    )
    return pods_by_workload((await kube.list(PODS)).items, workloads) if due else {}


def _pending(live: LiveQueues, name: str) -> bool:
    queue = live.objects.get(("ClusterQueue", "", name))
    return queue is not None and count(queue, "status", "pendingWorkloads", default=0) > 0


def _waiting(live: LiveQueues, name: str, workloads: list[KueueWorkload], now_s: float) -> list[KueueWorkload]:
    """What Kueue may admit in a queue, the oldest first; nothing where the queue takes nothing now."""
    document = live.objects.get(("ClusterQueue", "", name))
    if document is None or not read_cluster_queue(document).active:
        return []
    pending = [workload for workload in workloads if _is_pending_in(live, workload, name, now_s)]
    return sorted(pending, key=lambda workload: (waits_since_s(workload), workload.name))


def waits_since_s(workload: KueueWorkload) -> float:
    """Since when a pending workload waits: since it was created, or evicted."""
    return max(workload.created_s, workload.evicted_at_s or 0.0)


def _is_pending_in(live: LiveQueues, workload: KueueWorkload, name: str, now_s: float) -> bool:
    local = live.objects.get(("LocalQueue", workload.key[0], workload.queue))
    is_there = local is not None and local_queue_target(local) == name
    backs_off = (seconds_or_none(text(workload.document, "status", "requeueState", "requeueAt")) or 0.0) > now_s
    return is_there and not backs_off and workload.reserved_s is None and workload.active and not workload.finished


def _borrowed(
    live: LiveQueues,
    tree: QueueTree,
    name: str,
    admitted: list[KueueWorkload],
    pods: Mapping[str, list[GpuPod]],
    now_s: float,
    pace: Pace,
) -> list[Borrower]:
    """Workloads that may be evicted, of other queues below the same root that use more than their quota."""
    root = tree.lineage(name)[-1]
    queues = {
        other
        for other in tree.queues
        if other != name and tree.lineage(other)[-1] == root and _borrows(live.objects.get(("ClusterQueue", "", other)))
    }
    return [
        borrower_of(
            workload,
            pods.get(workload.uid, ()),
            tree.queues[workload.cluster_queue].min_runtime_s or 0,
            now_s - pace.pause_s,
            now_s,
        )
        for workload in admitted
        if workload.cluster_queue in queues and is_ours_to_evict(workload)
    ]


def _borrows(document: Object | None) -> bool:
    return any(
        amount(mapping(row).get("borrowed")) > 0
        for _, flavor in items(document, "status", "flavorsReservation")
        for _, row in items(flavor, "resources")
    )
