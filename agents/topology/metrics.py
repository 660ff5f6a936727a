"""Metrics of the topology agent, for Prometheus; that they answer says that the process lives."""

import contextlib
import time
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from kopt.agents.runtime.contained import Contained
from kopt.agents.runtime.running import metrics_server
from kopt.agents.topology.readings import CollectorProblem, Reading
from kopt.agents.topology.scanning import ScanResult

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from kopt.agents.topology.allocations import AllocationReporter
    from kopt.agents.topology.publishing import Publisher


class ScanCounters:
    """What scans did; written by the event loop, read by the server's thread."""

    def __init__(self) -> None:
        self.scans = 0
        self.last_scan_s = 0.0
        self.last: ScanResult | None = None
        self.failures: dict[tuple[str, str], int] = {}

    def scanned(self, result: ScanResult) -> None:
        self.scans += 1
        self.last_scan_s, self.last = time.time(), result
        for reading in result.readings:
            if reading.problem not in (None, CollectorProblem.ABSENT):
                key = (reading.name, str(reading.problem))
                self.failures[key] = self.failures.get(key, 0) + 1


def serve_metrics(
    counters: ScanCounters,
    publisher: "Publisher",
    reporter: "AllocationReporter | None",
    contained: Contained,
    host: str,
    port: int | None,
) -> contextlib.AbstractAsyncContextManager[None]:
    """On ``host:port`` while the block runs; nothing where ``port`` is None."""
    return metrics_server(
        lambda: chain(_counts(counters, publisher), _of_allocations(reporter), contained.metrics()), host, port
    )


def _counts(counters: ScanCounters, publisher: "Publisher") -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield CounterMetricFamily("kopt_topology_scans", "Looks at the node.", value=counters.scans)
    yield GaugeMetricFamily("kopt_topology_last_scan_seconds", "When that was.", value=counters.last_scan_s)
    failures = CounterMetricFamily(
        "kopt_topology_collector_failures", "Collectors that brought nothing.", labels=["collector", "reason"]
    )
    for key, count in sorted(counters.failures.items()):
        failures.add_metric(key, count)
    yield failures
    yield from _of_last(counters.last)
    writes = CounterMetricFamily("kopt_topology_writes", "Requests that write.", labels=["object", "outcome"])
    for key, count in sorted(publisher.written.items()):
        writes.add_metric(key, count)
    yield writes
    degraded = len(publisher.health.degraded) if publisher.health is not None else 0
    yield GaugeMetricFamily("kopt_topology_degraded", "Parts that are worse than they were.", value=degraded)


def _of_last(last: ScanResult | None) -> "Iterator[Metric]":
    from prometheus_client.core import GaugeMetricFamily

    up = GaugeMetricFamily("kopt_topology_collector_up", "Whether it could be read.", labels=["collector"])
    took = GaugeMetricFamily("kopt_topology_collector_seconds", "How long that took.", labels=["collector"])
    present: tuple[Reading, ...] = last.readings if last is not None else ()
    for reading in present:
        if reading.problem is not CollectorProblem.ABSENT:
            up.add_metric([reading.name], reading.problem is None)
            took.add_metric([reading.name], reading.seconds)
    yield up
    yield took
    topology = last.topology if last is not None else None
    for name, help_text, value in (
        ("gpus", "GPUs that were found.", len(topology.gpus) if topology else 0),
        ("links", "Pairs of GPUs whose link is known.", len(topology.links) if topology else 0),
        ("nics", "Ports of network cards.", len(topology.nics) if topology else 0),
    ):
        yield GaugeMetricFamily(f"kopt_topology_{name}", help_text, value=value)


def _of_allocations(reporter: "AllocationReporter | None") -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily

    if reporter is None:
        return
    for name, help_text, counts in (
        ("kopt_topology_kubelet_reads", "Questions to the kubelet about what pods have.", reporter.kubelet_reads),
        ("kopt_topology_allocation_writes", "Requests that write the NodeAllocation.", reporter.writes),
    ):
        family = CounterMetricFamily(name, help_text, labels=["outcome"])
        for outcome, count in sorted(counts.items()):
            family.add_metric([outcome], count)
        yield family
