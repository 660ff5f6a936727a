"""The answer without a model: conservative, monotone, and able to digest any history."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.reason import Reason
from kopt.data.demand import table
from kopt.serving.client.fallback_demand import CAP_FACTOR, REACTIVE_MARGIN, SPREAD, fallback_forecast, recent
from kopt.serving.contract import common as wire

WHY = Reason("TEST", "because")
QUANTILES = (0.05, 0.5, 0.9, 0.95, 0.99)

odd = st.one_of(st.none(), st.floats(), st.floats(0, 1e12))


@given(st.lists(st.tuples(st.floats(), odd), max_size=40), st.integers(60, 86_400))
def test_any_history_gives_finite_monotone_answers_or_a_refusal(
    rows: list[tuple[float, float | None]], horizon_s: int
) -> None:
    known = recent([t for t, _ in rows], [v if v is None or v < 1e15 else None for _, v in rows])
    (prediction,) = fallback_forecast(known, [horizon_s], QUANTILES, "requests", WHY)
    if known is None:
        assert prediction.refused
        assert [reason.code for reason in prediction.reasons] == ["TEST", "NO_HISTORY"]
        return
    values = [prediction.quantiles[q] for q in QUANTILES]
    assert prediction.fallback
    assert all(math.isfinite(v) and v >= 0 for v in values)
    assert values == sorted(values)
    assert values[2] >= REACTIVE_MARGIN * known.half_hour_max
    assert values[-1] <= max(CAP_FACTOR * known.week_max, REACTIVE_MARGIN * known.half_hour_max)
    assert prediction.reasons[0] is WHY


def test_upper_quantiles_grow_with_the_horizon() -> None:
    known = recent([i * 300.0 for i in range(600)], [1000.0] * 300 + [100.0] * 300)
    levels = [p.quantiles[0.95] for p in fallback_forecast(known, (300, 1800, 3600, 7200), (0.95,), "requests", WHY)]
    assert levels == sorted(levels)
    assert levels[0] < levels[-1]


def test_minutes_are_summed_to_five_minutes_aligned_to_the_newest() -> None:
    known = recent([i * 60.0 for i in range(12)], [1.0, 1.0] + [2.0] * 5 + [3.0] * 5)
    assert known is not None
    assert (known.last, known.bucket_s, known.step_s) == (15.0, 300, 60)


def test_the_half_hour_before_the_end_counts_and_older_peaks_do_not() -> None:
    values = [50.0, 900.0, *[10.0] * 5, 20.0]
    known = recent([i * 300.0 for i in range(8)], values)
    assert known is not None
    assert (known.last, known.half_hour_max, known.week_max) == (20.0, 20.0, 900.0)


def test_coarse_histories_keep_their_last_bucket() -> None:
    known = recent([0.0, 3600.0], [5.0, 7.0])
    assert known is not None
    assert (known.last, known.half_hour_max, known.bucket_s) == (7.0, 7.0, 3600)


def test_histories_out_of_order_and_doubled_are_sorted_and_take_the_larger() -> None:
    assert recent([600.0, 0.0, 300.0, 600.0], [3.0, 1.0, 2.0, 4.0]) == recent([0.0, 300.0, 600.0], [1.0, 2.0, 4.0])


def test_the_grid_is_the_models_grid() -> None:
    assert wire.GRID_S == table.GRID_S


@pytest.mark.slow
def test_its_upper_quantiles_cover_real_demand(demand_data_dir: Path) -> None:
    """Pooled over real series, misses stay under the nominal share: conservative is what the fallback promises."""
    from kopt.data.demand.files import read_demand

    misses: dict[float, list[float]] = {0.9: [], 0.95: [], 0.99: []}
    for series in read_demand(demand_data_dir / "demand.parquet"):
        if series.days < 6.5:
            continue
        series = series.resampled()
        for origin in np.linspace(len(series) * 0.7, len(series) - 20, 60).astype(int):
            window = series.upto(int(origin)).tail(2100)
            known = recent(window.times_s.tolist(), window.value.tolist())
            if known is None or known.at_s != window.times_s[-1] + window.step_s:
                continue
            for prediction in fallback_forecast(known, tuple(SPREAD), tuple(misses), "requests", WHY):
                ahead = max(1, int((prediction.horizon_s or 0) // series.step_s))
                actual = series.value[int(origin) + ahead]
                if np.isfinite(actual):
                    for q, level in prediction.quantiles.items():
                        misses[q].append(float(actual > level))
    shares = {q: float(np.mean(found)) for q, found in misses.items()}
    assert len(misses[0.9]) > 3000
    assert shares[0.9] < 0.1, shares
    assert shares[0.95] < 0.06, shares
    assert shares[0.99] < 0.02, shares
