"""Times of Kubernetes objects are written and read in one way."""

from hypothesis import given
from hypothesis import strategies as st

from kopt.core.times import micro_stamp, optional_stamp, seconds, seconds_or_none, stamp


@given(st.integers(0, 4_000_000_000), st.integers(0, 999_999))
def test_a_time_is_read_as_it_was_written(at_s: int, micro: int) -> None:
    assert seconds(stamp(at_s + micro / 1_000_000)) == at_s, "whole seconds are cut, never rounded up"
    assert abs(seconds(micro_stamp(at_s + micro / 1_000_000)) - at_s - micro / 1_000_000) < 2e-6
    assert optional_stamp(at_s) == stamp(at_s)


@given(st.one_of(st.text(max_size=30), st.none(), st.integers(), st.dictionaries(st.text(), st.none())))
def test_nothing_that_anybody_wrote_raises(written: object) -> None:
    result = seconds_or_none(written)
    assert result is None or isinstance(written, str)


def test_what_is_no_time_has_no_seconds() -> None:
    assert seconds_or_none("soon") is None
    assert optional_stamp(None) is None
