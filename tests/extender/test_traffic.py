"""Gangs and the traffic that other jobs put on nodes' network cards."""

import time
from typing import Any

from kopt.cluster.runtime.informer import Change, ChangeKind
from kopt.controllers.extender.books.topologies import report_of
from kopt.controllers.overview.devices.fleet import fleet_of, node_offers
from kopt.core.times import stamp
from tests.extender.test_gangs import RACKS, Scene, switched

Object = dict[str, Any]


def _busy(name: str, gbps: float, age_s: float = 0.0) -> Object:
    traffic = {"measuredAt": stamp(time.time() - age_s), "links": [{"link": "mlx5_3", "gigabytesPerS": gbps}]}
    return switched(name) | {"status": {"traffic": traffic}}


def _place(*documents: Object) -> tuple[list[str], str]:
    scene = Scene(RACKS, linked=True)
    for document in documents:
        name = document["metadata"]["name"]
        scene.extender.topology_changed(Change(ChangeKind.UPDATED, ("", name), None, report_of(document)))
    placed = sorted(scene.place(f"p{n}", pods=2) for n in range(2))
    return placed, scene.told("p0")["GANG_TOGETHER"]


async def test_a_gang_leaves_nodes_alone_whose_cards_are_busy() -> None:
    quiet, plain = _place()
    assert quiet == ["b", "c"]
    assert "traffic" not in plain
    placed, told = _place(_busy("c", 45.0))
    assert placed == ["d", "e"]
    assert "other jobs' traffic on 1 node(s) was counted" in told


async def test_old_rates_and_impossible_ones_count_as_none() -> None:
    assert _place(_busy("c", 45.0, age_s=3600))[0] == ["b", "c"]
    assert _place(_busy("c", 4500.0))[0] == ["b", "c"]


def test_a_node_offers_what_traffic_leaves_of_it() -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "c", "uid": "c", "labels": {}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    (offer,), _ = node_offers(fleet_of([node], [], [_busy("c", 25.0)], [], []))
    assert offer.machine.card_shares[3] == 0.5
    assert offer.machine.card_shares[4] == 1.0
    (idle,), _ = node_offers(fleet_of([node], [], [switched("c")], [], []))
    assert not idle.machine.card_shares
