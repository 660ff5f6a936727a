"""Training data from a real Prometheus server: what can be learned from is kept, the rest is named."""

import time
from typing import Any

import numpy as np
import pytest

from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.training.demand.sources import PrometheusSource

QUERY = "sum by (service) (increase(requests_total[$step]))"


@pytest.mark.services
def test_prometheus_gives_a_dataset_of_the_services_that_are_old_enough(prometheus_server: Any) -> None:
    rng, now_s = np.random.default_rng(3), time.time() // GRID_S * GRID_S
    chat = rng.integers(50, 500, 3 * 288).astype(float)
    start_s = now_s - len(chat) * GRID_S
    young = DemandSeries("young", now_s - 100 * GRID_S, GRID_S, chat[:100], start_known=True)
    url = prometheus_server([DemandSeries("chat", start_s, GRID_S, chat, start_known=True), young]).url
    dataset = PrometheusSource(url, QUERY, since_s=4 * 86_400).read()
    (found,) = dataset.series
    assert found.name == "chat"
    assert found.start_known
    seen = found.value[np.isfinite(found.value)]
    np.testing.assert_allclose(seen[:-2], chat[: len(seen) - 2], rtol=1e-9)
    assert "young" in dataset.excluded
    assert dataset.name == "prometheus"
    again = PrometheusSource(url, QUERY, since_s=4 * 86_400).read()
    assert again.group("chat") == "chat"
