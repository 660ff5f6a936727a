"""Which partitions the nodes of the cluster have."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import items, mapping, text
from kopt.cluster.workloads.node_selection import GPU_PRODUCT_LABELS, runs_on
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.policies.sizing.profiling import PartitionOffer

_PREFIXES = ("nvidia.com/mig-", "amd.com/")


@dataclass(frozen=True)
class NodeOffers:
    """The partitions of one node, and what decides which pods run on it."""

    labels: Mapping[str, str]
    taints: tuple[Object, ...]
    offers: tuple[PartitionOffer, ...]


def offers_of(node: Object) -> NodeOffers | None:
    """What a node has by its allocatable resources; None where there are no partitions."""
    labels = mapping(node, "metadata", "labels")
    product = next((text(labels, name) for name in GPU_PRODUCT_LABELS if text(labels, name)), "")
    try:
        model = find_gpu(product) if product else None
    except UnknownGpuError:
        model = None
    if model is None:
        return None
    by_name = {partition.name.lower(): partition for partition in model.partitions}
    partition_offers = []
    for name, amount in items(node, "status", "allocatable"):
        short = next((str(name).removeprefix(prefix) for prefix in _PREFIXES if str(name).startswith(prefix)), "")
        if short.lower() in by_name and amount not in ("0", 0):
            partition_offers.append(PartitionOffer(str(name), model.name, by_name[short.lower()]))
    taints = tuple([taint for _, taint in items(node, "spec", "taints")])
    return NodeOffers(labels, taints, tuple(partition_offers)) if partition_offers else None


def all_offers(nodes: Iterable[NodeOffers], pod: Object) -> tuple[PartitionOffer, ...]:
    """Each once, of the nodes that a pod may run on: with a partition of another it would wait for ever."""
    fitting = (node for node in nodes if runs_on(pod, node.labels, node.taints))
    return tuple(dict.fromkeys(offer for node_offers in fitting for offer in node_offers.offers))
