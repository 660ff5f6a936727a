"""``/v1/bandwidth/pairs``: what pairs of nodes were measured to reach is kept, shown, and calibrates answers."""

import json
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from bandwidth_nodes import cube_mesh, strange
from pydantic import TypeAdapter

from kopt.core.hardware.bandwidth import Collective
from kopt.core.hardware.node_topology import NodeTopology
from kopt.core.hardware.pairwise import Health, MeasuredPair, MeasuredPoint
from kopt.core.settings import Settings
from kopt.models.bandwidth.calibration import MOST
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.bandwidth.predictor import BandwidthPredictor, BandwidthQuestion
from kopt.serving.bandwidth.service import BandwidthService
from kopt.serving.contract.bandwidth.pairwise_answers import PairsKept, PairsResponse
from kopt.serving.contract.bandwidth.pairwise_schemas import MAX_MEASUREMENTS
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.pairwise.cluster_calibration import Machines, likeness, points_of
from kopt.serving.pairwise.table import MOST_CLUSTERS, RETENTION_S, KeptMeasurements, KeptNode, PairTable, Scope
from kopt.topology.from_node import machine_from
from tests.serving.conftest import URL, MemorySource, no_store
from tests.serving.test_identity import bearer, caller, guarded, tokens

__all__ = ["caller", "guarded", "tokens"]
NODE = cube_mesh()
NOW_S = time.time()
GIB = 1 << 30
SIZES = tuple(1 << power for power in range(10, 31, 2))
SOFTWARE = "nccl 2.21.5"


@pytest.fixture(scope="session")
def shipped() -> BandwidthPredictor:
    return load_bandwidth("shipped")


def built(source: MemorySource, home: Path, shipped: BandwidthPredictor) -> Endpoint:
    parts = Parts(source, StoredFeatures(no_store), refresh_s=3600, shipped={"bandwidth": lambda: shipped})
    endpoint = assemble(Settings(home=home), parts)
    endpoint.start()
    endpoint.service(BandwidthService).refresh()
    return endpoint


@pytest.fixture
def endpoint(source: MemorySource, tmp_path: Path, shipped: BandwidthPredictor) -> Iterator[Endpoint]:
    found = built(source, tmp_path, shipped)
    yield found
    found.stop()


def client_of(endpoint: Endpoint) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=URL, headers={DEADLINE_HEADER: "30000"})


@pytest.fixture
async def http(endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(endpoint) as client:
        yield client


def reached_us(model: BandwidthPredictor, size: int, times: float = 1.0, node: NodeTopology = NODE) -> float:
    """What two such nodes are answered to take, made slower."""
    question = BandwidthQuestion(machine_from(node), tuple(range(8)), Collective.ALL_REDUCE, size, 2)
    return times * model.estimate(question).latency_us


def pair(model: BandwidthPredictor, a: str, b: str, times: float = 1.5, **more: Any) -> MeasuredPair:
    """A measurement that took ``times`` what the model says."""
    points = tuple(MeasuredPoint(size, reached_us(model, size, times)) for size in SIZES)
    return MeasuredPair(
        (a, b),
        8,
        Collective.ALL_REDUCE,
        **{
            "measured_at": NOW_S - 3600,
            "points": points,
            "alpha_us": 30.0,
            "beta_gbps": 20.0,
            "software": SOFTWARE,
            **more,
        },
    )


def names(count: int) -> list[str]:
    return [f"gpu-{n:02}" for n in range(count)]


def body(
    pairs: Sequence[MeasuredPair], nodes: Sequence[str] = (), node: NodeTopology = NODE, **more: Any
) -> dict[str, Any]:
    return {
        "cluster": "east",
        "pairs": [one.to_dict() for one in pairs],
        "topologies": {name: node.to_dict() for name in nodes},
        **more,
    }


async def post(http: httpx.AsyncClient, document: dict[str, Any], **more: Any) -> dict[str, Any]:
    reply = await http.post("/v1/bandwidth/pairs", json=document, **more)
    assert reply.status_code == 200, reply.text
    TypeAdapter(PairsKept).validate_json(reply.content, strict=True, extra="forbid")
    found: dict[str, Any] = reply.json()
    return found


async def shown(http: httpx.AsyncClient, cluster: str | None = "east", **more: Any) -> dict[str, Any]:
    reply = await http.get("/v1/bandwidth/pairs", params={"cluster": cluster} if cluster else {}, **more)
    assert reply.status_code == 200, reply.text
    TypeAdapter(PairsResponse).validate_json(reply.content, strict=True, extra="forbid")
    found: dict[str, Any] = reply.json()
    return found


async def ask(http: httpx.AsyncClient, **more: Any) -> dict[str, Any]:
    asked = {"topology": NODE.to_dict(), "gpu_sets": [list(range(8))], "nodes": 2, "software": SOFTWARE}
    reply = await http.post("/v1/bandwidth", json=asked | more)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def took_us(found: dict[str, Any]) -> float:
    return float(found["sets"][0]["latency_us"])


def ring(model: BandwidthPredictor, count: int, times: float = 1.5) -> list[MeasuredPair]:
    """Every two of the nodes."""
    there = names(count)
    return [pair(model, a, b, times) for n, a in enumerate(there) for b in there[n + 1 :]]


async def test_measured_pairs_pull_the_answers_of_such_nodes(
    http: httpx.AsyncClient, shipped: BandwidthPredictor
) -> None:
    before = await ask(http)
    kept = await post(http, body(ring(shipped, 4), names(4)))
    assert (kept["cluster"], kept["kept"], kept["unknown_nodes"]) == ("east", 6, [])
    after = await ask(http, cluster="east")
    measured_us = reached_us(shipped, GIB, 1.5)
    assert took_us(after) == pytest.approx(measured_us, rel=0.08)
    (reason,) = after["reasons"]
    assert (reason["code"], reason["numbers"]["pairs"]) == ("CALIBRATED", 6)
    assert "6 healthy pair(s)" in reason["message"]
    one, other = after["sets"][0], before["sets"][0]
    assert one["latency_high_us"] / one["latency_us"] < other["latency_high_us"] / other["latency_us"]
    # Nobody else is moved, and within a node only a little.
    assert await ask(http) == before
    inside = [took_us(await ask(http, nodes=1, **more)) for more in ({}, {"cluster": "east"})]
    assert 1.0 < inside[1] / inside[0] < 1.2
    unlike = await ask(http, cluster="east", topology=strange().to_dict(), nics="4x 100G RoCE")
    assert [one["code"] for one in unlike["reasons"]] == ["NOT_CALIBRATED"]
    without = await ask(http, cluster="west")
    assert took_us(without) == took_us(before)
    assert "No pair of cluster west" in without["reasons"][0]["message"]


async def test_without_a_software_the_answers_are_for_what_the_pairs_ran(
    http: httpx.AsyncClient, shipped: BandwidthPredictor
) -> None:
    await post(http, body(ring(shipped, 3), names(3)))
    assert took_us(await ask(http, cluster="east", software="")) == pytest.approx(
        took_us(await ask(http, cluster="east", software=SOFTWARE))
    )
    others = await ask(http, cluster="east", software="nccl 2.21.5 tree")
    assert "ran nccl 2.21.5" in others["reasons"][0]["message"]


async def test_slow_and_failed_pairs_do_not_poison_the_cluster(
    http: httpx.AsyncClient, shipped: BandwidthPredictor
) -> None:
    good = ring(shipped, 4)
    slow = [
        pair(shipped, name, sick, 9.0, health=Health.SLOW, reason="a ninth")
        for sick in ("sick-1", "sick-3")
        for name in names(4)
    ]
    failed = [
        replace(pair(shipped, name, "sick-2"), points=(), alpha_us=None, beta_gbps=None, health=Health.FAILED)
        for name in names(4)
    ]
    await post(http, body(good, names(4)))
    clean = took_us(await ask(http, cluster="east"))
    await post(http, body([*slow, *failed], ["sick-1", "sick-2", "sick-3"]))
    assert took_us(await ask(http, cluster="east")) == pytest.approx(clean)
    # And one that is slow and was called healthy moves it little: the median counts.
    await post(http, body([pair(shipped, "gpu-00", "odd", 9.0)], ["odd"]))
    assert took_us(await ask(http, cluster="east")) == pytest.approx(clean, rel=0.02)
    found = await shown(http)
    health = {one["name"]: (one["health"], one["reason"]) for one in found["nodes"]}
    assert health["gpu-00"] == ("Healthy", "")
    assert health["sick-1"][0] == "Slow"
    assert "of what such pairs reach" in health["sick-1"][1]
    assert health["sick-2"][0] == "Failed"


async def test_pairs_are_shown_beside_what_is_predicted(http: httpx.AsyncClient, shipped: BandwidthPredictor) -> None:
    await post(http, body(ring(shipped, 3), names(3), domains={"gpu-00": ["block-1", "rack-1"]}))
    await post(http, body([pair(shipped, "gpu-00", "stranger")]))
    found = await shown(http)
    assert found["clusters"] == ["east"]
    assert (await shown(http, None))["clusters"] == ["east"]
    one, *_ = found["pairs"]
    assert MeasuredPair.from_dict(one) == ring(shipped, 3)[0]
    measured = GIB / one["points"][-1]["latency_us"] / 1e3 * 15 / 8
    assert one["predicted_gbps"] == pytest.approx(measured, rel=0.08)
    assert one["low_gbps"] < one["predicted_gbps"] < one["high_gbps"]
    unknown = found["pairs"][-1] if "stranger" in found["pairs"][-1]["nodes"] else found["pairs"][2]
    assert (unknown["nodes"], unknown["predicted_gbps"]) == (["gpu-00", "stranger"], None)
    nodes = {one["name"]: one for one in found["nodes"]}
    assert nodes["gpu-00"]["domains"] == ["block-1", "rack-1"]
    assert nodes["gpu-00"]["machine"] == nodes["gpu-02"]["machine"] == found["expected"][0]["machines"][0]
    assert nodes["stranger"]["machine"] is None
    assert found["expected"][0]["predicted_gbps"] == pytest.approx(one["predicted_gbps"])
    assert (await http.get("/v1/bandwidth/pairs", params={"cluster": "west"})).status_code == 404


async def test_topologies_that_nobody_told_are_asked_for(http: httpx.AsyncClient, shipped: BandwidthPredictor) -> None:
    kept = await post(http, body(ring(shipped, 3), ["gpu-01"]))
    assert kept["unknown_nodes"] == ["gpu-00", "gpu-02"]
    kept = await post(http, body([], ["gpu-00", "gpu-02"]))
    assert kept["unknown_nodes"] == []
    assert (await ask(http, cluster="east"))["reasons"][0]["code"] == "CALIBRATED"


async def test_the_newest_of_a_pair_is_kept_in_whatever_order_they_come(
    http: httpx.AsyncClient, shipped: BandwidthPredictor
) -> None:
    old, new = (pair(shipped, "a", "b", times, measured_at=NOW_S - ago) for times, ago in ((1.0, 900), (2.0, 60)))
    assert (await post(http, body([new])))["kept"] == 1
    assert (await post(http, body([old])))["kept"] == 0
    assert (await post(http, body([new, old, new])))["kept"] == 2
    (found,) = (await shown(http))["pairs"]
    assert MeasuredPair.from_dict(found) == new
    # Judged again: the same measurement with another verdict.
    await post(http, body([replace(new, health=Health.SLOW, reason="slower than the rest")]))
    (found,) = (await shown(http))["pairs"]
    assert found["health"] == "Slow"
    # Another collective or number of GPUs is another measurement.
    await post(http, body([replace(old, gpus_per_node=4), replace(old, collective=Collective.SENDRECV)]))
    assert len((await shown(http))["pairs"]) == 3
    # A clock that is ahead does not win for ever.
    await post(http, body([replace(new, measured_at=time.time() + 3000)]))
    assert (await shown(http))["pairs"][0]["measured_at"] <= time.time()


async def test_what_is_kept_survives_a_restart(
    source: MemorySource, tmp_path: Path, shipped: BandwidthPredictor
) -> None:
    first = built(source, tmp_path, shipped)
    async with client_of(first) as http:
        await post(http, body(ring(shipped, 3), names(3)))
        before, answer = await shown(http), await ask(http, cluster="east")
    first.stop()
    again = built(source, tmp_path, shipped)
    async with client_of(again) as http:
        assert await shown(http) == before
        assert await ask(http, cluster="east") == answer
    again.stop()


GOOD: dict[str, Any] = {
    "nodes": ["a", "b"],
    "gpus_per_node": 8,
    "collective": "all_reduce",
    "measured_at": 1.7e9,
    "points": [{"bytes": 1024, "latency_us": 9.0}],
}


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "cluster"),
        ({"cluster": "", "pairs": []}, "cluster"),
        ({"cluster": "a\x00b", "pairs": []}, "cluster"),
        ({"cluster": "<b>", "pairs": []}, "cluster"),
        ({"cluster": "x" * 300, "pairs": []}, "cluster"),
        ({"cluster": "east"}, "pairs"),
        ({"cluster": "east", "pairs": {}}, "pairs"),
        ({"cluster": "east", "pairs": [GOOD] * (MAX_MEASUREMENTS + 1)}, "pairs"),
        ({"cluster": "east", "pairs": [GOOD | {"nodes": ["b", "a"]}]}, "pairs.0"),
        ({"cluster": "east", "pairs": [GOOD | {"nodes": ["a", "a"]}]}, "pairs.0"),
        ({"cluster": "east", "pairs": [GOOD | {"nodes": ["a"]}]}, "pairs.0.nodes"),
        ({"cluster": "east", "pairs": [GOOD | {"nodes": ["a", "<script>"]}]}, "pairs.0.nodes.1"),
        ({"cluster": "east", "pairs": [GOOD | {"gpus_per_node": 0}]}, "pairs.0.gpus_per_node"),
        ({"cluster": "east", "pairs": [GOOD | {"collective": "magic"}]}, "pairs.0.collective"),
        ({"cluster": "east", "pairs": [GOOD | {"measured_at": -1}]}, "pairs.0.measured_at"),
        ({"cluster": "east", "pairs": [GOOD | {"measured_at": 9e10}]}, "pairs.0.measured_at"),
        ({"cluster": "east", "pairs": [GOOD | {"points": []}]}, "pairs.0"),
        (
            {"cluster": "east", "pairs": [GOOD | {"points": [{"bytes": 1, "latency_us": 0}]}]},
            "pairs.0.points.0.latency_us",
        ),
        ({"cluster": "east", "pairs": [GOOD | {"points": GOOD["points"] * 65}]}, "pairs.0.points"),
        ({"cluster": "east", "pairs": [GOOD | {"health": "Poorly"}]}, "pairs.0.health"),
        ({"cluster": "east", "pairs": [GOOD | {"reason": "x" * 1025}]}, "pairs.0.reason"),
        ({"cluster": "east", "pairs": [GOOD | {"beta_gbps": -3.0}]}, "pairs.0.beta_gbps"),
        ({"cluster": "east", "pairs": [GOOD | {"surprise": 1}]}, "pairs.0.surprise"),
        ({"cluster": "east", "pairs": [], "topologies": {"a": {"gpus": []}}}, "topologies.a.gpus"),
        (
            {
                "cluster": "east",
                "pairs": [],
                "topologies": {"a": {**NODE.to_dict(), "links": [{"a": 0, "b": 99, "type": "SYS"}]}},
            },
            "topologies.a",
        ),
        ({"cluster": "east", "pairs": [], "topologies": {"": NODE.to_dict()}}, "topologies"),
        ({"cluster": "east", "pairs": [], "domains": {"a": ["x"] * 9}}, "domains.a"),
    ],
)
async def test_what_cannot_be_is_refused_with_its_field(
    http: httpx.AsyncClient, document: dict[str, Any], field: str
) -> None:
    reply = await http.post("/v1/bandwidth/pairs", json=document)
    assert reply.status_code == 422, reply.text
    assert any(one["field"].startswith(field) for one in reply.json()["errors"]), reply.text
    assert (await shown(http, None))["clusters"] == []


@pytest.mark.parametrize("content", [b"", b"[", b"[" * 100_000, b'{"cluster": NaN}', b"\xff\xfe", b'{"pairs": 1e999}'])
async def test_bodies_that_are_no_pairs_are_refused(http: httpx.AsyncClient, content: bytes) -> None:
    reply = await http.post("/v1/bandwidth/pairs", content=content, headers={"content-type": "application/json"})
    assert reply.status_code in (400, 422), reply.text


async def test_a_torn_file_costs_the_calibration_and_nothing_else(
    http: httpx.AsyncClient, endpoint: Endpoint, tmp_path: Path, shipped: BandwidthPredictor
) -> None:
    await post(http, body(ring(shipped, 3), names(3)))
    before = await ask(http)
    pairs = endpoint.service(BandwidthService)._pairwise
    assert pairs is not None
    pairs.close()
    for part in tmp_path.glob("bandwidth.db*"):
        part.write_bytes(b"\x00torn" * 5000)
    reply = await http.post("/v1/bandwidth/pairs", json=body(ring(shipped, 3)))
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "30")
    assert "cannot be kept" in reply.json()["detail"]
    assert (await http.get("/v1/bandwidth/pairs")).status_code == 503
    found = await ask(http, cluster="east")
    assert took_us(found) == took_us(before)
    assert found["fallback"] is False
    assert [one["code"] for one in found["reasons"]] == ["NOT_CALIBRATED"]
    assert "cannot be read" in found["reasons"][0]["message"]
    # Once somebody took it away, all is well.
    for part in tmp_path.glob("bandwidth.db*"):
        part.unlink()
    await post(http, body(ring(shipped, 3), names(3)))
    assert (await ask(http, cluster="east"))["reasons"][0]["code"] == "CALIBRATED"


async def test_a_full_disk_is_told_and_what_was_kept_still_counts(
    http: httpx.AsyncClient, endpoint: Endpoint, shipped: BandwidthPredictor
) -> None:
    await post(http, body(ring(shipped, 3), names(3)))
    before = await shown(http)
    pairs = endpoint.service(BandwidthService)._pairwise
    assert pairs is not None
    with pairs.table._db.transaction() as db:
        ((pages,),) = db.query("PRAGMA page_count")
        db.execute(f"PRAGMA max_page_count = {pages}")
    reply = await http.post("/v1/bandwidth/pairs", json=body(ring(shipped, 30)[:400], names(30)))
    assert reply.status_code == 503
    assert "full" in reply.json()["detail"]
    assert await shown(http) == before
    assert (await ask(http, cluster="east"))["reasons"][0]["code"] == "CALIBRATED"


async def test_nobody_reads_or_moves_what_another_measured(
    guarded: Endpoint, caller: httpx.AsyncClient, shipped: BandwidthPredictor
) -> None:
    guarded.service(BandwidthService).slot.current = shipped
    await post(caller, body(ring(shipped, 3), names(3)), headers=bearer("a"))
    forged = [replace(one, measured_at=NOW_S) for one in ring(shipped, 3, 50.0)]
    await post(caller, body(forged, names(3)), headers=bearer("b"))
    late = {DEADLINE_HEADER: "30000"}
    seen = {token: await shown(caller, headers=bearer(token)) for token in ("a", "b")}
    assert seen["a"]["pairs"][0]["points"] != seen["b"]["pairs"][0]["points"]
    asked = {"topology": NODE.to_dict(), "gpu_sets": [list(range(8))], "nodes": 2, "cluster": "east"}
    took = {}
    for token in ("a", "b", "o"):
        reply = await caller.post("/v1/bandwidth", json=asked, headers=bearer(token) | late)
        took[token] = reply.json().get("sets", [{}])[0].get("latency_us")
    assert took["b"] > 5 * took["a"]
    assert (await caller.get("/v1/bandwidth/pairs")).status_code == 401
    assert (await caller.get("/v1/bandwidth/pairs", headers=bearer("g"))).status_code == 403
    assert (await caller.get("/v1/bandwidth/pairs", headers=bearer("o"))).json()["clusters"] == ["east"]


def test_the_points_that_calibrate_are_few_however_many_pairs_there_are(shipped: BandwidthPredictor) -> None:
    machines = Machines({name: KeptNode(json.dumps(NODE.to_dict())) for name in names(12)})
    many = [
        replace(one, collective=kind, gpus_per_node=gpus)
        for one in ring(shipped, 12)
        for kind in Collective
        for gpus in (1, 2, 4, 8)
    ]
    found = points_of(KeptMeasurements("1", tuple(many)), likeness(machine_from(NODE)), machines)
    assert found.pair_count == 66
    assert 0 < len(found.points) <= 48 < MOST
    assert {point.bytes for point in found.points} >= {SIZES[0], SIZES[-1]}


def test_what_is_old_or_too_much_goes(tmp_path: Path, shipped: BandwidthPredictor) -> None:
    table = PairTable(tmp_path / "pairs.db", most=5)
    every = [replace(one, measured_at=NOW_S - n) for n, one in enumerate(ring(shipped, 5))]
    table.keep("me", "east", every, {}, {}, NOW_S)
    kept = table.load("east", Scope("me", every=False))
    assert kept is not None
    assert {one.nodes for one in kept.measurements} == {one.nodes for one in every[:5]}
    table.keep("me", "east", [], {}, {}, NOW_S + RETENTION_S - 2)
    left = table.load("east", Scope("me"))
    assert left is not None
    assert len(left.measurements) == 3
    for n in range(MOST_CLUSTERS + 3):
        table.keep("me", f"c{n}", every[:1], {}, {}, NOW_S + n)
    assert len(table.clusters("me")) == MOST_CLUSTERS
    assert table.load("c1", Scope("me")) is None
    table.close()


def test_what_another_version_kept_is_left_out(tmp_path: Path, shipped: BandwidthPredictor) -> None:
    table = PairTable(tmp_path / "pairs.db")
    table.keep("", "east", ring(shipped, 3), {}, {}, NOW_S)
    with sqlite3.connect(tmp_path / "pairs.db") as db:
        db.execute("UPDATE pair SET document = '{\"nodes\": 3}' WHERE a = 'gpu-00' AND b = 'gpu-01'")
    kept = table.load("east", Scope())
    assert kept is not None
    assert len(kept.measurements) == 2
    table.close()
