"""A day of jobs from a trace, and the tree of KaiwoQueues that shares its GPUs."""

import csv
import gzip
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

QUEUES, GPUS, PART = 5, 96, 0.75
"""``PART`` of the GPUs are quotas of the queues; the rest is above them, and shared by weight."""
BUSY, LEAST, MOST = 20, 4, 1000
"""Jobs of a virtual cluster that is busy on a day, GPUs of the smallest quota, and jobs of a day: what a test's control
plane can bear."""
DAY_S, SHORTEST_S = 86_400, 60.0
Object = dict[str, Any]


@dataclass(frozen=True)
class TraceJob:
    """Times in seconds of the day; ``runs_s`` is what it has to run altogether."""

    name: str
    queue: str
    at_s: float
    gpus: int
    runs_s: float


def day_of(path: Path) -> tuple[list[TraceJob], dict[str, int]]:
    """The jobs of the first day on which most virtual clusters are busy, and quotas in GPUs by the demand before that:
    a rule that looks at no result. A job has at most its queue's quota, so that each can always be had back."""
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
    quotas = {vc: max(LEAST, round(PART * GPUS * before[vc] / total)) for vc in largest}
    jobs = [
        TraceJob(
            row["job_id"],
            row["vc"],
            float(row["submit_time"]) - day * DAY_S,
            min(int(row["gpus"]), quotas[row["vc"]]),
            max(SHORTEST_S, float(row["duration"])),
        )
        for row in rows
        if int(float(row["submit_time"])) // DAY_S == day and row["vc"] in largest
    ]
    return sorted(jobs, key=lambda job: job.at_s), quotas


def of_hours(jobs: Sequence[TraceJob], from_s: float, until_s: float) -> list[TraceJob]:
    """Those that come within a part of the day, and before them, all at its beginning and with what they have left to
    run, those that would still run if nobody had ever had to wait. Times are of the part."""
    result = []
    for job in jobs:
        passed_s = max(0.0, from_s - job.at_s)
        if job.at_s < until_s and passed_s < job.runs_s:
            result.append(replace(job, at_s=max(0.0, job.at_s - from_s), runs_s=job.runs_s - passed_s))
    return result


def queue_documents(
    quotas: Mapping[str, int], capacity: int, space: str, fairness: Mapping[str, str]
) -> tuple[Object, ...]:
    """One root with the capacity, and a queue below it for each quota, by which it is weighed."""
    root = _document("all", {"resources": {"gpu": {"quota": capacity}}})
    leaves = (
        {
            "parentQueue": "all",
            "namespaces": [space],
            "resources": {"gpu": {"quota": quota, "overQuotaWeight": quota}},
            "fairness": dict(fairness),
        }
        for quota in quotas.values()
    )
    return (root, *(_document(queue_name(vc), spec) for vc, spec in zip(quotas, leaves, strict=True)))


def queue_name(vc: str) -> str:
    """Of a virtual cluster's KaiwoQueue: names of the trace may begin with a digit."""
    return f"vc-{vc}"


def _document(name: str, spec: Object) -> Object:
    return {"apiVersion": "kaiwo.ai/v1alpha2", "kind": "KaiwoQueue", "metadata": {"name": name}, "spec": spec}
