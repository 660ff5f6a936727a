"""The formula of priority: its parts, and that nothing is overtaken for longer than the bound, which is met."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.policies.priority import PendingWorkload, PriorityFormula, overtakings

FORMULA = PriorityFormula(100.0)
HOUR = 3600.0


def workload(
    name: str, points: float = 0.0, gpus: float = 1.0, at_s: float = 0.0, usage: float = 0.0
) -> PendingWorkload:
    return PendingWorkload(name, points, gpus, at_s, usage)


def test_the_parts_add_up_to_the_score() -> None:
    (scored,) = FORMULA.ranked([workload("a", 10.0, 8.0, usage=0.5)], 2 * HOUR)
    assert (scored.age_points, scored.gpu_points, scored.usage_points) == (20.0, 15.0, -10.0)
    assert scored.score == 10.0 + 20.0 + 15.0 - 10.0
    assert scored.score == FORMULA.score(scored.workload, 2 * HOUR)


def test_age_lifts_above_any_class_in_the_end() -> None:
    old, high = workload("old"), workload("high", 100.0, at_s=1 * HOUR)
    assert [each.workload.name for each in FORMULA.ranked([old, high], 2 * HOUR)] == ["high", "old"]
    end_s = FORMULA.overtaken_for_s(old)
    assert [each.workload.name for each in FORMULA.ranked([old, high], end_s)] == ["old", "high"]


workloads = st.builds(
    PendingWorkload,
    st.uuids().map(str),
    st.floats(-50, 300),
    st.floats(0, 5000),
    st.floats(0, 100 * HOUR),
    st.floats(0, 1),
)
formulas = st.builds(
    PriorityFormula,
    st.floats(0, 1000),
    st.floats(0.01, 1000),
    st.floats(0, 100),
    st.floats(0, 100),
    st.integers(1, 4096),
)


@given(formulas, workloads, st.lists(workloads, max_size=12), st.floats(0, 1000 * HOUR), st.floats(0, 1))
@settings(max_examples=400, deadline=None)
def test_nothing_is_overtaken_for_longer_than_the_bound(
    formula: PriorityFormula, own: PendingWorkload, others: list[PendingWorkload], later_s: float, usage: float
) -> None:
    """Starvation bound: from then on no workload that was submitted later is before it, at any time and usage."""
    now_s = own.submitted_s + formula.overtaken_for_s(own) * (1 + 1e-9) + 1e-3 + later_s
    then = PendingWorkload(own.name, own.class_points, own.gpus, own.submitted_s, usage)
    ranked = [each.workload for each in formula.ranked([then, *others], now_s)]
    before = ranked[: ranked.index(then)]
    assert all(other.submitted_s <= then.submitted_s for other in before)


@given(formulas, workloads)
@settings(max_examples=200, deadline=None)
def test_the_bound_is_met_by_the_worst_case(formula: PriorityFormula, own: PendingWorkload) -> None:
    """A smaller bound would not hold: the highest class with most GPUs, submitted just before it, is before."""
    bound_s = formula.overtaken_for_s(own)
    if bound_s < 10:
        return
    at_s = own.submitted_s + 0.9 * bound_s
    worst = PendingWorkload("worst", formula.highest_class, formula.most_gpus, at_s - 1.0)
    then = PendingWorkload("own", own.class_points, own.gpus, own.submitted_s, 1.0)
    if formula.score(worst, at_s) - formula.score(then, at_s) < 1e-6:
        return
    assert formula.ranked([then, worst], at_s)[0].workload is worst


@given(formulas, st.lists(workloads, max_size=12, unique_by=lambda each: each.name), st.floats(0, 200 * HOUR))
@settings(max_examples=150, deadline=None)
def test_very_many_are_ordered_as_few(formula: PriorityFormula, some: list[PendingWorkload], now_s: float) -> None:
    some.sort(key=lambda each: each.name)
    columns = [
        np.array([getattr(each, name) for each in some], dtype=float)
        for name in ("class_points", "gpus", "submitted_s", "usage")
    ]
    order = [some[index] for index in formula.order(*columns, now_s)]
    scores = [formula.score(each, now_s) for each in order]
    assert scores == pytest.approx(sorted(scores, reverse=True))
    assert {each.name for each in order} == {each.workload.name for each in formula.ranked(some, now_s)}


@pytest.mark.parametrize("weights", [{"age_per_hour": 0.0}, {"per_doubling": -1.0}, {"age_per_hour": math.inf}])
def test_weights_without_a_bound_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"weights|points"):
        PriorityFormula(100.0, **weights)  # type: ignore[arg-type]


def test_who_is_before_an_older_one_is_said_with_its_reason() -> None:
    order = [workload("urgent", 1000, at_s=3 * HOUR), workload("old", 10, at_s=0.0), workload("new", 10, at_s=HOUR)]
    found = overtakings(order)
    assert set(found) == {"urgent"}
    assert found["urgent"].sentence == "before old and 1 other, 3 h older: priority 1000 over 10"
