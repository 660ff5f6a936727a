"""NVLinkOptimal by bandwidth: of a discovered node's free GPUs the set whose collectives run fastest."""

from itertools import combinations

import pytest

from kopt.core.placement import TopologyPreference
from kopt.core.topology import LinkType, NodeTopology, TopologyGpu, TopologyLink
from kopt.policies.placement.links import links_of
from kopt.policies.placement.topology import best_set

NVLINK = TopologyPreference.NVLINK_OPTIMAL
# The DGX-1 with V100s (NVIDIA DGX-1 white paper, figure 4).
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def node(links: dict[tuple[int, int], int], indexes: range = range(8)) -> NodeTopology:
    gpus = tuple(TopologyGpu(index, "V100-SXM2-16GB", numa=index % 8 // 4) for index in indexes)
    first = indexes[0]
    pairs = tuple(
        TopologyLink(a + first, b + first, LinkType.NVLINK, links[a, b])
        if (a, b) in links else TopologyLink(a + first, b + first, LinkType.SYS)
        for a, b in combinations(range(len(indexes)), 2)
    )  # fmt: skip
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
