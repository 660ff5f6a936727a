"""GPUs that are held and not used: by the busiest step, by the mean, and never by a guess."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.units import GIB, Bytes
from kopt.core.workload.measured import MeasuredUse
from kopt.policies.idle import Idleness, idleness, unused_gpu_hours


def use(mean: float | None, high: float | None, measured_s: float = 3_600.0) -> MeasuredUse:
    return MeasuredUse(Bytes(GIB), measured_s, activity=mean, activity_high=high)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (None, Idleness.UNMEASURED),
        (use(None, None), Idleness.UNMEASURED),
        (use(0.0, 0.0), Idleness.IDLE),
        (use(0.01, 0.049), Idleness.IDLE),
        (use(0.01, 0.9), Idleness.LOW),
        (use(0.05, 0.05), Idleness.USED),
    ],
)
def test_states(measured: MeasuredUse | None, expected: Idleness) -> None:
    assert idleness(measured, 0.05) is expected


@given(st.integers(0, 64_000), st.floats(0, 1), st.floats(0, 1e6))
def test_unused_hours_are_between_none_and_all_that_were_held(milli_gpu: int, mean: float, measured_s: float) -> None:
    unused = unused_gpu_hours(milli_gpu, use(mean, 1.0, measured_s))
    assert unused is not None
    assert 0 <= unused <= milli_gpu / 1000 * measured_s / 3600


def test_what_is_not_measured_has_no_hours() -> None:
    assert unused_gpu_hours(8_000, None) is None
    assert unused_gpu_hours(8_000, use(None, None)) is None
