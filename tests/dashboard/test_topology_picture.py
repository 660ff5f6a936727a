"""Where the drawing puts GPUs, switches, cards and links, for machines whose shape is known."""

import math
from collections.abc import Sequence

import node_outputs
import pytest
import topology_outputs as rendered
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.hardware.node_topology import DegradedPart, NodeTopology
from kopt.dashboard.pages.topology.figure import drawn
from kopt.dashboard.pages.topology.picture import EDGE_R, SWITCH_R, Picture, picture
from kopt.dashboard.pages.topology.style import bundles
from kopt.formats.topology import parse
from kopt.topology.from_node import machine_from


def drawing(text: str, gpu: str = "", chosen: Sequence[int] = (), degraded: Sequence[DegradedPart] = ()) -> Picture:
    node = parse(text)
    assert isinstance(node, NodeTopology)
    return picture(node, machine_from(node, gpu=gpu).node, chosen, degraded)


def cube(**more: Sequence[DegradedPart] | Sequence[int]) -> Picture:
    return drawing(node_outputs.topo_m(8, node_outputs.CUBE_MESH, {"mlx5_0": 0, "mlx5_1": 4}), "V100-SXM2-16GB", **more)  # type: ignore[arg-type]


def matrix(ways: Sequence[Sequence[str]], cards: Sequence[Sequence[str]]) -> str:
    return rendered.topo_m(rendered.Machine(tuple(map(tuple, ways)), tuple(map(tuple, cards))))


def test_every_link_is_drawn_once_and_a_pair_of_links_is_wider() -> None:
    one = cube()
    direct = [wire for wire in one.wires if wire.direct]
    assert len(direct) == len(node_outputs.CUBE_MESH)
    widths = {bundle.name: bundle.width for bundle in bundles(one)}
    assert widths["NVLINK 50 GB/s"] > widths["NVLINK 25 GB/s"] > widths["PCIe 16 GB/s"]


def test_only_links_among_the_chosen_are_highlighted() -> None:
    one = cube(chosen=(0, 1, 2))
    assert sum(wire.chosen for wire in one.wires) == 3
    assert sorted(mark.text for mark in one.devices if mark.chosen) == ["0", "1", "2"]


def test_numa_nodes_are_boxes_on_their_side_and_gpus_stand_in_order() -> None:
    one = cube()
    assert [box.description for box in one.boxes] == ["NUMA node 0", "NUMA node 1"]
    places = {mark.text: mark.at for mark in one.devices if mark.kind == "gpu"}
    assert all(places[gpu][0] > 0 for gpu in "0123")
    assert all(places[gpu][0] < 0 for gpu in "4567")
    assert [gpu for gpu, _ in sorted(places.items(), key=lambda one: math.atan2(*one[1]) % math.tau)] == list(
        "01234567"
    )


def test_gpus_of_a_switch_hang_on_it_and_its_card_beside_them() -> None:
    near = [
        ["X", "PIX", "SYS", "SYS"],
        ["PIX", "X", "SYS", "SYS"],
        ["SYS", "SYS", "X", "PHB"],
        ["SYS", "SYS", "PHB", "X"],
    ]
    one = drawing(matrix(near, [["PIX", "SYS"], ["PIX", "SYS"], ["SYS", "PHB"], ["SYS", "PHB"]]))
    radii = {wire.description: math.hypot(*wire.points[-1]) for wire in one.wires}
    ends = [radius for words, radius in radii.items() if words.startswith("GPU ")]
    assert ends == pytest.approx([SWITCH_R, SWITCH_R, EDGE_R, EDGE_R])
    # A card behind the switch hangs on the switch, one beyond the host's bridge at the host.
    feet = {words.split(",")[0]: radius for words, radius in radii.items() if words.startswith("mlx5")}
    assert feet == pytest.approx({"mlx5_0": SWITCH_R, "mlx5_1": EDGE_R})


def test_a_card_tells_the_switch_that_nvlink_hides() -> None:
    linked = [["X" if a == b else "NV4" if a // 2 == b // 2 else "SYS" for b in range(4)] for a in range(4)]
    together = drawing(matrix(linked, [["PXB"], ["PXB"], ["SYS"], ["SYS"]]))
    assert sum(wire.description == "PCIe switch" for wire in together.wires) == 1
    alone = drawing(matrix(linked, [["PXB"], ["NODE"], ["SYS"], ["SYS"]]))
    assert not any(wire.description == "PCIe switch" for wire in alone.wires)


def test_every_two_gpus_with_all_links_meet_in_a_switch() -> None:
    gpus = 8
    ways = [["X" if a == b else "NV18" for b in range(gpus)] for a in range(gpus)]
    one = drawing(matrix(ways, [["SYS"]] * gpus), "H100")
    assert sum(wire.direct for wire in one.wires) == gpus
    assert [mark.text for mark in one.devices if mark.kind == "switch"] == ["NVSwitch"]
    assert any("mlx5_0" in note for note in one.remarks)


def test_what_is_degraded_is_marked_where_it_is() -> None:
    one = cube(
        degraded=(
            DegradedPart("link GPU0 GPU3", 2, 1),
            DegradedPart("link GPU0 GPU7", 1, 0),
            DegradedPart("lanes GPU5", 16, 8),
            DegradedPart("nic mlx5_1", 200, 100),
            DegradedPart("gpu 0000:99:00.0", 1, 0),
        )
    )
    worn = [wire for wire in one.wires if wire.degraded]
    assert [wire.kind for wire in worn] == ["NVLINK", "link that is down"]
    assert {bundle.dash for bundle in bundles(one) if bundle.wires[0].degraded} == {"dash"}
    assert [mark.description.split(",")[0] for mark in one.devices if mark.degraded] == ["GPU 5", "mlx5_1"]
    assert "degraded: gpu 0000:99:00.0: 0 of 1" in one.remarks


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 17), st.integers(0, 8))
def test_any_machine_is_drawn_whole_and_nothing_on_top_of_another(seed: int, gpus: int, cards: int) -> None:
    one = drawing(rendered.topo_m(rendered.machine(seed, gpus, cards)))
    places = [mark.at for mark in one.devices if mark.kind == "gpu"]
    assert len(places) == gpus
    assert min((math.dist(a, b) for a in places for b in places if a is not b), default=1.0) > 0.2
    shown = [mark.at for mark in one.devices if mark.kind == "card"]
    named = " ".join(one.remarks).count("mlx5_")
    assert len(shown) + named == cards
    assert min((math.dist(a, b) for a in shown for b in shown if a is not b), default=1.0) > 0.03
    assert drawn(one).to_json()
