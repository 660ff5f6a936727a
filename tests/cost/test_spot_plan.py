"""Plans on spot capacity: never late whatever is taken away, and no dearer than what they are compared with."""

import random
from collections.abc import Callable
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.policies.cost.spot_plan import Capacity, SpotPlan, SpotRun
from kopt.policies.cost.spot_rates import YOUNG_S, Rates, Spell, rate_of, rates_of

HOUR = 3600.0
RESTART_S, LOST_S, MOST_LOST_S = 600.0, 900.0, 1800.0
Choice = Callable[[float, float, Capacity, bool, float], Capacity]


@lru_cache(maxsize=64)
def plan_of(work_h: float, deadline_h: float, ratio: float, interruptions: Rates, returns: Rates) -> SpotPlan:
    times = RESTART_S, LOST_S, MOST_LOST_S
    return SpotPlan(SpotRun(work_h * HOUR, deadline_h * HOUR, *times, ratio, interruptions, returns))


def paid_hours(
    plan: SpotPlan, there: Callable[[int], bool], choose: Choice | None = None, lost_s: float = LOST_S
) -> float:
    """What a run pays, step by step of the plan, where ``there`` says whether spot capacity is to be had; infinite when
    it is late."""
    run, tick_s = plan.run, plan.tick_s
    left_s, work_s, held, paid, starting_s, age_s = run.deadline_s, run.work_s, Capacity.NONE, 0.0, 0.0, 0.0
    before = there(0)
    for tick in range(int(run.deadline_s / tick_s)):
        available = there(tick)
        age_s = age_s + tick_s if available is before else 0.0
        before = available
        if held is Capacity.SPOT and not available:
            held, work_s = Capacity.NONE, work_s + lost_s
        if choose is None:
            choice = plan.choose(left_s, work_s, held, available=available, age_s=age_s)
        else:
            choice = choose(left_s, work_s, held, available, age_s)
        assert choice is not Capacity.SPOT or available
        if choice is not held:
            starting_s = RESTART_S
        held, left_s = choice, left_s - tick_s
        if choice is Capacity.NONE:
            continue
        paid += (run.price_ratio if choice is Capacity.SPOT else 1.0) * tick_s / HOUR
        waits_s = min(starting_s, tick_s)
        starting_s, work_s = starting_s - waits_s, work_s - (tick_s - waits_s)
        if work_s <= 1e-6:
            return paid
    return float("inf")


def chain(rates: Rates, returns: Rates, tick_s: float, seed: int) -> Callable[[int], bool]:
    """Capacity that behaves as the plan believes, there at first."""
    rng, states, age_s = random.Random(seed), [True], 0.0
    for _ in range(400):
        of = rates if states[-1] else returns
        per_hour = of.young if age_s < YOUNG_S else of.old
        changes = rng.random() < per_hour * tick_s / HOUR
        age_s = 0.0 if changes else age_s + tick_s
        states.append(states[-1] is not changes)
    return lambda tick: states[tick]


@given(
    there=st.lists(st.booleans(), min_size=300, max_size=300),
    runs=st.integers(1, 60),
    ratio=st.sampled_from([0.0, 0.3, 0.9]),
    slack=st.sampled_from([1.05, 1.3, 2.0]),
)
def test_no_pattern_of_interruptions_makes_a_run_late(there: list[bool], runs: int, ratio: float, slack: float) -> None:
    plan = plan_of(24, 24 * slack, ratio, Rates(0.3, 0.1), Rates(1.0, 0.2))
    assert paid_hours(plan, lambda tick: there[tick // runs], lost_s=MOST_LOST_S) < float("inf")


def test_the_expected_cost_is_that_of_runs_on_such_capacity() -> None:
    interruptions, returns = Rates(0.5, 0.1), Rates(1.0, 0.25)
    plan = plan_of(20, 30, 0.4, interruptions, returns)
    paid = [paid_hours(plan, chain(interruptions, returns, plan.tick_s, seed)) for seed in range(300)]
    assert sum(paid) / len(paid) == pytest.approx(plan.expected_hours(available=True), rel=0.04)


def test_a_plan_is_cheaper_than_greed_on_capacity_that_comes_for_minutes() -> None:
    interruptions, returns = Rates(4.0, 0.05), Rates(0.5, 0.5)
    plan = plan_of(20, 30, 0.6, interruptions, returns)

    def greedy(left_s: float, work_s: float, held: Capacity, available: bool, age_s: float) -> Capacity:
        late = work_s + RESTART_S + MOST_LOST_S > left_s - 2 * plan.tick_s
        if held is Capacity.ON_DEMAND or late:
            return Capacity.ON_DEMAND
        return Capacity.SPOT if available else Capacity.NONE

    pairs = [
        (paid_hours(plan, capacity), paid_hours(plan, capacity, greedy))
        for capacity in (chain(interruptions, returns, plan.tick_s, seed) for seed in range(100))
    ]
    ours, greed = (sum(column) for column in zip(*pairs, strict=True))
    assert ours < 0.97 * greed


def test_spot_capacity_that_costs_as_much_is_not_used() -> None:
    plan = plan_of(10, 20, 1.0, Rates.alike(0.1), Rates.alike(1.0))
    chosen = plan.choose(20 * HOUR, 10 * HOUR, Capacity.ON_DEMAND, available=True, age_s=0.0)
    assert chosen is Capacity.ON_DEMAND
    assert plan.least_hours_to_wait(10 * HOUR) is None


def test_without_time_to_spare_nothing_but_on_demand_capacity_is_used() -> None:
    plan = plan_of(24, 24.5, 0.1, Rates.alike(0.1), Rates.alike(1.0))
    for available in (False, True):
        choice = plan.choose(24.5 * HOUR, 24 * HOUR, Capacity.NONE, available=available, age_s=0.0)
        assert choice is Capacity.ON_DEMAND
    late = plan.choose(HOUR, 5 * HOUR, Capacity.NONE, available=True, age_s=0.0)
    assert late is Capacity.ON_DEMAND


@pytest.mark.parametrize(
    ("work_s", "restart_s", "deadline_s"), [(7230, 5, 7240), (30, 5, 50), (1, 0, 1), (60, 60, 120)]
)
def test_short_runs_and_tight_deadlines_have_a_plan(work_s: float, restart_s: float, deadline_s: float) -> None:
    run = SpotRun(work_s, deadline_s, restart_s, 1.0, 2.0, 0.5, Rates.alike(0.1), Rates.alike(1.0))
    plan = SpotPlan(run)
    for available in (False, True):
        expected = plan.expected_hours(available=available)
        assert 0 < expected <= (work_s + restart_s) / HOUR * 1.02
        plan.choose(deadline_s, work_s, Capacity.NONE, available=available, age_s=0.0)


def test_spot_capacity_leaves_room_for_an_interruption_and_is_not_waited_for_in_vain() -> None:
    plan = plan_of(24, 36, 0.3, Rates.alike(0.1), Rates.alike(0.5))
    spot_h, wait_h = plan.least_hours_for_spot(12 * HOUR), plan.least_hours_to_wait(12 * HOUR)
    assert spot_h is not None
    assert wait_h is not None
    assert spot_h >= 12 + (MOST_LOST_S + RESTART_S) / HOUR
    assert wait_h >= spot_h


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ((0.0, 10.0, 1.0, 1.0, 1.0, 0.5), "work is above 0"),
        ((10.0, float("nan"), 1.0, 1.0, 1.0, 0.5), "finite"),
        ((10.0, 20.0, 1.0, 2.0, 1.0, 0.5), "at most"),
        ((10.0, 10.0, 1.0, 1.0, 1.0, 0.5), "in time"),
    ],
)
def test_runs_that_cannot_be_are_refused(fields: tuple[float, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SpotRun(*fields, Rates.alike(0.1), Rates.alike(0.1))


def test_rates_are_counted_by_age_and_drawn_together_where_little_was_seen() -> None:
    spells = [Spell(900.0, True)] * 40 + [Spell(50 * HOUR, True)] * 2
    rates = rates_of(spells)
    assert rates.young > 1.0 > 0.1 > rates.old
    few = rates_of([Spell(900.0, True)])
    assert few.young < 3 * few.old
    assert rates_of([]) == Rates.alike(rate_of(0, 0.0))
