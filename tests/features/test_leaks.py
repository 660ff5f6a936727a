"""Nothing from after an origin is in its row, and the checks see it when it is."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.data.demand.table import DemandSeries
from kopt.features.demand import COLUMN, FEATURES, fill_gaps, transform
from kopt.features.leaks import Array, Index, LeakError, assert_causal, assert_point_in_time
from kopt.features.offline import file_of
from kopt.features.rows import TTL_S
from kopt.features.store import DemandFeatureStore

Daily = Callable[..., DemandSeries]


def test_a_row_from_after_the_origin_is_not_joined(store: DemandFeatureStore, daily: Daily) -> None:
    series = daily(buckets=100)
    store.write([series])
    file = file_of(store.folder / "offline", "chat")
    honest = pq.read_table(file)
    # Bucket 50 says what it will know only a microsecond after its origin.
    planted = honest.slice(50, 1).to_pandas()
    planted["event_timestamp"] += np.timedelta64(1, "us")
    planted["observed_at_s"] += 1e-6
    planted["last_value"] = 1e9
    pq.write_table(pa.concat_tables([honest, pa.Table.from_pandas(planted, honest.schema)]), file)
    table = store.training_table([series], origins={"chat": np.array([49, 50, 51])})
    assert_point_in_time(table)
    np.testing.assert_array_equal(table.features, transform(series, np.array([49, 50, 51])))


def test_an_origin_takes_the_newest_row_before_it_but_no_stale_one(store: DemandFeatureStore, daily: Daily) -> None:
    series = daily(buckets=200)
    store.write([series.upto(100)])
    reach = int(TTL_S // 300)
    table = store.training_table([series], origins={"chat": np.array([100, 105, 100 + reach, 101 + reach])})
    assert_point_in_time(table)
    known_s = series.times_s[100] + 300
    np.testing.assert_array_equal(table.features_at_s, [known_s, known_s, known_s, np.nan])
    assert table.features[1, COLUMN["last_value"]] == series.value[100]


def test_the_join_check_sees_a_row_from_the_future(store: DemandFeatureStore, daily: Daily) -> None:
    series = daily(buckets=50)
    store.write([series])
    table = store.training_table([series])
    leaked = replace(table, features_at_s=table.features_at_s + 300.0 * (np.arange(len(table)) == 7))
    with pytest.raises(LeakError, match=r"'chat', row 7: .* 300 s after .*\(1 such rows of 49\)"):
        assert_point_in_time(leaked)


@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_the_transformation_is_causal(data: st.DataObject) -> None:
    buckets = data.draw(st.integers(2, 700))
    seed = data.draw(st.integers(0, 1000))
    random = np.random.default_rng(seed)
    value = random.gamma(1.0, 10.0, buckets) * (random.random(buckets) > data.draw(st.sampled_from([0.0, 0.3, 0.95])))
    value[random.random(buckets) < 0.1] = np.nan
    series = DemandSeries("any", 0.0, data.draw(st.sampled_from([300, 600])), value)
    assert_causal(transform, series, origins=[0, buckets // 2, buckets - 2], names=FEATURES)


def _peek(series: DemandSeries, origins: Index) -> Array:
    """Sees one bucket ahead."""
    return fill_gaps(series.value)[np.minimum(origins + 1, len(series) - 1)][:, None]


def _scaled(series: DemandSeries, origins: Index) -> Array:
    """Divides by the mean of the whole series."""
    return (series.value[origins] / np.nanmean(series.value))[:, None]


def _smoothed(series: DemandSeries, origins: Index) -> Array:
    """A window centred on the origin."""
    return np.convolve(fill_gaps(series.value), np.ones(3) / 3, mode="same")[origins][:, None]


def _length(series: DemandSeries, origins: Index) -> Array:
    """How much is left of the series."""
    return (len(series) - origins).astype(float)[:, None]


def _tokens(series: DemandSeries, origins: Index) -> Array:
    """Tokens of the next bucket."""
    assert series.in_tokens is not None
    return series.in_tokens[np.minimum(origins + 1, len(series) - 1)][:, None]


def _tenants(series: DemandSeries, origins: Index) -> Array:
    return series.tenants["one"][np.minimum(origins + 1, len(series) - 1)][:, None]


def _gaps(series: DemandSeries, origins: Index) -> Array:
    """Whether the next bucket is a gap."""
    return np.isnan(series.value[np.minimum(origins + 1, len(series) - 1)]).astype(float)[:, None]


@pytest.mark.parametrize("leaky", [_peek, _scaled, _smoothed, _length, _tokens, _tenants, _gaps])
def test_a_transformation_that_peeks_is_caught(leaky: Callable[..., Array], daily: Daily) -> None:
    series = daily(buckets=400)
    series = replace(series, in_tokens=series.value * 10, tenants={"one": series.value / 2})
    with pytest.raises(LeakError, match=r"'chat', future .*: peeked at bucket \d+ changed"):
        assert_causal(leaky, series, names=["peeked"])


def test_one_leaking_column_among_honest_ones_is_named(daily: Daily) -> None:
    def leaky(series: DemandSeries, origins: Index) -> Array:
        rows = transform(series, origins)
        rows[:, COLUMN["day1_level"]] = _peek(series, origins)[:, 0]
        return rows

    with pytest.raises(LeakError, match="day1_level"):
        assert_causal(leaky, daily(buckets=400), names=FEATURES)


def test_a_leak_is_caught_where_the_series_never_changes() -> None:
    flat = DemandSeries("flat", 0.0, 300, np.full(300, 5.0))
    assert_causal(transform, flat)
    with pytest.raises(LeakError):
        assert_causal(_peek, flat)


def test_series_too_short_to_have_a_future_pass() -> None:
    assert_causal(_peek, DemandSeries("one", 0.0, 300, np.array([1.0])))
