"""When failures are an alarm: both windows burn, and there is enough evidence."""

from hypothesis import given
from hypothesis import strategies as st

from kopt.core.error_budget import ErrorBudget, Objective


def budget(*minutes: tuple[int, int], objective: Objective | None = None) -> ErrorBudget:
    """One look after every minute with (good, bad) calls."""
    result, good, bad = ErrorBudget(objective), 0, 0
    result.observe(0.0, 0, 0)
    for number, (more, failed) in enumerate(minutes, 1):
        good, bad = good + more, bad + failed
        result.observe(60.0 * number, good, bad)
    return result


def test_an_outage_that_goes_on_burns_the_budget() -> None:
    burn = budget(*[(10, 0)] * 30, *[(0, 10)] * 12).burn()
    assert burn is not None
    assert burn.short == 1.0
    assert burn.failed == 120


def test_an_outage_that_is_over_does_not() -> None:
    assert budget(*[(0, 10)] * 12, *[(10, 0)] * 6).burn() is None


def test_a_few_failures_are_no_evidence() -> None:
    assert budget(*[(0, 1)] * 19).burn() is None
    assert budget(*[(0, 1)] * 20).burn() is not None


def test_what_was_before_a_person_switched_on_does_not_count() -> None:
    seen = budget(*[(0, 10)] * 12)
    assert seen.burn() is not None
    assert seen.burn(since_s=11.5 * 60) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=90))
def test_a_budget_that_holds_raises_no_alarm(minutes: list[tuple[int, int]]) -> None:
    objective = Objective()
    burn = budget(*minutes, objective=objective).burn()
    good = sum(good for good, _ in minutes[-60:])
    bad = sum(bad for _, bad in minutes[-60:])
    if bad <= objective.highest_share * (good + bad) - 1e-9 or bad < objective.least:
        assert burn is None
    if burn is not None:
        assert min(burn.long, burn.short) >= objective.highest_share
