"""Predicted against actual: matching, coverage, alarms that bring the fallback and take it away again, shadow mode."""

from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np
import pytest

from kopt.data.demand.table import DemandSeries
from kopt.models.registry.registry import CHAMPION
from kopt.serving.contract.demand_answers import parse_forecast
from kopt.serving.demand.health import LEAST, Matched, alarm, population_stability
from kopt.serving.demand.monitoring import RETENTION_S, PredictionTable, Row
from kopt.serving.demand.observer import TableObserver
from kopt.serving.demand.service import DemandService
from kopt.serving.endpoint.app import Endpoint
from tests.serving.conftest import MemorySource, StandInModel


def row(target_s: float, *, upper: float = 20.0, made_at_s: float = 1e9, bucket_s: int = 300) -> Row:
    return Row("", "chat", CHAMPION, 300, target_s, made_at_s, "1", bucket_s, 10.0, upper, 0.95, 9.0)


@pytest.fixture
def table(tmp_path: Path) -> PredictionTable:
    return PredictionTable(tmp_path / "monitoring.db")


def series(values: Sequence[float], start_s: float = 0.0, step_s: int = 300) -> DemandSeries:
    return DemandSeries("chat", start_s, step_s, np.array(values, dtype=float))


def test_actuals_are_filled_in_once_their_bucket_is_complete(table: PredictionTable) -> None:
    table.add([row(300.0), row(600.0), row(900.0)])
    assert table.match("", series([1.0, 12.0, float("nan")])) == 1
    assert table.matched("", "chat", CHAMPION).actual.tolist() == [12.0]
    assert table.match("", series([1.0, 12.0, 13.0, 14.0])) == 2
    assert table.match("", series([1.0, 12.0, 13.0, 14.0])) == 0


def test_minutes_add_up_to_the_bucket_that_was_predicted_wherever_they_start(table: PredictionTable) -> None:
    table.add([row(300.0)])
    assert table.match("", series([2.0] * 9, start_s=0.0, step_s=60)) == 0, "four of five minutes are not five"
    assert table.match("", series([2.0] * 9, start_s=120.0, step_s=60)) == 1
    assert table.matched("", "chat", CHAMPION).actual.tolist() == [10.0]


def test_another_caller_or_series_teaches_nothing(table: PredictionTable) -> None:
    table.add([row(300.0)])
    assert table.match("someone", series([1.0, 2.0])) == 0
    assert table.match("", DemandSeries("search", 0.0, 300, np.array([1.0, 2.0]))) == 0


def test_the_first_prediction_for_a_target_counts(table: PredictionTable) -> None:
    table.add([row(300.0, upper=20.0)])
    table.add([row(300.0, upper=99.0)])
    table.match("", series([1.0, 2.0]))
    assert table.matched("", "chat", CHAMPION).upper.tolist() == [20.0]


def test_old_rows_are_pruned(table: PredictionTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.add([row(300.0, made_at_s=1e9), row(600.0, made_at_s=1e9 + RETENTION_S)])
    assert table.prune(1e9 + RETENTION_S + 1) == 1
    monkeypatch.setattr("kopt.serving.demand.monitoring.MOST_ROWS", 10)
    table.add([row(t * 300.0, made_at_s=2e9 + t) for t in range(25)])
    table.prune(2e9)
    table.match("", series([1.0] * 30))
    assert len(table.matched("", "chat", CHAMPION)) == 10


def matched(count: int, *, misses: float = 0.05, error: float = 1.0, last_error: float = 1.0) -> Matched:
    actual = np.full(count, 10.0)
    upper = np.where(np.arange(1, count + 1) % round(1 / misses) == 0, 9.0, 11.0)
    return Matched(actual, actual + error, upper, actual + last_error, 0.95)


def test_coverage_and_error_are_those_of_the_window() -> None:
    found = matched(200, misses=0.1, error=2.0, last_error=4.0)
    assert found.coverage == pytest.approx(0.9)
    assert found.error == pytest.approx(0.2)
    assert found.error_last_value == pytest.approx(0.4)


def test_alarms_start_on_low_coverage_or_on_errors_worse_than_the_last_value() -> None:
    assert alarm(matched(300), False) == (False, ())
    assert [r.code for r in alarm(matched(300, misses=0.2), False)[1]] == ["COVERAGE_LOW"]
    assert [r.code for r in alarm(matched(300, error=1.5), False)[1]] == ["WORSE_THAN_LAST_VALUE"]
    assert alarm(matched(LEAST - 1, misses=1.0), False) == (False, ()), "too few to tell"


def test_alarms_end_when_the_newest_are_good_again() -> None:
    bad, good = matched(700, misses=0.5), matched(LEAST)
    columns = ("actual", "median", "upper", "last")
    joined = Matched(*(np.concatenate([getattr(bad, name), getattr(good, name)]) for name in columns), 0.95)
    assert alarm(joined, True) == (False, ())
    assert alarm(joined, False) == (False, ()), "what ended does not start again on old rows"
    assert alarm(bad, True)[0]


def test_a_shift_of_demand_is_measured_and_noise_is_not() -> None:
    rng = np.random.default_rng(0)
    calm, moved = rng.gamma(4, 10, 2016), rng.gamma(4, 10, 2016)
    moved[-288:] *= 3
    assert (population_stability(calm) or 0) < 0.15
    assert (population_stability(moved) or 0) > 1
    assert population_stability(calm[:400]) is None
    assert population_stability(np.zeros(2016)) == pytest.approx(0.0)


async def ask(http: httpx.AsyncClient, endpoint: Endpoint, values: Sequence[float]) -> object:
    """One more bucket arrives, is answered and observed."""
    body = {"series": [{"name": "chat", "t": [i * 300 for i in range(len(values))], "value": list(values)}]}
    reply = await http.post("/v1/demand", json=body)
    assert endpoint.service(DemandService).observer is not None
    while not endpoint.service(DemandService).observer._queue.empty():
        seen = endpoint.service(DemandService).observer._queue.get_nowait()
        assert seen is not None
        endpoint.service(DemandService).observer.handle(seen)
    return parse_forecast(reply.json())


@pytest.fixture
def watched(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose observations the test takes itself."""
    assert isinstance(endpoint.service(DemandService).observer, TableObserver)
    endpoint.service(DemandService).observer.stop()
    return endpoint


async def test_a_drifting_series_falls_back_by_itself_and_returns_when_it_recovers(
    http: httpx.AsyncClient, watched: Endpoint, model: StandInModel
) -> None:
    values, fallbacks = [100.0] * 10, []
    for step in range(180):
        # In the middle third the model predicts half of what comes.
        model.factor = 0.4 if 60 <= step < 120 else 1.0
        values.append(100.0 + step % 3)
        forecast = await ask(http, watched, values)
        fallbacks.append(forecast.fallback)
    assert not any(fallbacks[:60])
    assert all(fallbacks[100:120])
    assert not any(fallbacks[170:])
    text = (await http.get("/metrics")).text
    assert 'kopt_drift_alarm{role="champion",series="chat"} 0.0' in text
    assert 'kopt_demand_fallbacks_total{reason="DRIFT_ALARM"}' in text


async def test_the_alarm_is_shown_with_its_reason(
    http: httpx.AsyncClient, watched: Endpoint, model: StandInModel
) -> None:
    model.factor = 0.3
    values = [100.0] * 10
    for step in range(60):
        values.append(100.0 + step % 3)
        forecast = await ask(http, watched, values)
    assert forecast.fallback
    demand = forecast.series[0].horizons[0].demand
    assert demand.reasons[0].code == "DRIFT_ALARM"
    assert demand.value == values[-1]
    (health,) = (await http.get("/v1/health/models")).json()["series"]
    assert health["alarm"]
    assert health["coverage"] < 0.5
    assert health["reasons"][0]["code"] == "COVERAGE_LOW"
    assert 'kopt_drift_alarm{role="champion",series="chat"} 1.0' in (await http.get("/metrics")).text


async def test_a_challenger_is_judged_on_the_same_requests_and_never_answers(
    http: httpx.AsyncClient, watched: Endpoint, source: MemorySource
) -> None:
    source.add(StandInModel("2", factor=2.0), "challenger")
    watched.refresh()
    values = [100.0] * 10
    for _ in range(8):
        values.append(100.0)
        forecast = await ask(http, watched, values)
        assert forecast.model.version == "1"
        assert forecast.series[0].horizons[0].demand.value == 100.0
    health = (await http.get("/v1/health/models")).json()
    assert health["challenger"]["version"] == "2"
    assert health["series"][0]["error"] == 0.0
    assert health["shadow"][0]["error"] == pytest.approx(1.0)
    assert health["shadow"][0]["matched"] > 0


async def test_a_series_counts_once_per_bucket(http: httpx.AsyncClient, watched: Endpoint) -> None:
    body = {"series": [{"name": "chat", "t": [0, 300], "value": [1.0, 2.0]}]}
    for _ in range(5):
        await http.post("/v1/demand", json=body)
    assert watched.service(DemandService).observer is not None
    assert watched.service(DemandService).observer._queue.qsize() == 1


async def test_a_full_queue_drops_and_counts_instead_of_waiting(http: httpx.AsyncClient, watched: Endpoint) -> None:
    entries = [{"name": f"s{i}", "t": [0, 300], "value": [1.0, 2.0]} for i in range(200)]
    for start in range(3):
        await http.post("/v1/demand", json={"series": [{**e, "name": f"{e['name']}-{start}"} for e in entries]})
    assert "kopt_observations_dropped_total 88.0" in (await http.get("/metrics")).text
