"""The demand predictor as its callers see it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kopt.data.demand.catalogue import read_catalogue
from kopt.data.demand.files import read_demand
from kopt.data.demand.generator import generate
from kopt.data.demand.rolling import Forecasts
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import COLUMN, DAY_S, FEATURES, HORIZONS_S, transform
from kopt.models.demand.global_model import GlobalSettings
from kopt.models.demand.network import network_inputs, spreads
from kopt.models.demand.predictor import DemandPredictor, DemandRequest
from kopt.models.demand.table import training_table
from kopt.training.demand.evaluate import score, scored_origins, summarise

QUANTILES = (0.5, 0.9, 0.95, 0.99)


@pytest.fixture(scope="module")
def services() -> list[DemandSeries]:
    return generate(4, 6.0, seed=5)


@pytest.fixture(scope="module")
def predictor(services: list[DemandSeries]) -> DemandPredictor:
    settings = GlobalSettings(rounds=30, rows_per_series=600, network_epochs=2)
    return DemandPredictor(settings).fit(training_table(services[:3]))


@pytest.fixture(scope="module")
def unseen(services: list[DemandSeries]) -> DemandSeries:
    return replace(services[3].tail(4 * 288), tenants={})


def test_rows_one_at_a_time_are_the_rows_of_a_batch(unseen: DemandSeries) -> None:
    origins = np.array([0, 5, 287, 288, 600, len(unseen) - 1])
    together = transform(unseen, origins)
    alone = np.concatenate([transform(unseen.upto(int(i)), np.array([i])) for i in origins])
    assert together == pytest.approx(alone, rel=1e-9, abs=1e-9, nan_ok=True)
    assert together.shape == (len(origins), len(FEATURES))


def test_a_forecast_is_the_last_row_of_the_backtest(predictor: DemandPredictor, unseen: DemandSeries) -> None:
    tested = predictor.backtest(unseen, quantiles=QUANTILES)
    asked = predictor.forecast(unseen, quantiles=QUANTILES)
    values = np.array([[one.quantiles[q] for q in QUANTILES] for one in asked])
    assert values == pytest.approx(tested.values[-1], rel=1e-9)


def test_a_warm_memory_answers_as_a_cold_replay_does(predictor: DemandPredictor, unseen: DemandSeries) -> None:
    memory = predictor.memory()
    # A history that ends earlier starts its replay no later, so both have seen the same buckets.
    for end in (len(unseen) - 13, len(unseen) - 12, len(unseen) - 1):
        warm = predictor.forecast(unseen.upto(end), calibration=memory)
    cold = predictor.forecast(unseen)
    assert [one.quantiles for one in warm] == [pytest.approx(one.quantiles, rel=1e-9) for one in cold]


def test_memories_made_together_are_those_that_first_forecasts_leave(
    predictor: DemandPredictor, unseen: DemandSeries
) -> None:
    long = replace(unseen, in_tokens=None, out_tokens=None)
    gaps = replace(long, name="gaps", value=long.value.copy())
    gaps.value[100:1145:7], gaps.value[-1] = np.nan, np.nan
    late = replace(long.tail(600), name="began late")
    empty = replace(late, name="only gaps", value=np.full(600, np.nan))
    together = [long, gaps, late, empty, replace(long, name="scaled", value=long.value * 3.0)]
    memories = predictor.memories(together)
    # The next bucket continues what is known: nothing is replayed that would hide a difference.
    for series, memory in zip(together, memories, strict=True):
        assert (memory.state is None) == (series is empty)
        alone = predictor.memory()
        first = predictor.forecast(series, calibration=alone)
        after = replace(series, value=np.append(series.value, 7.0))
        for history, expected in ((series, first), (after, predictor.forecast(after, calibration=alone))):
            found = predictor.forecast(history, calibration=memory)
            for one, other in zip(found, expected, strict=True):
                assert one.quantiles == pytest.approx(other.quantiles, rel=1e-9)
                assert one.reasons == other.reasons


def test_backtest_values_ignore_the_future(predictor: DemandPredictor, unseen: DemandSeries) -> None:
    cut = 3 * 288
    changed = unseen.value.copy()
    changed[cut + 1 :] *= 9
    origins = np.arange(2 * 288, cut + 1)
    twin = predictor.backtest(replace(unseen, value=changed), origins)
    assert np.array_equal(predictor.backtest(unseen, origins).values, twin.values)


def test_backtest_values_are_ordered_finite_and_capped(predictor: DemandPredictor, unseen: DemandSeries) -> None:
    spiky = unseen.value.copy()
    spiky[500:1000:37] *= 50
    tested = predictor.backtest(replace(unseen, value=spiky))
    assert np.isfinite(tested.values).all()
    assert (tested.values >= 0).all()
    assert (np.diff(tested.values, axis=2) >= 0).all()
    peak = transform(tested.series, tested.origins)[:, COLUMN["max_7d"]]
    assert (tested.values[:, :, -1] <= 2 * peak[:, None] * (1 + 1e-9)).all()


def test_the_unit_of_demand_does_not_matter(predictor: DemandPredictor, unseen: DemandSeries) -> None:
    small = predictor.backtest(unseen).values
    large = predictor.backtest(replace(unseen, value=unseen.value * 4096)).values
    assert large == pytest.approx(small * 4096, rel=1e-3)


def test_horizons_between_are_between_and_far_ones_are_refused(
    predictor: DemandPredictor, unseen: DemandSeries
) -> None:
    near, between, far, beyond = predictor.forecast(unseen, (1800, 2700, 3600, 3 * 3600))
    low, high = sorted((near.quantiles[0.99], far.quantiles[0.99]))
    assert low <= between.quantiles[0.99] <= high
    assert beyond.refused
    assert beyond.reasons[0].code == "HORIZON_TOO_FAR"


def test_short_stale_and_empty_histories_are_marked(predictor: DemandPredictor, unseen: DemandSeries) -> None:
    short = predictor.forecast(unseen.upto(100))
    assert all(one.fallback and one.reasons[0].code == "SHORT_HISTORY" for one in short)
    assert short[0].quantiles[0.99] > short[0].quantiles[0.5]
    live = replace(unseen, start_known=True, start_s=1.7e9)
    late = predictor.forecast(live, now_s=1.7e9 + len(live) * 300 + 7200)
    assert all(one.fallback and one.reasons[0].code == "STALE" for one in late)
    empty = predictor.forecast(replace(unseen, value=np.full(len(unseen), np.nan)))
    assert all(one.refused and one.reasons[0].code == "NO_DATA" for one in empty)


def test_a_tenant_that_left_is_named(predictor: DemandPredictor, unseen: DemandSeries) -> None:
    leaving = np.where(np.arange(len(unseen)) < len(unseen) - 12, 0.6, 0.02) * unseen.value
    with_tenants = replace(unseen, tenants={"acme": leaving, "rest": unseen.value - leaving})
    told = {one.code: one for one in predictor.explain(DemandRequest(with_tenants))}
    assert "acme" in told["TENANT"].message
    assert told["TENANT"].numbers["share_now"] == pytest.approx(0.02, abs=0.005)
    assert {"MIXTURE", "INPUT"} <= told.keys()


def test_saved_rows_are_predicted_the_same(predictor: DemandPredictor, unseen: DemandSeries, tmp_path: Path) -> None:
    rows = transform(unseen, np.arange(300, 900))
    predictor.save(tmp_path)
    loaded = DemandPredictor.load(tmp_path)
    assert np.array_equal(loaded.predict_rows(rows), predictor.predict_rows(rows))
    assert {file.suffix for file in tmp_path.iterdir()} <= {".txt", ".json", ".safetensors"}


def test_network_inputs_do_not_depend_on_how_restless_a_service_is() -> None:
    """Twice the swings are twice the spread, and the inputs measured in it stay the same."""
    walk = np.cumsum(np.random.default_rng(6).normal(0, 0.02, 3 * 288))
    rows = [transform(DemandSeries("w", 0.0, 300, 1e6 * np.exp(k * walk)), np.arange(600, 800)) for k in (1, 2)]
    assert spreads(rows[1]) == pytest.approx(2 * spreads(rows[0]), rel=0.2)
    calm, restless = (network_inputs(one)[:, COLUMN["change_60m"] - 5] for one in rows)
    assert restless == pytest.approx(calm, abs=0.15)


@pytest.mark.slow
def test_unseen_real_services_are_forecast_better_than_by_the_last_value(demand_data_dir: Path) -> None:
    """Trained on every group but one, with a fraction of the rows and trees; ``make bench`` does it in full."""
    catalogue = read_catalogue(demand_data_dir)
    usable = [
        one.resampled()
        for one in read_demand(demand_data_dir)
        if catalogue[one.name].days >= 6.5 and catalogue[one.name].kind in ("llm", "web")
    ]
    groups = {one.name: catalogue[one.name].group for one in usable}
    held = "alibaba/ServeGen m-mid"
    assert held in groups.values()
    table = training_table([one.tail(14 * DAY_S // one.step_s) for one in usable if groups[one.name] != held], groups)
    quick = GlobalSettings(rounds=40, rows_per_series=500, network_epochs=2)
    predictor = DemandPredictor(quick).fit(table)
    scores = []
    for one in (one for one in usable if groups[one.name] == held):
        origins = scored_origins(one, HORIZONS_S)
        values = predictor.backtest(one, origins, QUANTILES).values
        scores += score(one, Forecasts(one.name, origins, HORIZONS_S, QUANTILES, values))
    near, half_hour, hour = summarise(scores)
    assert near.mase_ratio < 1.0
    assert half_hour.mase_ratio < 0.9
    assert hour.mase_ratio < 0.85
    assert all(0.002 < one.violation_q99 < 0.015 for one in (near, half_hour, hour))
    assert all(one.eff99 > one.eff99_last for one in (half_hour, hour))
