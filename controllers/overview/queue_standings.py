"""The queues of Kueue with what runs and waits in them, from objects of a cluster."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kopt.cluster.client.resources import (
    KUEUE_CLUSTER_QUEUES,
    KUEUE_COHORTS,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    Object,
    Resource,
    key_of,
)
from kopt.cluster.workloads.kueue.reading import local_queue_target
from kopt.cluster.workloads.queue_trees.from_kueue import from_kueue
from kopt.cluster.workloads.queue_trees.usage import LeafUsage, kueue_usage
from kopt.cluster.workloads.requests.gpus import devices_in
from kopt.core.scheduling.queue_standing import QueueStanding
from kopt.core.scheduling.queue_tree import GPU, UNLIMITED
from kopt.policies.queues import QueueTree, TreeError
from kopt.policies.queues.shares import divisions
from kopt.policies.shares import Amounts, QueueUse, ShareRow, share_rows

TREE_KINDS: tuple[Resource, ...] = (KUEUE_COHORTS, KUEUE_CLUSTER_QUEUES, KUEUE_FLAVORS)
NEEDED: tuple[Resource, ...] = (*TREE_KINDS, KUEUE_LOCAL_QUEUES, KUEUE_WORKLOADS)
"""The kinds that ``queue_standings`` reads."""


@dataclass(frozen=True)
class Standings:
    """``skipped``: what could not be read as a queue, in words."""

    queues: tuple[QueueStanding, ...] = ()
    local_queues: Mapping[tuple[str, str], str] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()


def queue_standings(documents: Mapping[Resource, Sequence[Object]]) -> Standings:
    """Kueue's queues, parents first. Objects that contradict each other leave the tree empty; why is in ``skipped``."""
    # Lists leave the kind out of their items.
    objects = [{"kind": kind.kind, **item} for kind in TREE_KINDS for item in documents.get(kind, ())]
    targets = {key_of(item): local_queue_target(item) for item in documents.get(KUEUE_LOCAL_QUEUES, ())}
    imported = from_kueue(objects)
    try:
        tree = QueueTree.of(imported.queues, imported.pools)
    except TreeError as error:
        return Standings((), targets, (*imported.skipped, *(reason.message for reason in error.reasons)))
    names = {resource for root in tree.roots for _, resource in tree.places(root)}
    usages = kueue_usage(documents.get(KUEUE_WORKLOADS, ()), targets, names)
    spaces: dict[str, set[str]] = defaultdict(set)
    for (namespace, _), queue in targets.items():
        for name in tree.lineage(queue) if queue in tree.queues else ():
            spaces[name].add(namespace)
    rows = {row.queue.name: row for row in rows_of(tree, usages)}
    # As people read a tree: each queue is followed by those below it.
    ordered = [name for root in tree.roots for name in _below(tree, root)]
    queues = tuple(_standing(tree, rows[name], frozenset(spaces[name])) for name in ordered)
    return Standings(queues, targets, imported.skipped)


def rows_of(tree: QueueTree, usages: Mapping[str, LeafUsage], capacity: Amounts | None = None) -> list[ShareRow]:
    """Of each queue, with its ideal share."""
    demands = {name: usage.demand for name, usage in usages.items()}
    uses = {name: QueueUse(usage.use, usage.pending) for name, usage in usages.items()}
    return [
        row
        for division in divisions(tree, demands, capacity)
        for row in share_rows(division.queues, uses, division.capacity)
    ]


def _below(tree: QueueTree, name: str) -> Iterable[str]:
    yield name
    for child in sorted(tree.children(name)):
        yield from _below(tree, child)


def _standing(tree: QueueTree, row: ShareRow, namespaces: frozenset[str]) -> QueueStanding:
    name = row.queue.name
    use, demand = _gpus(row.use), _gpus(row.demand)
    return QueueStanding(
        name,
        row.queue.parent,
        len(tree.lineage(name)) - 1,
        _bound(tree, name),
        _limit(tree, name),
        _gpus(row.queue.guarantee),
        use,
        max(0, demand - use),
        row.pending,
        _gpus(row.borrowing),
        _gpus(row.broken),
        _gpus(row.ideal),
        row.is_leaf,
        namespaces,
    )


def _bound(tree: QueueTree, name: str) -> int | None:
    quotas = [(resource, tree.quota(name, pool, resource)) for pool, resource in tree.places(name) if _is_gpu(resource)]
    if any(quota == UNLIMITED for _, quota in quotas):
        return None
    return sum(_in_gpus(resource, quota or 0) for resource, quota in quotas)


def _limit(tree: QueueTree, name: str) -> int | None:
    places = [(pool, resource) for pool, resource in tree.places(name) if _is_gpu(resource)]
    limits = [(resource, tree.share(name, pool, resource).limit) for pool, resource in places]
    if not limits or any(limit in (None, UNLIMITED) for _, limit in limits):
        return None
    return sum(_in_gpus(resource, limit or 0) for resource, limit in limits)


def _gpus(amounts: Mapping[str, int]) -> int:
    return sum(_in_gpus(name, value) for name, value in amounts.items() if _is_gpu(name))


def _in_gpus(resource: str, value: int) -> int:
    return value if resource == GPU else devices_in(resource, value)


def _is_gpu(resource: str) -> bool:
    return _in_gpus(resource, 1000) > 0
