"""GPU-hours over days, from a Prometheus with the series that our rules record (``core/alerts/recorded.toml``).

They are sums by node and by workload, so that 1,250 nodes are answered in seconds; the series of single GPUs are not
read. Steps without a sample count nothing: ``coverage`` says how much of the window was recorded.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.core.workload.gpu_hours import ClusterStep, GpuHourHistory, GpuHours, Workload
from kopt.data.demand.prometheus import PrometheusError, Server

_MOST_STEPS = 500
_SHORTEST_STEP_S = 60
_MEAN_OF_S = 300
"""How far apart samples of a mean are."""
_BY_WORKLOAD = {
    "requested": "namespace_kind_queue:kopt_gpus_requested:sum",
    "allocated": "namespace_kind_queue:kopt_gpus_allocated:sum",
    "measured": "namespace_kind_queue:kopt_gpu_busy_ratio:count",
    "used": "namespace_kind_queue:kopt_gpu_busy_ratio:sum",
}
_BY_NODE = {
    "allocated": "node:kopt_gpus_allocated:sum",
    "measured": "node:kopt_gpu_busy_ratio:count",
    "used": "node:kopt_gpu_busy_ratio:sum",
}
_OF_CLUSTER = {
    "installed": "node:kopt_gpus_installed:sum",
    "available": "node:kopt_gpus_available:sum",
    "free": "node:kopt_gpus_free:sum",
    "requested": _BY_WORKLOAD["requested"],
    **_BY_NODE,
}
_QUEUED = "queue_pool:kopt_queues_gpus:max"
QUERIES = (*_BY_WORKLOAD.values(), *_OF_CLUSTER.values(), _QUEUED)
"""Every series that is read here."""
_KINDS = {"ReplicaSet": "Deployment", "": "Pod", "<none>": "Pod"}
"""kube-state-metrics names what owns a pod, which for a Deployment stands between; a pod without owner has none."""


class NotRecordedError(PrometheusError):
    """Prometheus answers, and has none of the recorded series."""


def read_gpu_hours(server: Server, since_s: float, now_s: float | None = None) -> GpuHourHistory:
    """The last ``since_s`` seconds.

    Raises PrometheusError where the server does not answer, and NotRecordedError where it has no such series.
    """
    step_s = max(_SHORTEST_STEP_S, math.ceil(since_s / _MOST_STEPS))
    # Subqueries are at multiples of their step; the steps of the cluster have to be the same moments.
    until_s = (time.time() if now_s is None else now_s) // step_s * step_s
    reading = _Reading(server, until_s, step_s, max(1, int(since_s // step_s)))
    steps = reading.steps()
    if not steps:
        raise NotRecordedError(
            f"{server.display_url} has none of the recorded series (node:kopt_gpus_installed:sum): install the rules, "
            "with monitoring.rules.enabled of the chart or `kopt alerts rules`, beside kube-state-metrics"
        )
    by_workload: dict[Workload, GpuHours] = {}
    for labels, hours in reading.hours(_BY_WORKLOAD, ("namespace", "kind", "queue")).items():
        workload = Workload(labels[0], _KINDS.get(labels[1], labels[1]), labels[2])
        by_workload[workload] = by_workload.get(workload, GpuHours()) + hours
    by_node = {labels[0]: hours for labels, hours in reading.hours(_BY_NODE, ("node",)).items()}
    waited = reading.totals(f'{_QUEUED}{{state="pending"}}', ("pool",))
    return GpuHourHistory(
        step_s, since_s, steps, by_workload, by_node, {labels[0]: hours for labels, hours in waited.items()}
    )


def read_queue_waits(server: Server, start_s: float, step_s: int, steps: int) -> dict[str, tuple[float | None, ...]]:
    """For how many milli-GPU workloads of each queue waited: the mean of each step from ``start_s`` on, None where
    nothing was recorded.

    Raises PrometheusError where the server does not answer.
    """
    query = f'avg_over_time(sum by (queue) ({_QUEUED}{{state="pending"}})[{step_s}s:{min(step_s, _MEAN_OF_S)}s])'
    answer = server.query_range(query, start_s + step_s, start_s + steps * step_s, step_s)
    ends_s = [start_s + step_s * (index + 1) for index in range(steps)]
    return {
        labels.get("queue", ""): tuple(1000 * points[at_s] if at_s in points else None for at_s in ends_s)
        for labels, points in _series(answer)
    }


@dataclass(frozen=True)
class _Reading:
    """One window: ``count`` steps until ``until_s``."""

    server: Server
    until_s: float
    step_s: int
    count: int

    def steps(self) -> tuple[ClusterStep, ...]:
        series = {name: self._over_time(f"sum({metric})") for name, metric in _OF_CLUSTER.items()}
        queued = self._over_time(f"sum({_QUEUED})")
        steps = []
        for at_s in sorted(series["installed"]):
            values = {name: points.get(at_s, 0.0) for name, points in series.items()}
            free = values.pop("free")
            if at_s in series["free"]:
                # Added up by node: what pods have on nodes that take no more would else hide free GPUs of others.
                values["available"] = values["allocated"] + free
            # What Kueue holds back has no pods yet; what it lets in has pods, and is in both.
            values["requested"] = max(values["requested"], queued.get(at_s, 0.0))
            steps.append(ClusterStep(**values, at_s=at_s))
        return tuple(steps)

    def hours(self, metrics: Mapping[str, str], labels: tuple[str, ...]) -> dict[tuple[str, ...], GpuHours]:
        """By the values of ``labels``."""
        totals = {name: self.totals(metric, labels) for name, metric in metrics.items()}
        keys = set().union(*totals.values())
        return {
            key: GpuHours(**{name: values.get(key, 0.0) for name, values in totals.items()}) for key in sorted(keys)
        }

    def totals(self, selector: str, labels: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        """Hours of a series' value over the window."""
        window = f"[{self.count * self.step_s}s:{self.step_s}s]"
        query = f"sum by ({', '.join(labels)}) (sum_over_time({selector}{window}))"
        answer = self.server.query_range(query, self.until_s, self.until_s, 1)
        result = {}
        for own, points in _series(answer):
            key = tuple(own.get(label, "") for label in labels)
            result[key] = sum(points.values()) * self.step_s / 3600
        return result

    def _over_time(self, query: str) -> dict[float, float]:
        begin_s = self.until_s - (self.count - 1) * self.step_s
        answer = self.server.query_range(query, begin_s, self.until_s, self.step_s)
        return dict(point for _, points in _series(answer) for point in points.items())


def _series(answer: list[dict[str, Any]]) -> list[tuple[dict[str, str], dict[float, float]]]:
    try:
        return [
            (
                {str(key): str(value) for key, value in item["metric"].items()},
                {float(at_s): number for at_s, value in item["values"] if math.isfinite(number := float(value))},
            )
            for item in answer
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PrometheusError("not a matrix of numbers as Prometheus answers it") from error
