"""Quota as Kueue counts it for a Workload that has none, in its own queue and in others of its namespace."""

from collections.abc import Iterable, Sequence

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.workloads.kueue.objects import ClusterQueue, KueueWorkload
from kopt.cluster.workloads.kueue.queues import demand_of
from kopt.controllers.overview.diagnosis.books import ClusterBooks
from kopt.controllers.overview.diagnosis.pod_shapes import PodTemplate
from kopt.controllers.overview.diagnosis.rules import flavor_rows
from kopt.core.scheduling.queued import Queued, State
from kopt.policies.diagnosis import KueueSide
from kopt.policies.placement.pool import Pool


def pod_set_templates(document: Object, workload: KueueWorkload) -> list[PodTemplate]:
    """The pod sets of a Workload: Kueue admits all of it at once."""
    result = []
    for number, pods in enumerate(workload.pod_sets):
        count = pods.requests.get("pods", 0) // 1000
        template = mapping(document, "spec", "podSets", number, "template")
        pod = {"metadata": dict(mapping(template, "metadata")), "spec": dict(mapping(template, "spec"))}
        name = text(document, "spec", "podSets", number, "name")
        result.append(PodTemplate(name, pod, count, count))
    return result


def flavors_of(queue: ClusterQueue) -> tuple[str, ...]:
    return tuple(dict.fromkeys(flavor for group in queue.rules.groups for flavor in group.flavors))


def side_of(
    workload: KueueWorkload, name: str, books: ClusterBooks, pool: Pool | None, ahead: Sequence[str], rank: int
) -> KueueSide | None:
    """Quota in a ClusterQueue; None for one that does not exist or admits nothing."""
    queue = books.cluster_queues.get(name)
    if queue is None or not queue.active:
        return None
    demand = demand_of(workload, queue, books.flavors or None)
    rows = flavor_rows(books, pool, flavors_of(queue)) if pool is not None else {}
    return KueueSide(
        name,
        demand,
        queue.rules,
        books.tree,
        books.admitted,
        rows,
        rank,
        queue.strict,
        tuple(ahead) if queue.strict else (),
        workload.is_counted,
    )


def ahead_of(queued: Queued, lines: Iterable[Queued]) -> list[str]:
    """What its queue admits before it, in order."""
    return [
        other.full_name
        for other in lines
        if other.queue == queued.queue
        and other.state is State.PENDING
        and (other.position or 0) < (queued.position or 0)
    ]


def other_sides(
    workload: KueueWorkload, own: str, books: ClusterBooks, pool: Pool | None, lines: Sequence[Queued]
) -> dict[str, KueueSide]:
    """By the name of each other LocalQueue in its namespace; in it what waits with at least its priority is ahead."""
    result: dict[str, KueueSide] = {}
    for (namespace, local), name in books.local_queues.items():
        if namespace != workload.key[0] or name == own:
            continue
        ahead = [
            other.full_name
            for other in lines
            if other.queue == name and other.state is State.PENDING and other.queue_priority >= workload.queue_priority
        ]
        side = side_of(workload, name, books, pool, ahead, len(ahead) + 1)
        if side is not None:
            result[local] = side
    return result
