"""A day of Philly's arrivals through one tree of KaiwoQueues on the real Kueue: how far each queue is from its ideal.

The five largest virtual clusters of the first day on which most are busy share 96 GPUs; quotas are three quarters of
the capacity, by what each demanded on the days before. Time runs 240 times as fast, one hour in 15 s. A job is one pod,
of its queue's quota at most, and one that is evicted goes on from where it was. Every second the use of each queue is
held against `policies.shares`; an hour's share error is the largest of any queue's mean over the hour. Arms: the tree
as Kueue carries it out (aggressive), and conservative with `kopt controller queues`, graces and pauses as fast as the
rest. No pod is started: quota is what is shared. Prints Markdown; returns 1 where a goal is missed.

    python -m benchmarks.shares --jobs philly.csv.gz
"""

import argparse
import asyncio
import contextlib
import csv
import gzip
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.tables import markdown
from kopt.core.scheduling.queue_tree import GPU
from kopt.policies.shares import QueueUse, ShareQueue, misallocated, share_rows

SPEED, HOURS, QUEUES, GPUS = 240, 24, 5, 96
BUSY, LEAST, MOST = 20, 4, 1000
"""Jobs of a virtual cluster that is busy on a day, GPUs of the smallest quota, and jobs of a day: what a test's control
plane can bear at this speed."""
DAY_S = 86_400
RESOURCE, V = "nvidia.com/gpu", "kueue.x-k8s.io/v1beta2"
GOAL = 0.02
HEAD = [
    "queues",
    "share error of an hour: mean",
    "P95",
    "worst",
    "not with whom it belongs",
    "below quota, min",
    "evictions",
    "wait P50, min",
    "P95",
    "jobs ended",
]
Object = dict[str, Any]


@dataclass
class ReplayedJob:
    """Times in seconds of the day; ``left_s`` is what it still has to run."""

    name: str
    queue: str
    at_s: float
    gpus: int
    left_s: float
    since_s: float | None = None
    waited_s: float = 0.0
    document: Object = field(default_factory=dict)


@dataclass
class Measured:
    """Of one arm: by hour the samples of each queue, and what happened."""

    errors: dict[int, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    misallocated: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    broken_s: float = 0.0
    evictions: int = 0
    waits_s: list[float] = field(default_factory=list)
    ended: int = 0


def main() -> int:
    """Print the table; 0 when both goals are reached by every arm."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=Path, required=True, help="job_id,submit_time,duration,gpus,vc")
    parser.add_argument("--hours", type=int, default=HOURS, help="of the day")
    options = parser.parse_args()
    jobs, quotas = day_of(options.jobs)
    jobs = [job for job in jobs if job.at_s < options.hours * 3600]
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from controlplane.kueue import Kueue
    from controlplane.plane import ControlPlane

    arms = {}
    with tempfile.TemporaryDirectory(prefix="kopt-bench-", ignore_cleanup_errors=True) as folder:
        plane = ControlPlane(Path(folder))
        try:
            kueue = Kueue(plane)
            for name in ("aggressive", "conservative"):
                arms[name] = _arm(plane, name, [ReplayedJob(**vars(job)) for job in jobs], quotas, options.hours)
                print(markdown(HEAD, [_row(name, arms[name])]), file=sys.stderr, flush=True)
            kueue.stop()
        finally:
            plane.stop()
    print(f"{len(jobs)} jobs, {options.hours} hours, quotas {quotas} of {GPUS} GPUs")
    print(markdown(HEAD, [_row(name, measured) for name, measured in arms.items()]))
    worst = max(max(_hourly(measured)) for measured in arms.values())
    return 0 if worst <= GOAL and not any(measured.broken_s for measured in arms.values()) else 1


def day_of(path: Path) -> tuple[list[ReplayedJob], dict[str, int]]:
    """The jobs of the first day on which most virtual clusters are busy, and quotas by the demand before that."""
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    by_day: dict[int, Counter[str]] = defaultdict(Counter)
    for row in rows:
        by_day[int(float(row["submit_time"])) // DAY_S][row["vc"]] += 1
    calm = [day for day in by_day if sum(count for _, count in by_day[day].most_common(QUEUES)) <= MOST]
    day = min(calm, key=lambda day: (-sum(count >= BUSY for count in by_day[day].values()), day))
    largest = [vc for vc, _ in by_day[day].most_common(QUEUES)]
    before: Counter[str] = Counter()
    for row in rows:
        if int(float(row["submit_time"])) // DAY_S < day and row["vc"] in largest:
            before[row["vc"]] += int(row["gpus"]) * int(min(float(row["duration"]), DAY_S))
    total = sum(before.values())
    quotas = {vc: max(LEAST, round(0.75 * GPUS * before[vc] / total)) for vc in largest}
    jobs = [
        ReplayedJob(
            row["job_id"],
            row["vc"],
            float(row["submit_time"]) - day * DAY_S,
            min(int(row["gpus"]), quotas[row["vc"]]),
            max(SPEED, float(row["duration"])),
        )
        for row in rows
        if int(float(row["submit_time"])) // DAY_S == day and row["vc"] in largest
    ]
    return sorted(jobs, key=lambda job: job.at_s), quotas


def _arm(plane: Any, arm: str, jobs: Sequence[ReplayedJob], quotas: Mapping[str, int], hours: int) -> Measured:
    space = f"day-{arm}"
    for name in (space, "kopt-system"):
        plane.api.namespace(name)
    plane.apply_crds([Path("deploy/chart/crds") / f"{name}.yaml" for name in ("kaiwoqueues", "kaiwopools")])
    with _controller(plane):
        root = f"{arm}-all"
        _declare(plane, root, {"resources": {"gpu": {"quota": GPUS}}})
        for vc, quota in quotas.items():
            fairness = (
                {"reclaimStrategy": arm, "gracePeriod": "2s"} if arm == "conservative" else {"reclaimStrategy": arm}
            )
            gpu = {"quota": quota, "overQuotaWeight": quota}
            spec = {"parentQueue": root, "namespaces": [space], "resources": {"gpu": gpu}, "fairness": fairness}
            _declare(plane, f"{arm}-{vc}", spec)
        plane.api.wait(V, "LocalQueue", f"{arm}-{jobs[-1].queue}", lambda item: bool(item.get("status")), space)
        return _Replay(plane, arm, space, jobs, quotas).run(hours)


class _Replay:
    def __init__(
        self, plane: Any, arm: str, space: str, jobs: Sequence[ReplayedJob], quotas: Mapping[str, int]
    ) -> None:
        self._plane, self._arm, self._space, self._jobs, self._quotas = plane, arm, space, jobs, quotas
        self._measured, self._last_s = Measured(), 0.0

    def run(self, hours: int) -> Measured:
        began_s, number, there = time.monotonic(), 0, dict[str, ReplayedJob]()
        while (now_s := (time.monotonic() - began_s) * SPEED) < hours * 3600:
            while number < len(self._jobs) and self._jobs[number].at_s <= now_s:
                job = self._jobs[number]
                job.document = self._submit(job)
                there[job.document["metadata"]["uid"]] = job
                number += 1
            self._observe(there, now_s)
            time.sleep(1.0 - (time.monotonic() - began_s) % 1.0)
        self._measured.waits_s += [job.waited_s for job in there.values()]
        return self._measured

    def _submit(self, job: ReplayedJob) -> Object:
        container = {"name": "main", "image": "any", "resources": {"limits": {RESOURCE: str(job.gpus)}}}
        labels = {"kueue.x-k8s.io/queue-name": f"{self._arm}-{job.queue}"}
        spec = {"suspend": True, "template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
        metadata = {"name": job.name, "namespace": self._space, "labels": labels}
        created: Object = self._plane.api.create(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
        )
        return created

    def _observe(self, there: dict[str, ReplayedJob], now_s: float) -> None:
        use: dict[str, int] = Counter()
        demand: dict[str, int] = Counter()
        for document in self._plane.api.list(V, "Workload", self._space):
            owner = next((item["uid"] for item in document["metadata"].get("ownerReferences") or ()), "")
            job = there.get(owner)
            if job is None:
                continue
            conditions = {item["type"]: item["status"] for item in document.get("status", {}).get("conditions") or ()}
            runs = conditions.get("Admitted") == "True" and conditions.get("Evicted") != "True"
            self._advance(job, runs, now_s)
            if job.left_s <= 0:
                self._end(job, document, there)
                continue
            demand[job.queue] += 1000 * job.gpus
            use[job.queue] += 1000 * job.gpus * runs
        self._compare(use, demand, now_s)
        self._last_s = now_s

    def _advance(self, job: ReplayedJob, runs: bool, now_s: float) -> None:
        passed_s = now_s - self._last_s
        if runs:
            job.left_s -= passed_s if job.since_s is not None else 0.0
            job.since_s = now_s if job.since_s is None else job.since_s
        else:
            self._measured.evictions += job.since_s is not None
            job.since_s = None
            job.waited_s += passed_s

    def _end(self, job: ReplayedJob, workload: Object, there: dict[str, ReplayedJob]) -> None:
        there.pop(job.document["metadata"]["uid"])
        self._plane.api.delete("batch/v1", "Job", job.name, self._space, propagationPolicy="Background")
        self._plane.api.delete(V, "Workload", workload["metadata"]["name"], self._space)
        self._measured.waits_s.append(job.waited_s)
        self._measured.ended += 1

    def _compare(self, use: Mapping[str, int], demand: Mapping[str, int], now_s: float) -> None:
        queues = [
            ShareQueue(vc, weight=1000 * quota, quota={GPU: 1000 * quota}, demand={GPU: demand.get(vc, 0)})
            for vc, quota in self._quotas.items()
        ]
        rows = share_rows(queues, {vc: QueueUse({GPU: use.get(vc, 0)}) for vc in self._quotas}, {GPU: 1000 * GPUS})
        hour = int(now_s // 3600)
        for row in rows:
            self._measured.errors[hour][row.queue.name].append(row.share_error)
            self._measured.broken_s += now_s - self._last_s if row.broken else 0.0
        self._measured.misallocated[hour].append(misallocated(rows))


def _hourly(measured: Measured) -> list[float]:
    """By hour, the largest error of a queue's mean share."""
    return [max(abs(statistics.fmean(item)) for item in hour.values()) for hour in measured.errors.values()]


def _row(name: str, measured: Measured) -> tuple[str, ...]:
    hourly, waits = sorted(_hourly(measured)), sorted(measured.waits_s)
    lost = statistics.fmean(statistics.fmean(hour) for hour in measured.misallocated.values())
    return (
        name,
        *(
            f"{100 * value:.1f} %"
            for value in (statistics.fmean(hourly), hourly[int(0.95 * (len(hourly) - 1))], hourly[-1])
        ),
        f"{100 * lost:.1f} %",
        f"{measured.broken_s / 60:.0f}",
        str(measured.evictions),
        *(f"{waits[int(part * (len(waits) - 1))] / 60:.0f}" for part in (0.5, 0.95)),
        str(measured.ended),
    )


def _declare(plane: Any, name: str, spec: Object) -> None:
    plane.api.apply({"apiVersion": "kaiwo.ai/v1alpha2", "kind": "KaiwoQueue", "metadata": {"name": name}, "spec": spec})


@contextlib.contextmanager
def _controller(plane: Any) -> Iterator[None]:
    """The product's controller, its pause as fast as the replay; constants of this process alone."""
    from kopt.cluster.client.api import connect
    from kopt.cluster.runtime.signals import run_until
    from kopt.controllers.queues import evicting
    from kopt.controllers.queues.main import ProcessSettings, Replica
    from kopt.controllers.queues.reconciler import Carrying
    from kopt.core.decision import Mode
    from kopt.policies.queues import reclaim

    reclaim.PAUSE_S = evicting.PAUSE_S = 600 / SPEED
    reclaim.LONGEST_S, evicting.RECHECK_S = 60 / SPEED, 0.5
    settings = ProcessSettings(kubeconfig=plane.kubeconfig, carrying=Carrying(mode=Mode.ENFORCE, prune=True), port=0)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with connect(plane.kubeconfig) as kube:
            await run_until(stop, Replica(kube, settings))

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)


if __name__ == "__main__":
    raise SystemExit(main())
