"""`kopt demand forecast` names series whose newest demand is unusual."""

from dataclasses import replace

import numpy as np
import pytest

from kopt.cli.demand.anomalies import anomalies_of, anomaly_remark
from kopt.data.demand.table import DemandSeries


@pytest.mark.parametrize("step_s", [60, 300])
def test_a_series_that_ends_in_an_outage_is_named_and_a_calm_one_is_not(step_s: int) -> None:
    buckets = 5 * 86_400 // step_s
    calm = np.random.default_rng(0).poisson(400 * step_s / 300, buckets).astype(float)
    dead = calm.copy()
    dead[-1800 // step_s :] = 0.0
    start_s = 1_790_000_100.0
    all_series = [DemandSeries(name, start_s, step_s, value) for name, value in (("calm", calm), ("dead", dead))]
    unusual = anomalies_of(all_series)
    assert list(unusual) == ["dead"]
    text = anomaly_remark(all_series[1], unusual["dead"])
    assert text.startswith("demand of dead is lower than its past lets expect, for 0.")
    assert "0 requests, expected 3" in text
    assert " UTC" not in text
    assert " UTC: " in anomaly_remark(replace(all_series[1], start_known=True), unusual["dead"])
