"""``kopt.forecast`` in Python: light to import, the same answers as the command."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import kopt
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.data.demand.table import DemandDataError, DemandSeries
from kopt.models.registry.shipped import shipped_digests
from kopt.sdk.forecast import Forecast, ServiceForecast, forecast, quantile_name
from tests.cli.conftest import Kopt

shipped = pytest.mark.skipif("demand" not in shipped_digests(), reason="no default model is shipped")


def test_importing_kopt_and_looking_at_it_loads_nothing_heavy() -> None:
    code = (
        "import kopt, sys; assert 'forecast' in dir(kopt); "
        "print(sorted({'numpy', 'pandas', 'ray', 'mlflow', 'torch', 'lightgbm', 'httpx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_that_kopt_does_not_have_are_attribute_errors() -> None:
    import kopt

    with pytest.raises(AttributeError, match="nonesuch"):
        _ = kopt.nonesuch


@shipped
def test_a_frame_a_path_and_series_give_the_same_forecast(
    kopt_home: Path, services: list[DemandSeries], demand_folder: Path
) -> None:
    import kopt

    one = replace(services[0], tenants={}, start_s=0.0, start_known=False)
    frame = pd.DataFrame({"series": one.name, "t": one.times_s, "value": one.value})
    by_frame, by_series = kopt.forecast(frame), kopt.forecast(one)
    assert by_frame.to_dict() == by_series.to_dict()
    by_path = kopt.forecast(demand_folder, horizons_s=(600,), quantiles=(0.5, 0.999))
    assert [service.name for service in by_path] == [service.name for service in services]
    assert by_path.model.version == "shipped"
    assert list(by_path.to_frame().columns) == ["series", "horizon_s", "q50", "q99.9"]
    assert not list(kopt_home.iterdir()), "asking the shipped model writes nothing"


@shipped
def test_the_command_prints_the_objects_document(
    kopt: Kopt, demand_folder: Path, finite: Callable[[object], bool]
) -> None:
    done = kopt("demand", "forecast", str(demand_folder), "-o", "json")
    assert done.status == 0, done.err
    assert done.json == forecast(demand_folder, model="shipped").to_dict()
    assert finite(done.json)
    rows = kopt("demand", "forecast", str(demand_folder), "-o", "csv").out.splitlines()
    assert rows[0].startswith("series,horizon_s,unit,q50,q90,q95,q99")
    assert len(rows) == 1 + 3 * len(done.json["forecasts"]) // 3


@shipped
def test_lending_and_reasons_are_told_for_every_series(kopt: Kopt, demand_folder: Path) -> None:
    pools = kopt("demand", "lend", str(demand_folder), "-o", "json").json["pools"]
    assert len(pools) == 9
    for pool in pools:
        assert pool["provision_gpus"] + pool["lendable_gpus"] >= pool["gpus"] == 64
    one = kopt("demand", "lend", str(demand_folder), "--one-pool", "-o", "json").json["pools"]
    assert {pool["gpus"] for pool in one} == {3 * 64}
    reasons = kopt("demand", "explain", str(demand_folder), "--series", "chat-00", "-o", "json").json["reasons"]
    assert reasons
    assert all(reason["message"] for reason in reasons)


@pytest.mark.parametrize(
    "frame",
    [pd.DataFrame(), pd.DataFrame({"t": [0, 0], "value": [1, 2]}), [], ["x"], pd.DataFrame({"t": [], "value": []})],
)
def test_frames_that_cannot_be_used_are_refused(frame: object, kopt_home: Path) -> None:
    with pytest.raises(DemandDataError):
        forecast(frame, model="shipped")  # type: ignore[arg-type]


def test_the_notebook_picture_escapes_names() -> None:
    model = ModelVersion("demand", "1")
    refused = Prediction.refusal(Reason("NO_DATA", "nothing <b>yet</b>"), unit="requests", model=model, horizon_s=300.0)
    known = Prediction(1.0, 0.5, 2.0, 0.9, "requests", 0.5, model, (), {0.5: 1.0, 0.99: 2.0}, horizon_s=300.0)
    picture = Forecast((ServiceForecast("<script>", 300, (refused, known)),), model)._repr_html_()
    assert "<script>" not in picture
    assert "&lt;script&gt;" in picture
    assert "<b>" not in picture
    assert "q99" in picture


def test_a_size_shows_itself_in_a_notebook() -> None:
    command = "litgpt finetune_lora meta-llama/Llama-3.2-1B --precision bf16-true --train.max_seq_length 512"
    estimate = kopt.estimate(
        f"{command} --train.micro_batch_size 2 --optimizer AdamW", gpu="a100-80gb", model="shipped"
    )
    shown = estimate._repr_html_()
    assert "<th>weights</th>" in shown
    assert shown.count("<tr>") >= 4
    assert "GiB" in shown
    hostile = replace(estimate, script="<b>train</b>.py")._repr_html_()
    assert "<b>" not in hostile
    assert "&lt;b&gt;train" in hostile
    nothing = Prediction.refusal(Reason("NO_DATA", "not <b>known</b>"), unit="bytes", model=estimate.model)
    assert "<b>" not in replace(estimate, memory=nothing)._repr_html_()


@pytest.mark.parametrize(("probability", "name"), [(0.5, "q50"), (0.999, "q99.9"), (0.95, "q95")])
def test_quantiles_have_names(probability: float, name: str) -> None:
    assert quantile_name(probability) == name
