"""A change that really came: jobs through a real Kueue, then the same jobs through it with more GPUs.

Half a day of Philly's arrivals in one ClusterQueue (BestEffortFIFO), 240 times as fast, jobs of three hours at most.
The what-if gets the Workloads of the first run alone, read as ``kopt controller runs`` reads them, and says what the
second one will be. No pod is started: quota is what jobs wait for. Conditions are of whole seconds, here four minutes.
Prints Markdown; returns 1 where the change of the mean wait is off by more than the goal.

    python -m benchmarks.what_if_kueue --jobs philly.csv.gz
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.shares import HOURS, RESOURCE, SPEED, ReplayedJob, V, day_of
from benchmarks.tables import markdown
from kopt.cluster.workloads.runs import run_of_workload
from kopt.core.workload.run_time import JobRun
from kopt.simulator.what_if.jobs import Record, history_of
from kopt.simulator.what_if.replay import Order, Pool, replay

LOAD, MORE, LONGEST_S, GOAL = 1.1, 0.25, 3 * 3600.0, 0.2


def main() -> int:
    """Print the table; 0 when the goal is reached."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=Path, required=True, help="job_id,submit_time,duration,gpus,vc")
    parser.add_argument("--hours", type=int, default=HOURS // 2, help="of arrivals")
    options = parser.parse_args()
    day, _ = day_of(options.jobs)
    jobs = [replace(job, left_s=min(job.left_s, LONGEST_S)) for job in day if job.at_s < options.hours * 3600]
    gpus = math.ceil(sum(job.gpus * job.left_s for job in jobs) / (options.hours * 3600) / LOAD)
    sizes = gpus, math.ceil(gpus * (1 + MORE))
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from controlplane.kueue import Kueue
    from controlplane.plane import ControlPlane

    with tempfile.TemporaryDirectory(prefix="kopt-bench-", ignore_cleanup_errors=True) as folder:
        plane = ControlPlane(Path(folder))
        try:
            kueue = Kueue(plane)
            recorded = [_recorded(plane, f"size-{size}", size, jobs) for size in sizes]
            kueue.stop()
        finally:
            plane.stop()
    return _compare(recorded, sizes)


def _recorded(plane: Any, name: str, gpus: int, jobs: Sequence[ReplayedJob]) -> list[JobRun]:
    """Runs in the time of the trace, all of them to their end."""
    plane.api.namespace(name)
    flavor = {"name": name, "resources": [{"name": RESOURCE, "nominalQuota": gpus}]}
    groups = [{"coveredResources": [RESOURCE], "flavors": [flavor]}]
    plane.api.apply(
        {"apiVersion": V, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {}},
        {
            "apiVersion": V,
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {"namespaceSelector": {}, "resourceGroups": groups, "queueingStrategy": "BestEffortFIFO"},
        },
        {
            "apiVersion": V,
            "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": name},
            "spec": {"clusterQueue": name},
        },
    )
    plane.api.wait(V, "LocalQueue", name, lambda item: bool(item.get("status")), name)
    arrivals, there, runs = deque(jobs), dict[str, ReplayedJob](), list[JobRun]()
    began_s = time.time()
    while arrivals or there:
        now_s = (time.time() - began_s) * SPEED
        while arrivals and arrivals[0].at_s <= now_s:
            job = arrivals.popleft()
            there[_submit(plane, name, job)] = job
        for document in plane.api.list(V, "Workload", name):
            owner = next((item["uid"] for item in document["metadata"].get("ownerReferences") or ()), "")
            run = run_of_workload(document)
            if owner in there and run is not None and time.time() - run.started_s >= there[owner].left_s / SPEED:
                _end(plane, name, there.pop(owner), document)
                runs.append(_in_trace_time(replace(run, ended_s=time.time()), began_s))
        time.sleep(0.5)
    return runs


def _submit(plane: Any, space: str, job: ReplayedJob) -> str:
    container = {"name": "main", "image": "any", "resources": {"limits": {RESOURCE: str(job.gpus)}}}
    spec = {"suspend": True, "template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
    metadata = {"name": job.name, "namespace": space, "labels": {"kueue.x-k8s.io/queue-name": space}}
    created = plane.api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    return str(created["metadata"]["uid"])


def _end(plane: Any, space: str, job: ReplayedJob, workload: dict[str, Any]) -> None:
    plane.api.delete("batch/v1", "Job", job.name, space, propagationPolicy="Background")
    plane.api.delete(V, "Workload", workload["metadata"]["name"], space)


def _in_trace_time(run: JobRun, began_s: float) -> JobRun:
    times = {name: (getattr(run, name) - began_s) * SPEED for name in ("submitted_s", "started_s", "ended_s")}
    return replace(run, **times)


def _compare(recorded: Sequence[Sequence[JobRun]], sizes: tuple[int, int]) -> int:
    history = history_of(recorded[0])
    jobs = Record(history.jobs, sizes[0]).with_holds()
    held = sum(job.held_s for job in jobs) / max(1.0, sum(job.waited_s or 0.0 for job in jobs))
    replayed = []
    for size in sizes:
        starts = replay(jobs, Pool(size), Order.BEST_EFFORT)
        replayed.append([at_s - job.submitted_s for at_s, job in zip(starts, jobs, strict=True) if at_s is not None])
    waits = [[job.waited_s or 0.0 for job in history_of(runs).jobs] for runs in recorded]
    rows = []
    for size, real, told in zip(sizes, waits, replayed, strict=True):
        cells = (f"{figure(values) / 60:.0f} min" for figure in _FIGURES.values() for values in (real, told))
        rows.append([f"{size}", str(len(real)), *cells])
    print(markdown(["GPUs", "jobs", *(f"{name}, {of}" for name in _FIGURES for of in ("Kueue", "what-if"))], rows))
    changes = [statistics.fmean(after) / statistics.fmean(before) - 1 for before, after in (waits, replayed)]
    print(f"\nThe mean wait changed by {changes[0]:+.0%}, the what-if says {changes[1]:+.0%}; {held:.0%} was held.")
    return 0 if abs(changes[0] - changes[1]) <= GOAL else 1


_FIGURES = {
    "mean wait": statistics.fmean,
    "median": statistics.median,
    "95 % up to": lambda values: sorted(values)[int(0.95 * (len(values) - 1))],
}

if __name__ == "__main__":
    raise SystemExit(main())
