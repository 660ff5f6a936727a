"""``bandwidth`` of the client: the endpoint's answer, and links alone, marked, where it has none."""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import topology_outputs
from bandwidth_nodes import cube_mesh, strange, without_symmetry
from pydantic_core import to_json

from kopt.core.hardware.bandwidth import BandwidthKind, Collective, MeasuredCollective
from kopt.core.settings import Settings
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.bandwidth.predictor import BandwidthPredictor
from kopt.serving.bandwidth.service import BandwidthService
from kopt.serving.client.blocking import PredictionClient
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.client.fallback_bandwidth import fallback_bandwidth
from kopt.serving.client.transport import EndpointFailure, RequestRefused
from kopt.serving.contract.bandwidth.answers import BandwidthQuery, WrongQuestion, parse_bandwidth
from kopt.serving.contract.bandwidth.schemas import BANDWIDTH_REQUEST
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.endpoint.deploy import free_port
from tests.serving.conftest import URL, MemorySource, no_store

QUERY = BandwidthQuery(
    cube_mesh(),
    [(0, 1, 2, 3), (0, 5)],
    Collective.ALL_REDUCE,
    1 << 28,
    gpu="V100-SXM2-32GB",
    minimum_gigabytes_per_s=20.0,
    of=BandwidthKind.ALGORITHM,
    count=4,
    free=range(8),
    probes=[MeasuredCollective((0, 1), Collective.BROADCAST, 1 << 20, 60.0)],
)
PATIENT_S = 60.0


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
def served(endpoint: Endpoint) -> AsyncPredictionClient:
    return AsyncPredictionClient(URL, transport=httpx.ASGITransport(create_app(endpoint, manage=False)))


def client_of(answer: Callable[[httpx.Request], httpx.Response], **options: Any) -> AsyncPredictionClient:
    return AsyncPredictionClient(URL, transport=httpx.MockTransport(answer), **options)


async def test_it_asks_and_understands_the_real_endpoint(served: AsyncPredictionClient) -> None:
    found = await served.bandwidth(QUERY, deadline_s=PATIENT_S)
    assert not found.fallback
    assert found.model.version == "shipped"
    assert [one.gpus for one in found.sets] == [(0, 1, 2, 3), (0, 5)]
    assert found.sets[0].meets is not None
    assert found.best is not None
    assert found.best.exact
    assert [reason.code for reason in found.reasons] == ["CALIBRATED"]
    assert parse_bandwidth(json.loads(to_json(found))) == found
    text = topology_outputs.topo_m(topology_outputs.machine(3))
    of_four = replace(QUERY, gpu_sets=[(0, 1, 2, 3)], free=None)
    by_text = await served.bandwidth(replace(of_four, topology=text), deadline_s=PATIENT_S)
    by_document = await served.bandwidth(
        replace(of_four, topology=topology_outputs.node(text).to_dict()), deadline_s=PATIENT_S
    )
    assert by_text == by_document


@pytest.mark.parametrize("topology", ["document", "node", "text"])
async def test_with_nobody_there_links_alone_answer_and_say_why(topology: str) -> None:
    text = topology_outputs.rocm_topo(topology_outputs.machine(5))
    node = topology_outputs.node(text)
    given: Any = {"document": node.to_dict(), "node": node, "text": text}[topology]
    query = replace(QUERY, topology=given, gpu_sets=[(0, 1), (1, 2, 3)], count=2, free=None, gpu="MI250X")
    async with AsyncPredictionClient(f"http://127.0.0.1:{free_port()}", deadline_s=0.3) as client:
        found = await client.bandwidth(query)
    assert found.fallback
    assert [reason.code for reason in found.reasons] == ["ENDPOINT_UNREACHABLE"]
    assert found.model.name == "links"
    assert found.warnings == node.warnings
    for one in found.sets:
        low, high = one.bus_low_gigabytes_per_s, one.bus_high_gigabytes_per_s
        assert high / low > 4
    assert found.best is not None
    assert parse_bandwidth(json.loads(to_json(found))) == found


async def test_the_fallback_is_wider_than_the_model_and_holds_its_answer(served: AsyncPredictionClient) -> None:
    for kind in Collective:
        for size in (1 << 12, 1 << 22, 1 << 30):
            query = replace(QUERY, collective=kind, bytes=size, probes=(), count=None, free=None)
            told = await served.bandwidth(query, deadline_s=PATIENT_S)
            (alone, *_), (model, *_) = _fallback(query).sets, told.sets
            assert alone.bus_low_gigabytes_per_s < model.bus_gigabytes_per_s
            assert model.bus_gigabytes_per_s < alone.bus_high_gigabytes_per_s


def _fallback(query: BandwidthQuery) -> Any:
    return fallback_bandwidth(query, EndpointFailure("DEADLINE", "Late.").reason)


async def test_an_unknown_node_is_answered_more_widely_still() -> None:
    (known,), (unknown,) = (
        _fallback(BandwidthQuery(node, [(0, 1, 2)], minimum_gigabytes_per_s=1.0, of=BandwidthKind.LINK)).sets
        for node in (cube_mesh(), strange())
    )
    assert unknown.unknown
    widths = [one.bus_high_gigabytes_per_s / one.bus_low_gigabytes_per_s for one in (known, unknown)]
    assert widths[1] > 1.5 * widths[0]
    assert (known.meets, unknown.meets) == (True, None)


NOT_A_SPEED = {"a": 0, "b": 1, "type": "NVLINK", "gigabytes_per_s": float("nan")}
WRONG = [
    (replace(QUERY, gpu_sets=[(0, 9)]), "gpu_sets.0"),
    (replace(QUERY, gpu_sets=[(0,)]), "gpu_sets.0"),
    (replace(QUERY, gpu_sets=(), count=None, free=None), "gpu_sets"),
    (replace(QUERY, count=7, free=[0, 1]), "count"),
    (replace(QUERY, count=2, free=[0, 99]), "free"),
    (replace(QUERY, bytes=1 << 60), "bytes"),
    (replace(QUERY, topology=strange(), nodes=4), "nics"),
    (replace(QUERY, topology="what is this"), "topology.text"),
    (replace(QUERY, topology=topology_outputs.fabric()), "topology.text"),
    (replace(QUERY, topology={"gpus": [{"index": 0}, {"index": 0}]}), "topology"),
]


@pytest.mark.parametrize(("query", "field"), WRONG)
async def test_a_wrong_query_is_refused_alike_with_and_without_an_endpoint(
    served: AsyncPredictionClient, query: BandwidthQuery, field: str
) -> None:
    # At an endpoint each, to hear of one mistake only.
    query = replace(query, probes=())
    with pytest.raises(RequestRefused, match=rf"422: .*{field}"):
        await served.bandwidth(query, deadline_s=PATIENT_S)
    async with client_of(lambda _: httpx.Response(500)) as client:
        with pytest.raises(RequestRefused, match=rf"422: {field}"):
            await client.bandwidth(query, deadline_s=0.1)


@pytest.mark.parametrize(
    "node",
    [
        {"gpus": [{"index": 0}, {"index": 1, "numa": [7]}]},
        {"gpus": [{"index": 1e999}]},
        {"gpus": [7]},
        {"gpus": "abc"},
        {"gpus": []},
        {"links": 3},
        {},
        {"gpus": [{"index": 0}, {"index": 1}], "links": [NOT_A_SPEED]},
    ],
)
def test_documents_that_no_endpoint_saw_are_refused_not_crashed_on(node: Any) -> None:
    with pytest.raises(WrongQuestion):
        _fallback(BandwidthQuery(node, [(0, 1)]))


@pytest.mark.parametrize("answer", [{"schema": "kopt/v1"}, {"schema": "kopt/v9"}, {"schema": "kopt/v1", "sets": 3}])
async def test_an_endpoint_that_lies_is_not_believed(answer: dict[str, Any]) -> None:
    async with client_of(lambda _: httpx.Response(200, json=answer)) as client:
        found = await client.bandwidth(QUERY)
    assert (found.fallback, found.reasons[0].code) == (True, "ENDPOINT_ERROR")


async def test_a_fallback_that_takes_too_long_is_given_up() -> None:
    query = BandwidthQuery(without_symmetry(64), count=8)
    # Every look at this clock is a fifth of a second later than the one before.
    clock = itertools.count(0.0, 0.2).__next__
    async with client_of(lambda _: httpx.Response(500), clock=clock) as client:
        with pytest.raises(EndpointFailure):
            await client.bandwidth(query, deadline_s=0.1)


def test_the_synchronous_client_does_the_same() -> None:
    with PredictionClient(f"http://127.0.0.1:{free_port()}", deadline_s=0.2) as client:
        found = client.bandwidth(QUERY)
    assert found.fallback
    assert found.sets == _fallback(QUERY).sets


def test_a_query_says_what_the_schema_asks_for() -> None:
    read = BANDWIDTH_REQUEST.validate_json(json.dumps(QUERY.to_dict()))
    assert (read.count, read.free, read.bytes, len(read.probes)) == (4, list(range(8)), 1 << 28, 1)
    bare = BandwidthQuery(cube_mesh(), [(0, 1)])
    assert BANDWIDTH_REQUEST.validate_json(json.dumps(bare.to_dict())).minimum_gigabytes_per_s is None


async def test_many_questions_at_once_are_answered_each_on_their_own(served: AsyncPredictionClient) -> None:
    queries = [replace(QUERY, gpu_sets=[(0, n)], count=None, free=None, probes=()) for n in range(1, 8)]
    found = await asyncio.gather(*(served.bandwidth(one, deadline_s=PATIENT_S) for one in queries))
    assert [one.sets[0].gpus for one in found] == [(0, n) for n in range(1, 8)]


def test_the_shipped_model_is_what_is_served(endpoint: Endpoint) -> None:
    assert isinstance(endpoint.service(BandwidthService).slot.current, BandwidthPredictor)
