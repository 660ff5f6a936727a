"""``/v1/bandwidth`` across nodes: which of the offered ones, and which GPUs of each; the client's fallback alike."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest
from bandwidth_nodes import cube_mesh
from pydantic import TypeAdapter
from pydantic_core import to_json

from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink
from kopt.core.hardware.traffic import LinkTraffic
from kopt.core.reason import Reason
from kopt.core.settings import Settings
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.serving.bandwidth.service import BandwidthService
from kopt.serving.client.fallback_bandwidth import fallback_bandwidth
from kopt.serving.contract.bandwidth.answers import (
    BandwidthQuery,
    BandwidthResponse,
    OfferedNode,
    WrongQuestion,
    parse_bandwidth,
)
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from tests.serving.conftest import URL, MemorySource, no_store

WHY = Reason("NO_MODEL", "None.")
NICS = "8x NDR400 IB"
H100 = NodeTopology(
    "n",
    tuple(TopologyGpu(n, "NVIDIA H100 80GB HBM3", numa=n // 4) for n in range(8)),
    tuple(TopologyLink(a, b, LinkType.NVLINK, 18) for a, b in combinations(range(8), 2)),
)
RACKS = [OfferedNode("a", None, ("b", "r1")), OfferedNode("b", None, ("b", "r2")), OfferedNode("c", None, ("b", "r2"))]


@pytest.fixture
def endpoint(source: MemorySource, tmp_path: Path) -> Iterator[Endpoint]:
    shipped = load_bandwidth("shipped")
    parts = Parts(source, StoredFeatures(no_store), refresh_s=3600, shipped={"bandwidth": lambda: shipped})
    built = assemble(Settings(home=tmp_path), parts)
    built.start()
    built.service(BandwidthService).refresh()
    yield built
    built.stop()


@pytest.fixture
async def http(endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL, headers={DEADLINE_HEADER: "30000"}) as client:
        yield client


def query(count: int, offers: list[OfferedNode] = RACKS, **more: Any) -> BandwidthQuery:
    return BandwidthQuery(H100, nics=NICS, count=count, offers=offers, **more)


async def ask(http: httpx.AsyncClient, asked: BandwidthQuery) -> dict[str, Any]:
    reply = await http.post("/v1/bandwidth", json=asked.to_dict())
    assert reply.status_code == 200, reply.text
    TypeAdapter(BandwidthResponse).validate_json(reply.content, strict=True, extra="forbid")
    placed: dict[str, Any] = reply.json()["placement"]
    found, fallback = parse_bandwidth(reply.json()).placement, fallback_bandwidth(asked, WHY).placement
    assert found is not None
    assert fallback is not None
    # Where they go is physics alone: with and without a model the same.
    assert (found.shares, found.domains) == (fallback.shares, fallback.domains)
    assert json.loads(to_json(found)) == placed | {
        name: pytest.approx(value) for name, value in placed.items() if isinstance(value, float)
    }
    return placed


async def test_a_job_for_two_nodes_gets_those_of_one_rack(http: httpx.AsyncClient) -> None:
    placed = await ask(http, query(16, minimum_gigabytes_per_s=10.0))
    assert [one["node"] for one in placed["shares"]] == ["b", "c"]
    assert placed["domains"] == ["b", "r2"]
    assert placed["meets"] is True
    assert placed["bus_low_gigabytes_per_s"] < placed["bus_gigabytes_per_s"] < placed["bus_high_gigabytes_per_s"]
    assert placed["reasons"][0]["code"] == "BEST_NODES"
    alone = await ask(http, query(8, [OfferedNode("d", (0, 1, 2, 3)), *RACKS]))
    assert len(alone["shares"]) == 1
    assert alone["shares"][0]["node"] in "abc"


async def test_a_pair_that_was_slow_is_kept_apart_and_told(http: httpx.AsyncClient) -> None:
    placed = await ask(http, query(16, slow={("c", "b"): 40.0}))
    assert "a" in {one["node"] for one in placed["shares"]}
    assert placed["domains"] == ["b"]


async def test_a_node_may_have_a_topology_of_its_own(http: httpx.AsyncClient) -> None:
    """V100s in a mesh reach a fraction of what the others do."""
    offers = [OfferedNode("old", None, (), cube_mesh()), OfferedNode("new", range(2, 8), ())]
    placed = await ask(http, query(4, offers))
    assert placed["shares"] == [{"node": "new", "gpus": [2, 3, 4, 5]}] or placed["shares"][0]["node"] == "new"


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (query(40), "count"),
        (query(1), "count"),
        (query(16, nodes=2), "nodes"),
        (query(16, free=(0, 1)), "free"),
        (query(16, [*RACKS, RACKS[0]]), "offers"),
        (query(4, [OfferedNode("a", (9,))]), "offers.0.free"),
        (query(4, [OfferedNode("a", None, (), "no table")]), "offers.0.topology.text"),
        (BandwidthQuery(H100, [(0, 1)], nics=NICS, offers=RACKS), "count"),
        (BandwidthQuery(H100, count=16, offers=RACKS), "nics"),
    ],
)
async def test_a_wrong_question_names_its_field(http: httpx.AsyncClient, asked: BandwidthQuery, field: str) -> None:
    reply = await http.post("/v1/bandwidth", json=asked.to_dict())
    assert reply.status_code == 422
    assert field in reply.text
    with pytest.raises(WrongQuestion) as refused:
        fallback_bandwidth(asked, WHY)
    assert refused.value.field == field


async def test_on_several_nodes_like_this_one_the_set_is_chosen_for_their_network(http: httpx.AsyncClient) -> None:
    asked = BandwidthQuery(H100, nics=NICS, count=4, nodes=4)
    reply = await http.post("/v1/bandwidth", json=asked.to_dict())
    best = reply.json()["best"]
    alone = (await http.post("/v1/bandwidth", json={**asked.to_dict(), "nodes": 1})).json()["best"]
    # What the worst set would reach is of four nodes as well, and no longer that of one.
    assert best["worst_gigabytes_per_s"] < alone["worst_gigabytes_per_s"]
    assert reply.json()["placement"] is None


async def test_pairs_that_the_cluster_measured_slow_are_kept_apart_without_being_told(http: httpx.AsyncClient) -> None:
    points = [{"bytes": 1 << 30, "latency_us": 50_000.0}]
    slow = {
        "nodes": ["b", "c"],
        "gpus_per_node": 8,
        "collective": "all_reduce",
        "measured_at": time.time(),
        "points": points,
        "alpha_us": 30.0,
        "beta_gbps": 40.0,
        "health": "Slow",
        "reason": "slow",
    }
    told = await http.post("/v1/bandwidth/pairs", json={"cluster": "east", "pairs": [slow], "topologies": {}})
    assert told.status_code == 200, told.text

    async def nodes(**more: Any) -> set[str]:
        reply = await http.post("/v1/bandwidth", json=query(16, **more).to_dict())
        assert reply.status_code == 200, reply.text
        return {one["node"] for one in reply.json()["placement"]["shares"]}

    assert await nodes() == {"b", "c"}
    assert "a" in await nodes(cluster="east")
    # What the caller knows is newer.
    assert await nodes(cluster="east", slow={("c", "b"): 10_000.0}) == {"b", "c"}


async def test_busy_cards_and_uplinks_move_a_job_and_slow_what_remains(http: httpx.AsyncClient) -> None:
    plain = await ask(http, query(16))
    assert {share["node"] for share in plain["shares"]} == {"b", "c"}
    busy = [LinkTraffic("NIC0", 40.0, node="b")]
    alone = [offer for offer in RACKS if offer.name != "a"]
    slowed = await ask(http, query(16, offers=alone, traffic=busy))
    assert slowed["bus_gigabytes_per_s"] < 0.8 * plain["bus_gigabytes_per_s"]
    assert slowed["bus_low_gigabytes_per_s"] < slowed["bus_gigabytes_per_s"]
    assert slowed["bus_high_gigabytes_per_s"] == plain["bus_high_gigabytes_per_s"]
    (reason,) = [item for item in slowed["reasons"] if item["code"] == "TRAFFIC"]
    assert "NIC0 carries 40 of 50 GB/s of 1 other job" in reason["message"]
    moved = await ask(http, query(16, traffic=busy))
    assert {share["node"] for share in moved["shares"]} == {"a", "c"}
    assert moved["bus_gigabytes_per_s"] == plain["bus_gigabytes_per_s"]
    uplink = LinkTraffic("uplink r1", 380.0, capacity_gigabytes_per_s=400.0)
    back = await ask(http, query(16, traffic=[*busy, uplink]))
    assert back["bus_gigabytes_per_s"] < plain["bus_gigabytes_per_s"]


async def test_rates_that_are_too_old_count_as_none_and_are_named(http: httpx.AsyncClient) -> None:
    plain = await ask(http, query(16))
    old = await ask(http, query(16, traffic=[LinkTraffic("NIC0", 40.0, node="b", age_s=3600)]))
    assert old["bus_gigabytes_per_s"] == plain["bus_gigabytes_per_s"]
    assert "TRAFFIC_STALE" in [reason["code"] for reason in old["reasons"]]


@pytest.mark.parametrize(
    ("traffic", "field", "says"),
    [
        (LinkTraffic("NIC9", 1.0), "traffic.0", "do you mean NIC"),
        (LinkTraffic("NIC0", 1.0, node="bb"), "traffic.0.node", "do you mean b?"),
        (LinkTraffic("uplink r3", 1.0, capacity_gigabytes_per_s=9.0), "traffic.0.link", "do you mean r"),
        (LinkTraffic("NIC0", 60.0), "traffic.0", "which carries 50"),
        (LinkTraffic("NIC0", -1.0), "traffic.0.gigabytes_per_s", ""),
    ],
)
async def test_traffic_that_cannot_be_is_refused(
    http: httpx.AsyncClient, traffic: LinkTraffic, field: str, says: str
) -> None:
    reply = await http.post("/v1/bandwidth", json=query(16, traffic=[traffic]).to_dict())
    assert reply.status_code == 422, reply.text
    assert reply.json()["errors"][0]["field"] == field
    assert says in reply.text
    with pytest.raises(WrongQuestion):
        fallback_bandwidth(query(16, traffic=[traffic]), WHY)


async def test_traffic_of_nodes_needs_offers(http: httpx.AsyncClient) -> None:
    asked = BandwidthQuery(H100, gpu_sets=[(0, 1)], traffic=[LinkTraffic("GPU0", 9.0, node="b")])
    reply = await http.post("/v1/bandwidth", json=asked.to_dict())
    assert reply.json()["errors"][0]["field"] == "traffic.0"
