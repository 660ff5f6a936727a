"""The endpoint's Prometheus metrics. With several replicas on a machine any of them answers for all.

prometheus_client's multiprocess mode does that: where PROMETHEUS_MULTIPROC_DIR is set before it is imported, each
process keeps its samples in files there and a scrape adds them up. What is known per series comes from the table that
all replicas share, read at the time of the scrape.
"""

import os
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from kopt.core.prediction import ModelVersion
from kopt.core.sizing import SizingEstimate
from kopt.serving.answers import SeriesForecast
from kopt.serving.bandwidth_answers import BandwidthAnswer
from kopt.serving.monitoring import PredictionTable, SeriesState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 5.0)
_MOST_SERIES = 500
_SHARED = os.environ.get("PROMETHEUS_MULTIPROC_DIR", "")
"""Read when prometheus_client is imported, as it does itself: Feast sets the variable while it is being imported."""


class EndpointMetrics:
    """Counters of one replica, in a registry of their own."""

    def __init__(self, table: PredictionTable | None = None) -> None:
        own = self._registry = CollectorRegistry()
        self._table = table
        self.requests = Counter("kopt_requests", "Requests by route and status.", ["route", "status"], registry=own)
        self.seconds = Histogram("kopt_request_seconds", "Time to answer.", ["route"], buckets=_SECONDS, registry=own)
        self.answers = Counter("kopt_demand_answers", "Series answered by the model.", registry=own)
        self.fallbacks = Counter("kopt_demand_fallbacks", "Series answered without it.", ["reason"], registry=own)
        self.refusals = Counter("kopt_demand_refusals", "Series without an answer.", ["reason"], registry=own)
        self.sizes = Counter("kopt_sizing_answers", "Sizes answered by the model.", ["method"], registry=own)
        self.unsized = Counter("kopt_sizing_refusals", "Sizing questions without a size.", ["reason"], registry=own)
        self.sizing_model = Gauge("kopt_sizing_model_serving", "1 for the version that answers.", ["version"],
                                  registry=own, multiprocess_mode="livemax")  # fmt: skip
        self.lines = Counter("kopt_checkpoint_lines", "Lines of logs read.", registry=own)
        self.not_followed = Counter("kopt_checkpoint_fallbacks", "Questions about jobs without an answer.", ["reason"],
                                    registry=own)  # fmt: skip
        self.checkpoint_model = Gauge("kopt_checkpoint_model_serving", "1 for the version that answers.", ["version"],
                                      registry=own, multiprocess_mode="livemax")  # fmt: skip
        self.bandwidths = Counter("kopt_bandwidth_answers", "Sets of GPUs answered by the model.", ["hardware"],
                                  registry=own)  # fmt: skip
        self.bandwidth_fallbacks = Counter("kopt_bandwidth_fallbacks", "Questions about sets answered without it.",
                                           ["reason"], registry=own)  # fmt: skip
        self.bandwidth_model = Gauge("kopt_bandwidth_model_serving", "1 for the version that answers.", ["version"],
                                     registry=own, multiprocess_mode="livemax")  # fmt: skip
        self.reloads = Counter("kopt_model_reloads", "Models swapped in.", ["alias"], registry=own)
        self.dropped = Counter("kopt_observations_dropped", "Answers not compared, the queue was full.", registry=own)
        self.in_flight = Gauge("kopt_requests_in_flight", "Requests being answered.", registry=own,
                               multiprocess_mode="livesum")  # fmt: skip
        self.model = Gauge("kopt_model_serving", "1 for the version that answers.", ["alias", "version"], registry=own,
                           multiprocess_mode="livemax")  # fmt: skip
        self.refused = Gauge("kopt_model_refused", "1 while a newer version is refused.", ["alias"], registry=own,
                             multiprocess_mode="livemax")  # fmt: skip

    def answered(self, series: SeriesForecast) -> None:
        """Count one answered series."""
        first = series.horizons[0].demand
        if first.refused:
            self.refusals.labels(first.reasons[0].code).inc()
        elif first.fallback:
            self.fallbacks.labels(first.reasons[0].code if first.reasons else "").inc()
        else:
            self.answers.inc()

    def sized(self, estimate: SizingEstimate) -> None:
        """Count one sizing answer."""
        if estimate.memory.refused:
            self.unsized.labels(estimate.memory.reasons[0].code).inc()
        else:
            self.sizes.labels(estimate.method.value).inc()

    def serving_sizing(self, before: ModelVersion | None, now: ModelVersion | None) -> None:
        """Another sizing model answers from now on."""
        for version, answers in ((before, 0), (now, 1)):
            if version is not None:
                self.sizing_model.labels(version.version).set(answers)

    def read_lines(self, count: int) -> None:
        """So many new lines of a job's log were read."""
        self.lines.inc(count)

    def serving_checkpoint(self, before: ModelVersion | None, now: ModelVersion | None) -> None:
        """Another checkpoint model answers from now on."""
        for version, answers in ((before, 0), (now, 1)):
            if version is not None:
                self.checkpoint_model.labels(version.version).set(answers)

    def estimated(self, answer: BandwidthAnswer) -> None:
        """Count one answer about sets of GPUs."""
        if answer.fallback:
            self.bandwidth_fallbacks.labels(answer.reasons[0].code).inc()
            return
        for one in (*answer.sets, *((answer.best.found,) if answer.best is not None else ())):
            self.bandwidths.labels("unknown" if one.estimate.unknown else "known").inc()

    def serving_bandwidth(self, before: ModelVersion | None, now: ModelVersion | None) -> None:
        """Another bandwidth model answers from now on."""
        for version, answers in ((before, 0), (now, 1)):
            if version is not None:
                self.bandwidth_model.labels(version.version).set(answers)

    def serving(self, alias: str, before: ModelVersion | None, now: ModelVersion | None) -> None:
        """A model was swapped in (or, a challenger, out)."""
        self.reloads.labels(alias).inc()
        if before is not None:
            self.model.labels(alias, before.version).set(0)
        if now is not None:
            self.model.labels(alias, now.version).set(1)

    def render(self) -> bytes:
        """The exposition of all replicas on this machine."""
        registry = self._registry
        if _SHARED:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, path=_SHARED)  # type: ignore[no-untyped-call]
        text = generate_latest(registry)
        if self._table is None:
            return text
        shared = CollectorRegistry()
        shared.register(_PerSeries(self._table.states(limit=_MOST_SERIES)))
        return text + generate_latest(shared)


class _PerSeries(Collector):
    """Health of the series that were judged last, as gauges."""

    def __init__(self, states: Sequence[SeriesState]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        labels = ["series", "role"]
        columns = {
            "coverage": GaugeMetricFamily("kopt_demand_coverage", "Share of actuals at or under the predicted "
                                          "quantile.", labels=labels),
            "error": GaugeMetricFamily("kopt_demand_error", "Error of the median (WAPE).", labels=labels),
            "error_last_value": GaugeMetricFamily("kopt_demand_error_last_value", "The last value's error (WAPE).",
                                                  labels=labels),
            "drift": GaugeMetricFamily("kopt_demand_drift", "Population stability index.", labels=labels),
            "matched": GaugeMetricFamily("kopt_demand_matched", "Predictions compared with actuals.", labels=labels),
            "alarm": GaugeMetricFamily("kopt_drift_alarm", "1 while the fallback answers for a series.",
                                       labels=labels),
        }  # fmt: skip
        for state in self._states:
            for name, family in columns.items():
                number = getattr(state, name)
                if number is not None:
                    family.add_metric([state.series, state.role], float(number))
        yield from columns.values()
