"""What is advised for a pool follows from its weeks, and what GPUs cost from the price book."""

import pytest

from kopt.core.cost.prices import Price, PriceBook
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.pools import PoolSize
from kopt.policies.capacity.advice import CapacitySettings, advise, begin_s, month_cost, needs_of

WEEK_S = 7 * 86_400.0
STEADY = [20.0] * 10
L4 = find_gpu("NVIDIA-L4").name


def test_a_pool_is_bought_for_in_whole_nodes_whatever_the_delivery() -> None:
    size = PoolSize(16, 8, "H100")
    soon, late = (advise(STEADY, size, CapacitySettings(delivery_weeks=weeks)) for weeks in (0, 12))
    assert soon.purchase is not None
    assert late.purchase is not None
    assert soon.buy_gpus == late.buy_gpus > 0
    assert soon.buy_gpus % 8 == 0
    assert (soon.last_week, len(soon.ahead), soon.reason.code) == (20.0, 13, "CAPACITY_SHORT")
    assert (soon.arrives_in_weeks, late.arrives_in_weeks) == (soon.purchase.short_in_weeks, 12)
    assert (soon.purchase.order_in_weeks, late.purchase.order_in_weeks) == (soon.purchase.short_in_weeks, 0)


def test_a_short_history_is_no_advice_and_says_how_short_it_is() -> None:
    advice = advise([20.0, None, 20.0], PoolSize(16, 8))
    assert (advice.purchase, advice.ahead, advice.buy_gpus) == (None, (), 0)
    assert advice.reason.code == "CAPACITY_HISTORY_TOO_SHORT"
    assert "2 of the 4 weeks" in advice.reason.message


def test_of_a_pool_of_unknown_size_only_what_it_needs_is_said() -> None:
    advice = advise(STEADY, PoolSize())
    assert (advice.purchase, advice.buy_gpus, advice.arrives_in_weeks) == (None, 0, None)
    assert (len(advice.ahead), advice.reason.code) == (13, "CAPACITY_SIZE_UNKNOWN")


def test_hours_in_thousandths_are_weeks_in_gpus() -> None:
    assert needs_of([4000] * 168 + [8000] * 168) == [4.0, 8.0]
    assert needs_of([None] * 168 + [8000] * 168) == [None, 8.0]


def test_the_first_week_ahead_begins_at_once() -> None:
    assert [begin_s(100.0, weeks) for weeks in (0, 1, 3)] == [100.0, 100.0, 100.0 + 2 * WEEK_S]


def test_a_month_costs_as_many_gpus_and_hours_as_it_has() -> None:
    assert month_cost(2.0, 8) == 2.0 * 8 * 730
    assert month_cost(None, 8) is None
    assert month_cost(2.0, 0) is None


@pytest.mark.parametrize(("at_ms", "price"), [(5, 2.0), (50, 4.0)])
def test_the_on_demand_price_is_the_median_of_those_that_are_valid_then(at_ms: int, price: float) -> None:
    amounts = [("a", 1, 0), ("b", 2, 0), ("c", 9, 0), ("d", 6, 10), ("e", 7, 10)]
    listed = [Price(L4, name, "", "on-demand", usd * 10**6, "USD", since, "") for name, usd, since in amounts]
    listed.append(Price(L4, "a", "", "spot", 1, "USD", 0, ""))
    if at_ms == 50:
        listed = [each for each in listed if each.provider != "e"]
    book = PriceBook(tuple(listed))
    assert book.on_demand("NVIDIA-L4", at_ms) == price
    assert book.on_demand("no such GPU", at_ms) is None
