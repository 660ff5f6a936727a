"""A trace's jobs on nodes, each divided into replicas when it is submitted: how long they wait and run.

What fits starts in the order of submission, and what does not fit is passed, as Kueue's BestEffortFIFO and
kube-scheduler do. Replicas go to the fullest nodes with room. A job runs for as long as in the trace in its fastest
shape, and longer by its shape's ``slowdown`` in others.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kopt.core.scheduling.replicas import NodeGpus, Shape
from kopt.core.workload.run_time import JobRun


@dataclass(frozen=True)
class RunningJob:
    """A job with GPUs: by index of the node, and since when."""

    job: JobRun
    by_node: Mapping[int, int]
    start_s: float


@dataclass
class Cluster:
    """What is known when a job is submitted. ``queue`` is in order; ``free`` are GPUs by node."""

    gpus: Sequence[int]
    free: list[int]
    running: dict[int, RunningJob] = field(default_factory=dict)
    queue: list[tuple[JobRun, Shape]] = field(default_factory=list)

    def nodes(self) -> tuple[NodeGpus, ...]:
        return tuple(NodeGpus(str(row), gpus, self.free[row]) for row, gpus in enumerate(self.gpus))


@dataclass(frozen=True, slots=True)
class Done:
    """A job of the trace as it went."""

    job: JobRun
    shape: Shape
    start_s: float
    end_s: float

    @property
    def wait_s(self) -> float:
        return self.start_s - self.job.started_s

    @property
    def total_s(self) -> float:
        """Wait and run."""
        return self.end_s - self.job.started_s


Divide = Callable[[JobRun, Cluster, float], Shape]
"""A job, the cluster, now → its shape."""


def replay(
    jobs: Sequence[JobRun],
    gpus: Sequence[int],
    divide: Divide,
    slowdown_of: Callable[[JobRun, Shape], float],
    ended: Callable[[JobRun, float, float], None] = lambda job, start_s, end_s: None,
) -> list[Done]:
    """Every job that has an end, in the order in which they start. ``gpus`` of each node; ``ended`` is called with a
    job's start and end as these become known. Raises ValueError for a shape that can never fit."""
    arrivals = sorted((job for job in jobs if job.duration_seconds is not None), key=lambda job: job.started_s)
    cluster = Cluster(gpus, list(gpus))
    ends: list[tuple[float, int]] = []
    result: list[Done] = []
    arrived = 0
    while arrived < len(arrivals) or ends:
        next_s = arrivals[arrived].started_s if arrived < len(arrivals) else float("inf")
        now_s = min(next_s, ends[0][0] if ends else float("inf"))
        while ends and ends[0][0] <= now_s:
            done = cluster.running.pop(heapq.heappop(ends)[1])
            for row, amount in done.by_node.items():
                cluster.free[row] += amount
            ended(done.job, done.start_s, now_s)
        while arrived < len(arrivals) and arrivals[arrived].started_s <= now_s:
            job = arrivals[arrived]
            shape = divide(job, cluster, now_s)
            if sum(node // shape.gpus for node in gpus) < shape.replicas:
                raise ValueError(f"{shape} can never fit, for job {job.job}")
            cluster.queue.append((job, shape))
            arrived += 1
        for job, shape, by_node in _started(cluster):
            number = len(result)
            seconds = (job.duration_seconds or 0.0) * slowdown_of(job, shape)
            cluster.running[number] = RunningJob(job, by_node, now_s)
            heapq.heappush(ends, (now_s + seconds, number))
            result.append(Done(job, shape, now_s, now_s + seconds))
    return result


def _started(cluster: Cluster) -> list[tuple[JobRun, Shape, dict[int, int]]]:
    started, queued, refused = [], [], set[Shape]()
    for job, shape in cluster.queue:
        by_node = None if shape in refused else placed(cluster.free, shape)
        if by_node is None:
            refused.add(shape)
            queued.append((job, shape))
            continue
        for row, amount in by_node.items():
            cluster.free[row] -= amount
        started.append((job, shape, by_node))
    cluster.queue = queued
    return started


def placed(free: Sequence[int], shape: Shape) -> dict[int, int] | None:
    """GPUs by node, on the fullest nodes first; None where it does not fit."""
    rows = sorted((amount, row) for row, amount in enumerate(free) if amount >= shape.gpus)
    by_node: dict[int, int] = {}
    remaining = shape.replicas
    for amount, row in rows:
        replicas = min(remaining, amount // shape.gpus)
        by_node[row] = replicas * shape.gpus
        remaining -= replicas
        if not remaining:
            return by_node
    return None
