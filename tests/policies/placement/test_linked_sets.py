"""NVLinkOptimal by bandwidth: of a discovered node's free GPUs the set whose collectives run fastest."""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pytest
from node_outputs import CUBE_MESH

from kopt.core.hardware.bandwidth import BandwidthKind, BandwidthMinimum
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink
from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.scheduling.placement import FleetNode, PodRequest, TopologyPreference
from kopt.core.units import Bytes
from kopt.policies.placement.links import links_of
from kopt.policies.placement.state import FleetState
from kopt.policies.placement.topology import Topologies, best_set

NVLINK = TopologyPreference.NVLINK_OPTIMAL


def node(links: Mapping[tuple[int, int], int], indexes: range = range(8)) -> NodeTopology:
    gpus = tuple(TopologyGpu(index, "V100-SXM2-16GB", numa=index % 8 // 4) for index in indexes)
    first = indexes[0]
    pairs = tuple(
        TopologyLink(a + first, b + first, LinkType.NVLINK, links[a, b])
        if (a, b) in links
        else TopologyLink(a + first, b + first, LinkType.SYS)
        for a, b in combinations(range(len(indexes)), 2)
    )
    return NodeTopology("n1", gpus, pairs)


@pytest.mark.parametrize(
    ("free", "count", "slots"),
    [
        (0b11111111, 4, (0, 1, 2, 3)),
        (0b11111111, 2, (0, 3)),
        (0b00110110, 2, (1, 2)),
        (0b11110001, 4, (4, 5, 6, 7)),
    ],
)
def test_the_fastest_set_of_the_free_gpus_is_taken(free: int, count: int, slots: tuple[int, ...]) -> None:
    fit = best_set(links_of(node(CUBE_MESH)), free, count, NVLINK)
    assert fit.slots == slots
    assert fit.quality == pytest.approx(1.0)


def test_slots_are_places_and_not_the_indexes_of_the_tool() -> None:
    fit = best_set(links_of(node(CUBE_MESH, range(8, 16))), 0b11111111, 4, NVLINK)
    assert fit.slots == (0, 1, 2, 3)


def test_what_is_left_is_rated_below_an_empty_node() -> None:
    links = links_of(node(CUBE_MESH))
    assert 0 < best_set(links, 0b00001110, 2, NVLINK).quality <= 1
    assert best_set(links, 0b00000011, 2, NVLINK).quality < best_set(links, 0b00001001, 2, NVLINK).quality


def test_gpus_that_no_link_joins_do_not_keep_the_preference() -> None:
    links = links_of(node(CUBE_MESH))
    assert best_set(links, 0b10000001, 2, NVLINK).quality == 0
    assert best_set(links_of(node({})), 0b11111111, 4, NVLINK).quality == 0


@pytest.mark.parametrize(
    ("minimum", "count", "reached"),
    [
        (BandwidthMinimum(BandwidthKind.LINK, 200.0), 4, True),
        (BandwidthMinimum(BandwidthKind.LINK, 201.0), 4, False),
        (BandwidthMinimum(BandwidthKind.BUS, 60.0), 4, True),
        (BandwidthMinimum(BandwidthKind.ALGORITHM, 60.0), 4, False),
        (BandwidthMinimum(BandwidthKind.BUS, 600.0), 8, False),
        (BandwidthMinimum(BandwidthKind.BUS, 600.0), 1, True),
    ],
)
@pytest.mark.parametrize("preference", [NVLINK, TopologyPreference.ANY])
def test_a_minimum_is_held_against_the_bandwidth_it_means(
    minimum: BandwidthMinimum, count: int, reached: bool, preference: TopologyPreference
) -> None:
    assert best_set(links_of(node(CUBE_MESH)), 0b11111111, count, preference, minimum).reaches is reached


@pytest.mark.parametrize(("required", "placed"), [(True, False), (False, True)])
def test_a_node_of_unknown_links_is_refused_a_minimum_only_where_topology_is_required(
    required: bool, placed: bool
) -> None:
    minimum = BandwidthMinimum(BandwidthKind.LINK, 100.0)
    asked = PodRequest(gpus=GpuRequest(2), topology=NVLINK, minimum=minimum, topology_required=required)
    state = FleetState()
    state.set_node(FleetNode("n1", 1000, Bytes(1 << 30), gpus=4))
    found = Topologies().reach(state, asked, np.array([0]))
    assert found.tolist() == [placed]
