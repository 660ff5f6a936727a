"""Metrics of the log agent, for Prometheus; that they answer says that the process lives."""

import contextlib
from collections.abc import Iterator

from kopt.agents.logtail.jobs import Jobs


@contextlib.contextmanager
def serve_metrics(jobs: Jobs, host: str, port: int | None) -> Iterator[None]:
    """On ``host:port`` while the block runs; nothing where ``port`` is None."""
    if port is None:
        yield
        return
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    class Counts(Collector):
        def collect(self) -> Iterator[Metric]:
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

    registry = CollectorRegistry()
    registry.register(Counts())
    server, thread = start_http_server(port, host, registry)
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
