"""Forecasts of what pools need: what must hold whatever the history is, and on which weeks they rest."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.policies.capacity.forecast import (
    HORIZONS,
    LEAST_WEEKS,
    QUANTILES,
    WEEK_HOURS,
    TooShort,
    WeekAhead,
    forecast,
    weekly_need,
)
from kopt.policies.capacity.purchase import purchase

NEEDS = st.lists(st.none() | st.floats(0, 1e6), min_size=LEAST_WEEKS, max_size=40).filter(
    lambda needs: sum(need is not None for need in needs) >= LEAST_WEEKS
)


@given(NEEDS, st.integers(1, 26))
def test_quantiles_of_every_week_are_finite_and_in_order(needs: list[float | None], weeks: int) -> None:
    ahead = forecast(needs, weeks)
    assert [week.weeks for week in ahead] == list(range(1, weeks + 1))
    for week in ahead:
        assert all(math.isfinite(gpus) and gpus >= 0 for gpus in week.gpus)
        assert list(week.gpus) == sorted(week.gpus)
        assert week.gpus[0] <= week.quantile(0.3) <= week.gpus[-1]


@given(st.floats(1, 1e5), st.integers(LEAST_WEEKS, 30))
def test_a_pool_that_never_changed_is_expected_to_stay_as_it_is(need: float, weeks: int) -> None:
    median = forecast([need] * weeks, 4)[-1].quantile(0.5)
    assert need / 2 <= median <= 2 * need + 1


def test_more_restless_pools_get_wider_intervals() -> None:
    calm, restless = ([100 * factor ** (week % 2) for week in range(20)] for factor in (1.05, 3))
    widths = [forecast(needs, 8)[-1] for needs in (calm, restless)]
    assert widths[0].gpus[-1] / widths[0].gpus[0] < widths[1].gpus[-1] / widths[1].gpus[0]


def test_interval_widens_with_the_horizon() -> None:
    ahead = forecast([80, 90, 100, 85, 95, 105], 26)
    assert ahead[0].gpus[-1] / ahead[0].gpus[0] < ahead[-1].gpus[-1] / ahead[-1].gpus[0]


@given(NEEDS, st.integers(1, 8))
def test_weeks_before_history_began_to_be_scraped_change_nothing(needs: list[float | None], weeks: int) -> None:
    assert forecast([None, None, *needs], weeks) == forecast(needs, weeks)


def test_too_few_weeks_are_refused_with_how_many_there_are() -> None:
    with pytest.raises(TooShort, match="3 of the 4 weeks"):
        forecast([1.0, None, 2.0, 3.0, None], 4)
    with pytest.raises(ValueError, match="1 to 26 weeks"):
        forecast([1.0] * 10, 27)


def test_a_week_needs_what_is_enough_in_nearly_all_of_its_hours() -> None:
    week = [10.0] * 160 + [90.0] * 8
    assert weekly_need([5.0] * 20 + week) == [10.0]
    assert weekly_need(week, served=0.99) == [90.0]
    assert weekly_need([None] * 100 + [1.0] * 68) == [None]
    assert weekly_need([1.0] * (WEEK_HOURS - 1)) == []


def test_steps_were_fitted_for_every_horizon_in_order() -> None:
    assert [horizon.weeks for horizon in HORIZONS] == sorted({horizon.weeks for horizon in HORIZONS})
    for horizon in HORIZONS:
        assert len(horizon.steps) == len(QUANTILES)
        assert list(horizon.steps) == sorted(horizon.steps)


@given(NEEDS, st.integers(0, 1000), st.integers(1, 16), st.integers(0, 20))
def test_what_is_bought_covers_the_risk_in_whole_nodes(
    needs: list[float | None], gpus: int, per_node: int, delivery: int
) -> None:
    ahead = forecast(needs, 13)
    advice = purchase(gpus, per_node, ahead, delivery)
    assert advice.buy_gpus % per_node == 0
    assert advice.buy_low <= advice.buy_gpus <= advice.buy_high
    assert all(week.quantile(0.9) <= gpus + advice.buy_gpus + 1e-6 for week in ahead)
    assert (advice.short_in_weeks is None) == (advice.buy_gpus == 0)
    assert purchase(gpus + advice.buy_gpus, per_node, ahead, delivery).short_in_weeks is None
    if advice.short_in_weeks is not None and advice.order_in_weeks is not None:
        assert advice.order_in_weeks == max(0, advice.short_in_weeks - delivery)


def test_the_probability_that_gpus_lack_falls_with_their_number() -> None:
    week = WeekAhead(1, (10, 20, 30, 40, 50, 60))
    assert [round(week.exceeds(gpus), 3) for gpus in (5, 10, 30, 50, 60, 70)] == [0.95, 0.95, 0.5, 0.1, 0.05, 0.05]
