"""Rows go in once and come out the same for training, for serving and for a history in a request."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.settings import Settings
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import COLUMN, FEATURES, HORIZONS_S, transform
from kopt.features.offline import file_of
from kopt.features.rows import TTL_S, FeatureStoreError
from kopt.features.store import DemandFeatureStore

Daily = Callable[..., DemandSeries]


def _with_gaps(series: DemandSeries) -> DemandSeries:
    value = series.value.copy()
    value[[3, 100, 101, 102, -1, -2]] = np.nan
    return replace(series, value=value)


def test_training_serving_and_a_request_see_identical_features(store: DemandFeatureStore, daily: Daily) -> None:
    fractional = daily("fractional start", start_s=1_700_158_623.97996)
    anonymous = daily("anonymous", start_s=0.0, start_known=False)
    fine = daily("fine steps", buckets=3000, step_s=60)
    series = [daily("chat"), _with_gaps(daily("gaps")), fractional, anonymous, fine]
    store.write(series)
    assert store.materialise() == len(series)
    table = store.training_table(series)
    online = store.online([one.name for one in series])
    for position, one in enumerate(series):
        grid = one.resampled()
        rows = np.flatnonzero(table.series == one.name)
        origins = np.round((table.origins_s[rows] - grid.start_s) / grid.step_s).astype(np.int64)
        assert len(origins) > 500
        np.testing.assert_array_equal(table.features[rows], transform(grid, origins))
        for origin, row in list(zip(origins, rows, strict=True))[::97]:
            request = transform(grid.upto(int(origin)), np.array([origin]))
            np.testing.assert_array_equal(table.features[row], request[0])
        newest = np.flatnonzero(np.isfinite(grid.value))[-1:]
        np.testing.assert_array_equal(online.features[position], transform(grid, newest)[0])
        assert online.observed_at_s[position] == grid.times_s[newest[0]] + grid.step_s
        assert online.start_known[position] == one.start_known
    assert (table.features_at_s == table.available_at_s).all()


def test_targets_are_the_values_the_horizons_later(store: DemandFeatureStore, daily: Daily) -> None:
    series = _with_gaps(daily(buckets=150))
    store.write([series])
    table = store.training_table([series], horizons_s=(300, 3600))
    origins = ((table.origins_s - series.start_s) / 300).astype(int)
    padded = np.append(series.value, np.full(12, np.nan))
    np.testing.assert_array_equal(table.targets, np.column_stack([padded[origins + 1], padded[origins + 12]]))
    assert np.isfinite(table.targets).any(1).all()
    assert np.isfinite(series.value[origins]).all()
    assert np.isnan(table.targets[origins == 140, 1]).all()


def test_rows_without_earlier_features_stay_as_unknown(store: DemandFeatureStore, daily: Daily) -> None:
    whole = daily(buckets=100)
    store.write([whole.tail(40)])
    table = store.training_table([whole, daily("never written", buckets=50)])
    assert len(table) == 99 + 49
    late_enough = (table.series == "chat") & (table.origins_s >= whole.times_s[60])
    np.testing.assert_array_equal(table.joined, late_enough)
    assert np.isnan(table.features[~late_enough]).all()
    assert np.isfinite(table.features[late_enough, COLUMN["last_value"]]).all()


def test_writing_again_replaces_and_never_duplicates(store: DemandFeatureStore, daily: Daily) -> None:
    first, other = daily(buckets=300), daily("other", buckets=50)
    late = replace(first, value=np.where(np.arange(300) == 299, 7.0, first.value))
    assert store.write([first, other]) == 350
    store.materialise()
    store.write([first])
    store.write([late])
    store.materialise(names=["chat", "unknown"])
    table = store.training_table([late, other])
    assert len(table) == 299 + 49
    np.testing.assert_array_equal(table.features[:299], transform(late, np.arange(299)))
    assert store.online(["chat"]).features[0, COLUMN["last_value"]] == 7.0
    store.write([first.upto(200)])
    assert store.training_table([first]).joined.sum() == 201 + TTL_S // 300


def test_online_rows_can_be_set_back_to_a_moment(store: DemandFeatureStore, daily: Daily) -> None:
    series = daily(buckets=100)
    store.write([series])
    store.materialise()
    assert store.materialise(upto_s=series.times_s[40]) == 1
    assert store.online(["chat"]).observed_at_s[0] == series.times_s[40]
    assert store.materialise(upto_s=series.start_s) == 0
    assert store.online(["chat"]).observed_at_s[0] == series.times_s[40]


def test_absent_and_stale_services_are_named_with_reasons(store: DemandFeatureStore, daily: Daily) -> None:
    fresh, old = daily("fresh", buckets=40), daily("old", buckets=20)
    anonymous = daily("anonymous", buckets=40, start_s=0.0, start_known=False)
    store.write([fresh, old, anonymous])
    store.materialise()
    now_s = fresh.times_s[-1] + 300 + 60
    rows = store.online(["absent", "fresh", "old", "anonymous", "fresh"], now_s)
    assert rows.present.tolist() == [False, True, True, True, True]
    assert rows.stale.tolist() == [False, False, True, False, False]
    np.testing.assert_array_equal(rows.age_s, [np.nan, 60.0, 6060.0, np.nan, 60.0])
    problems = rows.problems()
    assert {name: reason.code for name, reason in problems.items()} == {
        "absent": "NO_FEATURES",
        "old": "STALE_FEATURES",
    }
    assert "6060 s" in problems["old"].message
    assert np.isnan(rows.features[0]).all()


def test_nothing_in_nothing_out(store: DemandFeatureStore, daily: Daily) -> None:
    assert store.write([]) == 0
    assert store.materialise() == 0
    assert store.online([]).features.shape == (0, len(FEATURES))
    assert store.online(["chat"]).problems()["chat"].code == "NO_FEATURES"
    table = store.training_table([])
    assert table.features.shape == (0, len(FEATURES))
    assert table.targets.shape == (0, len(HORIZONS_S))
    silent = replace(daily(buckets=20), value=np.full(20, np.nan))
    assert store.write([silent]) == 0
    assert len(store.training_table([silent])) == 0
    assert not store.training_table([daily(buckets=20)]).joined.any()


def test_what_cannot_be_stored_is_refused_before_anything_is_written(store: DemandFeatureStore, daily: Daily) -> None:
    with pytest.raises(FeatureStoreError, match="two series are called 'chat'"):
        store.write([daily(), daily()])
    with pytest.raises(FeatureStoreError, match="between 1970 and 2200"):
        store.write([daily(start_s=1.7e12)])
    assert not store.training_table([daily(buckets=20)]).joined.any()
    with pytest.raises(FeatureStoreError, match="KOPT_HOME"):
        DemandFeatureStore(Settings(home=Path("/tmp/what?")))


def test_hostile_names_are_only_names(store: DemandFeatureStore, daily: Daily) -> None:
    names = ["../../escape", "a/b", "'; DROP TABLE x; --", "日本 語", "x" * 250, "%2e", "*.parquet", "none", "NaN"]
    series = [daily(name, buckets=20, seed=seed) for seed, name in enumerate(names)]
    store.write(series)
    store.materialise()
    np.testing.assert_array_equal(
        store.online(names).features[:, COLUMN["last_value"]], [one.value[-1] for one in series]
    )
    assert store.training_table(series).joined.all()
    assert {file.parent for file in store.folder.rglob("*.parquet")} == {store.folder / "offline"}


@given(st.sets(st.text(max_size=300), max_size=20))
def test_every_name_has_a_file_of_its_own_in_the_folder(names: set[str]) -> None:
    files = {file_of(Path("/offline"), name) for name in names}
    assert len(files) == len(names)
    assert all(file.parent == Path("/offline") and len(file.name) < 255 for file in files)


def test_thousands_of_names_are_read_in_one_call(store: DemandFeatureStore, daily: Daily) -> None:
    store.write([daily(buckets=20)])
    store.materialise()
    rows = store.online([*(f"absent {number}" for number in range(1200)), "chat"])
    assert np.flatnonzero(rows.present).tolist() == [1200]


def test_local_time_zones_change_nothing(
    store: DemandFeatureStore, daily: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Berlin's clocks skip an hour in this night.
    series = daily(buckets=300, start_s=1_711_800_000.0)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        store.write([series])
        store.materialise(upto_s=1_711_848_600.0)
        assert store.online(["chat"]).observed_at_s[0] == 1_711_848_600.0
        table = store.training_table([series])
        np.testing.assert_array_equal(table.features, transform(series, np.arange(299)))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_nothing_is_printed(store: DemandFeatureStore, daily: Daily, capfd: pytest.CaptureFixture[str]) -> None:
    series = daily(buckets=30)
    store.write([series])
    store.materialise()
    store.training_table([series])
    assert capfd.readouterr() == ("", "")


def test_a_second_apply_does_nothing(settings: Settings) -> None:
    DemandFeatureStore(settings).apply()
    registry = next(settings.feast_repo.glob("*/registry.db"))
    before = registry.stat().st_mtime_ns
    script = (
        "import sys, pathlib; from kopt.core.settings import Settings; from kopt.features.store import *\n"
        "DemandFeatureStore(Settings(home=pathlib.Path(sys.argv[1]))).apply()\n"
        "print([name for name in ('feast', 'pandas', 'pyarrow', 'duckdb') if name in sys.modules])"
    )
    command = [sys.executable, "-P", "-c", script, str(settings.home)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert registry.stat().st_mtime_ns == before


@pytest.mark.slow
def test_using_the_store_leaves_metrics_and_packages_of_the_process_alone(store: DemandFeatureStore) -> None:
    script = (
        "import os, sys, pathlib; from kopt.core.settings import Settings; from kopt.features.store import *\n"
        "store = DemandFeatureStore(Settings(home=pathlib.Path(sys.argv[1])))\n"
        "store.online(['chat']); store.apply(); store._feast\n"
        "import feast, typeguard, warnings, prometheus_client.values as values\n"
        "print([name for name in os.environ if 'PROMETHEUS' in name], values.ValueClass.__name__)\n"
        "print('torch' in sys.modules, typeguard.typechecked.__module__.partition('.')[0])\n"
        "sys.modules['torch'] = sys\n"
        "from feast.infra.offline_stores.offline_store import get_torch; print(get_torch() is sys)"
    )
    store.apply()
    command = [sys.executable, "-P", "-c", script, str(store.folder.parent.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[] MutexValue", "False typeguard", "True"]
    assert done.stderr == ""


def test_definitions_are_in_the_registry(store: DemandFeatureStore) -> None:
    from kopt.features.repository.definitions import feature_store, repo_config

    store.apply()
    found = feature_store(repo_config(store._settings, store.folder))
    service = found.get_feature_service("demand_v1")
    assert [projection.name for projection in service.feature_view_projections] == ["demand_features"]
    names = {feature.name for feature in found.get_feature_view("demand_features").features}
    assert names == {*FEATURES, "observed_at_s", "start_known"}


def test_folders_of_older_transformations_are_pruned_but_the_newest(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    for age, name in enumerate(("newest", "older", "oldest")):
        old = settings.feast_repo / name
        old.mkdir(parents=True)
        (old / "registry.db").touch()
        os.utime(old, (1e9 - age, 1e9 - age))
    (settings.feast_repo / "not-ours").mkdir()
    store = DemandFeatureStore(settings)
    store.apply()
    kept = {folder.name for folder in settings.feast_repo.iterdir() if folder.is_dir()}
    assert kept == {"newest", "not-ours", store.folder.name}
