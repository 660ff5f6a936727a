"""Which partitions the nodes of the cluster have."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import items, mapping, text
from kopt.cluster.workloads.node_selection import GPU_PRODUCT_LABELS, runs_on
from kopt.cluster.workloads.shares.executors import node_executor
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.workload.executor import Executor
from kopt.policies.sizing.profiling import PartitionOffer

_PREFIXES = ("nvidia.com/mig-", "amd.com/")


@dataclass(frozen=True)
class NodeOffers:
    """The partitions of one node, what decides which pods run on it, and what hands out shares of its GPUs."""

    labels: Mapping[str, str]
    taints: tuple[Object, ...]
    offers: tuple[PartitionOffer, ...]
    executor: Executor | None = None


def offers_of(node: Object) -> NodeOffers | None:
    """What a node has by its allocatable resources; None where there are neither partitions nor shares."""
    labels = mapping(node, "metadata", "labels")
    product = next((text(labels, name) for name in GPU_PRODUCT_LABELS if text(labels, name)), "")
    try:
        model = find_gpu(product) if product else None
    except UnknownGpuError:
        model = None
    executor = node_executor(node)
    by_name = {partition.name.lower(): partition for partition in model.partitions} if model is not None else {}
    partition_offers = []
    for name, amount in items(node, "status", "allocatable"):
        short = next((str(name).removeprefix(prefix) for prefix in _PREFIXES if str(name).startswith(prefix)), "")
        if model is not None and short.lower() in by_name and amount not in ("0", 0):
            partition_offers.append(PartitionOffer(str(name), model.name, by_name[short.lower()]))
    taints = tuple([taint for _, taint in items(node, "spec", "taints")])
    return NodeOffers(labels, taints, tuple(partition_offers), executor) if partition_offers or executor else None


def all_offers(nodes: Iterable[NodeOffers], pod: Object) -> tuple[PartitionOffer, ...]:
    """Each once, of the nodes that a pod may run on: with a partition of another it would wait for ever."""
    fitting = (node for node in nodes if runs_on(pod, node.labels, node.taints))
    return tuple(dict.fromkeys(offer for node_offers in fitting for offer in node_offers.offers))
