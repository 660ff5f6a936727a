"""What a conservative queue of Kueue's waits for, and who has borrowed, as ``policies.queues.reclaim`` needs it."""

from collections import Counter
from collections.abc import Mapping

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import KUEUE_WORKLOADS, Object
from kopt.cluster.objects.fields import count, items, mapping, text
from kopt.cluster.workloads.kueue import KueueWorkload
from kopt.cluster.workloads.kueue_queues import read_cluster_queue
from kopt.cluster.workloads.kueue_reading import amount, read_kueue_workload, seconds
from kopt.cluster.workloads.queue_trees.live import LiveQueues, read_live
from kopt.core.scheduling.queue_tree import Engine, Reclaim
from kopt.policies.queues import QueueTree
from kopt.policies.queues.reclaim import (
    DEFAULT_GRACE_S,
    BorrowedRun,
    OwnerState,
    ReclaimDecision,
    delayed_reclaim,
)


async def reclaims_due(
    kube: Kube, tree: QueueTree, documents: Mapping[str, Object], now_s: float
) -> dict[str, ReclaimDecision]:
    """By conservative queue; ``documents`` are the KaiwoQueues, in whose status the last reclaim stands."""
    owners = [
        name
        for name, queue in tree.queues.items()
        if queue.reclaim is Reclaim.CONSERVATIVE and tree.is_leaf(name) and queue.parent
    ]
    if not owners:
        return {}
    live = await read_live(kube, Engine.KUEUE)
    pending = any(_pending(live, name) for name in owners)
    workloads = [read_kueue_workload(item) for item in (await kube.list(KUEUE_WORKLOADS)).items] if pending else []
    result = {}
    for name in owners:
        since_s = _waits_since_s(live, name, workloads)
        last = seconds(text(documents.get(name, {}), "status", "lastReclaimTime"))
        grace_s = tree.queues[name].grace_s
        owner = OwnerState(name, DEFAULT_GRACE_S if grace_s is None else grace_s, since_s, last)
        result[name] = delayed_reclaim(owner, _borrowed(live, tree, name, workloads), now_s)
    return result


def _pending(live: LiveQueues, name: str) -> bool:
    queue = live.objects.get(("ClusterQueue", "", name))
    return queue is not None and count(queue, "status", "pendingWorkloads", default=0) > 0


def _waits_since_s(live: LiveQueues, name: str, workloads: list[KueueWorkload]) -> float | None:
    """Of the oldest pending workload that fits into the queue's own quota beside what it uses."""
    document = live.objects.get(("ClusterQueue", "", name))
    if document is None:
        return None
    used = _used(document)
    free: Counter[str] = Counter()
    for (flavor, resource), quota in read_cluster_queue(document).quotas.items():
        free[resource] = max(free[resource], quota.nominal - used[flavor, resource])
    waits = [
        max(workload.created_s, workload.evicted_at_s or 0.0)
        for workload in workloads
        if _is_pending_in(live, workload, name)
        and all(value <= free[resource] for resource, value in workload.requests.items() if resource != "pods")
    ]
    return min(waits, default=None)


def _is_pending_in(live: LiveQueues, workload: KueueWorkload, name: str) -> bool:
    local = live.objects.get(("LocalQueue", workload.key[0], workload.queue))
    is_there = local is not None and text(local, "spec", "clusterQueue") == name
    return is_there and workload.reserved_s is None and workload.active and not workload.finished


def _borrowed(live: LiveQueues, tree: QueueTree, name: str, workloads: list[KueueWorkload]) -> list[BorrowedRun]:
    """Workloads of other queues below the same root that use more than their quota."""
    root = tree.lineage(name)[-1]
    borrowers = {
        other
        for other in tree.queues
        if other != name and tree.lineage(other)[-1] == root and _borrows(live.objects.get(("ClusterQueue", "", other)))
    }
    return [
        BorrowedRun("/".join(workload.key), workload.reserved_s, tree.queues[workload.cluster_queue].min_runtime_s or 0)
        for workload in workloads
        if workload.cluster_queue in borrowers and workload.reserved_s is not None and not workload.finished
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
