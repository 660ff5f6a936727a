"""Borrowers under Kueue: a ClusterQueue's quota, its Workloads, and their gangs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kopt.cluster.client.resources import KUEUE_CLUSTER_QUEUES, KUEUE_WORKLOADS, Object
from kopt.cluster.holds.hold import holder_of, undo_of
from kopt.cluster.holds.quota_loan import LENDING_LIMIT, QuotaPath, is_same, quota_from_undo, value_at
from kopt.cluster.objects.fields import at, items, text
from kopt.cluster.workloads.kueue.objects import ClusterQueue, Flavor, KueueWorkload
from kopt.cluster.workloads.kueue.queues import (
    admitted_of,
    charged_of,
    demand_of,
    not_in_thousandths,
    read_cluster_queue,
)
from kopt.cluster.workloads.kueue.reading import amount
from kopt.cluster.workloads.requests.gpus import milli_of, per_device
from kopt.controllers.lending.queueing.borrowers import Sorting, Weighing
from kopt.controllers.lending.state import LiveCluster
from kopt.controllers.lending.views import HOLDER, Borrowing, BorrowingQueue, ObservedPod
from kopt.core.reason import Reason
from kopt.core.scheduling.eviction import Entry
from kopt.core.scheduling.lending_pool import Borrower
from kopt.core.scheduling.quota import Quota
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.gpu_share import CHARGE_RESOURCE
from kopt.policies.lending import Candidate
from kopt.policies.quota import QuotaTree

_LONGEST_SHIELD_S = 900.0


@dataclass(frozen=True)
class _Index:
    """What informers have seen: Workloads by ClusterQueue, pods by names, evictions by uid."""

    now_s: float
    by_queue: Mapping[str, Sequence[KueueWorkload]]
    pods: Mapping[tuple[str, str], list[ObservedPod]]
    evictions: Mapping[str, Entry]


class Kueue:
    def __init__(self, cluster: LiveCluster, weighing: Weighing) -> None:
        self._cluster, self._weighing = cluster, weighing
        self._last: _Index | None = None
        self._read: dict[str, tuple[Object, ClusterQueue]] = {}

    def queue(self, borrower: Borrower, gpu: str, now_s: float, *, weigh: bool) -> BorrowingQueue:
        """A ClusterQueue as far as it uses GPUs of one resource; ``weigh`` reads what its workloads would lose."""
        document = self._cluster.queues(KUEUE_CLUSTER_QUEUES).get(borrower.queue)
        if document is None:
            return _without(borrower, Reason("NO_QUEUE", f"There is no ClusterQueue {borrower.queue}."))
        cluster_queue = self._cluster_queues()[borrower.queue]
        counts_thousandths = milli_of(gpu, 1) == WHOLE_GPU and gpu not in cluster_queue.resources
        # Beside a quota of whole GPUs, that of thousandths is of shares alone.
        flavor_resource = _flavor_resource(document, borrower.flavor, CHARGE_RESOURCE if counts_thousandths else gpu)
        if flavor_resource is None:
            what = f"flavour {borrower.flavor} with {gpu}" if borrower.flavor else f"one flavour with {gpu}"
            return _without(
                borrower, Reason("FLAVOUR", f"ClusterQueue {borrower.queue} does not have {what}."), document
            )
        if counts_thousandths and (other := self._counted_otherwise(borrower.queue, gpu, now_s)):
            return _without(borrower, Reason("FLAVOUR", not_in_thousandths(borrower.queue, gpu, other)), document)
        if cluster_queue.cohort and cluster_queue.quotas[flavor_resource].borrowing_limit != 0:
            why = (
                f"ClusterQueue {borrower.queue} may also borrow {gpu} of flavour {flavor_resource[0]} in cohort "
                f"{cluster_queue.cohort}: nobody could tell what is lent from what is borrowed there."
            )
            return _without(borrower, Reason("COHORT", why), document)
        stands = value_at(KUEUE_CLUSTER_QUEUES, document, flavor_resource)
        owned = quota_from_undo(undo_of(document))
        own, was_set = owned.get(flavor_resource, (stands, stands))
        if not is_same(was_set, stands):
            # Another quota was written over ours: that is its own now.
            own = stands
        limit, own_milli = (*flavor_resource, LENDING_LIMIT), amount(own) // per_device(flavor_resource[1])
        queue = BorrowingQueue(
            borrower,
            KUEUE_CLUSTER_QUEUES,
            document,
            own_milli // WHOLE_GPU,
            amount(stands) // per_device(flavor_resource[1]) // WHOLE_GPU,
            values={flavor_resource: (own, stands), **_lending_limit(document, limit, owned, cluster_queue.cohort)},
            # A part of what comes in whole ones cannot be used.
            own_part=own_milli % WHOLE_GPU if counts_thousandths else 0,
            marked=holder_of(document) == HOLDER and (flavor_resource in owned or not owned),
        )
        if cluster_queue.cohort:
            queue = replace(queue, backed=self._backed(cluster_queue, flavor_resource, queue.own_milli, now_s))
        return self._with_workloads(queue, self._index(now_s), flavor_resource, cluster_queue, weigh=weigh)

    def _counted_otherwise(self, queue: str, gpu: str, now_s: float) -> str:
        """A Workload whose GPUs Kueue counts as they are; empty for none."""
        return next((each.name for each in self._index(now_s).by_queue.get(queue, ()) if each.is_counted_in(gpu)), "")

    def _backed(self, queue: ClusterQueue, flavor_resource: tuple[str, str], own: int, now_s: float) -> int:
        """Milli-GPU: what the queue could use of its own quota if it used nothing, with what others use of it now."""
        per_gpu = per_device(flavor_resource[1])
        quota = Quota(own * per_gpu, 0, queue.quotas[flavor_resource].lending_limit)
        nodes = {name: item.node for name, item in self._cluster_queues().items()}
        nodes[queue.name] = replace(queue.node, quotas={flavor_resource: quota})
        others = [
            admitted_of(workload)
            for name, workloads in self._index(now_s).by_queue.items()
            for workload in workloads
            if name != queue.name and not workload.pending
        ]
        tree = QuotaTree.of([*self._cluster.cohorts(), *nodes.values()], others)
        return tree.available(queue.name, flavor_resource) // per_gpu

    def _cluster_queues(self) -> Mapping[str, ClusterQueue]:
        """By name. Each object is read once for each of its versions: every borrower in a cohort needs all of them."""
        earlier = self._read
        self._read = {
            name: entry
            if (entry := earlier.get(name)) is not None and entry[0] is document
            else (document, read_cluster_queue(document))
            for name, document in self._cluster.queues(KUEUE_CLUSTER_QUEUES).items()
        }
        return {name: cluster_queue for name, (_, cluster_queue) in self._read.items()}

    def _index(self, now_s: float) -> _Index:
        """Made once for a reconcile of all queues, which has one time."""
        if self._last is None or self._last.now_s != now_s:
            by_queue: dict[str, list[KueueWorkload]] = {}
            for workload in self._cluster.workloads():
                if not workload.finished:
                    by_queue.setdefault(self._cluster.cluster_queue_of(workload), []).append(workload)
            self._last = _Index(now_s, by_queue, _by_name(self._cluster.pods()), self._cluster.pending_evictions())
        return self._last

    def _with_workloads(
        self,
        queue: BorrowingQueue,
        index: _Index,
        flavor_resource: tuple[str, str],
        cluster_queue: ClusterQueue,
        *,
        weigh: bool,
    ) -> BorrowingQueue:
        sorting, flavors, per_gpu = Sorting(), self._cluster.flavors(), per_device(flavor_resource[1])
        for workload in index.by_queue.get(queue.borrower.queue, ()):
            uses = workload.uses.get(flavor_resource, 0) // per_gpu
            wants = charged_of(workload.requests, flavor_resource[1], cluster_queue, is_counted=workload.is_counted)
            if uses:
                sorting.used += uses
                borrowing = _borrowing(workload, uses, _pods_of(workload, index.pods))
                borrowing = self._weighing.with_bar(borrowing, workload.mode, _holder(workload, index.now_s), runs=True)
                if weigh and workload.running and not workload.mirrored:
                    borrowing = replace(borrowing, candidate=self._candidate(queue, workload, borrowing, index.now_s))
                (sorting.running if workload.running else sorting.terminating).append(borrowing)
            elif workload.holder == HOLDER and not workload.active:
                sorting.held.append(_borrowing(workload, wants))
            elif workload.active and workload.pending and _suits(workload, cluster_queue, flavor_resource, flavors):
                eviction = index.evictions.get(workload.owner_uid) or index.evictions.get(workload.uid)
                sorting.add_pending(
                    self._weighing.with_bar(_borrowing(workload, wants), workload.mode, runs=False), eviction
                )
                sorting.requeueing = sorting.requeueing or _is_requeueing(workload)
        return sorting.into(queue)

    def _candidate(
        self, queue: BorrowingQueue, workload: KueueWorkload, borrowing: Borrowing, now_s: float
    ) -> Candidate:
        # Pods of a Job carry its uid; those of other kinds may not be found although they run.
        idle = None if _is_job(workload) else False
        return self._weighing.candidate(queue, borrowing, now_s, priority=workload.priority, idle=idle)


def _borrowing(workload: KueueWorkload, gpus: int, pods: Sequence[ObservedPod] = ()) -> Borrowing:
    return Borrowing(
        KUEUE_WORKLOADS,
        workload.document,
        workload.name,
        (workload.owner_uid, workload.uid),
        gpus,
        None,
        tuple(pods),
        workload.evicted_at_s or workload.reserved_s or 0.0,
    )


def _holder(workload: KueueWorkload, now_s: float) -> str:
    """The holder of a running Workload. Only preemption holds these, by a raised priority and for a while: other marks
    may have been written by users."""
    return (
        workload.holder
        if workload.shield and workload.shield.stands and workload.shield.until_s - now_s <= _LONGEST_SHIELD_S
        else ""
    )


def _without(borrower: Borrower, problem: Reason, document: Object | None = None) -> BorrowingQueue:
    return BorrowingQueue(borrower, KUEUE_CLUSTER_QUEUES, document, problem=problem)


def _lending_limit(
    document: Object, path: QuotaPath, owned: Mapping[QuotaPath, tuple[object, object]], cohort: str
) -> dict[QuotaPath, tuple[object, object]]:
    """The queue's own lending limit and the one in its spec, where it has none of its own: lent GPUs stay in it."""
    stands = value_at(KUEUE_CLUSTER_QUEUES, document, path)
    own, was_set = owned.get(path, (stands, stands))
    if not is_same(was_set, stands):
        own = stands
    return {path: (own, stands)} if own is None and (cohort or path in owned) else {}


def _suits(
    workload: KueueWorkload, queue: ClusterQueue, flavor_resource: tuple[str, str], flavors: Mapping[str, Flavor]
) -> bool:
    """Whether a Workload that waits can be given the flavour."""
    flavor, gpu = flavor_resource
    # Flavours that are not known yet exclude nothing.
    pod_sets = demand_of(workload, queue, flavors if flavor in flavors else None).pod_sets
    return all(
        flavor in pods.flavors
        for pods in pod_sets
        if charged_of(pods.requests, gpu, queue, is_counted=workload.is_counted)
    )


def _flavor_resource(document: Object, flavor: str, gpu: str) -> tuple[str, str] | None:
    flavor_resources = [
        (text(item, "name"), gpu)
        for _, group in items(document, "spec", "resourceGroups")
        for _, item in items(group, "flavors")
        if any(text(it, "name") == gpu for _, it in items(item, "resources"))
    ]
    result = [flavor_resource for flavor_resource in flavor_resources if flavor in ("", flavor_resource[0])]
    return result[0] if len(result) == 1 else None


def _by_name(pods: Iterable[ObservedPod]) -> Mapping[tuple[str, str], list[ObservedPod]]:
    """Pods by their Workload's name, their owner's uid, and their own."""
    result: dict[tuple[str, str], list[ObservedPod]] = {}
    for pod in pods:
        gpu_pod = pod.gpu_pod
        for name in {f"/{gpu_pod.workload}" if gpu_pod.workload else "", gpu_pod.owner_uid, gpu_pod.uid} - {""}:
            result.setdefault((gpu_pod.key[0], name), []).append(pod)
    return result


def _pods_of(workload: KueueWorkload, pods: Mapping[tuple[str, str], list[ObservedPod]]) -> list[ObservedPod]:
    pods_by_name: dict[str, ObservedPod] = {}
    for name in (f"/{workload.key[1]}", workload.owner_uid):
        pods_by_name |= {pod.gpu_pod.uid: pod for pod in pods.get((workload.key[0], name), ())}
    return list(pods_by_name.values())


def _is_requeueing(workload: KueueWorkload) -> bool:
    """It is active again, and Kueue has not noticed yet."""
    result = [item for _, item in items(workload.document, "status", "conditions") if text(item, "type") == "Requeued"]
    return any(text(item, "status") == "False" and text(item, "reason") == "Deactivated" for item in result)


def _is_job(workload: KueueWorkload) -> bool:
    owners = [
        item for _, item in items(workload.document, "metadata", "ownerReferences") if at(item, "controller") is True
    ]
    return len(owners) == 1 and (text(owners[0], "apiVersion"), text(owners[0], "kind")) == ("batch/v1", "Job")
