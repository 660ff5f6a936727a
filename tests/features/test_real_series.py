"""Every origin of real series goes through the store unchanged: of a seventh of them, in a long run of all."""

import resource
from pathlib import Path

import numpy as np
import pytest

from kopt.data.demand.files import read_demand
from kopt.features.demand import FEATURES, transform
from kopt.features.leaks import assert_causal, assert_point_in_time
from kopt.features.store import DemandFeatureStore


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("every", "least_rows"),
    [
        # Of each publisher but three, and of each length of a bucket.
        pytest.param(7, 30_000, id="seventh"),
        pytest.param(1, 100_000, id="all", marks=pytest.mark.thorough),
    ],
)
def test_real_series_come_back_as_they_were_computed(
    store: DemandFeatureStore, demand_data_dir: Path, every: int, least_rows: int
) -> None:
    series = [one for one in read_demand(demand_data_dir) if one.days >= 2][::every]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert store.write(series) > least_rows
    assert store.materialise() == len(series)
    table = store.training_table(series)
    assert_point_in_time(table)
    assert table.joined.all()
    online = store.online([one.name for one in series])
    for one, row in zip(series, online.features, strict=True):
        grid = one.resampled()
        rows = table.series == one.name
        origins = np.round((table.origins_s[rows] - grid.start_s) / grid.step_s).astype(np.int64)
        np.testing.assert_array_equal(table.features[rows], transform(grid, origins))
        np.testing.assert_array_equal(row, transform(grid, np.flatnonzero(np.isfinite(grid.value))[-1:])[0])
        assert_causal(transform, grid, names=FEATURES)
    peak_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert peak_mib < 3000
