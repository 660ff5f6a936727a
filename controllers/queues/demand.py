"""How many GPUs each queue uses and waits for, by pool, as a metric: the history from which quotas are advised."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.kaiwo_queue import pool_of, queue_of
from kopt.cluster.objects.custom.reservation import held_for
from kopt.cluster.objects.fields import items, mapping
from kopt.cluster.workloads.kueue.objects import KueueWorkload
from kopt.cluster.workloads.requests.gpus import devices_in
from kopt.core.scheduling.queue_tree import DEMAND_METRIC, GPU, DemandState
from kopt.policies.queues import QueueTree, TreeError

_THOUSANDTHS = 1000


@dataclass(frozen=True, slots=True)
class QueuedGpus:
    """A Workload's GPUs in thousandths: by flavor of ``queue`` once it has quota, else by no flavor, waiting in the
    LocalQueue ``local``."""

    queue: str
    local: tuple[str, str]
    gpus: tuple[tuple[str, int], ...]


def queued_gpus(workload: KueueWorkload) -> QueuedGpus | None:
    """None for one that has ended, asks for no GPU, was stopped by its owner, or holds GPUs for a reservation: nobody
    demands these, and a forecast of them would reserve what was reserved before."""
    if workload.finished or not (workload.active or workload.holder) or _holds(workload):
        return None
    has_quota = workload.reserved_s is not None
    gpus = Counter[str]()
    if has_quota:
        for (flavor, resource), amount in workload.uses.items():
            gpus[flavor] += devices_in(resource, amount)
    else:
        gpus[""] = sum(devices_in(resource, amount) for resource, amount in workload.requests.items())
    rows = tuple((flavor, amount) for flavor, amount in gpus.items() if amount)
    queue = workload.cluster_queue if has_quota else ""
    return QueuedGpus(queue, (workload.key[0], workload.queue), rows) if rows else None


def _holds(workload: KueueWorkload) -> bool:
    return any(held_for(dict(mapping(pods, "template"))) for _, pods in items(workload.document, "spec", "podSets"))


@dataclass(frozen=True, slots=True)
class QueueGpus:
    """GPUs in thousandths that ``queue`` uses or waits for; ``pool`` is empty for the one that it tries first."""

    queue: str
    pool: str
    state: DemandState
    milli: int


def gpus_of_workloads(
    workloads: Iterable[QueuedGpus], local_queues: Mapping[tuple[str, str], str]
) -> Iterator[QueueGpus]:
    """Of Kueue's Workloads; ``local_queues``: the ClusterQueue of each LocalQueue."""
    for workload in workloads:
        queue = workload.queue or local_queues.get(workload.local, "")
        state = DemandState.USED if workload.queue else DemandState.PENDING
        for flavor, amount in workload.gpus:
            yield QueueGpus(queue, flavor, state, amount)


class QueueDemand(Collector):
    """``kopt_queues_gpus`` by queue, pool and state, of leaves with quota of GPUs, 0 included; counted when it is asked
    for. What waits counts in the pool that its queue tries first. ``single_pool``: leaves with several pools are left
    out, as the engine does not say in which of them anything runs."""

    def __init__(
        self,
        queues: Callable[[], Iterable[Object]],
        pools: Callable[[], Iterable[Object]],
        gpus: Callable[[QueueTree], Iterable[QueueGpus]],
        is_synced: Callable[[], bool],
        *,
        single_pool: bool = False,
    ) -> None:
        self._queues, self._declared, self._gpus = queues, pools, gpus
        self._is_synced, self._single_pool = is_synced, single_pool

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            DEMAND_METRIC, "GPUs that a queue uses, or waits for.", labels=("queue", "pool", "state")
        )
        if self._is_synced():
            for (queue, pool, state), amount in sorted(self._counted().items()):
                family.add_metric((queue, pool, state), amount / _THOUSANDTHS)
        yield family

    def _counted(self) -> Counter[tuple[str, str, str]]:
        try:
            tree = QueueTree.of(map(queue_of, self._queues()), map(pool_of, self._declared()))
        except (TreeError, ValueError):
            # None while the tree contradicts itself.
            return Counter()
        pools = self._pools(tree)
        result: Counter[tuple[str, str, str]] = Counter(
            {(queue, pool, state): 0 for queue, own in pools.items() for pool in own for state in DemandState}
        )
        for each in self._gpus(tree):
            if each.queue in pools:
                result[each.queue, each.pool or pools[each.queue][0], each.state] += each.milli
        return result

    def _pools(self, tree: QueueTree) -> Mapping[str, list[str]]:
        """Of each leaf with GPUs, in its order."""
        result = {}
        for name in filter(tree.is_leaf, tree.queues):
            pools = [pool for pool in tree.pools_of(name) if any(map(_is_gpu, tree.resources_of(name, pool)))]
            if pools and (len(pools) == 1 or not self._single_pool):
                result[name] = pools
        return result


def _is_gpu(resource: str) -> bool:
    return resource == GPU or devices_in(resource, 1000) > 0
