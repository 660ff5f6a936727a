"""Lending learns how cautious it has to be."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.policies.lending.caution import Caution, CautionSettings, at_level, learn, level_of, promise

QUANTILES = {0.5: 10.0, 0.9: 20.0, 0.95: 30.0, 0.99: 60.0}


def shares_short(scale: float, settings: CautionSettings, moments: int = 20_000) -> float:
    """Demand ``scale`` times as uncertain as its forecasts say; the share of moments at which GPUs were missing."""
    chance = np.random.default_rng(7)
    quantiles = {q: math.exp(NormalDist().inv_cdf(q)) * 20 for q in (0.5, 0.9, 0.95, 0.99)}
    caution, short = Caution(), 0
    for moment in range(moments):
        kept = math.ceil(at_level(quantiles, level_of(caution, settings)))
        need = math.ceil(20 * math.exp(scale * chance.standard_normal()))
        caution = learn(promise(caution, float(moment), kept), float(moment), need, settings)
        short += need > kept
    return short / moments


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.5])
def test_it_falls_short_as_often_as_it_may_however_wrong_the_forecasts_are(scale: float) -> None:
    assert shares_short(scale, CautionSettings(violation=0.02)) == pytest.approx(0.02, abs=0.004)


def test_without_learning_a_forecast_that_is_too_sure_falls_short() -> None:
    assert shares_short(1.5, CautionSettings(violation=0.02, step=0.0)) > 0.04


@given(st.lists(st.floats(0, 5), min_size=2, max_size=6))
def test_more_caution_keeps_no_less(levels: list[float]) -> None:
    found = [at_level(QUANTILES, one) for one in sorted(levels)]
    assert found == sorted(found)
    assert found[0] >= QUANTILES[0.5]


def test_known_quantiles_are_met_and_outgrown() -> None:
    for probability, value in QUANTILES.items():
        assert at_level(QUANTILES, NormalDist().inv_cdf(probability)) == pytest.approx(value)
    assert at_level(QUANTILES, 3.0) > QUANTILES[0.99]
    assert at_level({0.9: 5.0}, 4.0) == 5.0
    assert at_level({0.5: 0.0, 0.99: 0.0}, 2.0) == 0.0
    with pytest.raises(ValueError, match="at least one quantile"):
        at_level({}, 1.0)


def test_nothing_is_learned_from_moments_that_nobody_saw_or_promised_for() -> None:
    caution = promise(promise(Caution(), 300.0, 4), 600.0, 4)
    assert learn(caution, 300.0, None) == Caution(None, ((600.0, 4),))
    assert learn(caution, 450.0, 9) == Caution(None, ((600.0, 4),))
    again = promise(caution, 600.0, 9)
    assert again == caution
    short = learn(caution, 300.0, 5)
    assert short.level is not None
    assert short.level > level_of(Caution(), CautionSettings())
    assert short.promised == ((600.0, 4),)


@pytest.mark.parametrize("wrong", [{"violation": 0.0}, {"violation": 1.0}, {"step": -0.1}, {"first": 9.0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="violation in"):
        CautionSettings(**wrong)
