"""``/v1/bandwidth`` with the shipped model: sets, the best set, measurements, deadlines, hostile questions."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import topology_outputs
from bandwidth_nodes import cube_mesh, strange, without_symmetry
from example_budget import examples
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from kopt.core.hardware.bandwidth import BandwidthKind, Collective
from kopt.core.hardware.node_topology import LinkType
from kopt.core.prediction import ModelVersion
from kopt.core.settings import Settings
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.bandwidth.predictor import BandwidthPredictor
from kopt.models.registry.registry import RegisteredModel, RegistryError
from kopt.sdk.bandwidth import bandwidth
from kopt.serving.bandwidth.service import BandwidthService, bandwidth_slot
from kopt.serving.contract.bandwidth import schemas as bandwidth_schemas
from kopt.serving.contract.bandwidth.answers import BandwidthResponse
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.http.deadline import Deadline
from kopt.topology.from_node import machine_from
from kopt.topology.sets.within_node import choose_gpus
from tests.serving.conftest import URL, MemorySource, no_store

NODE = cube_mesh().to_dict()
GIB = 1 << 30


@pytest.fixture(scope="session")
def shipped() -> BandwidthPredictor:
    return load_bandwidth("shipped")


@pytest.fixture
def endpoint(source: MemorySource, tmp_path: Path, shipped: BandwidthPredictor) -> Iterator[Endpoint]:
    parts = Parts(source, StoredFeatures(no_store), refresh_s=3600, shipped={"bandwidth": lambda: shipped})
    built = assemble(Settings(home=tmp_path), parts)
    built.start()
    service(built).refresh()
    yield built
    built.stop()


@pytest.fixture
async def http(endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL, headers={DEADLINE_HEADER: "30000"}) as client:
        yield client


def service(endpoint: Endpoint) -> BandwidthService:
    return endpoint.service(BandwidthService)


async def ask(http: httpx.AsyncClient, topology: Any = NODE, **more: Any) -> dict[str, Any]:
    reply = await http.post("/v1/bandwidth", json={"topology": topology, **more})
    assert reply.status_code == 200, reply.text
    TypeAdapter(BandwidthResponse).validate_json(reply.content, strict=True, extra="forbid")
    document: dict[str, Any] = reply.json()
    return document


def codes(document: dict[str, Any]) -> set[str]:
    return {reason["code"] for reason in document["reasons"]}


async def test_every_set_is_answered_as_the_library_would(http: httpx.AsyncClient, shipped: BandwidthPredictor) -> None:
    asked = [(0, 1, 2, 3), (0, 1, 4, 6), (7, 0)]
    found = await ask(http, gpu_sets=asked, collective="AllGather", bytes=1 << 26, gpu="V100-SXM2-32GB")
    assert (found["fallback"], found["collective"], found["best"], found["reasons"]) == (False, "all_gather", None, [])
    assert found["model"] == shipped.version.to_dict()
    for gpus, one in zip(asked, found["sets"], strict=True):
        same = bandwidth(cube_mesh(), gpus, "all_gather", 1 << 26, gpu="V100-SXM2-32GB", model=shipped)
        assert one["gpus"] == list(gpus)
        assert one["latency_us"] == pytest.approx(same.latency_us)
        assert one["bus_low_gigabytes_per_s"] == pytest.approx(same.bus_low_gigabytes_per_s)
        for end in ("low", "high"):
            shares = (
                one[f"{kind}_{end}_gigabytes_per_s"] / one[f"{kind}_gigabytes_per_s"] for kind in ("algorithm", "bus")
            )
            assert next(shares) == pytest.approx(next(shares))
        assert one["algorithm_gigabytes_per_s"] == pytest.approx((1 << 26) / one["latency_us"] / 1e3)
        assert one["meets"] is None
    fast, slow, _ = (one["bus_gigabytes_per_s"] for one in found["sets"])
    assert fast > slow


async def test_software_and_cards_that_the_caller_knows_count(http: httpx.AsyncClient) -> None:
    four = {"gpu_sets": [[0, 1, 2, 3, 4, 5, 6, 7]], "nodes": 4}
    slow = await ask(http, nics="1x 10G Eth", software="TCP", **four)
    fast = await ask(http, nics="8x NDR400 IB", **four)
    assert (fast["nodes"], slow["nodes"]) == (4, 4)
    assert fast["sets"][0]["bus_gigabytes_per_s"] > 5 * slow["sets"][0]["bus_gigabytes_per_s"]


@pytest.mark.parametrize("print_", [topology_outputs.topo_m, topology_outputs.rocm_topo])
async def test_a_tools_output_is_read_where_it_is(http: httpx.AsyncClient, print_: Any) -> None:
    text = print_(topology_outputs.machine(3))
    read = topology_outputs.node(text)
    asked: dict[str, Any] = {"gpu_sets": [[0, 1], [0, 1, 2, 3]], "gpu": "MI250X"}
    from_text, from_node = await ask(http, {"text": text}, **asked), await ask(http, read.to_dict(), **asked)
    assert from_text == from_node
    assert from_text["warnings"] == list(read.warnings)


async def test_a_minimum_is_held_against_the_kind_that_is_named(http: httpx.AsyncClient) -> None:
    (one,) = (await ask(http, gpu_sets=[[0, 1, 2, 3]]))["sets"]
    for kind in BandwidthKind:
        reached = one[f"{kind}_gigabytes_per_s"]
        for minimum, meets in ((0.99 * reached, True), (1.01 * reached, False)):
            found = await ask(http, gpu_sets=[[0, 1, 2, 3]], minimum_gigabytes_per_s=minimum, of=kind.value)
            assert found["sets"][0]["meets"] is meets, kind


async def test_of_unknown_hardware_only_the_interval_decides(http: httpx.AsyncClient) -> None:
    (one,) = (await ask(http, strange().to_dict(), gpu_sets=[[0, 1, 2]]))["sets"]
    assert one["unknown"]
    assert "UNKNOWN_TOPOLOGY" in codes(one)
    low, high = one["bus_low_gigabytes_per_s"], one["bus_high_gigabytes_per_s"]
    for minimum, meets in ((0.9 * low, True), ((low + high) / 2, None), (1.1 * high, False)):
        found = await ask(http, strange().to_dict(), gpu_sets=[[0, 1, 2]], minimum_gigabytes_per_s=minimum)
        assert found["sets"][0]["meets"] is meets
    found = await ask(http, strange().to_dict(), gpu_sets=[[0, 1]], minimum_gigabytes_per_s=1, of="link")
    assert found["sets"][0]["meets"] is None


async def test_the_best_of_the_free_gpus_is_chosen_and_answered_beside(http: httpx.AsyncClient) -> None:
    free = [0, 1, 4, 5, 6, 7]
    found = await ask(http, count=4, free=free, gpu_sets=[free[:4]], minimum_gigabytes_per_s=1e5)
    choice = choose_gpus(machine_from(cube_mesh()), free, 4)
    assert choice is not None
    best = found["best"]
    assert (tuple(best["gpus"]), best["rest_gigabytes_per_s"]) == (choice.gpus, pytest.approx(choice.rest_gbps))
    assert (best["considered"], best["exact"]) == (choice.considered, True)
    assert "BEST_SET" in codes(best)
    assert best["meets"] is False
    assert best["bus_gigabytes_per_s"] > found["sets"][0]["bus_gigabytes_per_s"]
    everything = await ask(http, count=8)
    assert (everything["best"]["gpus"], everything["sets"]) == (list(range(8)), [])


async def test_measurements_pull_only_the_answers_that_they_came_with(http: httpx.AsyncClient) -> None:
    asked = {"gpu_sets": [[0, 1, 2, 3]], "bytes": GIB}
    before = await ask(http, **asked)
    (one,) = before["sets"]
    measured_us = 1.3 * one["latency_us"]
    probe = {"gpus": [0, 1, 2, 3], "bytes": GIB, "latency_us": measured_us}
    told = await ask(http, probes=[probe] * 8, **asked)
    assert abs(told["sets"][0]["latency_us"] / measured_us - 1) < 0.1
    assert (
        told["sets"][0]["latency_high_us"] / told["sets"][0]["latency_us"] < one["latency_high_us"] / one["latency_us"]
    )
    assert codes(told) == {"CALIBRATED"}
    assert await ask(http, **asked) == before


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "topology"),
        ({"topology": 7, "count": 2}, "topology"),
        ({"topology": {}, "count": 2}, "topology.node.gpus"),
        ({"topology": {"gpus": []}, "count": 2}, "topology.node.gpus"),
        ({"topology": {**NODE, "kind": "fabric"}, "count": 2}, "topology.node.kind"),
        ({"topology": {**NODE, "gpus": [*NODE["gpus"], NODE["gpus"][0]]}, "count": 2}, "topology"),
        ({"topology": {**NODE, "links": [{"a": 0, "b": 9, "type": "SYS"}]}, "count": 2}, "topology"),
        ({"topology": {**NODE, "links": [{"a": 0, "b": 1, "type": "wet string"}]}}, "topology.node.links.0.type"),
        ({"topology": {**NODE, "gpus": [{"index": 0, "numa": [1]}]}}, "topology.node.gpus.0.numa"),
        ({"topology": {"text": "GPU0 GPU1"}, "count": 2}, "topology.text"),
        ({"topology": {"text": ""}, "count": 2}, "topology.output.text"),
        ({"topology": {"text": "x" * (2 << 20)}, "count": 2}, "topology.output.text"),
        ({"topology": {"text": topology_outputs.fabric()}, "count": 2}, "topology.text"),
        ({"topology": {"text": "{}", "gpus": []}, "count": 2}, "topology.output.gpus"),
        ({"topology": NODE}, "gpu_sets"),
        ({"topology": NODE, "gpu_sets": [[0, 1], []]}, "gpu_sets.1"),
        ({"topology": NODE, "gpu_sets": [[0, 1], [0, 9]]}, "gpu_sets.1"),
        ({"topology": NODE, "gpu_sets": [[0, 0]]}, "gpu_sets.0"),
        ({"topology": NODE, "gpu_sets": [[3]]}, "gpu_sets.0"),
        ({"topology": NODE, "gpu_sets": [[-1, 0]]}, "gpu_sets.0.0"),
        ({"topology": NODE, "gpu_sets": [[0, 1]] * 257}, "gpu_sets"),
        ({"topology": NODE, "gpu_sets": [[0, True]]}, "gpu_sets.0.1"),
        ({"topology": NODE, "count": 2, "collective": "all_together"}, "collective"),
        ({"topology": NODE, "count": 2, "collective": 7}, "collective"),
        ({"topology": NODE, "count": 2, "bytes": 1 << 45}, "bytes"),
        ({"topology": NODE, "count": 2, "bytes": 0}, "bytes"),
        ({"topology": NODE, "count": 2, "nodes": 0}, "nodes"),
        ({"topology": strange().to_dict(), "count": 2, "nodes": 2}, "nics"),
        ({"topology": NODE, "count": 1}, "count"),
        ({"topology": NODE, "count": 9}, "count"),
        ({"topology": NODE, "count": 3, "free": [0, 1]}, "count"),
        ({"topology": NODE, "count": 2, "free": [0, 1, 12]}, "free"),
        ({"topology": NODE, "gpu_sets": [[0, 1]], "free": [0, 1]}, "count"),
        ({"topology": NODE, "count": 2, "minimum_gigabytes_per_s": -1}, "minimum_gigabytes_per_s"),
        ({"topology": NODE, "count": 2, "of": "copper"}, "of"),
        (
            {"topology": NODE, "count": 2, "probes": [{"gpus": [0, 1], "bytes": 1, "latency_us": 0}]},
            "probes.0.latency_us",
        ),
        ({"topology": NODE, "count": 2, "probes": [{"gpus": [0, 9], "bytes": 1, "latency_us": 1}]}, "probes.0"),
        ({"topology": NODE, "count": 2, "surprise": 1}, "surprise"),
    ],
)
async def test_wrong_questions_are_refused_with_the_field(
    http: httpx.AsyncClient, endpoint: Endpoint, body: dict[str, Any], field: str
) -> None:
    for model in (service(endpoint).slot.current, None):
        service(endpoint).slot.current = model
        if model is None and "probes" in body:
            # Without a model there is nothing that measurements could pull.
            continue
        reply = await http.post("/v1/bandwidth", json=body)
        assert reply.status_code == 422, reply.text
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.json()["errors"][0]["field"] == field


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("bytes", "NaN"),
        ("bytes", "1e9"),
        ("bytes", "9" * 400),
        ("minimum_gigabytes_per_s", "NaN"),
        ("minimum_gigabytes_per_s", "Infinity"),
        ("minimum_gigabytes_per_s", "1e999"),
        ("deadline_ms", "NaN"),
    ],
)
async def test_numbers_that_are_none_are_refused(http: httpx.AsyncClient, name: str, number: str) -> None:
    text = json.dumps({"topology": NODE, "count": 2})[:-1] + f', "{name}": {number}}}'
    reply = await http.post("/v1/bandwidth", content=text, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, name)


_NUMBERS = st.none() | st.integers(-2, 9) | st.sampled_from([0.0, 25.0, 1e6, 1e7])
_LINKS = st.lists(
    st.fixed_dictionaries(
        {"a": st.integers(0, 5), "b": st.integers(0, 5), "type": st.sampled_from([one.value for one in LinkType])},
        optional={"count": _NUMBERS, "gigabytes_per_s": _NUMBERS, "weight": _NUMBERS},
    ),
    max_size=8,
)
_ANY_NODE = st.fixed_dictionaries(
    {"gpus": st.lists(st.integers(0, 5).map(lambda n: {"index": n, "name": "MI300X" if n else ""}), max_size=5)},
    optional={
        "links": _LINKS,
        "switches": st.just([{"gpus": [0, 1, 2]}]),
        "vendor": st.sampled_from(["amd", "NVIDIA"]),
        "nics": st.lists(st.fixed_dictionaries({"name": st.text(max_size=3), "gbit_per_s": _NUMBERS})),
    },
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    topology=_ANY_NODE,
    sets=st.lists(st.lists(st.integers(0, 5), max_size=4, unique=True), max_size=3),
    kind=st.sampled_from(list(Collective)),
    bytes_=st.sampled_from([1, 65_536, GIB, 1 << 44]),
    nodes=st.sampled_from([1, 2, 100_000]),
    nics=st.sampled_from(["", "8x NDR400 IB", "0x", "9" * 200]),
    count=st.none() | st.integers(1, 6),
)
def test_any_node_is_answered_with_finite_numbers_or_refused(
    application: FastAPI,
    topology: Any,
    sets: Any,
    kind: Collective,
    bytes_: int,
    nodes: int,
    nics: str,
    count: int | None,
) -> None:
    async def once() -> None:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(application), base_url=URL, headers={DEADLINE_HEADER: "30000"}
        ) as http:
            body = {
                "topology": topology,
                "gpu_sets": sets,
                "collective": kind.value,
                "bytes": bytes_,
                "nodes": nodes,
                "nics": nics,
                "count": count,
            }
            reply = await http.post("/v1/bandwidth", json=body)
        assert reply.status_code in (200, 422), reply.text
        if reply.status_code == 422:
            assert reply.json()["errors"][0]["field"]
            return
        found = reply.json()
        assert not found["fallback"], found["reasons"]
        for one in (*found["sets"], *([found["best"]] if count else [])):
            assert 0 < one["latency_low_us"] <= one["latency_us"] <= one["latency_high_us"] < float("inf")
            assert 0 < one["bus_low_gigabytes_per_s"] <= one["bus_high_gigabytes_per_s"] < float("inf")

    asyncio.run(once())


async def test_past_the_deadline_links_alone_answer_and_say_so(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"gpu_sets": [[0, 1, 2, 3], [0, 1]], "count": 2}
    model = await ask(http, **asked)
    ended = threading.Event()
    monkeypatch.setattr(BandwidthPredictor, "estimate", lambda *_: ended.wait(60))
    try:
        found = await ask(http, deadline_ms=50, **asked)
    finally:
        ended.set()
    assert (found["fallback"], found["model"]["name"], codes(found)) == (True, "links", {"DEADLINE"})
    assert found["best"]["gpus"] == model["best"]["gpus"]
    for wide, one in zip(found["sets"], model["sets"], strict=True):
        assert wide["bus_low_gigabytes_per_s"] < one["bus_gigabytes_per_s"] < wide["bus_high_gigabytes_per_s"]
        assert wide["latency_high_us"] / wide["latency_us"] > one["latency_high_us"] / one["latency_us"]


async def test_the_fallback_promises_nothing_that_its_interval_does_not(
    http: httpx.AsyncClient, endpoint: Endpoint
) -> None:
    service(endpoint).slot.current = None
    (one,) = (await ask(http, gpu_sets=[[0, 1, 2, 3]]))["sets"]
    for minimum, meets in (
        (0.9 * one["bus_low_gigabytes_per_s"], True),
        (one["bus_gigabytes_per_s"], None),
        (1.1 * one["bus_high_gigabytes_per_s"], False),
    ):
        found = await ask(http, gpu_sets=[[0, 1, 2, 3]], minimum_gigabytes_per_s=minimum)
        assert found["sets"][0]["meets"] is meets
    assert codes(found) == {"NO_MODEL"}


async def test_a_model_that_fails_is_not_the_callers_outage(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BandwidthPredictor, "estimate", lambda *_: 1 / 0)
    assert codes(await ask(http, gpu_sets=[[0, 1]])) == {"MODEL_ERROR"}


async def test_a_choice_that_nobody_waits_for_is_given_up(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kopt.serving.bandwidth.service._FALLBACK_S", 0.005)
    body = {"topology": without_symmetry(64).to_dict(), "count": 8, "deadline_ms": 5}
    replies = await asyncio.gather(*(http.post("/v1/bandwidth", json=body) for _ in range(4)))
    for reply in replies:
        assert reply.status_code == 503, reply.text
        assert reply.headers["retry-after"] == "1"
    # Both threads are free again, though nobody has waited for what they were asked.
    assert not (await ask(http, gpu_sets=[[0, 1]]))["fallback"]


async def test_answers_are_counted(http: httpx.AsyncClient, endpoint: Endpoint) -> None:
    await ask(http, gpu_sets=[[0, 1], [0, 2]], count=2)
    await ask(http, strange().to_dict(), gpu_sets=[[0, 1]])
    service(endpoint).slot.current = None
    await ask(http, gpu_sets=[[0, 1]])
    text = (await http.get("/metrics")).text
    assert 'kopt_bandwidth_answers_total{hardware="known"} 3.0' in text
    assert 'kopt_bandwidth_answers_total{hardware="unknown"} 1.0' in text
    assert 'kopt_bandwidth_fallbacks_total{reason="NO_MODEL"} 1.0' in text
    assert 'kopt_bandwidth_model_serving{version="shipped"} 1.0' in text
    assert 'kopt_requests_total{route="/v1/bandwidth",status="200"} 3.0' in text


class _Registered(MemorySource):
    """Version 3 of bandwidth is the champion, or refused."""

    bandwidth: Any = None

    def resolve(self, name: str, alias: str) -> RegisteredModel:
        if name != "bandwidth":
            return super().resolve(name, alias)
        return RegisteredModel(name, "3", "3" * 64, "run", 0.0, (alias,))

    def load(self, name: str, version: str) -> Any:
        if self.bandwidth is None:
            raise RegistryError(f"{name} version {version} is refused: no trusted signature")
        return self.bandwidth


class _Silent(BandwidthPredictor):
    def estimate(self, request: Any) -> Any:
        raise ValueError("nothing was learned")


async def test_the_champion_answers_once_it_is_trusted_and_sound(shipped: BandwidthPredictor) -> None:
    source = _Registered()
    slot = bandwidth_slot(source, lambda: shipped)
    assert slot.refresh()
    assert slot.current is shipped
    assert slot.error is not None
    assert "signature" in slot.error.message
    source.bandwidth = _Silent()
    slot._refused = None
    slot.refresh()
    assert slot.current is shipped, "a model that cannot answer never serves"
    sound = load_bandwidth("shipped")
    sound.version = ModelVersion("bandwidth", "3", "3" * 64)
    source.bandwidth, slot._refused = sound, None
    assert slot.refresh()
    assert slot.version == sound.version


async def test_the_model_is_listed_as_the_one_that_answers(http: httpx.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()["models"]
    assert ("bandwidth", "shipped", True) in {(one["name"], one["version"], one["serving"]) for one in listed}


async def test_nodes_are_read_once_and_forgotten_in_the_end(
    http: httpx.AsyncClient, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = service(endpoint)._nodes
    await ask(http, gpu_sets=[[0, 1]])
    (first,) = held.values()
    await ask(http, gpu_sets=[[2, 3]])
    assert list(held.values()) == [first]
    for number in range(40):
        await ask(http, {**NODE, "node": f"n{number}"}, gpu_sets=[[0, 1]])
    assert list(held.values()) == [first], "nodes that differ in their names only are read once"
    for number in range(40):
        await ask(http, {**NODE, "tool": f"tool {number}"}, gpu_sets=[[0, 1]])
    assert len(held) == 32
    assert first not in held.values()


async def test_two_deadlines_the_shorter_counts(http: httpx.AsyncClient, endpoint: Endpoint) -> None:
    seen: list[Deadline] = []
    answer = service(endpoint).answer

    async def noting(request: Any, deadline: Deadline, *scope: Any) -> Any:
        seen.append(deadline)
        return await answer(request, deadline, *scope)

    service(endpoint).answer = noting  # type: ignore[method-assign]
    await ask(http, gpu_sets=[[0, 1]], deadline_ms=20_000)
    await ask(http, gpu_sets=[[0, 1]], deadline_ms=60_000)
    assert [one.budget_s for one in seen] == [20.0, 30.0]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_tools_print_fits_the_schema(seed: int) -> None:
    for print_ in (topology_outputs.topo_m, topology_outputs.rocm_topo, topology_outputs.nccl_xml):
        document = topology_outputs.node(print_(topology_outputs.machine(seed, gpus=8))).to_dict()
        bandwidth_schemas.NodeIn.model_validate_json(json.dumps(document))
    document["gpus"][0]["index"] = "0"
    with pytest.raises(ValidationError):
        bandwidth_schemas.NodeIn.model_validate_json(json.dumps(document))
