"""Which series of an input end in an anomaly, as the endpoint has it of live services."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kopt.data.demand.table import DemandSeries
    from kopt.models.demand.anomalies import Anomaly


def anomalies_of(all_series: "Sequence[DemandSeries]") -> "dict[str, Anomaly]":
    """As of the newest bucket of each, by name; in buckets of five minutes where the series are finer."""
    from kopt.data.demand.table import GRID_S
    from kopt.models.demand.anomalies import Watches

    watches, result = Watches(), {}
    for series in all_series:
        is_finer = series.step_s < GRID_S and GRID_S % series.step_s == 0 and len(series) * series.step_s >= GRID_S
        anomaly = watches.observe(series.resampled() if is_finer else series)
        if anomaly is not None:
            result[series.name] = anomaly
    return result


def anomaly_remark(series: "DemandSeries", anomaly: "Anomaly") -> str:
    since = f"{(series.times_s[-1] + series.step_s - anomaly.since_s) / 3600:.1f} h"
    if series.start_known:
        since = f"{since}, since {datetime.fromtimestamp(anomaly.since_s, UTC):%Y-%m-%d %H:%M} UTC"
    amounts = f"{anomaly.value:.4g} {series.unit}, expected {anomaly.expected:.4g}"
    return f"demand of {series.name} is {anomaly.direction} than its past lets expect, for {since}: {amounts}"
