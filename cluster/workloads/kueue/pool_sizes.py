"""How many GPUs the pools of Kueue have: the nodes of each ResourceFlavor."""

from collections.abc import Iterable

from kopt.cluster.client.resources import Object
from kopt.cluster.workloads.hardware import inventory_of
from kopt.cluster.workloads.kueue.queues import read_flavor
from kopt.core.hardware.inventory import Kind, Source
from kopt.core.hardware.pools import PoolSize


def pool_sizes(flavors: Iterable[Object], nodes: Iterable[Object], slices: Iterable[Object]) -> dict[str, PoolSize]:
    """By ResourceFlavor; one without node labels has every node. What nothing hands out is left out."""
    inventory = inventory_of(nodes, slices)
    sizes = {}
    for flavor in map(read_flavor, flavors):
        models, largest = dict[str, int](), 0
        for node in inventory:
            if flavor.labels.items() <= node.labels.items():
                listed = [item for item in node.hardware if item.kind is Kind.GPU and item.source is not Source.LABEL]
                largest = max(largest, sum(item.count for item in listed))
                for item in listed:
                    models[item.model] = models.get(item.model, 0) + item.count
        model = max(sorted(models), key=lambda name: models[name], default="")
        sizes[flavor.name] = PoolSize(sum(models.values()), largest, model)
    return sizes


def node_pools(flavors: Iterable[Object], nodes: Iterable[Object], slices: Iterable[Object]) -> dict[str, str]:
    """The pool of each node with GPUs: of the ResourceFlavors that take it the one with most labels, without any what
    its GPUs are called."""
    # By name where two have as many.
    every = sorted(map(read_flavor, flavors), key=lambda flavor: (-len(flavor.labels), flavor.name))
    pools = {}
    for node in inventory_of(nodes, slices):
        models = [item.model for item in node.hardware if item.kind is Kind.GPU]
        if models:
            matching = (flavor.name for flavor in every if flavor.labels.items() <= node.labels.items())
            pools[node.name] = next(matching, models[0])
    return pools
