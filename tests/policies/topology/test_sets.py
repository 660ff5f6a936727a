"""The best set of free GPUs of a node: exact, the same for twins, and leaving the best rest."""

from collections.abc import Mapping
from itertools import combinations

import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from node_outputs import CUBE_MESH

from kopt.core.hardware.node_topology import LinkType, NicAffinity, NodeTopology, TopologyGpu, TopologyLink, TopologyNic
from kopt.topology.from_node import machine_from
from kopt.topology.graph import Device, DeviceGraph, DeviceKind, Edge, EdgeKind, GpuSpecs
from kopt.topology.rings import ring_gbps
from kopt.topology.sets.best import best_set
from kopt.topology.sets.link_table import table_of
from kopt.topology.sets.symmetry import how_many, representatives


def gpu(index: int) -> Device:
    return Device(DeviceKind.GPU, index)


def node(
    links: Mapping[tuple[int, int], int], numa: dict[int, int], bridges: dict[int, int] | None = None
) -> DeviceGraph:
    """GPUs by the NUMA node that each hangs on, through the PCIe switch in ``bridges`` where it has one."""
    edges = [Edge(gpu(a), gpu(b), EdgeKind.NVLINK, 25.0, count) for (a, b), count in links.items()]
    for index, home in numa.items():
        up = Device(DeviceKind.NUMA, home)
        if bridges and index in bridges:
            bridge = Device(DeviceKind.PCIE_SWITCH, bridges[index])
            edges += [Edge(gpu(index), bridge, EdgeKind.PCIE, 16.0)]
            if Edge(bridge, up, EdgeKind.PCIE, 16.0) not in edges:
                edges += [Edge(bridge, up, EdgeKind.PCIE, 16.0)]
        else:
            edges += [Edge(gpu(index), up, EdgeKind.PCIE, 16.0)]
    return DeviceGraph(GpuSpecs("V100-SXM2-16GB", "nvidia"), tuple(sorted(numa)), tuple(edges))


def rings(graph: DeviceGraph):  # type: ignore[no-untyped-def]
    return lambda gpus: ring_gbps(gpus, graph.between) or 5.0


DGX1 = node(CUBE_MESH, {n: n // 4 for n in range(8)})


def test_four_of_a_cube_mesh_are_a_side_of_the_cube() -> None:
    choice = best_set(DGX1, range(8), 4, rings(DGX1))
    assert choice is not None
    assert choice.exact
    assert choice.gbps == max(rings(DGX1)(one) for one in combinations(range(8), 4))
    assert choice.rest_gbps == choice.gbps
    assert "GPUs 0, 1, 2, 3 of 8" in choice.reason(8).message


def test_a_pair_is_taken_so_that_another_good_pair_stays() -> None:
    links = {(0, 1): 2, (1, 2): 2, (2, 3): 2}
    chain = node(links, dict.fromkeys(range(4), 0))
    choice = best_set(chain, range(4), 2, lambda gpus: chain.between.get((gpus[0], gpus[1]), 1.0))
    assert choice is not None
    assert choice.gpus in ((0, 1), (2, 3))
    assert choice.rest_gbps == 50.0


def test_a_ring_that_links_do_not_close_stays_off_the_way_between_sockets() -> None:
    # 0-1-2 and 2-3-4 want one hop each: from 0 to 2 under one NUMA node, from 2 to 4 between two.
    graph = node({(0, 1): 2, (1, 2): 2, (2, 3): 2, (3, 4): 2}, {n: n // 3 for n in range(6)})
    choice = best_set(graph, (0, 1, 2, 3, 4), 3, rings(graph))
    assert choice is not None
    assert choice.gpus == (0, 1, 2)
    choice = best_set(graph, (1, 2, 3, 4, 5), 3, rings(graph))
    assert choice is not None
    assert choice.gpus == (3, 4, 5)


def test_twins_hang_on_one_bridge_and_are_looked_at_once() -> None:
    boxes = node({}, {n: n // 4 for n in range(8)}, {n: n // 2 for n in range(8)})
    assert table_of(boxes).twin.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(representatives(table_of(boxes), range(8), 2)) == how_many(table_of(boxes), range(8), 2) == 10
    assert table_of(DGX1).twin.tolist() == list(range(8))


def test_there_is_no_set_of_more_gpus_than_are_free() -> None:
    assert best_set(DGX1, (0, 5), 3, rings(DGX1)) is None


@pytest.mark.parametrize(("free", "count"), [((0, 9), 2), ((0, 1), 0)])
def test_a_question_that_makes_no_sense_is_refused(free: tuple[int, ...], count: int) -> None:
    with pytest.raises(ValueError, match="the node has"):
        best_set(DGX1, free, count, rings(DGX1))


def test_sixteen_gpus_behind_one_switch_need_one_look() -> None:
    switch = Device(DeviceKind.LINK_SWITCH, 0)
    flat = DeviceGraph(
        GpuSpecs("V100-SXM3-32GB", "nvidia"),
        tuple(range(16)),
        tuple(Edge(gpu(n), switch, EdgeKind.NVLINK, 150.0) for n in range(16)),
    )
    asked: list[tuple[int, ...]] = []

    def value(gpus: tuple[int, ...]) -> float:
        asked.append(gpus)
        return 150.0

    choice = best_set(flat, range(16), 8, value)
    assert choice is not None
    assert choice.gpus == tuple(range(8))
    assert len(asked) == 2


graphs = st.builds(
    node,
    st.dictionaries(
        st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda pair: pair[0] < pair[1]), st.integers(1, 3)
    ),
    st.just({n: n // 4 for n in range(7)}),
    st.sampled_from([None, {n: n // 2 for n in range(7)}]),
)


@given(graphs, st.sets(st.integers(0, 6), min_size=2), st.integers(2, 4))
@settings(max_examples=examples(150))
def test_no_set_is_faster_than_the_chosen_one(graph: DeviceGraph, free: set[int], count: int) -> None:
    def value(gpus: tuple[int, ...]) -> float:
        pairs = [graph.between.get(pair, 0.0) for pair in combinations(gpus, 2)]
        above = len({graph.way_up(gpu(one))[1] for one in gpus})
        return sum(pairs) + 10 * min(pairs) - above + 20

    choice = best_set(graph, sorted(free), count, value)
    every = list(combinations(sorted(free), count))
    if not every:
        assert choice is None
        return
    assert choice is not None
    best = max(map(value, every))
    assert choice.gbps >= 0.99 * best
    assert set(choice.gpus) <= free
    assert choice.slowest_gbps == min(map(value, every))
    left = [one for one in free if one not in choice.gpus]
    assert choice.rest_gbps == pytest.approx(
        max(map(value, combinations(left, min(count, len(left)))), default=0.0) if len(left) > 1 else 0.0
    )


def test_gpus_beside_one_card_hang_on_one_numa_node_though_nvlink_hides_their_way() -> None:
    pairs = tuple(
        TopologyLink(a, b, LinkType.NVLINK if b - a == 1 else LinkType.SYS, 1 if b - a == 1 else None)
        for a, b in combinations(range(4), 2)
    )
    near = tuple(NicAffinity(gpu, f"mlx5_{gpu // 2}", LinkType.PHB) for gpu in range(4))
    cards = (TopologyNic("mlx5_0"), TopologyNic("mlx5_1"))
    found = machine_from(NodeTopology("n1", tuple(map(TopologyGpu, range(4))), pairs, cards, near)).node
    homes = [found.way_up(gpu(index))[-1] for index in range(4)]
    assert homes[0] == homes[1]
    assert homes[2] == homes[3]
    assert homes[0] != homes[2]
