"""Generated services look like services, and are the same every time."""

from pathlib import Path

import numpy as np
import pytest

from kopt.data.demand.files import read_demand
from kopt.data.demand.generator import generate, write_demand
from kopt.data.demand.table import DemandDataError, DemandSeries


@pytest.fixture(scope="module")
def services() -> list[DemandSeries]:
    return generate(services=40, days=14, seed=1)


def _by_hour(one: DemandSeries) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    hour = (one.times_s // 3600 % 24).astype(int)
    return np.array([np.nanmean(one.value[hour == h]) for h in range(24)])


def test_the_same_seed_gives_the_same_services(services: list[DemandSeries]) -> None:
    again, other = generate(services=3, days=14, seed=1), generate(services=3, days=14, seed=2)
    for got, expected, different in zip(again, services, other, strict=False):
        assert got.name == expected.name
        np.testing.assert_array_equal(got.value, expected.value)
        assert got.out_tokens is not None
        np.testing.assert_array_equal(got.out_tokens, expected.out_tokens)
        assert not np.array_equal(different.value, expected.value, equal_nan=True)
    assert len({one.name for one in services}) == 40


def test_tenants_sum_to_the_total_and_gaps_are_everywhere(services: list[DemandSeries]) -> None:
    for one in services:
        assert 3 <= len(one.tenants) <= 8
        np.testing.assert_array_equal(sum(one.tenants.values()), one.value)
        assert one.in_tokens is not None
        np.testing.assert_array_equal(np.isnan(one.in_tokens), np.isnan(one.value))


def test_scales_span_orders_of_magnitude(services: list[DemandSeries]) -> None:
    means = [np.nanmean(one.value) for one in services]
    assert max(means) / min(means) > 1000
    assert all(mean > 0.1 for mean in means)


def test_days_weeks_launches_outages_and_joins_happen(services: list[DemandSeries]) -> None:
    swing = [_by_hour(one).max() / _by_hour(one).min() for one in services]
    assert np.median(swing) > 1.5
    weekend = [(one.times_s // 86400 + 3) % 7 >= 5 for one in services]
    quiet = [np.nanmean(one.value[w]) < np.nanmean(one.value[~w]) for one, w in zip(services, weekend, strict=True)]
    assert sum(quiet) > 24
    launched = [one for one in services if np.nansum(one.value[:288]) == 0]
    assert 3 <= len(launched) <= 20
    assert sum(bool(np.isnan(one.value).any()) for one in services) > 15
    assert not any(np.isnan(one.value[0]) for one in services)
    joined = [v for one in services for v in one.tenants.values() if one not in launched and not np.nansum(v[:288])]
    assert len(joined) > 5


def test_noise_is_burstier_than_poisson(services: list[DemandSeries]) -> None:
    busy = [v for one in services for v in one.tenants.values() if np.nanmedian(v) > 500]
    # Second differences of logarithms: what is left when the day's shape and the slow walk are gone.
    noise = [np.nanmedian(np.abs(np.diff(np.log(value + 1), 2))) / 0.6745 / np.sqrt(6) for value in busy]
    # Poisson noise at 500 a bucket is 4.5 %.
    assert len(busy) > 10
    assert np.median(noise) > 0.1


def test_steps_and_spans(tmp_path: Path) -> None:
    (one,) = generate(services=1, days=0.5, step_s=60)
    assert (one.step_s, len(one), one.start_known) == (60, 720, True)
    written = write_demand([one], tmp_path)
    np.testing.assert_array_equal(read_demand(written)[0].tenants["client1"], one.tenants["client1"])


@pytest.mark.parametrize(
    ("services", "days", "step_s"), [(0, 1, 300), (1, 0, 300), (1, 1, 0), (1, 1, -5), (-1, 1, 300)]
)
def test_sizes_that_make_no_data(services: int, days: float, step_s: int) -> None:
    with pytest.raises(DemandDataError, match="no data"):
        generate(services, days, step_s)
