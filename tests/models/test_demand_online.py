"""The online mixture and the calibration on series whose best forecaster is known."""

import numpy as np
import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kopt.data.demand.table import DemandSeries
from kopt.features.demand import DAY_S, HORIZONS_S, steps_ahead, transform
from kopt.models.demand import online
from kopt.models.demand.calibration import DEFAULT_THRESHOLDS, LEVELS, Calibration, between, pooled_thresholds
from kopt.models.demand.online import EXPERTS, Glance, OnlineState
from kopt.models.registry.loading import shipped

Array = NDArray[np.float64]
STEP_S = 600
DAY = DAY_S // STEP_S


def replay(value: Array, trees_ratio: float = 0.0) -> tuple[Array, Array, Array, Array]:
    """Centres (n, H), experts (n, H, K), scores and widths (n, H) of a global model that says ``trees_ratio``."""
    rows = transform(DemandSeries("one", 0.0, STEP_S, value), np.arange(len(value)))
    trees = np.column_stack([np.full(3, trees_ratio), np.full(3, trees_ratio + 0.3)])
    state = OnlineState.new(STEP_S)
    found = [
        state.observe(value[i : i + 1], Glance(rows[i : i + 1], trees[None], trees[None, :, 0]))
        for i in range(len(value))
    ]
    centres, experts = np.array([o.centre[0] for o, _ in found]), np.array([o.experts[0] for o, _ in found])
    return centres, experts, np.array([scores[0] for _, scores in found]), np.array([o.width[0] for o, _ in found])


def mean_error(forecast: Array, value: Array, column: int, start: int) -> float:
    ahead = steps_ahead(HORIZONS_S[column], STEP_S)
    return float(np.abs(forecast[start:-ahead] - value[start + ahead :]).mean())


def daily_wave(days: int, noise: float, seed: int = 0) -> Array:
    """Steep and the same every day: yesterday's change tells today's."""
    phase = np.arange(days * DAY) * (2 * np.pi / DAY)
    grown: Array = 100 * np.exp(1.5 * np.sin(phase) + noise * np.random.default_rng(seed).normal(size=len(phase)))
    return grown


@pytest.mark.parametrize("column", range(len(HORIZONS_S)))
def test_on_a_daily_wave_the_mixture_beats_the_last_value(column: int) -> None:
    value = daily_wave(9, noise=0.02)
    centres, *_ = replay(value)
    assert mean_error(centres[:, column], value, column, 5 * DAY) < 0.6 * mean_error(value, value, column, 5 * DAY)


def test_on_a_random_walk_nothing_is_lost_against_the_last_value() -> None:
    value = 100 * np.exp(np.cumsum(np.random.default_rng(1).normal(0, 0.03, 9 * DAY)))
    centres, *_ = replay(value)
    for column in range(len(HORIZONS_S)):
        ratio = mean_error(centres[:, column], value, column, 4 * DAY) / mean_error(value, value, column, 4 * DAY)
        assert ratio < 1.04


def test_a_global_model_that_is_always_wrong_is_left() -> None:
    value = daily_wave(7, noise=0.05)
    centres, experts, *_ = replay(value, trees_ratio=1.0)
    trees = experts[:, 1, EXPERTS.index("trees")]
    assert mean_error(centres[:, 1], value, 1, 4 * DAY) < 0.25 * mean_error(trees, value, 1, 4 * DAY)


def test_the_slow_ridge_takes_a_constant_bias_out_of_the_trees() -> None:
    value = daily_wave(9, noise=0.05)
    _, experts, *_ = replay(value, trees_ratio=0.5)
    slow, trees = (experts[:, 2, EXPERTS.index(name)] for name in ("ridge_slow", "trees"))
    assert mean_error(slow, value, 2, 5 * DAY) < 0.6 * mean_error(trees, value, 2, 5 * DAY)


def test_one_wild_night_costs_a_robust_ridge_less(monkeypatch: pytest.MonkeyPatch) -> None:
    value = daily_wave(9, noise=0.05)
    value[4 * DAY : 4 * DAY + 20] *= np.random.default_rng(2).uniform(0.01, 30, 20)
    ridge = EXPERTS.index("ridge_fast")
    robust = mean_error(replay(value)[1][:, 1, ridge], value, 1, 5 * DAY)
    monkeypatch.setattr(online, "_OUTLIER", 1e9)
    assert robust < 0.8 * mean_error(replay(value)[1][:, 1, ridge], value, 1, 5 * DAY)


def test_a_forecast_knows_nothing_of_what_comes_after() -> None:
    value, cut = daily_wave(4, noise=0.1), 3 * DAY
    changed = value.copy()
    changed[cut:] *= 7
    assert np.array_equal(replay(value)[0][:cut], replay(changed)[0][:cut])


@pytest.fixture(scope="module")
def wave() -> tuple[Array, Array]:
    """Two noisy days, and the centres forecast for them."""
    value = daily_wave(2, noise=0.2)
    return value, replay(value)[0]


@settings(max_examples=examples(5), deadline=None)
@given(scale=st.floats(1e-3, 1e9))
def test_the_unit_does_not_matter(wave: tuple[Array, Array], scale: float) -> None:
    value, centres = wave
    assert replay(value * scale)[0] == pytest.approx(centres * scale, rel=1e-4)


def test_gaps_settle_nothing_and_leave_everything_finite() -> None:
    value = daily_wave(4, noise=0.1)
    value[2 * DAY : 2 * DAY + 50] = np.nan
    centres, _, scores, _ = replay(value)
    assert np.isfinite(centres).all()
    assert np.isnan(scores[2 * DAY : 2 * DAY + 50]).all()
    assert np.isfinite(scores[2 * DAY + 60 :]).all()


def test_the_width_knows_the_restless_hour_before_it_begins() -> None:
    random = np.random.default_rng(6)
    value = 100 * np.exp(0.01 * random.normal(size=9 * DAY))
    hour = 3600 // STEP_S
    for day in range(9):
        value[day * DAY + 9 * hour : day * DAY + 10 * hour] *= np.exp(0.3 * random.normal(size=hour))
    widths = replay(value)[3][:, 0]
    eve, calm = (np.array([day * DAY + at * hour - 1 for day in range(5, 9)]) for at in (9, 6))
    assert widths[eve].mean() > 1.4 * widths[calm].mean()


def misses(scores: Array, level: float, start: int) -> float:
    """Share of scores above the threshold that was in force when their forecast was made, one step before."""
    calibration = Calibration.new(DEFAULT_THRESHOLDS.copy(), STEP_S)
    used = np.array([calibration.observe(np.full((1, 3), s))[0, 0, LEVELS.index(level)] for s in scores])
    return float((scores[start + 1 :] > used[start:-1]).mean())


@pytest.mark.parametrize("size", [1.0, 3.0])
def test_thresholds_find_the_nominal_rate_at_any_spread(size: float) -> None:
    scores = size * np.random.default_rng(3).standard_t(4, 12_000)
    assert misses(scores, 0.99, 4000) == pytest.approx(0.0115, abs=0.004)
    # The lower levels follow slowly, for the width under them follows by itself.
    assert misses(scores, 0.95, 8000) == pytest.approx(0.05, abs=0.012)


def test_a_tail_four_times_as_long_is_reached_within_days() -> None:
    shares = [misses(4 * np.random.default_rng(seed).standard_t(4, 6 * DAY), 0.99, 2 * DAY) for seed in range(8)]
    assert np.mean(shares) < 0.025


def test_after_a_change_of_regime_misses_come_back_to_nominal() -> None:
    rng = np.random.default_rng(4)
    scores = np.concatenate([rng.normal(0, 0.5, 3000), rng.normal(0, 2.5, 6000)])
    assert misses(scores, 0.99, 4000) < 0.016


def test_a_long_calm_does_not_lower_the_guard_below_half() -> None:
    calibration = Calibration.new(DEFAULT_THRESHOLDS.copy(), STEP_S)
    for _ in range(20_000):
        calibration.observe(np.full((1, 3), -0.01))
    assert calibration.current[0, :, -1] == pytest.approx(0.5 * DEFAULT_THRESHOLDS[:, -1])


def test_pooled_thresholds_weigh_series_alike() -> None:
    calm, wild = np.full((5000, 3), 0.1), np.full((100, 3), 5.0)
    many = pooled_thresholds([calm] * 80 + [wild] * 20)
    assert (many[:, LEVELS.index(0.9)] > 3).all()
    few = pooled_thresholds([calm] * 4 + [wild])
    assert (few[:, LEVELS.index(0.9)] < 2).all(), "five series must not outweigh the defaults"


@given(st.lists(st.floats(0.01, 0.999), min_size=2, max_size=8))
def test_quantiles_between_levels_never_decrease(wanted: list[float]) -> None:
    wanted = sorted(wanted)
    values = between(DEFAULT_THRESHOLDS, wanted)
    assert (np.diff(values, axis=-1) >= -1e-12).all()
    assert between(DEFAULT_THRESHOLDS, LEVELS) == pytest.approx(DEFAULT_THRESHOLDS)


@pytest.mark.parametrize(("beyond", "remembered"), [(2, 1), (4, 1), (4, 2)])
def test_what_was_a_week_ago_is_not_believed_as_soon_as_it_is_known(beyond: int, remembered: int) -> None:
    """A rush each day, five minutes before the eighth: of the day a week ago a few buckets are known, all quiet."""
    buckets = 7 * 288 + beyond
    noise = 1 + 0.03 * np.random.default_rng(0).standard_normal(buckets)
    rush = (np.arange(buckets) - buckets) % 288 < 2
    model = shipped("demand")
    series = [
        DemandSeries("s", 0, 300, np.where(rush, 3000.0, 300.0)[:count] * noise[:count], "requests")
        for count in (buckets - remembered, buckets)
    ]
    memory = model.memory()
    model.forecast(series[0], calibration=memory)
    (soon, *_) = model.forecast(series[1], calibration=memory)
    assert soon.value == pytest.approx(3000, rel=0.2)
