"""What a pool lends, when its GPUs are needed, and the figures that go with it."""

import math
from statistics import NormalDist

import pytest

from kopt.core.prediction import ModelVersion
from kopt.core.scheduling.lending_pool import LendingPool, PoolService, Verb
from kopt.policies.lending.caution import Caution
from kopt.policies.lending.plan import REACTIVE_MARGIN, Plan, ServiceSnapshot, learned, plan, settings_for
from kopt.policies.lending.policy import LendingState

NOW_S, LEAD_S = 1_900_000_000.0, 300.0
MODEL = ModelVersion("demand", "7")


def quantiles(p50: float, p99: float) -> dict[float, float]:
    return {0.5: p50, 0.9: (p50 + p99) / 2, 0.99: p99}


def pool(gpus: int = 16, **more: object) -> LendingPool:
    service = PoolService("chat", "team", {"app": "chat"}, "team/chat", 1.0, 2)
    return LendingPool("p", gpus, (service,), **({"hold_s": 0.0, "hysteresis_gpus": 1} | more))  # type: ignore[arg-type]


def view(name: str, gpus: int, forecast: dict[float, dict[float, float]], capacity: float = 1.0) -> ServiceSnapshot:
    return ServiceSnapshot(name, gpus, capacity, 1, forecast, MODEL)


def made(*services: ServiceSnapshot, borrowed: int = 0, lent: int = 0, lead_s: float = LEAD_S, gpus: int = 16) -> Plan:
    return plan(pool(gpus), services, borrowed, lead_s, LendingState(lent_gpus=lent), NOW_S)


def test_without_forecasts_the_reactive_rule_stands_alone() -> None:
    settings = settings_for(pool(hold_s=77.0, hysteresis_gpus=3), forecasts=False)
    assert (settings.reactive_margin, settings.hold_s, settings.hysteresis_gpus) == (REACTIVE_MARGIN, 77.0, 3)
    assert settings.caution is None


@pytest.mark.parametrize("target", [0.01, 0.05, 0.2])
def test_with_forecasts_caution_begins_a_little_below_the_quantile_that_is_aimed_at(target: float) -> None:
    settings = settings_for(pool(hold_s=77.0, hysteresis_gpus=3, violation_target=target), forecasts=True)
    assert (settings.reactive_margin, settings.hold_s, settings.hysteresis_gpus) == (1.0, 77.0, 3)
    assert settings.caution is not None
    assert settings.caution.violation == target
    assert settings.caution.first == pytest.approx(NormalDist().inv_cdf(1 - target) - 0.21)


@pytest.mark.parametrize(("target", "bound"), [(1e-9, "highest"), (0.4999, "lowest")])
def test_caution_begins_within_its_bounds(target: float, bound: str) -> None:
    caution = settings_for(pool(violation_target=target), forecasts=True).caution
    assert caution is not None
    score = NormalDist().inv_cdf(1 - target) - 0.21
    assert caution.first == pytest.approx(min(max(score, caution.lowest), caution.highest))
    if bound == "highest":
        assert caution.first == caution.highest < score


def test_figures_come_with_a_plan_that_rests_on_forecasts() -> None:
    calm = quantiles(2.0, 4.0)
    result = made(view("a", 1, {LEAD_S: calm}), view("b", 1, {LEAD_S: quantiles(30.0, 60.0)}, capacity=10.0))
    assert (result.p50, result.p99) == (5, 10)
    assert result.caution == pytest.approx(NormalDist().cdf(NormalDist().inv_cdf(0.99) - 0.21))
    assert result.models == (MODEL,)
    assert (result.verb, result.lent + result.provision) == (Verb.LEND, 16)
    assert (result.gpus, result.state.lent_gpus) == (result.lent, result.lent)
    assert [reason.code for reason in result.reasons] == ["PROVISION"]
    assert result.reasons[0].message.startswith("Pool p holds 16 GPUs; ")


def test_an_expectation_is_the_lowest_quantile_that_reaches_far_enough_or_none() -> None:
    result = made(view("a", 1, {LEAD_S: {0.4: 1.0, 0.6: 3.5, 0.9: 9.0}}))
    assert (result.p50, result.p99) == (4, None)


def test_the_expectation_is_of_the_first_horizon_at_or_after_the_lead_time() -> None:
    forecast = {200.0: quantiles(1.0, 1.0), 300.0: quantiles(3.0, 3.0), 600.0: quantiles(9.0, 9.0)}
    assert made(view("a", 1, forecast)).p50 == 3
    assert made(view("a", 1, forecast), lead_s=301.0).p50 == 9
    result = made(view("a", 1, forecast), lead_s=601.0)
    assert (result.p50, result.caution) == (None, None)


def test_without_a_forecast_up_to_the_lead_time_nothing_new_is_lent_and_that_is_said_first() -> None:
    short = view("short", 2, {LEAD_S - 1: quantiles(1.0, 1.0)})
    result = made(view("a", 2, {LEAD_S: quantiles(1.0, 1.0)}), short, lent=3)
    assert (result.verb, result.gpus, result.lent) == (Verb.KEEP, 0, 3)
    assert result.state.lent_gpus == 3
    assert [reason.code for reason in result.reasons] == ["NO_FORECAST", "PROVISION", "REACTIVE_ONLY"]
    assert "nothing new is lent" in result.reasons[0].message
    assert (result.p50, result.p99, result.caution) == (None, None, None)
    silent = made(view("a", 2, {LEAD_S: quantiles(1.0, 1.0)}), view("silent", 2, {}), lent=3)
    assert (silent.verb, silent.lent) == (Verb.KEEP, 3), "one of which nothing at all is forecast"


def test_without_forecasts_gpus_are_taken_back_by_what_pods_ask_for() -> None:
    result = made(view("a", 10, {}), lent=8, borrowed=8)
    assert (result.verb, result.gpus, result.lent) == (Verb.RECLAIM, 4, 4)
    assert [reason.code for reason in result.reasons] == ["PROVISION", "REACTIVE_ONLY"]


def test_without_forecasts_a_loan_that_stays_is_not_said_to_be_cut() -> None:
    result = made(view("a", 10, {}), lent=4)
    assert (result.verb, result.lent) == (Verb.KEEP, 4)
    assert [reason.code for reason in result.reasons] == ["PROVISION", "REACTIVE_ONLY"]


@pytest.mark.parametrize("capacity", [0.5, 1.0, 40.0])
def test_without_forecasts_it_does_not_matter_what_a_gpu_can_serve(capacity: float) -> None:
    assert made(view("a", 10, {}, capacity), lent=8).lent == 4


@pytest.mark.parametrize(
    ("lent", "verb", "gpus"),
    [(10, Verb.LEND, 2), (11, Verb.LEND, 1), (12, Verb.KEEP, 0), (13, Verb.RECLAIM, 1), (14, Verb.RECLAIM, 2)],
)
def test_what_changes_is_lent_or_taken_back_to_the_last_gpu(lent: int, verb: Verb, gpus: int) -> None:
    result = made(view("a", 1, {LEAD_S: quantiles(4.0, 4.0)}), lent=lent)
    assert (result.verb, result.gpus, result.lent) == (verb, gpus, 12)


def test_forecasts_are_compared_at_horizons_that_every_service_has_something_to_say_about() -> None:
    calm, spike = quantiles(1.0, 1.0), quantiles(12.0, 12.0)
    both = made(view("a", 1, {300.0: calm, 900.0: spike}), view("b", 1, {300.0: calm, 600.0: calm}), borrowed=10)
    assert both.need_in_s == 600.0, "the forecast for 900 s is what is known of 600 s"
    shorter = made(view("a", 1, {300.0: calm, 900.0: spike}), view("b", 1, {300.0: calm}), borrowed=10)
    assert shorter.need_in_s == math.inf


@pytest.mark.parametrize(
    ("asked", "borrowed", "need_in_s"), [(6, 10, math.inf), (7, 10, 0.0), (2, 4, math.inf), (2, 5, 300.0)]
)
def test_gpus_in_use_are_needed_when_what_is_left_is_too_little(asked: int, borrowed: int, need_in_s: float) -> None:
    most = 6.0 if borrowed == 10 else 12.0
    result = made(view("a", asked, {LEAD_S: quantiles(most, most)}), borrowed=borrowed)
    assert result.need_in_s == need_in_s


@pytest.mark.parametrize("level", [0.5, 1.3, 2.2, 3.0])
def test_gpus_are_needed_as_cautiously_as_others_are_lent(level: float) -> None:
    """What is kept at a level of caution is what must be left beside the borrowed GPUs, no more and no less."""
    service, state = view("a", 1, {LEAD_S: quantiles(2.0, 8.0)}), LendingState(caution=Caution(level))
    for borrowed in range(16):
        result = plan(pool(), [service], borrowed, LEAD_S, state, NOW_S)
        assert result.need_in_s == (LEAD_S if result.provision > 16 - borrowed else math.inf)


def test_without_forecasts_the_margin_is_what_there_is_time_for() -> None:
    assert made(view("a", 5, {}), borrowed=10).need_in_s == math.inf
    assert made(view("a", 6, {}), borrowed=10).need_in_s == 0.0, "6 are asked for, 8 are to be kept"


def test_a_forecast_beyond_all_sense_is_one_that_no_pool_can_meet() -> None:
    result = made(view("a", 1, {LEAD_S: quantiles(1e300, 1e305)}, capacity=2.0))
    assert (result.p50, result.p99) == (1_000_000, 1_000_000)
    assert (result.lent, result.need_in_s) == (0, LEAD_S)


def test_promises_are_settled_once_their_moment_has_come_and_only_if_it_was_seen() -> None:
    first = made(view("a", 1, {LEAD_S: quantiles(2.0, 4.0)})).state
    ((for_s, _),) = first.caution.promised
    assert for_s == NOW_S + LEAD_S
    assert learned(pool(), first, 12, for_s - 1, 120.0) == first, "not yet"
    missed, seen_late = learned(pool(), first, 12, for_s, 120.0), learned(pool(), first, 12, for_s + 120, 120.0)
    assert missed.caution.promised == seen_late.caution.promised == ()
    assert missed.caution.level is not None
    assert seen_late.caution.level == missed.caution.level
    unseen = learned(pool(), first, 12, for_s + 121, 120.0)
    assert (unseen.caution.promised, unseen.caution.level) == ((), None)
    kept = learned(pool(), first, 1, for_s, 120.0)
    assert kept.caution.level is not None
    assert kept.caution.level < missed.caution.level
