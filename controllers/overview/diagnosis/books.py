"""The cluster as the scheduler extender keeps it: what nodes have, and which workload holds what of them."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kopt.cluster.client.resources import Key, Object, key_of
from kopt.cluster.objects.fields import at, items, mapping, readable, text
from kopt.cluster.workloads.kueue.objects import ClusterQueue, Flavor, KueueWorkload
from kopt.cluster.workloads.kueue.queues import admitted_of, read_cluster_queue, read_cohort, read_flavor
from kopt.cluster.workloads.kueue.reading import amount, read_kueue_workload, requests_of
from kopt.cluster.workloads.placement.node_capacity import offers_of
from kopt.cluster.workloads.placement.pod_state import PodState, pod_state_of
from kopt.controllers.overview.diagnosis.documents import ClusterDocuments
from kopt.core.scheduling.placement import ANY_POOL
from kopt.core.scheduling.quota import Admitted
from kopt.policies.diagnosis import RunningGpus, RunningWorkload
from kopt.policies.diagnosis.situation import RunningColumns, held_by
from kopt.policies.placement.fleet import Fleet
from kopt.policies.placement.pool import Pool
from kopt.policies.quota import QuotaTree

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
_WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"
GROUP_ANNOTATIONS = ("pod-group-name", "scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_QUEUE_LABEL, _QUEUE_ANNOTATION = "kai.scheduler/queue", "scheduling.volcano.sh/queue-name"
NON_PREEMPTIBLE_PRIORITY = 100
"""Of KAI's pods: this, and everything above."""


class ClusterBooks:
    """Everything about a cluster that does not depend on the workload in question; read once, asked many times.

    Nothing in the documents makes this raise; what cannot be read is left out.
    """

    def __init__(self, documents: ClusterDocuments) -> None:
        self.documents = documents
        self.fleet = Fleet()
        self.nodes = {text(node, "metadata", "name"): node for node in documents.nodes}
        for name, offers in readable(documents.nodes, offers_of):
            self.fleet.set_node(text(name, "metadata", "name"), offers)
        self.bound: dict[str, list[tuple[Object, PodState]]] = defaultdict(list)
        """By the workload that they belong to."""
        self.pods_of_node = Counter[str]()
        for pod, state in readable(documents.pods, lambda pod: pod_state_of(pod, None, {})):
            if isinstance(state.node, str) and state.node and not state.finished:
                self.fleet.bound(state.uid, state.key, state.node, state.ask, state.gpus)
                self.bound[self.name_of(pod)].append((pod, state))
                self.pods_of_node[state.node] += 1
        self._running: dict[str, tuple[RunningWorkload, ...]] = {}
        self._running_gpus: dict[str, list[tuple[RunningWorkload, RunningGpus]]] = {}
        self._held: dict[str, tuple[Ints, Ints]] = {}
        self._columns: dict[str, RunningColumns] = {}
        self._on_nodes: dict[str, tuple[RunningGpus, ...]] = {}
        self._alike: dict[tuple[str, frozenset[str]], list[tuple[Object, Bools]]] = {}
        self._free: dict[tuple[str, str], tuple[Ints, Ints]] = {}

    @property
    def is_whole(self) -> bool:
        """Whether all nodes and pods may be read."""
        return not {"nodes", "pods"} & set(self.documents.unread)

    @cached_property
    def workloads(self) -> Mapping[Key, KueueWorkload]:
        """Kueue's, that have not ended."""
        result = readable(self.documents.workloads, read_kueue_workload)
        return {workload.key: workload for _, workload in result if not workload.finished}

    @cached_property
    def cluster_queues(self) -> Mapping[str, ClusterQueue]:
        return {queue.name: queue for _, queue in readable(self.documents.cluster_queues, read_cluster_queue)}

    @cached_property
    def flavors(self) -> Mapping[str, Flavor]:
        return {flavor.name: flavor for _, flavor in readable(self.documents.flavors, read_flavor)}

    @cached_property
    def local_queues(self) -> Mapping[Key, str]:
        """The ClusterQueue of each LocalQueue that is open."""
        return {
            key_of(queue): text(queue, "spec", "clusterQueue")
            for queue in self.documents.local_queues
            if text(queue, "spec", "stopPolicy") in ("", "None")
        }

    @cached_property
    def admitted(self) -> list[Admitted]:
        reserved = (workload for workload in self.workloads.values() if workload.running or workload.terminating)
        return [admitted_of(workload) for workload in reserved]

    @cached_property
    def tree(self) -> QuotaTree:
        cohorts = [cohort for _, cohort in readable(self.documents.cohorts, read_cohort)]
        return QuotaTree.of([*(queue.node for queue in self.cluster_queues.values()), *cohorts], self.admitted)

    def pool(self, resource: str) -> Pool:
        """The nodes with a GPU resource; empty where there are none."""
        if resource == ANY_POOL:
            whole = [pool for name, pool in self.fleet.pools.items() if name.endswith("/gpu")]
            return whole[0] if whole else Pool(resource)
        return self.fleet.pools.get(resource) or Pool(resource)

    def running(self, pool: Pool) -> tuple[RunningWorkload, ...]:
        """What holds nodes of a pool, or quota, and will end; pods of nodes themselves do not."""
        if pool.resource not in self._running:
            workloads = sorted(self._workloads_on(pool), key=lambda workload: workload.name)
            self._running[pool.resource] = tuple(workloads)
        return self._running[pool.resource]

    def held(self, pool: Pool) -> tuple[Ints, Ints]:
        """CPU and memory that what runs holds of each row of a pool, (rows,)."""
        if pool.resource not in self._held:
            self._held[pool.resource] = held_by(self.running(pool), pool.state.rows)
        return self._held[pool.resource]

    def columns(self, pool: Pool) -> RunningColumns:
        """What runs on a pool, as arrays."""
        if pool.resource not in self._columns:
            self._columns[pool.resource] = RunningColumns(self.running(pool))
        return self._columns[pool.resource]

    def _workloads_on(self, pool: Pool) -> Iterator[RunningWorkload]:
        index, holdings = pool.state.index, self.fleet.holdings
        for name, members in self.bound.items():
            slots, milli, queues = [], 0, dict[str, None]()
            for pod, state in members:
                if _of_node(pod):
                    continue
                milli += int(state.ask.request.gpus.total)
                queues |= dict.fromkeys(filter(None, (self.queue_of(pod),)))
                if state.node in index:
                    request, indexes = holdings[state.uid].part(pool.resource)
                    slots.append((index[state.node], indexes, request))
            terminating = all(at(pod, "metadata", "deletionTimestamp") is not None for pod, _ in members)
            if milli or slots:
                preemptible = all(is_preemptible(pod) for pod, _ in members)
                yield RunningWorkload(name, tuple(slots), milli, tuple(queues), terminating, preemptible)
        for workload in self.admitted:
            if workload.name not in self.bound:
                yield RunningWorkload(workload.name, terminating=workload.terminating)

    def running_gpus(self, pool: Pool) -> Sequence[tuple[RunningWorkload, RunningGpus]]:
        """What runs on nodes of a pool with what it returns of each, nodes by the number of their row."""
        if pool.resource not in self._running_gpus:
            result = []
            for workload in self.running(pool):
                amounts: dict[str, int] = {}
                for row, slots, request in workload.slots:
                    amounts[str(row)] = amounts.get(str(row), 0) + len(slots) * int(request.gpus.share)
                result.append((workload, RunningGpus(workload.name, amounts)))
            self._running_gpus[pool.resource] = result
        return self._running_gpus[pool.resource]

    def on_nodes(self, pool: Pool) -> tuple[RunningGpus, ...]:
        """What returns GPUs of the pool's nodes when it ends; the same object each time."""
        if pool.resource not in self._on_nodes:
            self._on_nodes[pool.resource] = tuple(gpus for _, gpus in self.running_gpus(pool) if gpus.by_node)
        return self._on_nodes[pool.resource]

    def alike(self, pool: Pool, keys: frozenset[str]) -> Sequence[tuple[Object, Bools]]:
        """Nodes of a pool in groups: equal in taints, state and the labels of these keys; a node of each, and where
        the group's rows are, (rows,)."""
        at_key = (pool.resource, keys)
        if at_key not in self._alike:
            groups: dict[Hashable, tuple[Object, list[int]]] = {}
            for name, row in pool.state.index.items():
                node = self.nodes[name]
                labels = mapping(node, "metadata", "labels")
                values = tuple((key, str(labels[key])) for key in sorted(keys) if key in labels)
                signature = (values, *self._states[name])
                groups.setdefault(signature, (node, []))[1].append(row)
            self._alike[at_key] = [(node, _marked(pool.state.rows, rows)) for node, rows in groups.values()]
        return self._alike[at_key]

    @cached_property
    def _states(self) -> Mapping[str, tuple[str, str, bool]]:
        """What of a node can keep pods away, besides its labels."""
        return {
            name: (
                repr(at(node, "spec", "taints")),
                repr([item for _, item in items(node, "status", "conditions") if text(item, "type") == "Ready"]),
                at(node, "spec", "unschedulable") is True,
            )
            for name, node in self.nodes.items()
        }

    @cached_property
    def unplaced(self) -> list[Object]:
        """Pods that a scheduler looks for a node for: no gates, no node, not over."""
        return [pod for pod in self.documents.pods if is_unplaced(pod)]

    def free_of(self, pool: Pool, resource: str) -> tuple[Ints, Ints]:
        """What is free and what there is of another resource on each row of a pool, in whole units, (rows,)."""
        at_key = (pool.resource, resource)
        if at_key not in self._free:
            self._free[at_key] = self._free_of(pool, resource)
        return self._free[at_key]

    def _free_of(self, pool: Pool, resource: str) -> tuple[Ints, Ints]:
        free, total = np.zeros(pool.state.rows, np.int64), np.zeros(pool.state.rows, np.int64)
        for name, row in pool.state.index.items():
            total[row] = amount(at(self.nodes.get(name), "status", "allocatable", resource)) // 1000
        if resource == "pods":
            used = self.pods_of_node
        else:
            used = Counter[str]()
            for members in self.bound.values():
                for pod, state in members:
                    used[state.node] += requests_of(mapping(pod, "spec")).get(resource, 0) // 1000
        for name, row in pool.state.index.items():
            free[row] = total[row] - used.get(name, 0)
        return free, total

    @cached_property
    def _group_queues(self) -> Mapping[Key, str]:
        """The queue of each PodGroup of KAI's or Volcano's."""
        groups = (*self.documents.kai_groups, *self.documents.volcano_groups)
        return {key_of(group): text(group, "spec", "queue") for group in groups}

    def queue_of(self, pod: Object) -> str:
        """KAI's or Volcano's queue of a pod, empty where it is in none."""
        metadata, namespace = mapping(pod, "metadata"), text(pod, "metadata", "namespace")
        named = text(metadata, "labels", _QUEUE_LABEL) or text(metadata, "annotations", _QUEUE_ANNOTATION)
        groups = (text(metadata, "annotations", name) for name in GROUP_ANNOTATIONS)
        return named or next(
            (queue for group in groups if (queue := self._group_queues.get((namespace, group), ""))), ""
        )

    @cached_property
    def _owners(self) -> Mapping[str, str]:
        return {workload.owner_uid: workload.name for workload in self.workloads.values() if workload.owner_uid}

    def name_of(self, pod: Object) -> str:
        """``namespace/name`` of the workload that a pod belongs to."""
        metadata, namespace = mapping(pod, "metadata"), text(pod, "metadata", "namespace")
        annotations = mapping(metadata, "annotations")
        if name := text(annotations, _WORKLOAD_ANNOTATION):
            return f"{namespace}/{name}"
        owners = (item for _, item in items(metadata, "ownerReferences") if at(item, "controller") is True)
        owner: Mapping[str, str] = next(owners, {})
        if name := self._owners.get(text(owner, "uid"), ""):
            return name
        group = next((name for key in GROUP_ANNOTATIONS if (name := text(annotations, key))), "")
        return f"{namespace}/{group or text(owner, 'name') or text(metadata, 'name')}"


def is_unplaced(pod: Object) -> bool:
    return (
        not text(pod, "spec", "nodeName")
        and not any(True for _ in items(pod, "spec", "schedulingGates"))
        and text(pod, "status", "phase") not in ("Succeeded", "Failed")
        and at(pod, "metadata", "deletionTimestamp") is None
    )


def _marked(count: int, rows: list[int]) -> Bools:
    array: Bools = np.zeros(count, dtype=np.bool_)
    array[rows] = True
    return array


def is_preemptible(pod: Object) -> bool:
    """By its own word, else by its priority, as KAI has it."""
    stated = text(pod, "metadata", "labels", "kai.scheduler/preemptibility")
    if stated:
        return stated != "non-preemptible"
    priority = at(pod, "spec", "priority")
    return not (isinstance(priority, int) and priority >= NON_PREEMPTIBLE_PRIORITY)


def _of_node(pod: Object) -> bool:
    return any(text(owner, "kind") in ("DaemonSet", "Node") for _, owner in items(pod, "metadata", "ownerReferences"))
