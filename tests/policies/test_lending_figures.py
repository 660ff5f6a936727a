"""What lending reckons with, on numbers that can be checked by hand, and what it says of them."""

import math

import pytest

from kopt.core.decision import Mode
from kopt.core.prediction import ModelVersion
from kopt.policies.lending.caution import CautionSettings
from kopt.policies.lending.policy import (
    LendingSettings,
    LendingState,
    Pool,
    ServiceDemand,
    decide,
    hold,
    lendable_curve,
    observe,
    provision_gpus,
)

QUANTILES = {0.5: 300.0, 0.9: 500.0, 0.99: 700.0}


def service(name: str = "chat", quantiles: dict[float, float] | None = None, **more: object) -> ServiceDemand:
    known = QUANTILES if quantiles is None else quantiles
    usual = {"recent_max": 0.0, "capacity_per_gpu": 100.0, "minimum_gpus": 0}
    return ServiceDemand(name, quantiles=known, **(usual | more))  # type: ignore[arg-type]


def pool(gpus: int, *services: ServiceDemand, pooled: dict[float, float] | None = None) -> Pool:
    return Pool("chat", gpus, {300.0: services}, {} if pooled is None else {300.0: pooled})


@pytest.mark.parametrize(("quantile", "gpus"), [(0.5, 3), (0.8, 5), (0.9, 5), (0.95, 7), (0.99, 7), (0.999, 7)])
def test_provisioned_is_at_the_lowest_known_quantile_that_suffices_else_the_highest(quantile: float, gpus: int) -> None:
    assert provision_gpus([service()], LendingSettings(quantile=quantile)) == gpus


def test_a_quantile_that_differs_by_rounding_only_is_the_one_asked_for() -> None:
    assert provision_gpus([service()], LendingSettings(quantile=0.9 + 5e-10)) == 5


@pytest.mark.parametrize(("correlation", "gpus"), [(1.0, 3 + 3 + 4 + 2), (0.0, 3 + 3 + 5)])
def test_medians_add_up_and_distances_from_them_as_their_correlation_says(correlation: float, gpus: int) -> None:
    """Distances of 4 and 2 GPUs: 6 where errors come together, the square root of 20 where they are independent."""
    services = [service(), service("other", {0.5: 300.0, 0.99: 500.0})]
    assert provision_gpus(services, LendingSettings(correlation=correlation)) == gpus


def test_half_correlated_errors_lie_between() -> None:
    services = [service("a", {0.5: 0.0, 0.99: 3000.0}), service("b", {0.5: 0.0, 0.99: 4000.0})]
    expected = math.ceil(math.sqrt(0.5 * (30**2 + 40**2) + 0.5 * 70**2))
    assert provision_gpus(services, LendingSettings(correlation=0.5)) == expected == 61


def test_without_a_choice_errors_come_together_a_service_keeps_a_gpu_and_each_gpu_counts() -> None:
    services = [service("a", {0.5: 0.0, 0.99: 3000.0}), service("b", {0.5: 0.0, 0.99: 4000.0})]
    assert provision_gpus(services, LendingSettings()) == 70
    assert provision_gpus([ServiceDemand("idle", 0.0, 1.0)], LendingSettings()) == 1
    assert decide(pool(16, service()), LendingState(lent_gpus=8), 0.0)[1].lent_gpus == 9


def test_services_without_a_forecast_leave_those_of_others_as_they_are() -> None:
    assert provision_gpus([service("new", {}), service()], LendingSettings()) == 7
    assert provision_gpus([service(), service("new", {})], LendingSettings()) == 7


def test_a_median_of_nothing_adds_no_gpu() -> None:
    assert provision_gpus([service("idle", {0.5: 0.0, 0.99: 0.0})], LendingSettings()) == 0
    four = [ServiceDemand(name, 0.0, 1.0, {0.5: 0.0, 0.99: 3.0}, 0) for name in "abcd"]
    assert provision_gpus(four, LendingSettings(correlation=0.0)) == 6


def test_a_forecast_of_the_sum_counts_where_it_asks_for_less() -> None:
    services = [service(), service("other")]
    assert provision_gpus(services, LendingSettings(), {0.5: 6.0, 0.99: 9.0}) == 9
    assert provision_gpus(services, LendingSettings(), {0.5: 6.0, 0.99: 20.0}) == 14
    assert provision_gpus(services, LendingSettings(), {}) == 14
    assert provision_gpus(services, LendingSettings(quantile=0.5), {0.5: 5.0, 0.99: 9.0}) == 5


def test_at_a_level_the_demand_lies_between_known_quantiles() -> None:
    level = 1.8  # between the scores of 0.9 and 0.99
    low, high = 1.2815515655446004, 2.3263478740408408
    between = math.exp(math.log(500) + (level - low) / (high - low) * math.log(700 / 500))
    assert provision_gpus([service(capacity_per_gpu=1.0)], LendingSettings(), level=level) == math.ceil(between)
    pooled = {0.5: 6.0, 0.9: 9.0, 0.99: 12.0}
    assert provision_gpus([service(), service("b")], LendingSettings(), pooled, level=level) == 11
    assert provision_gpus([service("new", {})], LendingSettings(), level=level) == 0


def service_of(recent_max: float, minimum: int) -> ServiceDemand:
    return ServiceDemand("chat", recent_max, 100.0, {}, minimum)


def test_the_reactive_rule_has_its_margin_and_minimums_add_up() -> None:
    settings = LendingSettings(reactive_margin=1.5)
    assert provision_gpus([service_of(400.0, 0), service_of(200.0, 0)], settings) == 9
    assert provision_gpus([service_of(100.0, 2), service_of(0.0, 3)], settings) == 5
    assert provision_gpus([service_of(0.0, 0)], settings) == 0


def test_what_is_lendable_never_rises_with_the_horizon() -> None:
    calm, peak = service("chat", {0.99: 100.0}), service("chat", {0.99: 600.0})
    curve = lendable_curve(Pool("p", 8, {900.0: [calm], 300.0: [calm], 600.0: [peak]}), LendingSettings())
    assert [(point.horizon_s, point.provision, point.lendable) for point in curve] == [
        (300.0, 1000, 7000),
        (600.0, 6000, 2000),
        (900.0, 6000, 2000),
    ]
    nothing = service("chat", {0.99: 0.0})
    assert lendable_curve(pool(8, nothing), LendingSettings())[0].lendable == 8000
    assert lendable_curve(pool(8, service(), pooled={0.99: 2.0}), LendingSettings())[0].lendable == 6000


def test_a_need_seen_again_is_kept_once() -> None:
    _, state = hold(LendingState(), 5, 0.0, 100.0)
    held, state = hold(state, 5, 60.0, 100.0)
    assert (held, state.recent) == (5, ((60.0, 5),))
    held, state = hold(state, 4, 160.0, 100.0)
    assert (held, state.recent) == (5, ((60.0, 5), (160.0, 4)))
    assert hold(state, 4, 161.0, 100.0)[0] == 4


def test_a_decision_names_its_policy_its_mode_and_each_model_once() -> None:
    models = ModelVersion("demand", "1"), ModelVersion("demand", "2")
    services = [service("a", model=models[1]), service("b", model=models[0]), service("c", model=models[1])]
    decision, _ = decide(pool(30, *services), LendingState(), 0.0, mode=Mode.ENFORCE)
    assert (decision.policy, decision.mode, decision.models) == ("lending", Mode.ENFORCE, (models[1], models[0]))
    decision, _ = decide(pool(30, service()), LendingState(), 0.0)
    assert (decision.mode, decision.models) == (Mode.OBSERVE, ())


def test_a_provision_says_its_numbers() -> None:
    decision, _ = decide(pool(10, service(minimum_gpus=2), service("b", {0.99: 100.0})), LendingState(), 0.0)
    (reason,) = decision.reasons
    assert reason.code == "PROVISION"
    assert reason.numbers == {
        "gpus": 10,
        "provision_gpus": 8,
        "lendable_milli_gpu": 2000,
        "quantile": 0.99,
        "horizon_s": 300.0,
        "minimum_gpus": 2,
    }
    assert reason.message == (
        "Pool chat holds 10 GPUs; up to 8 may be needed by 2 services within 5 minutes at quantile 0.99, so 2 can be "
        "lent."
    )


def test_a_pool_that_is_just_large_enough_is_not_short() -> None:
    decision, _ = decide(pool(7, service()), LendingState(), 0.0)
    assert [reason.code for reason in decision.reasons] == ["PROVISION"]
    decision, _ = decide(pool(6, service()), LendingState(), 0.0)
    assert decision.reasons[1].code == "SHORT"
    assert decision.reasons[1].numbers == {"need_gpus": 7, "gpus": 6}


def test_a_hold_says_what_is_held() -> None:
    _, state = decide(pool(10, service()), LendingState(), 0.0)
    decision, state = decide(pool(10, service("chat", {0.99: 100.0})), state, 60.0)
    hold_reason = decision.reasons[1]
    assert (hold_reason.code, hold_reason.numbers) == ("HOLD", {"held_gpus": 7, "need_gpus": 1})
    assert hold_reason.message == "7 GPUs were needed within the last 30 minutes and stay provisioned."
    assert decision.actions == ()


def test_hysteresis_leaves_alone_smaller_changes_than_it_says_and_gives_its_reason() -> None:
    settings = LendingSettings(hysteresis_gpus=2, hold_s=0.0)
    lent = LendingState(lent_gpus=2)
    decision, state = decide(pool(10, service()), lent, 0.0, settings)
    assert (decision.actions, state.lent_gpus) == ((), 2)
    assert decision.reasons[1].code == "HYSTERESIS"
    assert decision.reasons[1].numbers == {"hysteresis_gpus": 2}
    decision, state = decide(pool(10, service()), LendingState(lent_gpus=1), 0.0, settings)
    assert state.lent_gpus == 3
    decision, state = decide(pool(10, service()), LendingState(lent_gpus=3), 0.0, settings)
    assert [reason.code for reason in decision.reasons] == ["PROVISION"]
    assert decision.actions == ()


def test_a_service_without_a_forecast_is_said_to_be_reactive_only() -> None:
    decision, _ = decide(pool(10, service(), service("new", {})), LendingState(), 0.0)
    assert decision.reasons[-1].code == "REACTIVE_ONLY"
    assert "no forecast" in decision.reasons[-1].message


def test_what_is_learned_follows_the_settings_step() -> None:
    settings = LendingSettings(hold_s=0.0, caution=CautionSettings(violation=0.1, first=1.0, step=0.5))
    _, state = decide(pool(10, service()), LendingState(), 0.0, settings)
    assert [for_s for for_s, _ in state.caution.promised] == [300.0]
    assert observe(state, 300.0, 99, settings).caution.level == pytest.approx(1.0 + 0.5 * (1 - 0.1))
    assert observe(state, 300.0, 0, settings).caution.level == pytest.approx(1.0 - 0.5 * 0.1)
    assert observe(state, 300.0, 99, LendingSettings()) == state


@pytest.mark.parametrize(("capacity", "minimum"), [(0.0, 1), (-1.0, 1), (1.0, -1)])
def test_a_service_has_a_capacity_and_a_minimum_that_is_not_negative(capacity: float, minimum: int) -> None:
    with pytest.raises(ValueError, match="service 'chat'"):
        ServiceDemand("chat", 1.0, capacity, minimum_gpus=minimum)
    ServiceDemand("chat", 0.0, 0.5, minimum_gpus=0)


@pytest.mark.parametrize("curve", [{}, {300.0: []}, {300.0: [service()], 600.0: []}])
def test_a_pool_without_services_is_refused(curve: dict[float, list[ServiceDemand]]) -> None:
    with pytest.raises(ValueError, match="no services"):
        Pool("empty", 4, curve)
