"""Anomalies in demand begin when a service leaves its own past, end again, and stay away where nothing can be known."""

import numpy as np
import pytest

from kopt.data.demand.table import DemandSeries
from kopt.models.demand.anomalies import Watch, Watches, threshold

STEP_S, DAY = 300, 288
DAYS = 9
AT = 8 * DAY + 150
"""A bucket of the ninth day."""


def demand(seed: int = 0, days: int = DAYS) -> np.ndarray:
    """Poisson counts of a service with busy days."""
    daily = 400 + 300 * np.sin(2 * np.pi * np.arange(days * DAY) / DAY)
    return np.random.default_rng(seed).poisson(daily).astype(float)


def series(value: np.ndarray, start_s: float = 0.0) -> DemandSeries:
    return DemandSeries("ml/chat", start_s, STEP_S, value)


@pytest.mark.parametrize(
    ("factor", "buckets", "direction"), [(3.0, 6, "higher"), (0.2, 12, "lower"), (0.0, 12, "lower")]
)
def test_a_change_is_found_within_minutes_and_its_end_resolves_it(factor: float, buckets: int, direction: str) -> None:
    value = demand()
    value[AT : AT + buckets] *= factor
    watch = Watch()
    watch.catch_up(series(value[:AT]))
    assert watch.anomaly is None
    watch.catch_up(series(value[: AT + 3]))
    assert watch.anomaly is not None
    assert watch.anomaly.direction == direction
    assert AT * STEP_S <= watch.anomaly.since_s <= (AT + 2) * STEP_S
    assert watch.anomaly.value == value[AT + 2]
    assert watch.anomaly.expected == pytest.approx(580, rel=0.5)
    watch.catch_up(series(value[: AT + buckets + 36]))
    assert watch.anomaly is None


def test_a_lasting_shift_stops_being_an_anomaly() -> None:
    value = np.concatenate([demand(days=8), 3 * demand(1, days=2)])
    watch = Watch()
    watch.catch_up(series(value[: 8 * DAY + 6]))
    assert watch.anomaly is not None
    watch.catch_up(series(value))
    assert watch.anomaly is None


def test_ordinary_days_have_none() -> None:
    for seed in range(5):
        watch = Watch()
        evidence = watch.catch_up(series(demand(seed)))
        assert max(evidence) < watch.least_evidence
        assert watch.anomaly is None


def test_a_service_that_has_just_begun_has_none() -> None:
    value = demand(days=3)
    value[2 * DAY + 100 :] *= 5
    begun_late = np.concatenate([np.full(5 * DAY, 0.0), demand(days=2)])
    for young in (value, begun_late):
        watch = Watch()
        watch.catch_up(series(young))
        assert watch.anomaly is None


def test_bucket_by_bucket_is_as_all_at_once_also_from_a_history_that_was_cut() -> None:
    value = demand()
    value[AT : AT + 6] *= 3
    together, singly = Watch(), Watch()
    evidence = together.catch_up(series(value[: AT + 5]))
    apart = [each for end in range(8 * DAY, AT) for each in singly.catch_up(series(value[:end]))]
    cut = 150
    apart += singly.catch_up(series(value[cut : AT + 5], cut * STEP_S))
    assert apart == pytest.approx(evidence)
    assert singly.anomaly == together.anomaly


def test_gaps_and_what_comes_again_are_no_evidence() -> None:
    value = demand()
    value[AT : AT + 4] = np.nan
    watch = Watch()
    evidence = watch.catch_up(series(value[: AT + 5]))
    assert np.isnan(evidence[-5:-1]).all()
    assert watch.anomaly is None
    assert watch.catch_up(series(value[: AT + 3])) == []
    value[AT : AT + 4] = 0.0
    assert watch.catch_up(series(value[: AT + 5])) == []
    assert watch.anomaly is None, "buckets before the newest that was observed are past"


def test_a_long_gap_ends_an_anomaly() -> None:
    value = demand()
    value[AT : AT + 6] *= 4
    value[AT + 6 : AT + 90] = np.nan
    watch = Watch()
    watch.catch_up(series(value[: AT + 6]))
    assert watch.anomaly is not None
    watch.catch_up(series(value[: AT + 91]))
    assert watch.anomaly is None


def test_fewer_false_alarms_take_more_evidence() -> None:
    levels = [threshold(rate) for rate in (0.25, 0.5, 0.7, 1.0, 2.0)]
    assert levels == sorted(levels, reverse=True)
    assert len(set(levels)) == 5
    with pytest.raises(ValueError, match=r"0\.1 false alarms"):
        threshold(0.1)


def test_services_are_watched_apart_and_the_oldest_forgotten() -> None:
    value = demand()
    value[AT : AT + 3] *= 4
    watches = Watches(most=2)
    changed, calm = series(value[: AT + 3]), DemandSeries("ml/search", 0.0, STEP_S, demand(3)[: AT + 3])
    assert watches.observe(changed) is not None
    assert watches.observe(calm) is None
    assert watches.observe(changed) is not None, "nothing new, and still one"
    watches.observe(DemandSeries("ml/third", 0.0, STEP_S, demand(4)[:10]))
    assert len(watches) == 2
