"""Spot or on demand: the formula against simulated interruptions, and what makes it say no."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.policies.cost.spot import SpotQuestion, spot_advice

HOUR = 3600.0


def question(**fields: float | None) -> SpotQuestion:
    defaults: dict[str, float | None] = {
        "run_s": 24 * HOUR,
        "interruptions": 5,
        "observed_s": 200 * HOUR,
        "lost_s": 900.0,
        "restart_s": 300.0,
        "on_demand_micro": 2_950_000,
        "spot_micro": 1_250_000,
    }
    return SpotQuestion(**(defaults | fields))  # type: ignore[arg-type]


def test_the_expected_time_is_that_of_simulated_interruptions() -> None:
    rng = np.random.default_rng(1)
    hazard, lost_s, restart_s, run_s = 0.2, 900.0, 300.0, 24 * HOUR
    paid = []
    for _ in range(4000):
        done_s = total_s = 0.0
        while done_s < run_s:
            until_s = rng.exponential(HOUR / hazard)
            if done_s + until_s >= run_s:
                total_s += run_s - done_s
                break
            done_s += until_s - min(lost_s, until_s)
            total_s += until_s + restart_s
        paid.append(total_s)
    # Half a million hours of counting: the upper bound is the hazard itself.
    advice = spot_advice(question(interruptions=100_000, observed_s=500_000 * HOUR, lost_s=lost_s, restart_s=restart_s))
    assert advice.spot_s == pytest.approx(np.mean(paid), rel=0.02)


def test_little_was_counted_so_little_is_known() -> None:
    few, many = question(interruptions=0, observed_s=HOUR), question(interruptions=0, observed_s=1000 * HOUR)
    assert spot_advice(few).hazard_high == pytest.approx(3.0, rel=0.03), "the rule of three"
    assert not spot_advice(few).use_spot
    assert spot_advice(many).use_spot


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"spot_micro": 2_900_000}, "only 2% lower"),
        ({"interruptions": 600}, "never be done"),
    ],
)
def test_why_not(fields: dict[str, float], words: str) -> None:
    advice = spot_advice(question(**fields))
    assert not advice.use_spot
    assert words in advice.reason


@given(
    interruptions=st.integers(0, 50),
    observed_s=st.floats(HOUR, 1e7),
    lost_s=st.floats(0, 1e5),
    restart_s=st.floats(0, 1e4),
    spot_micro=st.integers(0, 4_000_000),
)
def test_yes_means_cheaper_at_the_upper_bound_and_a_lower_hazard_never_turns_it_to_no(
    interruptions: int, observed_s: float, lost_s: float, restart_s: float, spot_micro: int
) -> None:
    asked = question(
        interruptions=interruptions, observed_s=observed_s, lost_s=lost_s, restart_s=restart_s, spot_micro=spot_micro
    )
    advice = spot_advice(asked)
    assert advice.hazard_high > advice.hazard
    assert advice.use_spot is (advice.spot_micro < advice.on_demand_micro)
    if advice.use_spot:
        assert math.isfinite(advice.spot_s)
        longer = question(
            interruptions=interruptions, observed_s=observed_s * 2, lost_s=lost_s, restart_s=restart_s,
            spot_micro=spot_micro,
        )  # fmt: skip
        assert spot_advice(longer).use_spot


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        spot_advice(question(run_s=0))
    with pytest.raises(ValueError, match="price"):
        spot_advice(question(on_demand_micro=0))
