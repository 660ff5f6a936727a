"""The queue that a workload waits in, reduced to GPUs, and when it starts by the run times of what is before it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, mapping, text
from kopt.cluster.workloads.kueue.objects import KueueWorkload
from kopt.cluster.workloads.requests.gpus import devices_in, gpus_of, milli_of
from kopt.controllers.overview.diagnosis.books import ClusterBooks
from kopt.core.reason import Reason
from kopt.core.scheduling.diagnosis import StartEstimate
from kopt.core.scheduling.queued import Queued, State
from kopt.core.scheduling.quota import FlavorResource
from kopt.core.times import seconds_or_none
from kopt.core.workload.run_time import RunTimeQuantiles
from kopt.policies.diagnosis import NodeRoom, QueuedGpus, QueueModel, RunningGpus, Situation, start_times
from kopt.policies.diagnosis.fitting import open_rows
from kopt.policies.placement.pool import Pool

RunTimes = Mapping[str, RunTimeQuantiles]
"""By ``namespace/name`` of a workload: the time that is left of what runs, the run time of what waits."""
UNKNOWN = "RUN_TIME_UNKNOWN"
_QUOTA = "quota"


class Waiter(Protocol):
    """What waits, and how far its situation is known (``answer.Pending``)."""

    @property
    def situation(self) -> Situation: ...
    @property
    def workload(self) -> KueueWorkload | None: ...


def start_of(
    pending: Waiter, name: str, lines: Sequence[Queued], books: ClusterBooks, run_times: RunTimes, seed: int = 0
) -> StartEstimate:
    """``lines``: what waits in Kueue's queues, in order. The same run times give the same answer: draws have a seed."""
    if not run_times:
        return StartEstimate(reason=Reason(UNKNOWN, "No run time of what is before it is known here."))
    if pending.workload is not None and pending.situation.kueue is not None:
        model, name = _of_kueue(pending.situation, pending.workload, lines, books), pending.workload.name
    elif pending.situation.fleet is not None and pending.situation.shapes:
        model = _of_pods(pending.situation, name, books)
    else:
        return StartEstimate(reason=Reason("NOT_QUEUED", "What is ahead of it cannot be read."))
    return start_times(model, name, run_times, np.random.default_rng(seed))


def _nodes(situation: Situation) -> tuple[NodeRoom, ...]:
    """The nodes that are open to it, with their free GPUs; by CPU and memory no node is left out."""
    fleet = situation.fleet
    if fleet is None or not situation.shapes:
        return ()
    rows = np.logical_or.reduce([open_rows(situation, shape, fleet) for shape in situation.shapes])
    if situation.kueue is not None and situation.kueue.flavor_rows:
        rows = rows & np.logical_or.reduce(list(situation.kueue.flavor_rows.values()))
    free = fleet.gpu_free_milli.clip(min=0).sum(axis=1)
    return tuple(NodeRoom(str(row), int(free[row])) for row in np.flatnonzero(rows).tolist())


def _of_kueue(
    situation: Situation, workload: KueueWorkload, lines: Sequence[Queued], books: ClusterBooks
) -> QueueModel:
    """The flavour of its GPUs that lacks least. What each running workload returns is what the tree has more for this
    queue without it."""
    side = situation.kueue
    assert side is not None, "it waits for quota"
    key = _flavor_resource(situation)
    by_node = {workload.name: gpus.by_node for workload, gpus in books.running_gpus(_pool(situation, books))}
    running, free = [], 0
    if key is not None:
        free = side.tree.available(side.queue, key)
        for item in side.admitted:
            side.tree.add(item.queue, item.uses, -1)
            returned = side.tree.available(side.queue, key) - free
            side.tree.add(item.queue, item.uses)
            if returned or by_node.get(item.name):
                running.append(RunningGpus(item.name, by_node.get(item.name, {}), {_QUOTA: returned}))
    names = {item.name for item in side.admitted}
    running += [RunningGpus(name, amounts) for name, amounts in by_node.items() if name not in names and amounts]
    queue = []
    for line in lines:
        other = books.workloads.get((line.namespace, line.workload))
        if line.queue == side.queue and line.state is State.PENDING and other is not None:
            queue.append(_queued(other, workload.gpu_resource))
    return QueueModel(tuple(running), tuple(queue), _nodes(situation), {_QUOTA: free} if key else {}, side.strict)


def _pool(situation: Situation, books: ClusterBooks) -> Pool:
    return books.pool(next((shape.resource for shape in situation.shapes if shape.resource), ""))


def _flavor_resource(situation: Situation) -> FlavorResource | None:
    """The flavour of GPUs that lacks least of all that it requests; one that could never give so much comes last."""
    side = situation.kueue
    assert side is not None, "it waits for quota"
    wanted = Counter[FlavorResource]()
    for pods in side.demand.pod_sets:
        for group in side.rules.groups:
            for flavor in group.flavors:
                for resource, amount in pods.requests.items():
                    if flavor in pods.flavors and resource in group.resources and milli_of(resource, 1):
                        wanted[flavor, resource] += amount
    ranked = [
        (amount > side.tree.capacity(side.queue, key), amount - side.tree.available(side.queue, key), position, key)
        for position, (key, amount) in enumerate(wanted.items())
        if amount
    ]
    return min(ranked)[-1] if ranked else None


def _queued(workload: KueueWorkload, resource: str) -> QueuedGpus:
    pods, milli = 0, 0
    for pod_set in workload.pod_sets:
        amount = pod_set.requests.get(resource, 0)
        number = pod_set.requests.get("pods", 0) // 1000
        if amount and number:
            pods, milli = pods + number, max(milli, amount // number)
    total = workload.requests.get(resource, 0)
    return QueuedGpus(workload.name, pods, devices_in(resource, milli), {_QUOTA: total})


def _of_pods(situation: Situation, name: str, books: ClusterBooks) -> QueueModel:
    """All pods that wait for the same GPUs, by priority and then by age, as kube-scheduler takes them."""
    limits = {f"{ceiling.queue} {ceiling.code}": ceiling.limit - ceiling.used for ceiling in situation.ceilings}
    keys = {ceiling.queue: f"{ceiling.queue} {ceiling.code}" for ceiling in situation.ceilings}
    running = books.on_nodes(_pool(situation, books))
    if keys:
        counted = {workload.name: workload for workload in situation.running}
        running = tuple(
            replace(
                gpus,
                by_limit={
                    keys[queue]: counted[gpus.name].milli_gpus for queue in counted[gpus.name].queues if queue in keys
                },
            )
            for gpus in running
        )
    own = {shape.name for shape in situation.shapes}
    queue = []
    for label, pods in unplaced_groups(books):
        is_own = any(text(pod, "metadata", "name") in own for pod in pods)
        each = max(int(gpus_of(mapping(pod, "spec"), mapping(pod, "metadata", "annotations"))) for pod in pods)
        if is_own:
            least = sum(shape.least for shape in situation.shapes if shape.resource)
            wanted = dict.fromkeys(keys.values(), least * each)
            queue.append(QueuedGpus(name, least, each, wanted))
        elif each:
            queue.append(QueuedGpus(label, len(pods), each))
    return QueueModel(running, tuple(queue), _nodes(situation), limits)


def unplaced_groups(books: ClusterBooks) -> list[tuple[str, list[Object]]]:
    """Pods that a scheduler looks for nodes for, by workload, by priority and then by age."""
    groups: dict[str, list[Object]] = {}
    for pod in books.unplaced:
        groups.setdefault(books.name_of(pod), []).append(pod)
    return sorted(groups.items(), key=lambda item: _order(item[1]))


def _order(pods: Sequence[Object]) -> tuple[int, float]:
    priorities = [value for pod in pods if isinstance(value := at(pod, "spec", "priority"), int)]
    stamps = [seconds_or_none(text(pod, "metadata", "creationTimestamp")) or 0.0 for pod in pods]
    return -max(priorities, default=0), min(stamps, default=0.0)
