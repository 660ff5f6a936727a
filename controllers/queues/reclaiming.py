"""What a conservative queue of Kueue's waits for, and who has borrowed, as ``policies.queues.reclaim`` needs it."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import KUEUE_WORKLOADS, PODS, Object
from kopt.cluster.objects.fields import count, items, mapping, text
from kopt.cluster.workloads.kueue.objects import GpuPod, KueueWorkload
from kopt.cluster.workloads.kueue.queues import read_cluster_queue
from kopt.cluster.workloads.kueue.reading import amount, read_kueue_workload
from kopt.cluster.workloads.queue_trees.live import LiveQueues, read_live
from kopt.controllers.queues.borrowers import Borrower, QuotaRoom, borrower_of, is_ours_to_evict, pods_by_workload
from kopt.core.scheduling.queue_tree import Engine, Reclaim
from kopt.core.times import seconds_or_none
from kopt.policies.queues import QueueTree
from kopt.policies.queues.reclaim import (
    DEFAULT_GRACE_S,
    PAUSE_S,
    OwnerState,
    ReclaimDecision,
    delayed_reclaim,
)


@dataclass(frozen=True)
class Reclaiming:
    """By conservative queue, what is decided, for which workload, and the borrowers that the decision names."""

    decisions: Mapping[str, ReclaimDecision] = field(default_factory=dict)
    waits: Mapping[str, KueueWorkload] = field(default_factory=dict)
    borrowers: Mapping[str, Borrower] = field(default_factory=dict)


async def reclaims_due(kube: Kube, tree: QueueTree, documents: Mapping[str, Object], now_s: float) -> Reclaiming:
    """``documents`` are the KaiwoQueues, in whose status the last reclaim stands."""
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
    waits = {name: workload for name in owners if (workload := _oldest(live, name, workloads)) is not None}
    pods = await _pods(kube, tree, waits, workloads, now_s)
    decisions, borrowers = dict[str, ReclaimDecision](), dict[str, Borrower]()
    for name in owners:
        owner = _owner(tree, name, waits.get(name), documents)
        if name not in waits:
            decisions[name] = delayed_reclaim(owner, (), _NO_ROOM, now_s)
            continue
        admitted = [each for each in workloads if each.reserved_s is not None and not each.finished]
        room = QuotaRoom(live, name, waits[name], admitted)
        own = _borrowed(live, tree, name, admitted, pods, now_s)
        decisions[name] = delayed_reclaim(owner, [each.run for each in own], room, now_s)
        borrowers |= {each.run.name: each for each in own}
    return Reclaiming(decisions, waits, borrowers)


class _Nowhere:
    def fits(self, evicted: Collection[str]) -> bool:
        return False

    def lends(self, name: str, evicted: Collection[str]) -> bool:
        return False


_NO_ROOM = _Nowhere()


def _owner(
    tree: QueueTree,
    name: str,
    waits: KueueWorkload | None,
    documents: Mapping[str, Object],
) -> OwnerState:
    grace_s = tree.queues[name].grace_s
    since_s = None if waits is None else waits_since_s(waits)
    last = seconds_or_none(text(documents.get(name, {}), "status", "lastReclaimTime"))
    return OwnerState(name, DEFAULT_GRACE_S if grace_s is None else grace_s, since_s, last)


async def _pods(
    kube: Kube, tree: QueueTree, waits: Mapping[str, KueueWorkload], workloads: list[KueueWorkload], now_s: float
) -> Mapping[str, list[GpuPod]]:
    """Read only where a grace is over: pods are many."""
    graces = {name: tree.queues[name].grace_s for name in waits}
    due = any(
        now_s - waits_since_s(workload) >= (DEFAULT_GRACE_S if (grace := graces[name]) is None else grace)
        for name, workload in waits.items()
    )
    return pods_by_workload((await kube.list(PODS)).items, workloads) if due else {}


def _pending(live: LiveQueues, name: str) -> bool:
    queue = live.objects.get(("ClusterQueue", "", name))
    return queue is not None and count(queue, "status", "pendingWorkloads", default=0) > 0


def _oldest(live: LiveQueues, name: str, workloads: list[KueueWorkload]) -> KueueWorkload | None:
    """The oldest pending workload that fits into the queue's own quota beside what it uses."""
    document = live.objects.get(("ClusterQueue", "", name))
    if document is None:
        return None
    used = _used(document)
    free: Counter[str] = Counter()
    for (flavor, resource), quota in read_cluster_queue(document).quotas.items():
        free[resource] = max(free[resource], quota.nominal - used[flavor, resource])
    fitting = [
        workload
        for workload in workloads
        if _is_pending_in(live, workload, name)
        and all(value <= free[resource] for resource, value in workload.requests.items() if resource != "pods")
    ]
    return min(fitting, key=lambda workload: (waits_since_s(workload), workload.name), default=None)


def waits_since_s(workload: KueueWorkload) -> float:
    """Since when a pending workload waits: since it was created, or evicted."""
    return max(workload.created_s, workload.evicted_at_s or 0.0)


def _is_pending_in(live: LiveQueues, workload: KueueWorkload, name: str) -> bool:
    local = live.objects.get(("LocalQueue", workload.key[0], workload.queue))
    is_there = local is not None and text(local, "spec", "clusterQueue") == name
    return is_there and workload.reserved_s is None and workload.active and not workload.finished


def _borrowed(
    live: LiveQueues,
    tree: QueueTree,
    name: str,
    admitted: list[KueueWorkload],
    pods: Mapping[str, list[GpuPod]],
    now_s: float,
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
            now_s - PAUSE_S,
            now_s,
        )
        for workload in admitted
        if workload.cluster_queue in queues and is_ours_to_evict(workload)
    ]


def _used(document: Object) -> Counter[tuple[str, str]]:
    return Counter(
        {
            (text(flavor, "name"), text(row, "name")): amount(mapping(row).get("total"))
            for _, flavor in items(document, "status", "flavorsReservation")
            for _, row in items(flavor, "resources")
        }
    )


def _borrows(document: Object | None) -> bool:
    return any(
        amount(mapping(row).get("borrowed")) > 0
        for _, flavor in items(document, "status", "flavorsReservation")
        for _, row in items(flavor, "resources")
    )
