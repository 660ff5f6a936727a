"""What GPUs of the example cluster were used for: the jobs and services that its costs are of, hour by hour."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

from kopt.cli.local.example.cluster import NODES
from kopt.cli.local.example.costs import (
    CORDONED_DAY,
    DAYS,
    SERVICES,
    Arrival,
    arrivals,
    began_ms,
    busy_shares,
)
from kopt.cli.local.example.history import demand_at
from kopt.cli.local.example.jobs import QUEUE
from kopt.core.scheduling.queue_demand import QueueDemandHistory
from kopt.core.workload.gpu_hours import ClusterStep, GpuHourHistory, GpuHours, Workload

_HOUR_S, _GPUS = 3600, 8 * len(NODES)
_SERVED = Workload("serving", "Deployment")
_SHORTEST_STEP_S, _MOST_STEPS = 900, 200
_MOST_PATIENT_H = 3
"""A job that finds no room goes elsewhere after so long."""


@dataclass(frozen=True)
class _Share:
    """GPUs of a job or service from hour ``begin_h`` of the example to ``end_h``; ``node`` is empty while it waits."""

    workload: Workload
    begin_h: int
    end_h: int
    gpus: int
    node: str
    busy: float | None

    def hours(self, hours: float) -> GpuHours:
        allocated = self.gpus * hours if self.node else 0.0
        measured = 0.0 if self.busy is None else allocated
        return GpuHours(self.gpus * hours, allocated, measured, measured * (self.busy or 0.0))


class ExampleGpuHours:
    """As a Prometheus has them that was there all the time."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._shares = tuple(_shares())

    def history(self, window_s: float) -> GpuHourHistory:
        """Up to now; the example has five weeks."""
        now_s = self._clock()
        began_s = began_ms(int(now_s * 1000)) / 1000
        step_s = max(_SHORTEST_STEP_S, int(window_s // _MOST_STEPS))
        last_s = now_s // step_s * step_s
        times_s = [last_s - step_s * index for index in reversed(range(int(window_s // step_s)))]
        by_workload: dict[Workload, GpuHours] = {}
        by_node: dict[str, GpuHours] = {}
        steps = []
        for at_s in times_s:
            hour = int((at_s - began_s) // _HOUR_S)
            total = GpuHours()
            for share in self._shares:
                if share.begin_h <= hour < share.end_h:
                    hours = share.hours(step_s / _HOUR_S)
                    total += hours
                    by_workload[share.workload] = by_workload.get(share.workload, GpuHours()) + hours
                    if share.node:
                        # What is requested is known of workloads, and not where.
                        by_node[share.node] = by_node.get(share.node, GpuHours()) + replace(hours, requested=0.0)
            available = _GPUS - (8 if hour // 24 == CORDONED_DAY else 0)
            gpus = {each.name: getattr(total, each.name) * _HOUR_S / step_s for each in fields(total)}
            steps.append(ClusterStep(_GPUS, available, **gpus, at_s=at_s))
        return GpuHourHistory(step_s, window_s, tuple(steps), by_workload, by_node, {})

    def queue_waits(self, start_s: float, step_s: int, steps: int) -> Mapping[str, tuple[float | None, ...]]:
        """All jobs come by way of one queue; steps are hours."""
        began_s = began_ms(int(self._clock() * 1000)) / 1000
        pending = Counter[int]()
        for share in self._shares:
            if not share.node:
                pending.update(dict.fromkeys(range(share.begin_h, share.end_h), 1000 * share.gpus))
        hours = (int((start_s + index * step_s - began_s) // _HOUR_S) for index in range(steps))
        return {QUEUE: tuple(float(pending[hour]) if hour >= 0 else None for hour in hours)}

    def queue_demand(self, since_s: float) -> QueueDemandHistory:
        """Of the half year that the example's pool has behind it."""
        return demand_at(self._clock(), since_s)


def _shares() -> Iterator[_Share]:
    busy, forever = busy_shares(), DAYS * 24 * 10
    for name, gpus in SERVICES:
        yield _Share(_SERVED, 0, forever, gpus, NODES[1], busy[name])
    for job in arrivals():
        ends_h = job.hour + (job.lasts if job.node else min(job.lasts, _MOST_PATIENT_H))
        yield _Share(_workload(job), job.hour, ends_h, job.gpus, job.node, busy.get(job.name))


def _workload(job: Arrival) -> Workload:
    return Workload(job.namespace, "PyTorchJob" if job.gpus >= 4 else "Job", "gpus")
