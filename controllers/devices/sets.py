"""Which whole GPUs of one node a claim for several is to have: those between which data moves fastest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.node_topology import topology_of
from kopt.core.scheduling.placement import TopologyPreference
from kopt.policies.placement.links import links_of
from kopt.policies.placement.topology import Fit, GpuLinks, best_set


@dataclass(frozen=True)
class LinkedGpus:
    """The links of a node's GPUs. ``slots``: of each GPU by its UUID. ``fits``: the best sets, by the bits of what is
    free and their size; nodes of one make share them, and fill them as they are asked for."""

    links: GpuLinks
    slots: Mapping[str, int]
    fits: dict[tuple[int, int], Fit] = field(repr=False, compare=False)

    def fit(self, free: int, count: int) -> Fit:
        if (free, count) not in self.fits:
            self.fits[free, count] = best_set(self.links, free, count, TopologyPreference.NVLINK_OPTIMAL)
        return self.fits[free, count]


def linked_gpus(document: Object) -> LinkedGpus:
    """Of a NodeTopology. Raises ValueError, KeyError or TypeError for what no agent writes."""
    topology = topology_of(document)
    gpus = sorted(topology.gpus, key=lambda gpu: gpu.index)
    links = links_of(topology)
    return LinkedGpus(links, {gpu.uuid: slot for slot, gpu in enumerate(gpus) if gpu.uuid}, _fits_of(links))


@lru_cache(maxsize=256)
def _fits_of(_: GpuLinks) -> dict[tuple[int, int], Fit]:
    """Looked up once for each node, as hashing its links takes longer than all else of a choice."""
    return {}


def best_gpus(free: Sequence[str], count: int, linked: LinkedGpus | None) -> tuple[float, tuple[str, ...]]:
    """How well they are linked (more is better), and the UUIDs of ``count`` of a node's free GPUs, in the order of
    ``free``. A node whose links are not known counts as one whose GPUs are not linked."""
    if linked is None or any(gpu not in linked.slots for gpu in free):
        return 0.0, tuple(free[:count])
    names = {linked.slots[gpu]: gpu for gpu in free}
    fit = linked.fit(sum(1 << slot for slot in names), count)
    if not fit.slots:
        return 0.0, tuple(free[:count])
    selected = {names[slot] for slot in fit.slots}
    return fit.quality, tuple(gpu for gpu in free if gpu in selected)
