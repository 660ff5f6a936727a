"""Metrics of the topology agent, for Prometheus; that they answer says that the process lives."""

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kopt.agents.running import metrics_server
from kopt.agents.topology.readings import Reading, Trouble
from kopt.agents.topology.scanning import Found

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from kopt.agents.topology.publishing import Publisher


class Tally:
    """What scans did; written by the event loop, read by the server's thread."""

    def __init__(self) -> None:
        self.scans = 0
        self.last_scan_s = 0.0
        self.last: Found | None = None
        self.failures: dict[tuple[str, str], int] = {}

    def scanned(self, found: Found) -> None:
        self.scans += 1
        self.last_scan_s, self.last = time.time(), found
        for reading in found.readings:
            if reading.trouble not in (None, Trouble.ABSENT):
                key = (reading.name, str(reading.trouble))
                self.failures[key] = self.failures.get(key, 0) + 1


def serve_metrics(
    tally: Tally, publisher: "Publisher", host: str, port: int | None
) -> contextlib.AbstractContextManager[None]:
    """On ``host:port`` while the block runs; nothing where ``port`` is None."""
    return metrics_server(lambda: _counts(tally, publisher), host, port)


def _counts(tally: Tally, publisher: "Publisher") -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield CounterMetricFamily("kopt_topology_scans", "Looks at the node.", value=tally.scans)
    yield GaugeMetricFamily("kopt_topology_last_scan_seconds", "When that was.", value=tally.last_scan_s)
    failures = CounterMetricFamily(
        "kopt_topology_collector_failures", "Collectors that brought nothing.", labels=["collector", "reason"]
    )
    for key, count in sorted(tally.failures.items()):
        failures.add_metric(key, count)
    yield failures
    yield from _of_last(tally.last)
    writes = CounterMetricFamily("kopt_topology_writes", "Requests that write.", labels=["object", "outcome"])
    for key, count in sorted(publisher.written.items()):
        writes.add_metric(key, count)
    yield writes
    degraded = len(publisher.health.degraded) if publisher.health is not None else 0
    yield GaugeMetricFamily("kopt_topology_degraded", "Parts that are worse than they were.", value=degraded)


def _of_last(last: Found | None) -> "Iterator[Metric]":
    from prometheus_client.core import GaugeMetricFamily

    up = GaugeMetricFamily("kopt_topology_collector_up", "Whether it could be read.", labels=["collector"])
    took = GaugeMetricFamily("kopt_topology_collector_seconds", "How long that took.", labels=["collector"])
    present: tuple[Reading, ...] = last.readings if last is not None else ()
    for one in present:
        if one.trouble is not Trouble.ABSENT:
            up.add_metric([one.name], one.trouble is None)
            took.add_metric([one.name], one.seconds)
    yield up
    yield took
    topology = last.topology if last is not None else None
    for name, words, value in (
        ("gpus", "GPUs that were found.", len(topology.gpus) if topology else 0),
        ("links", "Pairs of GPUs whose link is known.", len(topology.links) if topology else 0),
        ("nics", "Ports of network cards.", len(topology.nics) if topology else 0),
    ):
        yield GaugeMetricFamily(f"kopt_topology_{name}", words, value=value)
