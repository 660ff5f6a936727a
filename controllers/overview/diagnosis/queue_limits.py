"""What a queue of KAI's or Volcano's, and those above it, may use at most.

KAI: ``spec.resources.gpu`` of a Queue, where -1 is unlimited; what cannot be preempted keeps to the quota, the rest to
the limit. Volcano: ``spec.capability``. What is in use is counted from the pods on nodes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, text
from kopt.cluster.workloads.kueue.reading import amount
from kopt.cluster.workloads.requests.gpus import gpus_in, milli_of
from kopt.controllers.overview.diagnosis.books import ClusterBooks, is_preemptible
from kopt.core.scheduling.diagnosis import Binding
from kopt.policies.diagnosis import Ceiling, RunningWorkload

_MOST_LEVELS = 16


def kai_ceilings(queue: str, books: ClusterBooks, *, preemptible: bool) -> tuple[Ceiling, ...]:
    documents = {text(item, "metadata", "name"): item for item in books.documents.kai_queues}
    every, fixed = _used(books, documents, "parentQueue"), _used(books, documents, "parentQueue", fixed=True)
    ceilings = []
    for name in lineage(queue, documents, "parentQueue"):
        limit = _milli(documents[name], "limit")
        if limit is not None:
            ceilings.append(Ceiling(name, limit, every[name]))
        quota = _milli(documents[name], "quota")
        if not preemptible and quota is not None:
            ceilings.append(Ceiling(name, quota, fixed[name], Binding.QUEUE_QUOTA))
    return tuple(ceilings)


def volcano_ceilings(queue: str, books: ClusterBooks) -> tuple[Ceiling, ...]:
    documents = {text(item, "metadata", "name"): item for item in books.documents.volcano_queues}
    used, ceilings = _used(books, documents, "parent"), []
    for name in lineage(queue, documents, "parent"):
        limits = [
            gpus_in(str(resource), amount(value))
            for resource, value in items(documents[name], "spec", "capability")
            if milli_of(str(resource), 1)
        ]
        if limits:
            ceilings.append(Ceiling(name, sum(limits), used[name]))
    return tuple(ceilings)


def lineage(queue: str, documents: Mapping[str, Object], parent: str) -> Iterator[str]:
    """A queue and those above it, as far as they exist."""
    for _ in range(_MOST_LEVELS):
        if queue not in documents:
            return
        yield queue
        queue = text(documents[queue], "spec", parent)


def with_lineage(running: RunningWorkload, documents: Mapping[str, Object], parent: str) -> RunningWorkload:
    """Counting against the limits of all queues above its own."""
    return replace(
        running, queues=tuple(name for queue in running.queues for name in lineage(queue, documents, parent))
    )


def _used(books: ClusterBooks, documents: Mapping[str, Object], parent: str, *, fixed: bool = False) -> Counter[str]:
    """Milli-GPU by queue; ``fixed``: of what cannot be preempted."""
    used = Counter[str]()
    for members in books.bound.values():
        for pod, state in members:
            if fixed and is_preemptible(pod):
                continue
            for name in lineage(books.queue_of(pod), documents, parent):
                used[name] += int(state.ask.request.gpus.total)
    return used


def _milli(queue: Object, field: str) -> int | None:
    """None where it is unlimited; what is left out of the GPU's limits is zero, as KAI reads it."""
    limits = at(queue, "spec", "resources", "gpu")
    value = limits.get(field, 0) if isinstance(limits, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value > 10**9:
        return None
    return round(value * 1000)
