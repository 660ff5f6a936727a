"""What lending may never do, whatever the forecasts say."""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kopt.policies.lending.caution import CautionSettings
from kopt.policies.lending.policy import (
    LendingSettings,
    LendingState,
    Pool,
    ServiceDemand,
    decide,
    gpus_for,
    hold,
    lendable_curve,
    observe,
    provision_gpus,
)

amounts = st.floats(0, 1e6, allow_nan=False)
capacities = st.floats(0.1, 1e4)


@st.composite
def services(draw: st.DrawFn, name: str = "chat") -> ServiceDemand:
    levels = sorted(draw(st.lists(amounts, min_size=0, max_size=4)))
    quantiles = dict(zip((0.5, 0.9, 0.95, 0.99), levels, strict=False))
    return ServiceDemand(name, draw(amounts), draw(capacities), quantiles, draw(st.integers(0, 5)))


settings = st.builds(
    LendingSettings,
    quantile=st.sampled_from([0.5, 0.9, 0.95, 0.99]),
    hold_s=st.floats(0, 7200),
    hysteresis_gpus=st.integers(0, 4),
    correlation=st.floats(0, 1),
)


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    minimums = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    curve = {
        horizon: [replace(draw(services(name=f"s{i}")), minimum_gpus=least) for i, least in enumerate(minimums)]
        for horizon in (300.0, 1800.0, 3600.0)
    }
    return Pool("pool", draw(st.integers(0, 2000)), curve)


@given(st.lists(services(), min_size=1, max_size=5), settings)
def test_provision_is_never_below_the_reactive_rule_nor_the_minimum(
    found: list[ServiceDemand], how: LendingSettings
) -> None:
    reactive = sum(how.reactive_margin * s.recent_max / s.capacity_per_gpu for s in found)
    assert provision_gpus(found, how) >= gpus_for(reactive, 1.0)
    assert provision_gpus(found, how) >= sum(s.minimum_gpus for s in found)


@given(st.lists(services(), min_size=1, max_size=5), st.floats(0, 1))
def test_provision_rises_with_the_quantile_when_quantiles_add_up(found: list[ServiceDemand], rho: float) -> None:
    need = [provision_gpus(found, LendingSettings(quantile=q)) for q in (0.5, 0.9, 0.95, 0.99)]
    assert need == sorted(need)
    # Independent errors ask for no more than errors that come together, and no less than the medians.
    pooled = provision_gpus(found, LendingSettings(quantile=0.99, correlation=rho))
    assert provision_gpus(found, LendingSettings(quantile=0.5)) <= pooled <= need[-1]


@given(services(), st.dictionaries(st.sampled_from([0.5, 0.95, 0.99]), amounts), settings)
def test_a_forecast_of_the_sum_may_lower_the_provision_but_not_below_reactive(
    found: ServiceDemand, pooled: dict[float, float], how: LendingSettings
) -> None:
    need = provision_gpus([found], how, pooled)
    assert need <= provision_gpus([found], how)
    assert need >= gpus_for(how.reactive_margin * found.recent_max / found.capacity_per_gpu, 1.0)


@given(pools(), settings)
def test_the_guaranteed_minimum_is_never_lent_and_the_curve_never_rises(pool: Pool, how: LendingSettings) -> None:
    curve = lendable_curve(pool, how)
    for point in curve:
        assert point.lendable % 1000 == 0
        assert 0 <= point.lendable <= max(0, pool.gpus - pool.minimum_gpus) * 1000
    lendable = [point.lendable for point in curve]
    assert lendable == sorted(lendable, reverse=True)


@given(pools(), settings, st.lists(st.floats(0, 900), min_size=1, max_size=6))
def test_decisions_keep_the_minimum_and_account_for_every_gpu(
    pool: Pool, how: LendingSettings, gaps: list[float]
) -> None:
    state, now_s, lent = LendingState(), 1e9, 0
    for gap in gaps:
        now_s += gap
        decision, state = decide(pool, state, now_s, how)
        for action in decision.actions:
            lent += action.amount if action.verb == "lend" else -action.amount
        assert lent == state.lent_gpus * 1000
        assert lent <= max(0, pool.gpus - pool.minimum_gpus) * 1000


@given(st.lists(st.tuples(st.floats(-100, 1000), st.integers(0, 50)), min_size=1, max_size=40), st.floats(0, 3000))
@example([(0.0, 1), (-1.0, 1), (2.0, 0)], 1.0)
def test_a_hold_is_never_shortened(steps: list[tuple[float, int]], hold_s: float) -> None:
    state, now_s, latest_s, seen = LendingState(), 1e6, 0.0, []
    for gap, need in steps:
        now_s += gap
        # A clock that went back counts as standing still.
        latest_s = max(latest_s, now_s)
        held, state = hold(state, need, now_s, hold_s)
        seen.append((latest_s, need))
        within = [n for at_s, n in seen if at_s >= latest_s - hold_s]
        assert held >= max(within)
        assert held >= need


def test_a_peak_is_held_for_half_an_hour_and_then_let_go() -> None:
    state = LendingState()
    held = []
    for minute, need in ((0, 10), (5, 4), (29, 4), (30, 4), (31, 4)):
        got, state = hold(state, need, minute * 60.0, 1800.0)
        held.append(got)
    assert held == [10, 10, 10, 10, 4]


def chat(demand: float, gpus: int = 10, *, recent_max: float = 0.0) -> Pool:
    service = ServiceDemand("chat", recent_max, 100.0, {0.5: demand / 2, 0.99: demand}, minimum_gpus=1)
    return Pool("chat", gpus, {3600.0: [service]})


def test_what_is_not_needed_is_lent_and_reclaimed_when_needed() -> None:
    decision, state = decide(chat(350.0), LendingState(), 0.0)
    assert [(a.verb, a.target, a.amount, a.unit) for a in decision.actions] == [("lend", "chat", 6000, "milli-gpu")]
    assert decision.reasons[0].code == "PROVISION"
    assert decision.reasons[0].numbers["provision_gpus"] == 4
    decision, state = decide(chat(800.0), state, 300.0)
    assert [(a.verb, a.amount) for a in decision.actions] == [("reclaim", 4000)]
    decision, state = decide(chat(350.0), state, 600.0)
    assert decision.actions == ()
    assert "HOLD" in [reason.code for reason in decision.reasons]


def test_small_gains_are_left_alone_by_the_hysteresis_but_needs_never_are() -> None:
    how = LendingSettings(hysteresis_gpus=3, hold_s=0.0)
    decision, state = decide(chat(800.0), LendingState(), 0.0, how)
    assert decision.actions == ()
    assert [reason.code for reason in decision.reasons] == ["PROVISION", "HYSTERESIS"]
    decision, state = decide(chat(700.0), state, 60.0, how)
    assert [(a.verb, a.amount) for a in decision.actions] == [("lend", 3000)]
    decision, state = decide(chat(800.0), state, 120.0, how)
    assert [(a.verb, a.amount) for a in decision.actions] == [("reclaim", 1000)]
    decision, state = decide(chat(500.0), state, 180.0, how)
    assert [(a.verb, a.amount) for a in decision.actions] == [("lend", 3000)]


def test_gpus_that_join_a_pool_are_not_taken_for_lent() -> None:
    _, state = decide(chat(350.0, gpus=10), LendingState(), 0.0)
    decision, state = decide(chat(350.0, gpus=20), state, 60.0)
    assert [(a.verb, a.amount) for a in decision.actions] == [("lend", 10_000)]
    assert state.lent_gpus == 16


def test_a_pool_that_is_too_small_says_so() -> None:
    decision, _ = decide(chat(5000.0), LendingState(), 0.0)
    assert decision.actions == ()
    assert "SHORT" in [reason.code for reason in decision.reasons]
    assert "50 GPUs" in decision.reasons[1].message


def test_without_a_forecast_the_reactive_rule_counts() -> None:
    service = ServiceDemand("chat", 500.0, 100.0, {}, minimum_gpus=1)
    decision, state = decide(Pool("chat", 10, {300.0: [service]}), LendingState(), 0.0)
    assert state.lent_gpus == 4
    assert decision.reasons[-1].code == "REACTIVE_ONLY"


def test_division_does_not_cost_a_gpu() -> None:
    assert gpus_for(0.3, 0.1) == 3
    assert gpus_for(3.0000001, 1.0) == 4
    assert gpus_for(0.0, 1.0) == 0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_impossible_demand_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="chat"):
        ServiceDemand("chat", wrong, 1.0)
    with pytest.raises(ValueError, match="chat"):
        ServiceDemand("chat", 1.0, 1.0, {0.5: wrong})


@pytest.mark.parametrize(
    "wrong", [{"quantile": 1.0}, {"quantile": 0.4}, {"reactive_margin": 0.9}, {"hold_s": -1}, {"correlation": 1.1}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"range|quantile"):
        LendingSettings(**wrong)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(0, 10))
def test_a_hold_keeps_the_largest_need_of_its_time(needs: list[int], buckets: int) -> None:
    state = LendingState()
    for i, need in enumerate(needs):
        held, state = hold(state, need, i * 300.0, buckets * 300.0)
        assert held == max(needs[max(0, i - buckets) : i + 1])


def test_a_pool_that_fell_short_lends_less_and_one_that_did_not_lends_more() -> None:
    settings = LendingSettings(reactive_margin=1.0, hold_s=0.0, caution=CautionSettings(step=0.5))
    demand = ServiceDemand("chat", 1.0, 1.0, {0.5: 10.0, 0.9: 20.0, 0.95: 30.0, 0.99: 60.0})
    pool = Pool("pool", 100, {300.0: [demand]})
    decision, first = decide(pool, LendingState(), 0.0, settings)
    assert decision.reasons[0].numbers["quantile"] == pytest.approx(0.983, abs=0.001)
    short, calm = (observe(first, 300.0, need, settings) for need in (99, 10))
    after = [decide(pool, state, 300.0, settings)[1].lent_gpus for state in (short, calm)]
    assert after[0] < first.lent_gpus <= after[1]
    # What nobody decided for teaches nothing, and without caution nothing is remembered.
    assert observe(first, 450.0, 99, settings).caution.level is None
    assert decide(pool, LendingState(), 0.0, LendingSettings())[1].caution.promised == ()
