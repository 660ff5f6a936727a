"""Scores mean what they say, and agree with the public scoring script on real series."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from kopt.data.demand.files import read_catalogue, read_demand
from kopt.data.demand.generator import generate
from kopt.data.demand.rolling import Forecasts
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import HORIZONS_S, fill_gaps
from kopt.training.demand.evaluate import score, scored_origins, summarise

QUANTILES = (0.5, 0.9, 0.95, 0.99)
SCRIPT = "score_demand.py"


def last_value(series: DemandSeries, factors: tuple[float, ...] = (1.0, 1.2, 1.3, 1.6)) -> Forecasts:
    """The last value, times a factor per quantile."""
    origins = scored_origins(series, HORIZONS_S)
    last = fill_gaps(series.value)[origins]
    value = last[:, None, None] * np.array(factors)[None, None, :] * np.ones((1, 3, 1))
    return Forecasts(series.name, origins, HORIZONS_S, QUANTILES, value)


def oracle(series: DemandSeries) -> Forecasts:
    """What came."""
    origins = scored_origins(series, HORIZONS_S)
    filled = fill_gaps(series.value)
    ahead = origins[:, None] + np.array([h // series.step_s for h in HORIZONS_S])
    value = filled[np.minimum(ahead, len(filled) - 1)][:, :, None] * np.ones(4)
    return Forecasts(series.name, origins, HORIZONS_S, QUANTILES, value)


@pytest.fixture(scope="module")
def service() -> DemandSeries:
    return generate(services=1, days=9, seed=4)[0]


def test_the_last_value_scores_as_the_last_value(service: DemandSeries) -> None:
    for one in score(service, last_value(service)):
        assert one.mase == pytest.approx(one.mase_last)
        assert one.eff99("q95") == pytest.approx(one.eff99("last"), abs=0.03)
        assert 0 < one.eff99("last") < 1


def test_an_oracle_has_no_error_no_violation_and_lends_everything(service: DemandSeries) -> None:
    for one in score(service, oracle(service)):
        assert one.mase == 0
        assert one.violation(0.99) == 0
        assert one.eff99() == pytest.approx(1.0, abs=0.02)


def test_more_careful_forecasts_are_violated_less_and_lend_the_same_when_matched(service: DemandSeries) -> None:
    calm = score(service, last_value(service, (1.0, 1.2, 2.6, 3.2)))
    bold = score(service, last_value(service, (1.0, 1.0, 1.01, 1.02)))
    for careful, daring in zip(calm, bold, strict=True):
        assert careful.violation(0.99) < daring.violation(0.99)
        assert careful.eff99() == pytest.approx(daring.eff99(), abs=1e-9)


def test_rows_before_a_bucket_can_be_left_out(service: DemandSeries) -> None:
    forecasts = last_value(service)
    whole, part = score(service, forecasts), score(service, forecasts, unseen_from=len(service) - 288)
    assert part[0].rows.sum() < whole[0].rows.sum()
    assert part[0].rows.sum() <= 288
    assert score(service, forecasts, unseen_from=len(service)) == ()


def test_a_missing_origin_is_an_error_that_names_it(service: DemandSeries) -> None:
    whole = last_value(service)
    torn = Forecasts(whole.series, whole.origins[5:], whole.horizons_s, whole.quantiles, whole.value[5:])
    with pytest.raises(ValueError, match=f"no forecast at .* first {whole.origins[4] - 1}|no forecast"):
        score(service, torn)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_forecasts_that_are_not_finite_or_decrease_are_refused(service: DemandSeries, broken: float) -> None:
    whole = last_value(service)
    value: NDArray[np.float64] = whole.value.copy()
    value[3, 1, 2] = broken
    with pytest.raises(ValueError, match="not finite"):
        Forecasts(whole.series, whole.origins, whole.horizons_s, whole.quantiles, value)
    with pytest.raises(ValueError, match="decrease"):
        Forecasts(whole.series, whole.origins, whole.horizons_s, whole.quantiles, whole.value[:, :, ::-1])


def test_idle_and_unknown_series_have_no_score() -> None:
    for value in (np.zeros(3000), np.full(3000, np.nan)):
        series = DemandSeries("idle", 0, 300, value)
        origins = np.arange(1500, 3000)
        assert score(series, Forecasts("idle", origins, HORIZONS_S, QUANTILES, np.ones((1500, 3, 4)))) == ()


def test_summaries_are_made_for_every_slice(service: DemandSeries) -> None:
    scores = score(service, last_value(service), slices=("kind llm",))
    found = summarise(scores)
    assert {one.slice for one in found} == {"all", "kind llm"}
    assert {one.horizon_s for one in found} == set(HORIZONS_S)
    assert found[0].mase_ratio == pytest.approx(1.0)


def test_figures_agree_with_the_public_scoring_script(demand_data_dir: Path, tmp_path: Path) -> None:
    script = demand_data_dir.parents[1] / "tools" / SCRIPT
    if not script.exists():
        pytest.skip(f"{SCRIPT} is not beside the data")
    info = read_catalogue(demand_data_dir)
    scored = [
        one.resampled()
        for one in read_demand(demand_data_dir)
        if info[one.name].kind in ("llm", "web") and info[one.name].days >= 6.5
    ]
    forecasts = {one.name: last_value(one) for one in scored}
    frames = []
    for one in scored:
        made = forecasts[one.name]
        for column, horizon_s in enumerate(made.horizons_s):
            values = {f"q{round(q * 100)}": made.value[:, column, i] for i, q in enumerate(QUANTILES)}
            frames.append(
                pd.DataFrame({"series": one.name, "t": made.origins * one.step_s, "h": horizon_s // 60, **values})
            )
    pd.concat(frames).to_parquet(tmp_path / "pred.parquet")
    command = [sys.executable, str(script), str(tmp_path / "pred.parquet"), "--data", str(demand_data_dir)]
    subprocess.run([*command, "--csv", str(tmp_path / "out.csv")], check=True, capture_output=True)
    theirs = pd.read_csv(tmp_path / "out.csv").set_index(["series", "h"])
    ours = {(s.series, s.horizon_s // 60): s for one in scored for s in score(one, forecasts[one.name])}
    assert set(ours) == set(theirs.index)
    for key, mine in ours.items():
        row = theirs.loc[key]
        figures = {
            "mase": mine.mase,
            "mase_last": mine.mase_last,
            "q95_viol": mine.violation(0.95),
            "q99_viol": mine.violation(0.99),
            "eff99_q95": mine.eff99("q95"),
            "eff99_q99": mine.eff99("q99"),
            "eff99_last": mine.eff99("last"),
            "eff99_hpa": mine.eff99("hpa"),
        }
        assert figures == pytest.approx({name: row[name] for name in figures}, abs=1e-9), key
