"""The nodes of a cluster as a question about replicas: free GPUs, what runs on them, and which pods wait for some."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kopt.cluster.client.api import Kube
from kopt.cluster.objects.fields import mapping
from kopt.cluster.workloads.requests.gpus import gpus_of
from kopt.controllers.overview.diagnosis.books import ClusterBooks
from kopt.controllers.overview.diagnosis.questions import NoPredictions, Predictions, questions_of
from kopt.controllers.overview.diagnosis.reading import read_cluster
from kopt.controllers.overview.diagnosis.starts import RunTimes, unplaced_groups
from kopt.controllers.overview.reading import Reader
from kopt.core.reason import Reason
from kopt.core.scheduling.replicas import NodeGpus
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.run_time import JobKind, RunTimeQuestion
from kopt.policies.diagnosis import QueuedGpus, QueueModel, RunningGpus
from kopt.policies.placement.pool import Pool


class NoGpusError(ValueError):
    """The cluster has no GPUs of the kind that was named; the message says which it has."""


@dataclass(frozen=True)
class ClusterRoom:
    """Of one GPU resource. ``usual``: how often pods on so many whole GPUs are there; ``unread``: kinds that may not be
    read, without which the answer is not right; ``no_run_times``: why nothing is known of when what runs will end."""

    resource: str
    nodes: tuple[NodeGpus, ...]
    model: QueueModel
    run_times: RunTimes
    usual: Mapping[int, float]
    unread: tuple[str, ...] = ()
    no_run_times: Reason | None = None


OWN = "kopt/replicas"
"""The name of the workload in question, among run times."""


async def read_room(
    kube: Kube, resource: str, now_s: float, predictions: Predictions, own: JobKind | None = None
) -> ClusterRoom:
    """The GPUs of ``resource``; without a name, of the one of which there are most. ``own``: the workload in question,
    whose run time is asked for as well. Raises ApiError and NoGpusError."""
    reader = Reader(kube)
    books = ClusterBooks(await read_cluster(reader, "", claims=False))
    questions = questions_of(books, now_s)
    if own is not None:
        questions[OWN] = RunTimeQuestion(own, now_s)
    try:
        return room_of(books, resource, await predictions.run_times(questions))
    except NoPredictions as missing:
        return replace(room_of(books, resource, {}), no_run_times=missing.reason)


def room_of(books: ClusterBooks, resource: str, run_times: RunTimes) -> ClusterRoom:
    """Raises NoGpusError."""
    sizes = {name: int(pool.state.gpu_count.sum()) for name, pool in books.fleet.pools.items()}
    sizes = {name: size for name, size in sizes.items() if size}
    if not sizes or (resource and resource not in sizes):
        names = f"it has {', '.join(sorted(sizes))}" if sizes else "no node offers any that may be read"
        raise NoGpusError(f"the cluster has no GPUs{f' of {resource}' if resource else ''}; {names}")
    name = resource or max(sizes, key=lambda each: (sizes[each], each))
    pool = books.fleet.pools[name]
    unread = tuple(sorted({"nodes", "pods"} & set(books.documents.unread)))
    return ClusterRoom(name, _nodes(pool), _model(books, pool), run_times, _usual(books, pool), unread)


def _nodes(pool: Pool) -> tuple[NodeGpus, ...]:
    """Nodes that take pods, by name, with their whole free GPUs."""
    state = pool.state
    whole = np.count_nonzero(state.gpu_free_milli >= WHOLE_GPU, axis=1)
    return tuple(
        NodeGpus(name, int(state.gpu_count[row]), int(whole[row]))
        for name, row in sorted(state.index.items())
        if state.ready[row] and state.gpu_count[row]
    )


def _model(books: ClusterBooks, pool: Pool) -> QueueModel:
    names = {str(row): name for name, row in pool.state.index.items()}
    running = [
        RunningGpus(gpus.name, {names[row]: amount for row, amount in gpus.by_node.items()})
        for _, gpus in books.running_gpus(pool)
        if gpus.by_node
    ]
    queue = []
    for label, pods in unplaced_groups(books):
        each = max(int(gpus_of(mapping(pod, "spec"), mapping(pod, "metadata", "annotations"))) for pod in pods)
        if each:
            queue.append(QueuedGpus(label, len(pods), each))
    return QueueModel(tuple(running), tuple(queue))


def _usual(books: ClusterBooks, pool: Pool) -> dict[int, float]:
    """Pods with whole GPUs by their number; empty where none runs."""
    result: dict[int, float] = {}
    for workload in books.running(pool):
        gpus: Sequence[int] = [len(slots) for _, slots, request in workload.slots if request.gpus.share == WHOLE_GPU]
        for count in filter(None, gpus):
            result[count] = result.get(count, 0.0) + 1
    return result
