"""How ClusterQueues stand to an order that is written as priorities, and to which cohort tree each belongs."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import text
from kopt.cluster.workloads.kueue.queues import read_cluster_queue
from kopt.core.scheduling.queue_order import OrderRules


def order_rules(document: Object) -> OrderRules:
    """Of a ClusterQueue, with the cohort that it names in place of its tree."""
    queue = read_cluster_queue(document)
    rules = queue.rules
    return OrderRules(queue.name, queue.cohort, rules.within, rules.reclaim, rules.borrows, queue.by_usage)


def parent_cohort(document: Object) -> str:
    """Of a Cohort; empty for a root."""
    return text(document, "spec", "parentName") or text(document, "spec", "parent")


def in_trees(queues: Iterable[OrderRules], parents: Mapping[str, str]) -> list[OrderRules]:
    """With the root of its tree as the cohort of each; ``parents`` of cohorts. A cycle is a tree of its own."""
    return [replace(queue, cohort=_root(queue.cohort, parents)) for queue in queues]


def _root(cohort: str, parents: Mapping[str, str]) -> str:
    above = [cohort]
    while (parent := parents.get(above[-1], "")) and parent not in above:
        above.append(parent)
    cycle = parents.get(above[-1], "")
    return min(above[above.index(cycle) :]) if cycle else above[-1]
