"""Tests run in their hours, so many at once, and for so many GPU-seconds a day."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.policies.pairwise.budget import Budget, Window, affordable, closes_s, next_check_s, opens_s

NIGHT = Window(22 * 60, 6 * 60)
WEEKEND = Window(0, 1440, frozenset({5, 6}))


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("now", "ends"),
    [
        ("2026-11-23T21:59", None),
        ("2026-11-23T22:00", "2026-11-24T06:00"),
        ("2026-11-24T05:59", "2026-11-24T06:00"),
        ("2026-11-24T06:00", None),
    ],
)
def test_a_night_goes_on_after_midnight(now: str, ends: str | None) -> None:
    assert closes_s([NIGHT], at(now)) == (at(ends) if ends else None)


def test_days_are_those_on_which_a_window_opens() -> None:
    friday_night = Window(22 * 60, 6 * 60, frozenset({4}))
    assert closes_s([friday_night], at("2026-11-28T03:00")) == at("2026-11-28T06:00")
    assert closes_s([friday_night], at("2026-11-27T03:00")) is None
    assert opens_s([friday_night], at("2026-11-28T07:00")) == at("2026-12-04T22:00")
    assert closes_s([WEEKEND], at("2026-11-28T12:00")) == at("2026-11-29T00:00")
    assert closes_s([], 0.0) == float("inf")


WINDOWS = st.lists(
    st.builds(Window, st.integers(0, 1439), st.integers(0, 1440), st.frozensets(st.integers(0, 6))),
    min_size=1,
    max_size=3,
)


@given(WINDOWS, st.integers(0, 40 * 1440))
def test_windows_are_those_of_the_calendar(windows: list[Window], minute: int) -> None:
    now = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(minutes=minute)

    def is_open(when: datetime) -> bool:
        for one in windows:
            for back in (0, 1):
                day = (when - timedelta(days=back)).replace(hour=0, minute=0)
                begins = day + timedelta(minutes=one.from_minute)
                length = timedelta(minutes=(one.to_minute - one.from_minute) % 1440 or 1440)
                if (not one.days or day.weekday() in one.days) and begins <= when < begins + length:
                    return True
        return False

    end = closes_s(windows, now.timestamp())
    assert (end is not None) == is_open(now)
    opens = datetime.fromtimestamp(opens_s(windows, now.timestamp()), UTC)
    assert opens >= now
    assert is_open(opens)
    assert opens == now or not is_open(opens - timedelta(minutes=1))


@given(
    st.integers(1, 9), st.floats(0, 1e5), st.integers(0, 9), st.floats(0, 1e5), st.integers(1, 16), st.floats(1, 3600)
)
def test_what_starts_never_costs_more_than_there_is(
    at_once: int, a_day: float, running: int, used: float, gpus: int, longest: float
) -> None:
    found = affordable(Budget(at_once, a_day), 0.0, running=running, used_gpu_s=used, gpus=gpus, longest_s=longest)
    assert found >= 0
    assert not found or running + found <= at_once
    if a_day > 0 and found:
        assert used + found * gpus * longest <= a_day * (1 + 1e-9)
        if running + found < at_once:
            assert used + (found + 1) * gpus * longest > a_day * (1 - 1e-9)


def test_a_test_does_not_outlast_its_window() -> None:
    budget = Budget(4, 0.0, (NIGHT,))
    ask = {"running": 1, "used_gpu_s": 0.0, "gpus": 16, "longest_s": 600.0}
    assert affordable(budget, at("2026-11-24T05:49"), **ask) == 3  # type: ignore[arg-type]
    assert affordable(budget, at("2026-11-24T05:51"), **ask) == 0  # type: ignore[arg-type]
    assert next_check_s(budget, at("2026-11-24T05:51"), 600.0) == at("2026-11-24T06:00")
    assert next_check_s(budget, at("2026-11-24T07:00"), 600.0) == at("2026-11-24T22:00")
    assert next_check_s(Budget(), at("2026-11-24T07:00"), 600.0) == at("2026-11-25T00:00")


def test_minutes_beyond_the_day_are_refused() -> None:
    with pytest.raises(ValueError, match="1440"):
        Window(0, 1441)
