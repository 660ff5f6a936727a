"""Which whole GPUs of one node a claim for several is to have: on the node that then has fewest left, those between
which data moves fastest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.node_topology import topology_of
from kopt.core.scheduling.placement import TopologyPreference
from kopt.policies.placement.links import links_of
from kopt.policies.placement.topology import Fit, GpuLinks, best_set


@dataclass(frozen=True)
class LinkedGpus:
    """The links of a node's GPUs. ``slots``: of each GPU by its UUID."""

    links: GpuLinks
    slots: Mapping[str, int]


def linked_gpus(document: Object) -> LinkedGpus:
    """Of a NodeTopology. Raises ValueError, KeyError or TypeError for what no agent writes."""
    topology = topology_of(document)
    gpus = sorted(topology.gpus, key=lambda gpu: gpu.index)
    return LinkedGpus(links_of(topology), {gpu.uuid: slot for slot, gpu in enumerate(gpus) if gpu.uuid})


def choose_set(
    free: Mapping[str, Sequence[str]], count: int, linked: Mapping[str, LinkedGpus]
) -> tuple[str, tuple[str, ...]] | None:
    """Node and UUIDs in the order of ``free``, the free GPUs of each node; None where no node has so many. A node whose
    links are not known counts as one whose GPUs are not linked."""
    fewest = min((len(gpus) for gpus in free.values() if len(gpus) >= count), default=0)
    ranked = []
    for node, gpus in free.items():
        if len(gpus) == fewest:
            quality, chosen = _best(gpus, count, linked.get(node))
            ranked.append((-quality, node, chosen))
    if not ranked or not fewest:
        return None
    _, node, chosen = min(ranked)
    return node, chosen


@lru_cache(maxsize=4096)
def _fit(links: GpuLinks, mask: int, count: int) -> Fit:
    """Nodes of one make with the same GPUs free are alike."""
    return best_set(links, mask, count, TopologyPreference.NVLINK_OPTIMAL)


def _best(gpus: Sequence[str], count: int, linked: LinkedGpus | None) -> tuple[float, tuple[str, ...]]:
    if linked is None or any(gpu not in linked.slots for gpu in gpus):
        return 0.0, tuple(gpus[:count])
    names = {linked.slots[gpu]: gpu for gpu in gpus}
    fit = _fit(linked.links, sum(1 << slot for slot in names), count)
    if not fit.slots:
        return 0.0, tuple(gpus[:count])
    chosen = {names[slot] for slot in fit.slots}
    return fit.quality, tuple(gpu for gpu in gpus if gpu in chosen)
