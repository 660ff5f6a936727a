"""Metrics of the log agent, for Prometheus; that they answer says that the process lives."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kopt.agents.logtail.jobs import Jobs
from kopt.agents.running import metrics_server

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def serve_metrics(jobs: Jobs, host: str, port: int | None) -> contextlib.AbstractContextManager[None]:
    """On ``host:port`` while the block runs; nothing where ``port`` is None."""
    return metrics_server(lambda: _counts(jobs), host, port)


def _counts(jobs: Jobs) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    tally = jobs.tally
    for name, words, value in (
        ("lines_sent", "Lines that the endpoint has.", tally.sent),
        ("lines_skipped", "Lines passed over (rate) or refused.", tally.skipped),
        ("requests", "Requests to the endpoint.", tally.requests),
        ("failures", "Requests without an answer.", tally.failures),
    ):
        yield CounterMetricFamily(f"kopt_logtail_{name}", words, value=value)
    every = list(jobs.jobs.values())
    for name, words, size in (
        ("jobs", "Jobs that are followed.", len(every)),
        ("jobs_waiting", "Jobs whose lines cannot be sent now.", sum(one.outbox.down for one in every)),
        ("sources", "Logs that are followed.", sum(len(one.sources) for one in every)),
        ("buffered_bytes", "Memory of lines that are not acknowledged.", jobs.room.used),
    ):
        yield GaugeMetricFamily(f"kopt_logtail_{name}", words, value=size)
