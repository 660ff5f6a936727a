"""A day of a cluster as it is to be: which pod has which GPUs of which node from when until when, and what goes wrong.

Jobs are those of a trace, as the product's reader of traces gives them, placed in the order of their submission on
the first nodes with room. Times are seconds of the day.
"""

import heapq
import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from kopt.data.jobs.training import TraceJob

GPUS, DAY_S = 8, 86_400.0
TEAMS = ("vision", "language", "speech", "science")
IDLE_SHARE, LOW_SHARE = 0.10, 0.05
"""Of the pods: those that compute nothing, and those that compute for 10 to 30 % of the time; others for 50 to 95."""


@dataclass(frozen=True)
class Run:
    """A pod on ``gpus`` of a node, whose kernels run for ``busy`` of the time. ``fraction_milli``: a part of a GPU, by
    annotation; ``gpus`` is empty then."""

    pod: str
    team: str
    node: int
    gpus: tuple[int, ...]
    busy: float
    start_s: float
    end_s: float
    fraction_milli: int = 0
    is_deleted: bool = False
    """It is deleted at its end, and does not stay as one that has succeeded."""


@dataclass(frozen=True)
class Plan:
    """``lost``: the node that is lost, when, and when its pods are deleted; ``xid``: node, GPU and when."""

    nodes: int
    runs: tuple[Run, ...]
    lost: tuple[int, float, float]
    xid: tuple[int, int, float]


@dataclass
class _Cluster:
    free: list[set[int]]
    closed: set[int] = field(default_factory=set)
    ends: list[tuple[float, int, Run]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def place(self, count: int) -> list[tuple[int, tuple[int, ...]]] | None:
        """Nodes with their GPUs for a job, eight for each pod; None where there is no room."""
        result: list[tuple[int, tuple[int, ...]]] = []
        taken: dict[int, int] = {}
        for size in [GPUS] * (count // GPUS) + [count % GPUS] * bool(count % GPUS):
            room = (
                at for at, own in enumerate(self.free) if at not in self.closed and len(own) - taken.get(at, 0) >= size
            )
            node = next(room, None)
            if node is None:
                return None
            chosen = sorted(self.free[node])[taken.get(node, 0) :][:size]
            taken[node] = taken.get(node, 0) + size
            result.append((node, tuple(chosen)))
        return result

    def start(self, run: Run) -> None:
        self.free[run.node] -= set(run.gpus)
        heapq.heappush(self.ends, (run.end_s, next(self.numbers), run))


def planned(
    jobs: Iterable[TraceJob], nodes: int, *, most_jobs: int, load: float = 0.75, shortest_s: float = 1800, seed: int = 7
) -> Plan:
    """Jobs that are shorter than ``shortest_s`` are left out: nothing that samples would see them. ``load``: the part
    of all GPU-hours that they ask for, if ``most_jobs`` are enough for it."""
    draws = random.Random(seed)
    cluster = _Cluster([set(range(GPUS)) for _ in range(nodes)])
    # For fractions.
    cluster.free[-1].remove(GPUS - 1)
    lost_node, lost_s, deleted_s = 0, 0.45 * DAY_S, 0.55 * DAY_S
    pending: list[tuple[float, int, TraceJob]] = []
    for number, job in enumerate(_chosen(jobs, nodes, most_jobs, load, shortest_s, draws)):
        heapq.heappush(pending, (job.submitted_s, number, job))
    runs: list[Run] = []
    is_lost = False
    while pending:
        at_s, number, job = heapq.heappop(pending)
        if at_s >= lost_s and not is_lost:
            is_lost = True
            held = [
                sum(len(run.gpus) for run in runs if run.node == node and run.end_s > lost_s) for node in range(nodes)
            ]
            # The first has the XID, the last the fractions.
            lost_node = max(range(1, nodes - 1), key=held.__getitem__)
            cluster.closed.add(lost_node)
            runs, again = _without(runs, cluster, lost_node, lost_s, deleted_s)
            for each in again:
                heapq.heappush(pending, (each.submitted_s, next(cluster.numbers) + 1_000_000, each))
        while cluster.ends and cluster.ends[0][0] <= at_s:
            _, _, ended = heapq.heappop(cluster.ends)
            cluster.free[ended.node] |= set(ended.gpus)
        places = cluster.place(job.gpus)
        if places is None:
            again_s = min((end[0] for end in cluster.ends), default=DAY_S)
            if again_s < 0.97 * DAY_S:
                heapq.heappush(pending, (max(again_s, at_s + 1), number, job))
            continue
        busy, team = _busy(draws), TEAMS[number % len(TEAMS)]
        for index, (node, gpus) in enumerate(places):
            run = Run(
                f"{job.name}-{index}",
                team,
                node,
                gpus,
                busy,
                at_s,
                at_s + job.duration_s,
                is_deleted=draws.random() < 0.5,
            )
            runs.append(run)
            cluster.start(run)
    shares = [
        Run(f"share-{each}", TEAMS[each], nodes - 1, (), 0.0, 0.05 * DAY_S, 2 * DAY_S, fraction_milli=500)
        for each in range(2)
    ]
    return Plan(nodes, (*shares, *runs), (lost_node, lost_s, deleted_s), (0, 3, 0.6 * DAY_S))


def _chosen(
    jobs: Iterable[TraceJob], nodes: int, most_jobs: int, load: float, shortest_s: float, draws: random.Random
) -> list[TraceJob]:
    """Jobs of all days at their time of the day, as many as there is to be load: the larger, the likelier, so
    that few jobs fill the cluster."""
    fitting = [job for job in jobs if job.duration_s >= shortest_s and job.gpus <= nodes * GPUS // 4]
    fitting.sort(key=lambda job: -(draws.random() ** (DAY_S / (job.gpus * min(job.duration_s, DAY_S))) ** 0.5))
    result, remaining = [], load * nodes * GPUS * DAY_S
    for number, job in enumerate(fitting):
        if remaining <= 0 or len(result) >= most_jobs:
            break
        at_s = job.submitted_s % DAY_S * 0.9
        result.append(TraceJob(f"job-{number}", at_s, min(job.duration_s, DAY_S), job.gpus, job.queue))
        remaining -= job.gpus * min(job.duration_s, DAY_S - at_s)
    return result


def _without(
    runs: list[Run], cluster: _Cluster, node: int, lost_s: float, deleted_s: float
) -> tuple[list[Run], list[TraceJob]]:
    """Runs on a node that is lost end when its pods are deleted; what they had left begins again elsewhere."""
    kept, again = [], []
    for run in runs:
        if run.node == node and run.end_s > lost_s:
            kept.append(replace(run, end_s=deleted_s, is_deleted=True))
            again.append(TraceJob(f"again-{run.pod}", deleted_s, max(run.end_s - lost_s, 1800.0), len(run.gpus)))
        else:
            kept.append(run)
    cluster.ends = [each for each in cluster.ends if each[2].node != node]
    heapq.heapify(cluster.ends)
    return kept, again


def _busy(draws: random.Random) -> float:
    kind = draws.random()
    if kind < IDLE_SHARE:
        return 0.0
    low, high = (0.1, 0.3) if kind < IDLE_SHARE + LOW_SHARE else (0.5, 0.95)
    return round(draws.uniform(low, high), 2)
