"""Which whole GPUs of one node a claim for several is to have: those between which data moves fastest."""

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


@lru_cache(maxsize=4096)
def _fit(links: GpuLinks, mask: int, count: int) -> Fit:
    """Nodes of one make with the same GPUs free are alike."""
    return best_set(links, mask, count, TopologyPreference.NVLINK_OPTIMAL)


def best_gpus(free: Sequence[str], count: int, linked: LinkedGpus | None) -> tuple[float, tuple[str, ...]]:
    """How well they are linked (more is better), and the UUIDs of ``count`` of a node's free GPUs, in the order of
    ``free``. A node whose links are not known counts as one whose GPUs are not linked."""
    if linked is None or any(gpu not in linked.slots for gpu in free):
        return 0.0, tuple(free[:count])
    names = {linked.slots[gpu]: gpu for gpu in free}
    fit = _fit(linked.links, sum(1 << slot for slot in names), count)
    if not fit.slots:
        return 0.0, tuple(free[:count])
    selected = {names[slot] for slot in fit.slots}
    return fit.quality, tuple(gpu for gpu in free if gpu in selected)
