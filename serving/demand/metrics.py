"""What the demand service counts, and the health of its series."""

from collections.abc import Iterator, Sequence

from prometheus_client import Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kopt.core.prediction import ModelVersion
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.contract.demand_answers import SeriesForecast
from kopt.serving.demand.monitoring import PredictionTable, SeriesState
from kopt.serving.http.metrics import EndpointMetrics

_MOST_SERIES = 500


def _states(table: PredictionTable) -> Sequence[SeriesState]:
    """None while the database does not answer: everything else is to be scraped all the same."""
    try:
        return table.states(limit=_MOST_SERIES)
    except DatabaseError:
        return ()


class DemandMetrics:
    """Counts versions by alias, as a challenger is loaded beside the champion."""

    def __init__(self, metrics: EndpointMetrics, table: PredictionTable | None = None) -> None:
        registry = metrics.registry
        self.answers = Counter("kopt_demand_answers", "Series answered by the model.", registry=registry)
        self.fallbacks = Counter("kopt_demand_fallbacks", "Series answered without it.", ["reason"], registry=registry)
        self.refusals = Counter("kopt_demand_refusals", "Series without an answer.", ["reason"], registry=registry)
        self.reloads = Counter("kopt_model_reloads", "Models swapped in.", ["alias"], registry=registry)
        self.model = Gauge(
            "kopt_model_serving",
            "1 for the version that answers.",
            ["alias", "version"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.refused = Gauge(
            "kopt_model_refused",
            "1 while a newer version is refused.",
            ["alias"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        if table is not None:
            metrics.shared.append(lambda: _PerSeries(_states(table)))

    def answered(self, series: SeriesForecast) -> None:
        """Count one answered series."""
        first = series.horizons[0].demand
        if first.refused:
            self.refusals.labels(first.reasons[0].code).inc()
        elif first.fallback:
            self.fallbacks.labels(first.reasons[0].code if first.reasons else "").inc()
        else:
            self.answers.inc()

    def swapped(self, alias: str, before: ModelVersion | None, now: ModelVersion | None) -> None:
        """A model was swapped in (or, a challenger, out)."""
        self.reloads.labels(alias).inc()
        for version, answers in ((before, 0), (now, 1)):
            if version is not None:
                self.model.labels(alias, version.version).set(answers)


class _PerSeries(Collector):
    """Health of the most recently evaluated series, as gauges."""

    def __init__(self, states: Sequence[SeriesState]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        labels = ["series", "role"]
        columns = {
            "coverage": GaugeMetricFamily(
                "kopt_demand_coverage", "Share of actuals at or under the predicted quantile.", labels=labels
            ),
            "error": GaugeMetricFamily("kopt_demand_error", "Error of the median (WAPE).", labels=labels),
            "error_last_value": GaugeMetricFamily(
                "kopt_demand_error_last_value", "The last value's error (WAPE).", labels=labels
            ),
            "drift": GaugeMetricFamily("kopt_demand_drift", "Population stability index.", labels=labels),
            "matched": GaugeMetricFamily("kopt_demand_matched", "Predictions compared with actuals.", labels=labels),
            "alarm": GaugeMetricFamily("kopt_drift_alarm", "1 while the fallback answers for a series.", labels=labels),
        }
        for state in self._states:
            for name, family in columns.items():
                number = getattr(state, name)
                if number is not None:
                    family.add_metric([state.series, state.role], float(number))
        yield from columns.values()
