"""Which partitions the nodes of the cluster have."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kopt.cluster.resources import Object
from kopt.controllers.sizing.selection import runs_on
from kopt.controllers.webhook.objects import items, mapping, text
from kopt.core.catalogue import UnknownGpuError, find_gpu
from kopt.policies.profiling import PartitionOffer

PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
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
    product = next((text(labels, name) for name in PRODUCT_LABELS if text(labels, name)), "")
    try:
        model = find_gpu(product) if product else None
    except UnknownGpuError:
        model = None
    if model is None:
        return None
    by_name = {one.name.lower(): one for one in model.partitions}
    found = []
    for name, amount in items(node, "status", "allocatable"):
        short = next((str(name).removeprefix(one) for one in _PREFIXES if str(name).startswith(one)), "")
        if short.lower() in by_name and amount not in ("0", 0):
            found.append(PartitionOffer(str(name), model.name, by_name[short.lower()]))
    taints = tuple([taint for _, taint in items(node, "spec", "taints")])
    return NodeOffers(labels, taints, tuple(found)) if found else None


def all_offers(nodes: Iterable[NodeOffers], pod: Object) -> tuple[PartitionOffer, ...]:
    """Each once, of the nodes that a pod may run on: with a partition of another it would wait for ever."""
    fitting = (one for one in nodes if runs_on(pod, one.labels, one.taints))
    return tuple(dict.fromkeys(offer for one in fitting for offer in one.offers))
