"""Wait and run of jobs whose replicas follow the cluster, against ceil(total / smallest node).

``KOPT_DATA_DIR/jobs``: the last 30 % of the first half of Philly's trace, on nodes whose GPUs are asked for 80 and 95 %
of the time: as many of 2 and of 8 GPUs as Philly has (321 to 231), and of 8 alone. A job runs for as long as in the
trace in the fastest shape; in others longer, by what a step over several nodes takes more (0, 17 % as Jeon et al.
measured it for two nodes, and twice that). *kopt* knows run times of what runs by the model, fitted on what had ended
before; *perfect* knows them. Compared are jobs on several GPUs: others have one shape.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.tables import markdown
from kopt.core.scheduling.replicas import NodeGpus, Shape
from kopt.core.settings import Settings
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.run_time import JobRun, RunTimeQuantiles
from kopt.models.runtime.cluster_runs import ClusterRuns
from kopt.models.runtime.distribution import LogTimes
from kopt.models.runtime.predictor import RunTimePredictor
from kopt.models.runtime.table import table_of
from kopt.policies.diagnosis import QueuedGpus, QueueModel, RunningGpus
from kopt.policies.replicas import ReplicaQuestion, by_smallest_node, replica_advice, shapes_of, slowdown
from kopt.policies.replicas.slowdown import OVER_TWO_NODES
from kopt.simulator.replicas import Cluster, Divide, Done, replay
from kopt.training.runtime.default_data import DEFAULT_DATA
from kopt.training.runtime.recipe import window_start_s

_TRACE, _LOADS = "philly_first_half", (0.8, 0.95)
_FLEETS = {"2 and 8": (321, 231), "8": (0, 1)}
_LEVELS = (0.5,)


def main(arguments: Sequence[str] = ()) -> int:
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / DEFAULT_DATA.folder
    if not folder.is_dir():
        print("KOPT_DATA_DIR names no folder with jobs/")
        return 1
    (trace,) = DEFAULT_DATA.read(folder, Settings(home=Path())).of([_TRACE])
    table = table_of(trace)
    from_s = window_start_s(table)
    model = RunTimePredictor().fit(table.as_of(from_s))
    jobs = [run for run in trace.runs if run.started_s >= from_s and run.duration_seconds is not None]
    before = [run for run in trace.runs if run.ended_s is not None and run.ended_s < from_s]
    rows = []
    for name in _FLEETS:
        for load in _LOADS:
            for factor in (1.0, 0.0, 2.0) if load == _LOADS[0] else (1.0,):
                rows += _compared(jobs, before, model, name, load, factor * OVER_TWO_NODES)
    head = (
        "nodes of",
        "load",
        "2nd node",
        "shapes by",
        "median wait + run (h)",
        "",
        "mean (h)",
        "",
        "median wait (h)",
        "mean wait of 1-GPU jobs (h)",
    )
    print(markdown(head, rows))
    return 0


def fleet(jobs: Sequence[JobRun], name: str, load: float) -> list[int]:
    """GPUs of each node, so that the jobs ask for ``load`` of them on average."""
    work = sum(job.kind.gpus * (job.duration_seconds or 0.0) for job in jobs)
    gpus = work / (max(job.started_s for job in jobs) - min(job.started_s for job in jobs)) / load
    small, large = _FLEETS[name]
    scale = gpus / (2 * small + 8 * large)
    return [2] * round(small * scale) + [8] * max(4, round(large * scale))


def _compared(
    jobs: Sequence[JobRun],
    before: Sequence[JobRun],
    model: RunTimePredictor,
    name: str,
    load: float,
    over_two_nodes: float,
) -> list[tuple[str, ...]]:
    nodes = fleet(jobs, name, load)
    fitting = [job for job in jobs if job.kind.gpus <= sum(nodes) // 2]
    ratio = Ratio(max(nodes), over_two_nodes)
    predicted = Predicted(model.cluster_runs(), before)
    variants: list[tuple[str, Divide, Callable[[JobRun, float, float], None]]] = [
        ("smallest node", _smallest, lambda job, start_s, end_s: None),
        ("kopt", Advised(predicted, over_two_nodes), predicted.ended),
        ("kopt, perfect times", Advised(Perfect(ratio), over_two_nodes), lambda job, start_s, end_s: None),
    ]
    rows, base = [], (0.0, 0.0)
    for label, divide, ended in variants:
        done = replay(fitting, nodes, divide, ratio, ended)
        several = [item for item in done if item.job.kind.gpus > 1]
        median = float(np.median([item.total_s for item in several])) / 3600
        mean = float(np.mean([item.total_s for item in several])) / 3600
        base = base if base[0] else (median, mean)
        rows.append(
            (
                name,
                f"{load:.0%}",
                f"{over_two_nodes:+.0%}",
                label,
                f"{median:.2f}",
                f"{median / base[0] - 1:+.0%}" if label != "smallest node" else "–",
                f"{mean:.1f}",
                f"{mean / base[1] - 1:+.0%}" if label != "smallest node" else "–",
                f"{np.median([item.wait_s for item in several]) / 3600:.2f}",
                f"{np.mean([item.wait_s for item in done if item.job.kind.gpus == 1]) / 3600:.2f}",
            )
        )
        print("; ".join(rows[-1]), _shapes(several), file=sys.stderr, flush=True)
    return rows


def _shapes(done: Sequence[Done]) -> str:
    counts: dict[str, int] = {}
    for item in done:
        if item.job.kind.gpus >= 8:
            counts[str(item.shape)] = counts.get(str(item.shape), 0) + 1
    return ", ".join(f"{shape}: {count}" for shape, count in sorted(counts.items(), key=lambda item: -item[1])[:8])


def _smallest(job: JobRun, cluster: Cluster, now_s: float) -> Shape:
    return by_smallest_node(job.kind.gpus, cluster.nodes())


class Ratio:
    """What a job takes in a shape by what it takes in its fastest."""

    def __init__(self, largest: int, over_two_nodes: float) -> None:
        self._largest, self._over_two_nodes = largest, over_two_nodes

    def __call__(self, job: JobRun, shape: Shape) -> float:
        fastest = min(each.replicas for each in shapes_of(job.kind.gpus) if each.gpus <= self._largest)
        return slowdown(shape.replicas, self._over_two_nodes) / slowdown(fastest, self._over_two_nodes)


class Perfect:
    """The run times themselves, as long as jobs are in their fastest shape."""

    def __init__(self, ratio: Ratio) -> None:
        self._ratio = ratio

    def whole(self, job: JobRun, now_s: float) -> float:
        return job.duration_seconds or 0.0

    def left(self, job: JobRun, start_s: float, now_s: float) -> float:
        return max(1.0, start_s + (job.duration_seconds or 0.0) - now_s)


class Predicted:
    """Medians by the model, of what is left given the age."""

    def __init__(self, runs: ClusterRuns, before: Sequence[JobRun]) -> None:
        self._runs = runs
        runs.observe(before, answer_last=2_000)
        self._times: dict[str, LogTimes] = {}

    def _of(self, job: JobRun, now_s: float) -> LogTimes:
        if job.job not in self._times:
            quantiles, _, _ = self._runs.quantiles(job.kind, now_s)
            self._times[job.job] = LogTimes(tuple(quantiles.tolist()))
        return self._times[job.job]

    def whole(self, job: JobRun, now_s: float) -> float:
        return float(np.exp(self._of(job, now_s).quantile(0.5)))

    def left(self, job: JobRun, start_s: float, now_s: float) -> float:
        elapsed_s = max(1.0, now_s - start_s)
        (whole,) = self._of(job, start_s).quantiles_after(float(np.log(elapsed_s)), _LEVELS)
        return max(1.0, float(np.exp(whole)) - elapsed_s)

    def ended(self, job: JobRun, start_s: float, now_s: float) -> None:
        self._runs.observe([JobRun(job.job, job.kind, start_s, now_s)])


class Advised:
    """Shapes by ``replica_advice``; a single future, of medians, stands for the draws of the command."""

    def __init__(self, times: Predicted | Perfect, over_two_nodes: float) -> None:
        self._times, self._over_two_nodes = times, over_two_nodes

    def __call__(self, job: JobRun, cluster: Cluster, now_s: float) -> Shape:
        if job.kind.gpus == 1:
            return Shape(1, 1)
        advice = replica_advice(self.question(job, cluster, now_s), draws=1)
        assert advice.selected is not None, "jobs larger than the cluster are left out"
        return advice.selected.shape

    def question(self, job: JobRun, cluster: Cluster, now_s: float) -> ReplicaQuestion:
        nodes: tuple[NodeGpus, ...] = cluster.nodes()
        run_times: dict[str, RunTimeQuantiles] = {}
        running, queue = [], []
        for item in cluster.running.values():
            by_node = {str(row): amount * int(WHOLE_GPU) for row, amount in item.by_node.items()}
            running.append(RunningGpus(item.job.job, by_node))
            left_s = self._times.left(item.job, item.start_s, now_s)
            run_times[item.job.job] = RunTimeQuantiles(_LEVELS, (left_s,))
        for other, shape in cluster.queue:
            queue.append(QueuedGpus(other.job, shape.replicas, shape.gpus * int(WHOLE_GPU)))
            run_times[other.job] = RunTimeQuantiles(_LEVELS, (self._times.whole(other, now_s),))
        model = QueueModel(tuple(running), tuple(queue))
        whole_s = max(1.0, self._times.whole(job, now_s))
        return ReplicaQuestion(
            job.kind.gpus, nodes, whole_s, None, model, run_times, over_two_nodes=self._over_two_nodes
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
