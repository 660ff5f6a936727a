"""A series holds only what is a demand, and coarser steps keep gaps gaps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kopt.data.demand.table import Array, DemandDataError, DemandSeries

NAN = float("nan")
Values = arrays(np.float64, st.integers(5, 60), elements=st.one_of(st.floats(0, 1e9), st.just(NAN)))


def _minutes(values: Array | list[float], **more: object) -> DemandSeries:
    return DemandSeries("chat", 600.0, 60, np.array(values, dtype=np.float64), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": np.array([1.0, -1.0])}, "series 'chat', row 1: value -1 is not a demand"),
        ({"value": np.array([np.inf, 1.0])}, "series 'chat', row 0: value inf"),
        ({"value": np.array([])}, "series 'chat': no values"),
        ({"value": np.ones((2, 2))}, "series 'chat': no values"),
        ({"step_s": 0}, "step of 0 s"),
        ({"start_s": NAN}, "start of nan s"),
        ({"in_tokens": np.ones(3)}, "in_tokens has 3 buckets, value 2"),
        ({"tenants": {"a": np.ones(1)}}, "tenant a has 1 buckets, value 2"),
    ],
)
def test_what_is_no_series(change: dict[str, object], message: str) -> None:
    columns: dict[str, object] = {"name": "chat", "start_s": 0.0, "step_s": 300, "value": np.ones(2)}
    with pytest.raises(DemandDataError, match=message):
        DemandSeries(**columns | change)  # type: ignore[arg-type]


def test_five_minutes_are_sums_with_one_gap_scaled_and_two_a_gap() -> None:
    one = _minutes([1, 2, 3, 4, 5, 1, NAN, 3, 4, 5, NAN, NAN, 3, 4, 5, 9, 9])
    five = one.resampled()
    np.testing.assert_allclose(five.value, [15, 13 / 4 * 5, NAN])
    assert (five.start_s, five.step_s) == (600, 300)
    assert five.resampled() is five


@given(Values, st.integers(1, 70))
def test_tails_and_beginnings(values: Array, count: int) -> None:
    one = _minutes(values, in_tokens=values * 2, tenants={"a": values})
    tail = one.tail(count)
    kept = min(count, len(one))
    np.testing.assert_array_equal(tail.times_s, one.times_s[-kept:])
    np.testing.assert_array_equal(tail.tenants["a"], values[-kept:])
    index = min(count, len(one) - 1)
    np.testing.assert_array_equal(one.upto(index).value, values[: index + 1])
    assert tail.in_tokens is not None
    np.testing.assert_array_equal(tail.in_tokens, values[-kept:] * 2)


@given(Values)
def test_sums_keep_the_total_where_nothing_is_missing(values: Array) -> None:
    whole = np.nan_to_num(values)
    five = _minutes(whole, tenants={"a": whole}).resampled()
    # The absolute term is for sums of subnormal numbers, whose relative rounding has no bound.
    total = whole[: len(five) * 5].sum()
    np.testing.assert_allclose(five.value.sum(), total, rtol=1e-9, atol=1e-300)
    np.testing.assert_array_equal(five.tenants["a"], five.value)


@pytest.mark.parametrize(("length", "step_s", "message"), [(9, 70, "does not divide"), (4, 60, "do not fill")])
def test_steps_that_do_not_fit(length: int, step_s: int, message: str) -> None:
    with pytest.raises(DemandDataError, match=message):
        DemandSeries("chat", 0.0, step_s, np.ones(length)).resampled()
