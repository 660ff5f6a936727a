"""The line through timed messages of many sizes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.policies.pairwise.fit import fit

SIZES = [2**n for n in range(3, 33)]


def timed(alpha: float, gbps: float, noise: float = 0.0, seed: int = 1) -> list[tuple[float, float]]:
    chance = random.Random(seed)
    return [(size, (alpha + size / gbps / 1000) * (1 + chance.uniform(-noise, noise))) for size in SIZES]


@given(st.floats(0.5, 500), st.floats(0.1, 900))
def test_it_finds_the_line_that_there_is(alpha: float, gbps: float) -> None:
    line = fit(timed(alpha, gbps))
    assert line is not None
    assert line.alpha_us == pytest.approx(alpha, rel=1e-4)
    assert line.gigabytes_per_s() == pytest.approx(gbps, rel=1e-4)
    assert line.gigabytes_per_s(1.5) == pytest.approx(1.5 * gbps, rel=1e-4)


@pytest.mark.parametrize("factor", [1.3, 1.7, 6.0])
@pytest.mark.parametrize("seed", range(40))
def test_disturbed_rows_hardly_move_it(seed: int, factor: float) -> None:
    chance = random.Random(seed)
    alpha, gbps = chance.uniform(5, 100), chance.uniform(1, 400)
    disturbed = chance.sample(range(len(SIZES)), 5)
    points = timed(alpha, gbps, 0.02, seed)
    points = [(size, time * factor if n in disturbed else time) for n, (size, time) in enumerate(points)]
    line = fit(points)
    assert line is not None
    assert line.alpha_us == pytest.approx(alpha, rel=0.06)
    assert line.gigabytes_per_s() == pytest.approx(gbps, rel=0.06)


def test_what_has_no_slope_has_no_line() -> None:
    assert fit([]) is None
    assert fit([(8, 20.0), (8, 21.0)]) is None
    assert fit([(8, 20.0), (1024, 20.0)]) is None
    assert fit([(8, 30.0), (1024, 20.0)]) is None


def test_latency_is_never_negative() -> None:
    line = fit([(1e6, 10.0), (1e9, 12_000.0)])
    assert line is not None
    assert line.alpha_us == 0.0
    assert line.slope_us > 0
