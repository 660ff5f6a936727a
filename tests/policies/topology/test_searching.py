"""Sets of nodes with too many of them to look at each: what is left out cannot be better, and work has an end."""

import random
from collections.abc import Iterator
from itertools import combinations

import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.hardware.bandwidth import Collective
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink
from kopt.topology.from_node import machine_from
from kopt.topology.graph import Machine
from kopt.topology.hardware import CUBE_MESH
from kopt.topology.sets import best as sets
from kopt.topology.sets.branch_and_bound import all_reaching
from kopt.topology.sets.link_table import table_of
from kopt.topology.sets.symmetry import canonical, how_many, representatives, turns
from kopt.topology.sets.within_node import GIB, bus_gbps, choose_gpus, limit_of

PCIE = (LinkType.PIX, LinkType.NODE, LinkType.SYS)


def machine(count: int, seed: int, linked: float) -> Machine:
    """GPUs on two NUMA nodes, some with links of one to three wires, the others joined by PCIe."""
    chance = random.Random(seed)
    links = [
        TopologyLink(a, b, LinkType.NVLINK, chance.randint(1, 3))
        if chance.random() < linked
        else TopologyLink(a, b, PCIE[0] if a // 2 == b // 2 else PCIE[1] if a % 2 == b % 2 else PCIE[2])
        for a, b in combinations(range(count), 2)
    ]
    gpus = tuple(TopologyGpu(index, "V100-SXM2-16GB", numa=index % 2) for index in range(count))
    return machine_from(NodeTopology("n", gpus, tuple(links), vendor="nvidia"))


machines = st.builds(machine, st.integers(4, 9), st.integers(0, 10**6), st.sampled_from([0.0, 0.2, 0.4, 0.7, 1.0]))


@pytest.fixture
def only_search(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No question is small enough to look at every set, and branching has nothing to do but branch."""
    with monkeypatch.context() as patch:
        patch.setattr(sets, "_MOST_SETS", 0)
        patch.setattr("kopt.topology.sets.branch_and_bound._MOST_LEAVES", 0)
        yield


@given(machines, st.integers(2, 6), st.sampled_from(Collective))
@settings(max_examples=examples(60), deadline=None)
def test_no_set_reaches_more_than_its_links_allow(one: Machine, count: int, kind: Collective) -> None:
    limit, table = limit_of(one, count, kind, GIB), table_of(one.node)
    assert limit is not None
    for gpus in combinations(one.node.gpus, min(count, len(one.node.gpus))):
        if len(gpus) == count:
            chosen = table.members([gpus])
            degree = float(table.degrees(chosen)[chosen].min())
            assert bus_gbps(one, gpus, kind=kind, size_bytes=GIB) <= max(limit.linked(degree), limit.unlinked) * (
                1 + 1e-9
            )


@given(machines, st.integers(2, 6), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_the_chosen_set_is_as_fast_as_the_fastest_of_all(one: Machine, count: int, data: st.DataObject) -> None:
    free = data.draw(st.sets(st.sampled_from(one.node.gpus), min_size=2))
    every = {gpus: bus_gbps(one, gpus) for gpus in combinations(sorted(free), count)}
    choice = choose_gpus(one, sorted(free), count)
    if not every:
        assert choice is None
        return
    assert choice is not None
    assert choice.exact
    assert choice.gbps == every[choice.gpus] >= 0.99 * max(every.values())
    assert choice.slowest_gbps == min(every.values())


@pytest.mark.usefixtures("only_search")
def test_a_search_that_says_it_is_exact_has_missed_nothing() -> None:
    exact = 0
    for seed in range(40):
        one = machine(5 + seed % 5, seed, 0.3 + 0.1 * (seed % 5))
        count = 3 + seed % 4
        best = max((bus_gbps(one, gpus) for gpus in combinations(one.node.gpus, count)), default=0.0)
        choice = choose_gpus(one, one.node.gpus, count)
        assert (choice is None) == (best == 0)
        if choice is not None:
            assert choice.gbps >= (0.99 if choice.exact else 0.9) * best
            exact += choice.exact
    assert exact > 10


@given(machines, st.integers(2, 6), st.floats(1, 200))
@settings(max_examples=examples(60), deadline=None)
def test_branch_and_bound_finds_all_sets_of_enough_links(one: Machine, count: int, gbps: float) -> None:
    table = table_of(one.node)
    rows = range(len(table.gpus))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kopt.topology.sets.branch_and_bound._MOST_LEAVES", 0)
        found = all_reaching(table, rows, count, gbps)
    assert found is not None
    wanted = [
        one
        for one in representatives(table, rows, count)
        if count <= len(rows) and table.degrees(one[None, :])[0][one].min() >= gbps
    ]
    assert {one.tobytes() for one in found} == {one.tobytes() for one in wanted}


@given(machines)
@settings(max_examples=examples(60), deadline=None)
def test_twins_are_gpus_whose_swap_changes_no_wire(one: Machine) -> None:
    table = table_of(one.node)
    for a, b in combinations(range(len(table.gpus)), 2):
        swap = list(range(len(table.gpus)))
        swap[a], swap[b] = b, a
        same = (table.gbps[swap][:, swap] == table.gbps).all() and (table.hops[swap][:, swap] == table.hops).all()
        assert same or table.twin[a] != table.twin[b]
    assert how_many(table, range(len(table.gpus)), 3) == len(representatives(table, range(len(table.gpus)), 3))


CUBE = machine_from(
    NodeTopology(
        "n",
        tuple(TopologyGpu(index, "V100-SXM2-16GB", numa=index // 4) for index in range(8)),
        tuple(TopologyLink(a, b, LinkType.NVLINK, wires) for a, b, wires in CUBE_MESH),
        vendor="nvidia",
    )
)


@given(st.one_of(machines, st.just(CUBE)), st.integers(2, 4), st.data())
@settings(max_examples=examples(80), deadline=None)
def test_free_gpus_that_lie_alike_get_the_same_answer(one: Machine, count: int, data: st.DataObject) -> None:
    free = sorted(data.draw(st.sets(st.sampled_from(one.node.gpus), min_size=count)))
    turned, back = canonical(table_of(one.node), free)
    assert sorted(back[gpu] for gpu in turned) == free
    for gpus in combinations(turned, count):
        assert bus_gbps(one, gpus) == pytest.approx(bus_gbps(one, [back[gpu] for gpu in gpus]))
    choice, direct = choose_gpus(one, free, count), sets.best_set(one.node, free, count, lambda x: bus_gbps(one, x))
    assert choice is not None
    assert direct is not None
    assert set(choice.gpus) <= set(free)
    assert choice.gbps == pytest.approx(direct.gbps)
    assert choice.rest_gbps == pytest.approx(direct.rest_gbps)


def test_a_cube_mesh_can_be_turned_four_ways_and_two_switches_eight() -> None:
    assert len(turns(table_of(CUBE.node))) == 4
    kinds = (LinkType.NODE, LinkType.PIX)
    boxes = [TopologyLink(a, b, kinds[a // 2 == b // 2]) for a, b in combinations(range(4), 2)]
    gpus = tuple(TopologyGpu(index, "L4", numa=0) for index in range(4))
    assert len(turns(table_of(machine_from(NodeTopology("n", gpus, tuple(boxes))).node))) == 8
    assert len({canonical(table_of(CUBE.node), free)[0] for free in combinations(range(8), 4)}) < 30


@pytest.mark.parametrize("count", [2, 3, 8, 12, 32])
@pytest.mark.parametrize("linked", [0.0, 0.2, 0.95])
def test_work_has_an_end_on_64_gpus_and_the_answer_is_always_the_same(count: int, linked: float) -> None:
    asked: list[tuple[int, ...]] = []
    answers = set()
    for _ in range(2):
        one = machine(64, 5, linked)
        asked.clear()

        def value(gpus: tuple[int, ...], one: Machine = one) -> float:
            asked.append(gpus)
            return bus_gbps(one, gpus)

        answers.add(sets.best_set(one.node, range(64), count, value, limit_of(one, count, Collective.ALL_REDUCE, GIB)))
        assert len(asked) <= 1_500
        assert len(set(asked)) == len(asked)
    assert len(answers) == 1


def test_the_fastest_set_is_found_among_four_billion() -> None:
    chance = random.Random(3)
    best = set(chance.sample(range(64), 8))
    links = [
        TopologyLink(a, b, LinkType.NVLINK, 4) if {a, b} <= best else TopologyLink(a, b, LinkType.NVLINK, 1)
        for a, b in combinations(range(64), 2)
        if {a, b} <= best or chance.random() < 0.15
    ]
    gpus = tuple(TopologyGpu(index, "V100-SXM2-16GB", numa=0) for index in range(64))
    choice = choose_gpus(machine_from(NodeTopology("n", gpus, tuple(links), vendor="nvidia")), range(64), 8)
    assert choice is not None
    assert set(choice.gpus) == best
    assert choice.exact
