"""Nodes for a job that may need more than one: one if it fits, equal shares in one rack, the fullest nodes first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.topology.graph import Device, DeviceGraph, DeviceKind, Edge, EdgeKind, GpuSpecs, Machine, Network
from kopt.topology.sets.across_nodes import ClusterChoice, NodeOffer, choose_nodes

SWITCH = Device(DeviceKind.LINK_SWITCH, 0)
H100 = GpuSpecs("H100-SXM5-80GB", "nvidia", 450.0, 64.0, 3350.0, 132, 4)
NODE = DeviceGraph(
    H100, tuple(range(8)), tuple(Edge(Device(DeviceKind.GPU, n), SWITCH, EdgeKind.NVLINK, 450.0) for n in range(8))
)
MACHINE = Machine(NODE, Network(8, 50.0, "8x NDR400 IB"), installed=8)


def offer(name: str, free: int, *domains: str, machine: Machine = MACHINE) -> NodeOffer:
    return NodeOffer(name, machine, tuple(range(8 - free, 8)), domains)


def test_a_job_that_fits_into_one_node_gets_the_one_that_it_fills_best() -> None:
    choice = choose_nodes([offer("empty", 8), offer("half", 4), offer("three", 3)], 4)
    assert choice is not None
    assert [one.node for one in choice.shares] == ["half"]
    assert choice.shares[0].gpus == (4, 5, 6, 7)


def test_a_larger_job_stays_in_one_rack_where_one_has_room() -> None:
    offers = [offer("a1", 8, "b", "r1"), offer("b1", 8, "b", "r2"), offer("b2", 8, "b", "r2"), offer("c", 8, "b", "r3")]
    choice = choose_nodes(offers, 16)
    assert choice is not None
    assert {one.node for one in choice.shares} == {"b1", "b2"}
    assert choice.domains == ("b", "r2")
    assert "within b/r2" in choice.reason().message


def test_shares_are_equal_and_the_fewest_nodes_win_where_the_network_is_what_binds() -> None:
    offers = [offer("a", 8), offer("b", 6), offer("c", 6), offer("d", 2)]
    choice = choose_nodes(offers, 12)
    assert choice is not None
    assert {len(one.gpus) for one in choice.shares} == {6}


def test_nodes_whose_network_is_not_known_are_still_placed() -> None:
    blind = Machine(NODE, None, installed=8)
    choice = choose_nodes([offer("a", 8, machine=blind), offer("b", 8, machine=blind)], 16)
    assert choice is not None
    assert choice.gbps == 0.0


def test_there_is_no_choice_where_there_is_no_room() -> None:
    assert choose_nodes([offer("a", 4), offer("b", 3)], 8) is None
    assert choose_nodes([], 1) is None


def test_no_gpus_are_no_job() -> None:
    with pytest.raises(ValueError, match="a job of 0 GPUs"):
        choose_nodes([offer("a", 4)], 0)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from(["r1", "r2", ""])), min_size=1, max_size=8),
    st.integers(1, 24),
)
def test_what_is_chosen_is_free_and_as_much_as_was_asked_for(nodes: list[tuple[int, str]], count: int) -> None:
    offers = [offer(f"n{n}", free, *([rack] if rack else [])) for n, (free, rack) in enumerate(nodes)]
    choice = choose_nodes(offers, count)
    if choice is None:
        assert max(free for free, _ in nodes) < count
        return
    free = {one.name: set(one.free) for one in offers}
    assert sum(len(one.gpus) for one in choice.shares) == count
    assert len({one.node for one in choice.shares}) == len(choice.shares)
    assert len({len(one.gpus) for one in choice.shares}) == 1
    for share in choice.shares:
        assert set(share.gpus) <= free[share.node]
        assert offers[int(share.node[1:])].domains[: len(choice.domains)] == choice.domains or len(choice.shares) == 1


def test_pairs_that_were_slow_are_kept_apart_where_others_would_do() -> None:
    offers = [offer(name, 8, "b", "r1") for name in "abc"]
    assert {one.node for one in placed(offers, 16, {}).shares} == {"a", "b"}
    choice = placed(offers, 16, {("a", "b"): 40.0, ("a", "c"): 0.0})
    assert ({one.node for one in choice.shares}, choice.gbps > 300) == ({"b", "c"}, True)
    choice = placed(offers[:2], 16, {("a", "b"): 40.0})
    assert ({one.node for one in choice.shares}, choice.gbps) == ({"a", "b"}, 40.0)


def test_a_rack_of_slow_pairs_is_left_and_what_others_reach_is_told() -> None:
    inside, across = [offer(name, 8, "b", "r1") for name in "ab"], offer("c", 8, "b", "r2")
    choice = placed([*inside, across], 16, {("a", "b"): 40.0})
    assert (choice.domains, "c" in {one.node for one in choice.shares}) == (("b",), True)
    choice = placed([*inside, across], 16, {("a", "c"): 40.0, ("b", "c"): 40.0})
    assert choice.domains == ("b", "r1")


def test_shares_are_of_whole_pods() -> None:
    offers = [offer("a", 6), offer("b", 6), offer("c", 4), offer("d", 4)]
    choice = choose_nodes(offers, 12, multiple=4)
    assert choice is not None
    assert [len(one.gpus) for one in choice.shares] == [4, 4, 4]
    assert choose_nodes(offers[:2], 12, multiple=4) is None


def placed(offers: list[NodeOffer], count: int, slow: dict[tuple[str, str], float]) -> ClusterChoice:
    choice = choose_nodes(offers, count, slow=slow)
    assert choice is not None
    return choice
