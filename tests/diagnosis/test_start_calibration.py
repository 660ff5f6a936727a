"""Predicted starts are corrected by how those before came true."""

import math

import numpy as np
import pytest

from kopt.core.scheduling.diagnosis import StartEstimate
from kopt.policies.diagnosis import StartCalibration


def test_starts_that_come_later_than_predicted_move_and_widen_the_next() -> None:
    """Draws that are too sure by a common factor: their p90 covers half, the corrected one nine of ten."""
    rng, calibration, raw_hits, hits, errors = np.random.default_rng(5), StartCalibration(), 0, 0, []
    rounds, first = 600, 100
    for number in range(rounds):
        real_s = float(1000 * math.exp(rng.normal(0.4, 0.5)))
        raw = StartEstimate(1000.0, 1500.0, 200)
        estimate = calibration.corrected(raw)
        assert estimate.p50_s is not None
        assert estimate.p90_s is not None
        assert estimate.p90_s >= estimate.p50_s
        if number >= first:
            raw_hits, hits = raw_hits + (real_s <= 1500), hits + (real_s <= estimate.p90_s)
            errors.append(estimate.p50_s)
        calibration = calibration.observed(raw, real_s, 1e5 * number)
    assert raw_hits / (rounds - first) < 0.6
    assert 0.86 <= hits / (rounds - first) <= 0.94
    assert float(np.median(errors)) == pytest.approx(1000 * math.exp(0.4), rel=0.1)


def test_few_starts_change_nothing_and_unknown_ones_teach_nothing() -> None:
    raw = StartEstimate(100.0, 200.0, 50)
    calibration = StartCalibration()
    for number in range(5):
        calibration = calibration.observed(raw, 1000.0, 2000.0 * number)
    assert calibration.corrected(raw) == raw
    assert calibration.observed(StartEstimate(), 50.0, 0.0) == calibration
    assert calibration.observed(raw, 0.0, 0.0) == calibration
    unknown = StartEstimate()
    for number in range(5, 147):
        calibration = calibration.observed(raw, 1000.0, 2000.0 * number)
    assert calibration.corrected(unknown) == unknown
    corrected = calibration.corrected(raw)
    assert corrected.p50_s == pytest.approx(1000, rel=0.06)


def test_a_wave_counts_little_more_than_a_wait() -> None:
    """Forty that waited for the same end ten times as long as predicted, and before them nine single waits that came as
    predicted."""
    raw, calibration = StartEstimate(100.0, 200.0, 50), StartCalibration()
    for number in range(9):
        calibration = calibration.observed(raw, 100.0, 1000.0 * number)
    for number in range(40):
        calibration = calibration.observed(raw, 1000.0, 20_000.0 + number)
    assert calibration.corrected(raw).p50_s == pytest.approx(100)
    for number in range(140):
        calibration = calibration.observed(raw, 1000.0, 30_000.0 + number)
    # Two waves: two fifths of the way.
    assert calibration.corrected(raw).p50_s == pytest.approx(100 * 10 ** (2 / 5), rel=0.01)


def test_a_p90_never_comes_earlier_than_the_draws_have_it() -> None:
    raw, calibration = StartEstimate(1000.0, 1500.0, 200), StartCalibration()
    for number in range(150):
        calibration = calibration.observed(raw, 100.0, 2000.0 * number)
    corrected = calibration.corrected(raw)
    assert (corrected.p50_s, corrected.p90_s) == (pytest.approx(100, rel=0.06), 1500.0)
