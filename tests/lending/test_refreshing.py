"""When forecasts are requested again: in the interval, as soon as a bucket may have come, and few at a time."""

import asyncio
from collections.abc import Sequence

import pytest

from kopt.controllers.lending.forecasts import Forecasts
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.scheduling.lending_pool import ForecastState, LendingPool, PoolService
from kopt.serving.contract.demand_answers import DemandForecast, DemandQuery, HorizonForecast, SeriesForecast

END_S = 1_764_104_400.0
"""Of a bucket."""
LEAD_S, REFRESH_S = 300.0, 60.0
MODEL = ModelVersion("demand", "1", "")


def pools(count: int, first: int = 0) -> list[tuple[LendingPool, float]]:
    return [
        (LendingPool(f"p{i}", 8, (PoolService("chat", f"team{i}", {}, f"team{i}/chat", 100.0, 1),)), LEAD_S)
        for i in range(first, first + count)
    ]


class SlowEndpoint:
    """Its first answer on a series takes ``first_s`` of a clock that only it moves; there is none of those ``down``."""

    def __init__(self, first_s: float = 0.0, data_at_s: float | None = None) -> None:
        self.now_s, self.first_s, self.data_at_s = END_S + 100.0, first_s, data_at_s
        self.known, self.down = set[str](), set[str]()
        self.asked: list[str] = []
        self.under_way = self.most_at_once = 0
        self.forecasts = Forecasts(self.ask, lambda: None, 300.0, clock=lambda: self.now_s)

    async def ask(self, query: DemandQuery) -> DemandForecast:
        (name,) = (series.name for series in query.series)
        self.asked.append(name)
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        await asyncio.sleep(0)
        if name not in self.known:
            self.now_s += self.first_s
        self.under_way -= 1
        if name in self.down:
            raise TimeoutError
        self.known.add(name)
        at_s = END_S if self.data_at_s is None else self.data_at_s
        demand = Prediction(1.0, 1.0, 1.0, 0.9, "requests", 1.0, MODEL, (), {0.5: 1.0, 0.99: 1.0}, at_s)
        horizons = tuple(HorizonForecast(int(horizon), demand) for horizon in query.horizons_s)
        return DemandForecast((SeriesForecast(name, "requests", 300, horizons),), MODEL)

    def refresh(self, asked: Sequence[tuple[LendingPool, float]]) -> list[str]:
        """The series that were asked about."""
        self.asked.clear()
        asyncio.run(self.forecasts.refresh(asked, REFRESH_S))
        return list(self.asked)

    def fresh(self, asked: Sequence[tuple[LendingPool, float]]) -> int:
        return sum(self.forecasts.state(pool) is ForecastState.FRESH for pool, _ in asked)


@pytest.mark.parametrize(
    ("after_end_s", "data_at_s", "expected_s"),
    [
        (100, END_S, 60),
        (280, END_S, 23),
        (0, END_S - 300, 3),
        (5, END_S - 300, 3),
        (5, END_S, 60),
        (40, END_S - 300, 60),
        (5, 12.0, 60),
    ],
    ids=[
        "the interval",
        "before the end of a bucket: until it can be there",
        "at its end",
        "it is not there yet",
        "it is there",
        "it does not come",
        "a recording, not the clock's time",
    ],
)
def test_forecasts_are_requested_when_a_bucket_may_have_come(
    after_end_s: float, data_at_s: float, expected_s: float
) -> None:
    endpoint = SlowEndpoint(data_at_s=data_at_s)
    endpoint.now_s = END_S + after_end_s
    endpoint.refresh(pools(1))
    assert endpoint.forecasts.due_s(REFRESH_S) == pytest.approx(expected_s)
    assert endpoint.forecasts.due_s(1.0) == 1.0
    endpoint.now_s += expected_s - 0.5
    assert not endpoint.refresh(pools(1))
    endpoint.now_s += 0.5
    assert endpoint.refresh(pools(1)) == ["team0/chat"]


def test_an_endpoint_that_has_just_started_is_asked_about_few_pools_at_a_time() -> None:
    endpoint, many, rounds = SlowEndpoint(first_s=0.5), pools(200), 0
    while endpoint.fresh(many) < len(many):
        endpoint.refresh(many)
        endpoint.now_s += endpoint.forecasts.due_s(REFRESH_S)
        rounds += 1
        assert rounds < 100
    assert endpoint.most_at_once == 2
    assert endpoint.now_s - END_S - 100.0 <= 200 * 0.5 + 30, "no time passes between them"


def test_pools_that_have_forecasts_do_not_wait_for_those_that_have_none() -> None:
    endpoint, old, new = SlowEndpoint(first_s=2.0), pools(20), pools(50, first=20)
    while endpoint.fresh(old) < len(old):
        endpoint.refresh(old)
    endpoint.now_s = END_S + 303.0
    asked = endpoint.refresh([*new, *old])
    assert asked[:20] == [pool.services[0].series for pool, _ in old]
    assert 1 <= len(asked[20:]) <= 4
    assert endpoint.forecasts.due_s(REFRESH_S) == 0.0, "the others are next"


def test_a_pool_without_a_forecast_is_asked_about_again_soon_and_then_less_often() -> None:
    endpoint, (pool,) = SlowEndpoint(), pools(1)
    endpoint.down.add("team0/chat")
    pauses = []
    for _ in range(2000):
        assert endpoint.refresh([pool])
        pauses.append(endpoint.forecasts.due_s(REFRESH_S))
        endpoint.now_s += pauses[-1]
    assert pauses[:6] == [3, 6, 12, 24, 48, 60]
    assert set(pauses[6:]) == {60}
    endpoint.down.clear()
    endpoint.data_at_s = endpoint.now_s - 300.0
    endpoint.refresh([pool])
    assert endpoint.fresh([pool]) == 1


def test_what_is_new_of_a_pool_is_asked_at_once() -> None:
    endpoint, (pool,) = SlowEndpoint(), pools(1)
    endpoint.refresh([pool])
    assert endpoint.refresh([pool]) == []
    assert endpoint.refresh([(pool[0], 1800.0)]) == ["team0/chat"]
    assert endpoint.refresh([pool, *pools(1, first=1)]) == ["team0/chat", "team1/chat"]


def test_a_clock_that_was_set_back_delays_nothing() -> None:
    endpoint, (pool,) = SlowEndpoint(), pools(1)
    endpoint.refresh([pool])
    endpoint.now_s -= 86_400.0
    assert endpoint.forecasts.due_s(REFRESH_S) == 0.0
    assert endpoint.refresh([pool]) == ["team0/chat"]


def test_without_an_endpoint_nothing_is_asked_and_nobody_waits_busily() -> None:
    forecasts = Forecasts(None, lambda: None, 300.0)
    asyncio.run(forecasts.refresh(pools(2), REFRESH_S))
    assert forecasts.due_s(REFRESH_S) == REFRESH_S
