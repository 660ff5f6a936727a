"""Forecasts of a queue's hours from the hours before, and which windows of them are to be reserved."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.policies.reservations.forecast import DAY_HOURS, WEEK_HOURS, HourlyForecast, NoForecast, forecast, kept_share
from kopt.policies.reservations.proposals import Outlook, borrowable, propose

GPU, START_S, HOUR_S = 1000, 1_000_000.0, 3600.0


def working_hours(hour: int, busy: int = 24, quiet: int = 4) -> float:
    """Of a queue that is busy from 8 to 18 on five days of the week."""
    return GPU * (busy if hour // DAY_HOURS % 7 < 5 and 8 <= hour % DAY_HOURS < 18 else quiet)


def history(weeks: int, noise: int = 0, seed: int = 0) -> list[float | None]:
    rng = random.Random(seed)
    return [working_hours(hour) + GPU * rng.uniform(-noise, noise) for hour in range(weeks * WEEK_HOURS)]


def test_a_rhythm_of_the_week_is_forecast_a_week_ahead_and_exactly_where_it_is_exact() -> None:
    expected = tuple(working_hours(hour) for hour in range(WEEK_HOURS))
    exact = forecast(history(4), 0.9, WEEK_HOURS)
    assert (exact.by, exact.middle, exact.upper) == ("week", expected, expected)
    assert kept_share(history(4), 0.9) == 1.0


def test_the_quantile_is_exceeded_as_often_as_it_says() -> None:
    """Over four seeds and three origins: each hour lies above the 90 % quantile about once in ten."""
    above = hours = 0
    for seed in range(4):
        rows = history(7, noise=3, seed=seed)
        for origin in (4, 5, 6):
            predicted = forecast(rows[: origin * WEEK_HOURS], 0.9, WEEK_HOURS)
            coming = rows[origin * WEEK_HOURS :]
            above += sum((value or 0) > most for value, most in zip(coming, predicted.upper, strict=False))
            hours += WEEK_HOURS
    assert 0.04 <= above / hours <= 0.12
    kept = kept_share(history(6, noise=3), 0.9)
    assert kept is not None
    assert kept >= 0.85


def test_a_level_that_moved_is_followed_by_the_last_day() -> None:
    moved = [GPU * (8.0 if hour < 17 * DAY_HOURS else 40.0) for hour in range(28 * DAY_HOURS)]
    predicted = forecast(moved, 0.9, DAY_HOURS)
    assert predicted.by == "day"
    assert predicted.upper[0] == 40 * GPU


def test_too_little_and_too_old_history_is_named() -> None:
    with pytest.raises(NoForecast) as short:
        forecast(history(2)[: 13 * DAY_HOURS], 0.9, 1)
    assert short.value.reason.code == "RESERVATION_HISTORY_SHORT"
    assert "of 13 days; a forecast takes 14" in str(short.value)
    with pytest.raises(NoForecast) as empty:
        forecast([], 0.9, 1)
    assert empty.value.reason.code == "RESERVATION_HISTORY_SHORT"
    with pytest.raises(NoForecast) as stale:
        forecast([*history(4), *[None] * 7], 0.9, 1)
    assert stale.value.reason.code == "RESERVATION_HISTORY_STALE"
    with pytest.raises(NoForecast) as torn:
        # Known long ago, and again since yesterday.
        forecast([*history(4), *[None] * 5 * WEEK_HOURS, *history(1)[:3]], 0.9, 1)
    assert torn.value.reason.code == "RESERVATION_HISTORY_SHORT"
    assert kept_share(history(2), 0.9) is None
    for quantile, ahead in ((0.3, 1), (0.995, 1), (math.nan, 1), (0.9, 0), (0.9, 169)):
        with pytest.raises(ValueError, match=r"quantile|hours ahead"):
            forecast(history(4), quantile, ahead)


_HOUR = st.one_of(st.none(), st.integers(0, 50).map(lambda gpus: float(GPU * gpus)))


@settings(max_examples=8, deadline=None)
@given(st.lists(_HOUR, min_size=340, max_size=420), st.sampled_from((0.5, 0.9, 0.99)), st.integers(1, 168))
def test_whatever_was_demanded_a_forecast_is_between_nothing_and_what_can_be(
    hours: list[float | None], quantile: float, ahead: int
) -> None:
    try:
        predicted = forecast(hours, quantile, ahead)
    except NoForecast:
        return
    assert len(predicted.upper) == len(predicted.middle) == ahead
    assert all(0 <= low <= high <= 101 * GPU for low, high in zip(predicted.middle, predicted.upper, strict=True))
    doubled = forecast([None if hour is None else 2 * hour for hour in hours], quantile, ahead)
    assert doubled.upper == pytest.approx([2 * each for each in predicted.upper])


def outlook(upper: list[float], **changes: Any) -> Outlook:
    rows = tuple(GPU * each for each in upper)
    predicted = HourlyForecast(0.9, tuple(each / 2 for each in rows), rows, "week", 28)
    hours = len(rows)
    return replace(Outlook("q", "h100", START_S, predicted, [8 * GPU] * hours, [0] * hours, 8, 16), **changes)


def spans(result: Outlook, *bounds_s: float) -> list[tuple[float, float, int, int]]:
    """Hours, nodes and GPUs on each."""
    windows, _ = propose(result, *(bounds_s or (START_S,)))
    return [
        ((each.start_s - START_S) / HOUR_S, (each.until_s - START_S) / HOUR_S, each.nodes, each.gpus_per_node)
        for each in windows
    ]


def test_all_that_is_demanded_in_the_hours_above_what_is_free_is_reserved_in_whole_nodes() -> None:
    upper = [4.0, 9, 20, 9, 4, 4, 12, 4, 12, 4]
    # One hour between two windows is no reason to give back GPUs.
    assert spans(outlook(upper)) == [(1, 4, 3, 8), (6, 9, 2, 8)]
    assert spans(outlook(upper), START_S + 2.5 * HOUR_S, START_S + 8 * HOUR_S) == [(3, 4, 2, 8), (6, 7, 2, 8)]
    assert spans(outlook(upper, room=2)) == [(1, 4, 2, 8), (6, 9, 2, 8)]
    assert spans(outlook(upper, limit=12 * GPU, gpus_per_node=4)) == [(1, 3, 3, 4), (3, 4, 3, 4), (6, 9, 3, 4)]
    assert spans(outlook(upper, reserved=[16 * GPU] * 10)) == [(1, 4, 1, 8)]
    # A step is no reason to reserve for its peak all the time.
    assert spans(outlook([4.0, 9, 9, 9, 9, 40, 40, 40, 9, 9])) == [(1, 5, 2, 8), (5, 10, 5, 8)]
    (first, *_), summary = propose(outlook(upper), START_S)
    assert summary.code == first.reason.code == "RESERVATION_PROPOSED"
    assert "up to 20 GPUs with a probability of 90% (median 10 GPUs)" in first.reason.message
    capped, _ = propose(outlook(upper, room=2), START_S)
    assert "More than 16 cannot be reserved" in capped[0].reason.message


@pytest.mark.parametrize(
    ("upper", "changes", "code", "words"),
    [
        ([4.0, 8.0], {}, "RESERVATION_NOT_NEEDED", "0 GPUs below what is free"),
        ([4.0, 4.0], {}, "RESERVATION_NOT_NEEDED", "forecast is flat"),
        ([20.0, 20.0], {}, "RESERVATION_ALWAYS_SHORT", "flat, at 10 GPUs"),
        ([40.0, 18.0], {}, "RESERVATION_ALWAYS_SHORT", "median is 9 GPUs at least"),
        ([20.0, 4.0], {"reserved": [24 * GPU] * 2}, "RESERVATION_NOTHING_LEFT", "reserved already"),
        ([20.0, 4.0], {"limit": 4 * GPU}, "RESERVATION_NOTHING_LEFT", "beyond what it may use"),
    ],
)
def test_why_nothing_is_reserved(upper: list[float], changes: dict[str, Any], code: str, words: str) -> None:
    windows, reason = propose(outlook(upper, **changes), START_S)
    assert windows == []
    assert reason.code == code
    assert words in reason.message


def test_what_others_are_forecast_to_leave_can_be_borrowed_within_the_limits() -> None:
    lendable = [(8 * GPU, None, [2.0 * GPU, 9.0 * GPU]), (8 * GPU, 3 * GPU, [0.0, 0.0]), (64 * GPU, None, None)]
    assert borrowable(lendable, None, 2) == [9 * GPU, 3 * GPU]
    assert borrowable(lendable, 4 * GPU, 2) == [4 * GPU, 3 * GPU]
    assert borrowable([], None, 2) == [0, 0]
