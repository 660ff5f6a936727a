"""Metrics of the log agent, for Prometheus; that they answer says that the process lives."""

import contextlib
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from kopt.agents.logtail.jobs import Jobs
from kopt.agents.runtime.contained import Contained
from kopt.agents.runtime.running import metrics_server

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def serve_metrics(
    jobs: Jobs, contained: Contained, host: str, port: int | None
) -> contextlib.AbstractAsyncContextManager[None]:
    """On ``host:port`` while the block runs; nothing where ``port`` is None."""
    return metrics_server(lambda: chain(_counts(jobs), contained.metrics()), host, port)


def _counts(jobs: Jobs) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    counters = jobs.counters
    for name, help_text, value in (
        ("lines_sent", "Lines that the endpoint has.", counters.sent),
        ("lines_skipped", "Lines passed over (rate) or refused.", counters.skipped),
        ("requests", "Requests to the endpoint.", counters.requests),
        ("failures", "Requests without an answer.", counters.failures),
    ):
        yield CounterMetricFamily(f"kopt_logtail_{name}", help_text, value=value)
    every = list(jobs.jobs.values())
    for name, help_text, size in (
        ("jobs", "Jobs that are followed.", len(every)),
        ("jobs_waiting", "Jobs whose lines cannot be sent now.", sum(job.sender.down for job in every)),
        ("sources", "Logs that are followed.", sum(len(job.sources) for job in every)),
        ("buffered_bytes", "Memory of lines that are not acknowledged.", jobs.budget.used),
    ):
        yield GaugeMetricFamily(f"kopt_logtail_{name}", help_text, value=size)
