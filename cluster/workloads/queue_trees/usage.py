"""What runs and what waits in each leaf of a cluster's queues, by resource, as a ``QueueTree`` of them names it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.objects.kai import QUEUE_LABEL
from kopt.cluster.workloads.kueue.reading import amount, read_kueue_workload, requests_of
from kopt.cluster.workloads.requests.gpus import devices_in
from kopt.core.scheduling.queue_tree import GPU

_ENDED = ("Succeeded", "Failed")


@dataclass
class LeafUsage:
    """Thousandths, by resource. ``demand`` is of what runs and what waits together; ``pending`` counts workloads."""

    use: Counter[str] = field(default_factory=Counter)
    demand: Counter[str] = field(default_factory=Counter)
    pending: int = 0

    def add(self, requests: Mapping[str, int], *, runs: bool) -> None:
        self.demand.update(requests)
        if runs:
            self.use.update(requests)
        else:
            self.pending += 1


def kueue_usage(
    workloads: Iterable[Object], local_queues: Mapping[tuple[str, str], str], names: Iterable[str]
) -> dict[str, LeafUsage]:
    """By ClusterQueue, from Workloads with their quota, and from those that are pending.

    ``local_queues``: the ClusterQueue of each LocalQueue, by (namespace, name). ``names``: the resources of the tree.
    """
    resources, result = frozenset(names), dict[str, LeafUsage]()
    for document in workloads:
        workload = read_kueue_workload(document)
        if workload.finished:
            continue
        if workload.reserved_s is not None:
            requests = Counter[str]()
            for (_, resource), value in workload.uses.items():
                requests.update(_named(resource, value, resources))
            result.setdefault(workload.cluster_queue, LeafUsage()).add(requests, runs=True)
        elif workload.active and (queue := local_queues.get((workload.key[0], workload.queue))):
            requests = Counter[str]()
            for resource, value in workload.requests.items():
                requests.update(_named(resource, value, resources))
            result.setdefault(queue, LeafUsage()).add(requests, runs=False)
    return {queue: _within(usage, resources) for queue, usage in result.items()}


def kai_usage(pods: Iterable[Object], names: Iterable[str]) -> dict[str, LeafUsage]:
    """By KAI Queue, from pods that name one: those that are bound, and those that wait."""
    resources, result = frozenset(names), dict[str, LeafUsage]()
    for pod in pods:
        queue = text(pod, "metadata", "labels", QUEUE_LABEL)
        if queue and text(pod, "status", "phase") not in _ENDED:
            requests = Counter[str]()
            for resource, value in requests_of(mapping(pod, "spec")).items():
                requests.update(_named(resource, value, resources))
            result.setdefault(queue, LeafUsage()).add(requests, runs=bool(text(pod, "spec", "nodeName")))
    return {queue: _within(usage, resources) for queue, usage in result.items()}


def node_capacity(nodes: Iterable[Object], names: Iterable[str]) -> dict[str, int]:
    """What the nodes that can be scheduled on have together."""
    resources, total = frozenset(names), Counter[str]()
    for node in nodes:
        if mapping(node, "spec").get("unschedulable") is not True:
            allocatable = mapping(node, "status", "allocatable")
            for name, value in allocatable.items():
                total.update(_named(str(name), amount(value), resources))
    return {name: value for name, value in total.items() if name in resources}


def _named(resource: str, value: int, resources: frozenset[str]) -> dict[str, int]:
    """As queues name it: devices of kinds that no queue names are their GPUs."""
    devices = devices_in(resource, value)
    return {GPU: devices} if devices and resource not in resources and GPU in resources else {resource: value}


def _within(usage: LeafUsage, resources: frozenset[str]) -> LeafUsage:
    """Without resources that no queue says anything about: nobody shares them out."""
    use, demand = (Counter({k: v for k, v in each.items() if k in resources}) for each in (usage.use, usage.demand))
    return LeafUsage(use, demand, usage.pending)
