"""Back tests: every origin has a row, in the file's own time; a model never judges itself."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kopt.cli.demand import backtest
from kopt.core.settings import Settings
from kopt.data.demand.files import write_demand
from kopt.data.demand.rolling import window_start
from kopt.data.demand.table import DemandSeries
from kopt.models.demand.training_overlap import fingerprint
from kopt.models.registry import loading
from kopt.models.registry.artifact import ModelCard
from kopt.models.registry.shipped import shipped_digests
from tests.cli.conftest import Kopt

shipped = pytest.mark.skipif("demand" not in shipped_digests(), reason="no default model is shipped")


@shipped
def test_every_observed_origin_of_the_window_has_finite_rising_quantiles(
    kopt: Kopt, demand_folder: Path, services: list[DemandSeries], tmp_path: Path
) -> None:
    out = tmp_path / "pred.parquet"
    done = kopt("demand", "backtest", str(demand_folder), "--out", str(out), "--model", "shipped", "-o", "json")
    assert done.status == 0, done.err
    table = pd.read_parquet(out)
    assert list(table.columns) == ["series", "t", "h", "q50", "q90", "q95", "q99"]
    assert done.json["rows"] == len(table)
    quantiles = table[["q50", "q90", "q95", "q99"]].to_numpy()
    assert np.isfinite(quantiles).all()
    assert (np.diff(quantiles, axis=1) >= -1e-9).all()
    own = pd.read_parquet(demand_folder / "demand.parquet")
    for one in services:
        first_t = own[own.series == one.name].t.iloc[0]
        for horizon in (5, 30, 60):
            ahead = horizon * 60 // one.step_s
            origins = np.arange(window_start(len(one), one.step_s) - ahead, len(one) - ahead)
            origins = origins[np.isfinite(one.value[origins]) & np.isfinite(one.value[origins + ahead])]
            got = table[(table.series == one.name) & (table.h == horizon)].set_index("t").index
            assert set(first_t + origins * one.step_s) <= set(got)


def test_a_model_does_not_judge_what_it_was_trained_on(
    demand_folder: Path, services: list[DemandSeries], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = ModelCard("demand", training_data=(fingerprint(services[1]),))
    monkeypatch.setattr(loading, "load_card", lambda *_: card)
    data = backtest.read_dataset(demand_folder, services)
    with pytest.raises(backtest.Refused, match=rf"trained on 1 of 3 series of the input \({services[1].name}\)"):
        backtest.refuse_trained_on(data, "champion", Settings(tmp_path))
    monkeypatch.setattr(loading, "load_card", lambda *_: ModelCard("demand"))
    backtest.refuse_trained_on(data, "champion", Settings(tmp_path))


def test_own_time_is_what_the_file_says(services: list[DemandSeries], tmp_path: Path) -> None:
    folder = write_demand(services[:1], tmp_path / "d", source="x")
    name = services[0].name
    assert backtest.own_starts(folder)[name] == pd.read_parquet(folder / "demand.parquet").t.iloc[0]
    text = tmp_path / "d.csv"
    text.write_text("series,t,value\nb,600,1\nb,900,1\na,1700000100,1\na,1700000400,2\n")
    assert backtest.own_starts(text) == {"a": 1700000100.0, "b": 600.0}
    text.write_text("series,t,value\na,2023-11-14T22:15:00Z,1\na,2023-11-14T22:20:00Z,2\n")
    assert backtest.own_starts(text) == {"a": 1700000100.0}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.long
def test_groups_are_forecast_by_models_that_have_not_seen_them(
    kopt: Kopt, demand_folder: Path, services: list[DemandSeries], tmp_path: Path
) -> None:
    out = tmp_path / "pred.parquet"
    done = kopt("demand", "backtest", str(demand_folder), "--out", str(out), "--group-cv", "source", "-o", "json")
    assert done.status == 0, done.err
    assert len({row["group"] for row in done.json["series"]}) == 3
    assert set(pd.read_parquet(out).series) == {one.name for one in services}
