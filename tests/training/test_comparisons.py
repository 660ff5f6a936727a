"""Errors of two models become comparisons by slice: the right sign, bounds around it, and none out of one thing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.training.pipeline.comparisons import PairedErrors, with_comparisons
from kopt.training.pipeline.protocols import Comparison, GateDecision, GateRules

RULES = GateRules()
_ERROR = st.floats(0.0, 1e6)


def compared(*errors: tuple[float, float], slices: tuple[str, ...] = ()) -> tuple[Comparison, ...]:
    rows = [PairedErrors(slices, f"group-{number}", {"error": pair}) for number, pair in enumerate(errors)]
    return with_comparisons(GateDecision(True, ()), rows, RULES).comparisons


def test_each_slice_of_two_things_has_its_comparison() -> None:
    rows = [
        PairedErrors(("small", "old"), "a", {"error": (2.0, 1.0), "cost": (1.0, 3.0)}),
        PairedErrors(("small",), "b", {"error": (4.0, 2.0), "cost": (1.0, 1.0)}),
    ]
    found = {(one.slice, one.metric): one for one in with_comparisons(GateDecision(False, ()), rows, RULES).comparisons}
    assert set(found) == {(label, metric) for label in ("all", "small") for metric in ("error", "cost")}
    error, cost = found["small", "error"], found["all", "cost"]
    assert (error.champion, error.challenger, error.change, error.services) == (3.0, 1.5, 0.5, 2)
    assert error.low == error.high == pytest.approx(0.5)
    assert [cost.change, cost.low, cost.high] == pytest.approx([-1.0, -2.0, 0.0])


def test_where_a_model_does_not_err_a_change_stays_within_bounds() -> None:
    (neither,) = compared((0.0, 0.0), (0.0, 0.0))
    assert (neither.change, neither.low, neither.high) == (0.0, 0.0, 0.0)
    (champion_alone,) = compared((0.0, 5.0), (0.0, 1.0))
    assert champion_alone.change == pytest.approx(-10.0)


def test_one_thing_alone_is_compared_with_nothing() -> None:
    assert compared((2.0, 1.0), slices=("small",)) == ()
    assert compared() == ()


@given(st.lists(st.tuples(_ERROR, _ERROR), min_size=2, max_size=6))
def test_the_change_has_the_sign_of_the_means_and_lies_between_its_bounds(errors: list[tuple[float, float]]) -> None:
    (one,) = compared(*errors)
    assert (one.champion > one.challenger) == (one.change > 0)
    assert -10.0 - 1e-9 <= one.low <= one.high <= 1.0 + 1e-9
