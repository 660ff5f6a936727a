"""The pieces under the pages: wording, capacities, histories, asking the endpoint, drawing."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.reason import Reason
from kopt.dashboard import formatting as wording
from kopt.dashboard.data.capacity import Capacity, CapacityError, assumed_capacity, read_capacities
from kopt.dashboard.data.forecasting import BATCH_POINTS, BATCH_SERIES, Forecasts, batches
from kopt.dashboard.data.histories import FolderHistories, recent
from kopt.dashboard.data.sources import Service
from kopt.dashboard.figures import fan
from kopt.dashboard.pages.services.replay import origins_of
from kopt.dashboard.pages.services.sparkline import sparkline
from kopt.dashboard.rendering import environment, figure_json
from kopt.data.demand.files import write_demand
from kopt.data.demand.table import DemandDataError, DemandSeries
from kopt.policies.lending.policy import LendingSettings
from kopt.serving.client.fallback_answer import fallback_answer
from kopt.serving.client.transport import RequestRefused
from kopt.serving.contract.demand_answers import DemandForecast, DemandQuery


def series(values: Sequence[float], name: str = "chat", step_s: int = 300, **more: object) -> DemandSeries:
    return DemandSeries(name, 0.0, step_s, np.array(values, dtype=np.float64), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0, "0"),
        (0.4213, "0.421"),
        (7, "7"),
        (48.84, "48.8"),
        (999.6, "1,000"),
        (1234.4, "1,234"),
        (9999.6, "10.0 k"),
        (12_345, "12.3 k"),
        (999_960, "1.0 M"),
        (4.2e9, "4.2 G"),
        (1e15, "1,000 T"),
    ],
)
def test_amounts_are_short_and_keep_three_figures(value: float | None, text: str) -> None:
    assert wording.amount(value) == text


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_number_breaks_the_wording(value: float) -> None:
    for word in (wording.amount, wording.decimal, wording.share, wording.iso, wording.clock):
        assert isinstance(word(value), str)


def test_long_names_keep_both_ends() -> None:
    assert wording.shortened("a" * 5000 + "-7", 40).endswith("a-7")
    assert len(wording.shortened("a" * 5000, 40)) <= 41


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[chat]\ngpus = 1.5\nper_gpu = 2", "whole number"),
        ("[chat]\ngpus = 4", "per_gpu"),
        ("chat = 3", "not a table"),
        ("[chat]\ngpus = 4\nper_gpu = inf", "positive"),
        ("[chat]\ngpus = 4\nper_gpu = true", "positive"),
        ("[chat]\ngpus = -1\nper_gpu = 2", "whole number"),
        ("[chat]\ngpu = 4", "unknown key 'gpu'"),
        ("[chat", "toml"),
        ('[chat]\ngpus = 4\nper_gpu = 2\npool = "\\u0007"', "pool"),
    ],
)
def test_a_wrong_services_file_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "services.toml").write_text(text)
    with pytest.raises(CapacityError, match=words):
        read_capacities(tmp_path / "services.toml")


def test_capacities_are_read_and_otherwise_assumed(tmp_path: Path) -> None:
    assert read_capacities(tmp_path / "services.toml") == {}
    (tmp_path / "services.toml").write_text('[chat]\ngpus = 8\nper_gpu = 600\npool = "llm"\nminimum = 2\n')
    found = read_capacities(tmp_path / "services.toml")
    assert found == {"chat": Capacity(8, 600.0, 2, "llm", assumed=False)}
    assert assumed_capacity(series([64.0] * 500)).per_gpu == 1.0
    assert assumed_capacity(series([0.0, np.nan])).per_gpu is None


def test_a_folder_is_read_again_only_when_it_changes(tmp_path: Path) -> None:
    histories = FolderHistories(tmp_path / "demand")
    assert list(histories.read()) == []
    write_demand([series([1, 2, 3])], tmp_path / "demand")
    first = histories.read()
    assert histories.read() is first
    write_demand([series([1, 2, 3, 4])], tmp_path / "demand")
    assert len(histories.read()[0]) == 4
    (tmp_path / "demand" / "demand.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(DemandDataError):
        histories.read()


def test_minutes_are_summed_so_that_the_newest_bucket_is_whole() -> None:
    summed = recent(series([100, *range(1, 11)], step_s=60))
    assert summed.step_s == 300
    assert summed.value.tolist() == [15.0, 40.0]
    assert recent(series([1, 2], step_s=7)).step_s == 7


def test_batches_share_unit_and_clock_and_stay_small() -> None:
    many = [series([1.0] * 2000, f"s{i}", unit="tokens" if i % 3 else "requests") for i in range(60)]
    found = list(batches(many))
    assert sorted(one.name for batch in found for one in batch) == sorted(one.name for one in many)
    for batch in found:
        assert len({one.unit for one in batch}) == 1
        assert len(batch) <= BATCH_SERIES
        assert sum(len(one) for one in batch) <= BATCH_POINTS


class Picky:
    """An endpoint that refuses any request with the series ``bad``."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def demand(self, query: DemandQuery, *, deadline_s: float | None = None) -> DemandForecast:
        names = [one.name for one in query.series]
        self.asked.append(names)
        if "bad" in names:
            raise RequestRefused(422, "series.0.t: odd")
        return fallback_answer(query, Reason("TEST", "A test."), LendingSettings())


async def test_one_refused_history_costs_no_other_service_its_forecast() -> None:
    forecasts, many = Forecasts(Picky()), [series([1.0] * 20, name) for name in ("a", "b", "bad", "c", "d")]
    await forecasts.refresh(many, None, None)
    reasons = {one.name: forecasts.of(one.name).horizons[0].demand.reasons[0].code for one in many}  # type: ignore[union-attr]
    assert reasons == {"a": "TEST", "b": "TEST", "c": "TEST", "d": "TEST", "bad": "REQUEST_REFUSED"}


def test_origins_stay_where_they_are_when_the_history_grows() -> None:
    long = series(np.arange(3000.0).tolist())
    before, after = set(origins_of(long.upto(2900))), set(origins_of(long))
    assert len(before) == 96
    assert {i for i in before if i >= min(after)} <= after
    assert origins_of(series([1.0] * 100)) == []


def test_no_text_of_a_figure_ends_its_element_or_becomes_markup() -> None:
    one = series([1.0, 2.0], unit="</script><a href='//evil'>x</a>")
    figure = fan(Service(one, None, assumed_capacity(one), 0.0), 6)
    figure.layout.title = "</script>&\u2028"
    text = figure_json(figure)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["layout"]["title"]["text"] == "</script>&\u2028"
    assert json.loads(text)["layout"]["yaxis"]["title"]["text"].startswith("&lt;/script&gt;")


@pytest.mark.parametrize("values", [[5.0], [np.nan, np.nan], [0.0, 0.0, 0.0], [1.0, np.nan, 3.0] * 400])
def test_odd_histories_can_be_drawn(values: list[float]) -> None:
    one = series(values)
    service = Service(one, None, assumed_capacity(one), float(one.times_s[-1] + 300))
    figure = json.loads(fan(service, 6).to_json())
    assert figure["layout"]["yaxis"]["range"][1] > 0
    assert "NaN" not in sparkline(service).line


def test_a_reason_code_has_its_meaning_as_title() -> None:
    template = environment().from_string("{% from 'parts.html' import reasons %}{{ reasons(given) }}")
    html = template.render(given=[Reason("NO_MODEL", "None is loaded."), Reason("ELSEWHERE_MADE", "Text.")])
    assert '<code class="code" title="The endpoint serves no model' in html
    assert '<code class="code" title="">ELSEWHERE_MADE' in html
