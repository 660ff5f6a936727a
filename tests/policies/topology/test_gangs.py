"""The home of a gang: one node, else the tightest rack with room; unequal shares where equal ones do not fit."""

from kopt.topology.sets.gangs import GangOffer, Home, choose_home
from tests.policies.topology.test_nodes import MACHINE


def offer(name: str, free: int, *domains: str, linked: bool = False) -> GangOffer:
    return GangOffer(name, tuple(range(free)), domains, MACHINE if linked else None)


def home(offers: list[GangOffer], pods: int, each: int, near: tuple[str, ...] | None = None) -> Home | None:
    return choose_home(offers, pods, each, {}, near)


def test_the_tightest_rack_with_room_is_taken_and_its_fullest_nodes() -> None:
    offers = [offer("a", 8, "r1"), offer("b", 8, "r1"), offer("c", 4, "r2"), offer("d", 8, "r2"), offer("e", 2, "r3")]
    found = home(offers, 3, 4)
    assert found is not None
    assert (found.domain, set(found.nodes)) == (("r2",), {"c", "d"})


def test_a_rack_comes_before_a_block_that_would_be_filled_better() -> None:
    offers = [*(offer(f"x{n}", 8, "b1", "r1") for n in range(4)), *(offer(f"y{n}", 8, "b2", f"s{n}") for n in range(3))]
    found = home(offers, 3, 8)
    assert found is not None
    assert found.domain == ("b1", "r1")


def test_nodes_may_take_unequal_shares_where_equal_ones_do_not_fit() -> None:
    offers = [offer("a", 8, "r1", linked=True), offer("b", 4, "r1", linked=True), offer("c", 4, "r2", linked=True)]
    found = home(offers, 3, 4)
    assert found is not None
    assert (found.domain, set(found.nodes)) in ((("r1",), {"a", "b"}), ((), {"a", "b", "c"}))
    found = home([*offers[:2]], 3, 4)
    assert found is not None
    assert (found.domain, set(found.nodes), found.gbps) == (("r1",), {"a", "b"}, 0.0)


def test_those_placed_before_hold_the_others_near() -> None:
    offers = [
        offer("a", 8, "b1", "r1"),
        offer("b", 8, "b1", "r2"),
        offer("c", 8, "b1", "r2"),
        offer("d", 8, "b2", "r3"),
    ]
    found = home(offers, 2, 8, ("b1", "r1"))
    assert found is not None
    assert found.domain == ("b1",)
    assert home(offers, 1, 8, ("b1", "r1")) == Home(("b1", "r1"), ("a",), 1)


def test_there_is_no_home_without_room_for_all() -> None:
    assert home([offer("a", 8), offer("b", 6)], 4, 4) is None
    assert home([], 1, 1) is None
