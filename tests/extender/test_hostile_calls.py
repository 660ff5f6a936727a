"""Calls that no scheduler sends, through the real server: an error each, and the next call is answered."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
from example_budget import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kopt.cluster.runtime.informer import Change, ChangeKind
from kopt.controllers.extender.binding.request import Binder
from kopt.controllers.extender.calls.server import ExtenderServer, ServerSettings
from kopt.controllers.extender.calls.service import Extender
from kopt.controllers.extender.metrics import ExtenderMetrics
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.core.decision import Mode
from kopt.policies.placement.fleet import Fleet
from tests.extender.conftest import gpu_pod
from tests.extender.test_books import node

VERBS = ("filter", "prioritize", "bind")


class Refuses(Binder):
    """Nothing here may reach a cluster."""

    def __init__(self) -> None:
        pass

    async def bind(self, *_: object) -> None:
        raise AssertionError("a call without a pod that was offered was bound")


class Served:
    def __init__(self) -> None:
        self.metrics = ExtenderMetrics()
        self.extender = Extender(Fleet(), Refuses(), ExtenderSettings(Mode.ENFORCE), self.metrics)
        for name in ("a", "b"):
            self.extender.node_changed(Change(ChangeKind.ADDED, ("", name), None, node(name)))
        self.server = ExtenderServer(self.extender, self.metrics, ServerSettings(port=0, drain_s=0))
        self.numbers = itertools.count()

    async def post(self, verb: str, content: bytes) -> httpx.Response:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.server.port}", timeout=60) as http:
            return await http.post(f"/{verb}", content=content)

    def offer(self, names: Any, gpus: int = 1, **changes: Any) -> bytes:
        pod = gpu_pod(f"pod-{next(self.numbers)}", "ns", gpus)
        pod["metadata"]["uid"] = pod["metadata"]["name"]
        return orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": names} | changes)

    async def still_answers(self) -> None:
        reply = await self.post("filter", self.offer(["a", "b"]))
        assert reply.status_code == 200
        (winner,) = reply.json()["NodeNames"]
        assert winner in ("a", "b")
        for uid in list(self.extender.fleet.holdings):
            self.extender.fleet.release(uid)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    one = Served()
    await one.server.start()
    yield one
    await one.server.stop()


SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "Pod",
                    "NodeNames",
                    "Nodes",
                    "metadata",
                    "spec",
                    "uid",
                    "name",
                    "namespace",
                    "annotations",
                    "labels",
                    "containers",
                    "initContainers",
                    "resources",
                    "requests",
                    "limits",
                    "nvidia.com/gpu",
                    "cpu",
                    "memory",
                    "PodName",
                    "PodNamespace",
                    "PodUID",
                    "Node",
                    "kaiwo.ai/gpu-fraction",
                    "kaiwo.ai/gpu-indices",
                    "kaiwo.ai/gpu-memory",
                    "nodeSelector",
                    "overhead",
                    "status",
                    "items",
                ]
            )
            | st.text(max_size=4),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(verb=st.sampled_from(VERBS), body=st.binary(max_size=200) | JSON.map(orjson.dumps))
async def test_any_body_gets_an_answer_and_the_next_call_too(served: Served, verb: str, body: bytes) -> None:
    reply = await served.post(verb, body)
    assert reply.status_code in (200, 400)
    await served.still_answers()


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    verb=st.sampled_from(VERBS[:2]),
    path=st.lists(
        st.sampled_from(
            [
                "metadata",
                "spec",
                "containers",
                "resources",
                "limits",
                "annotations",
                "uid",
                "name",
                "nvidia.com/gpu",
                "cpu",
            ]
        ),
        min_size=1,
        max_size=5,
    ),
    value=JSON,
)
async def test_a_pod_with_any_part_replaced_gets_an_answer(
    served: Served, verb: str, path: list[str], value: Any
) -> None:
    document = orjson.loads(served.offer(["a", "b"]))
    at: Any = document["Pod"]
    for step in path[:-1]:
        found = at[0] if isinstance(at, list) else at
        at = found.setdefault(step, {}) if isinstance(found, dict) else {}
    target = at[0] if isinstance(at, list) else at
    if isinstance(target, dict):
        target[path[-1]] = value
    reply = await served.post(verb, orjson.dumps(document))
    assert reply.status_code in (200, 400)
    await served.still_answers()


async def test_a_hundred_thousand_names_of_which_two_are_known(served: Served) -> None:
    names = [f"node-{number}" for number in range(100_000)] + ["b", "a"]
    reply = await served.post("filter", served.offer(names))
    assert reply.json()["NodeNames"][0] in ("a", "b")


async def test_only_unknown_nodes_are_refused_one_by_one_and_may_be_known_later(served: Served) -> None:
    reply = (await served.post("filter", served.offer(["x", "y"]))).json()
    assert reply["NodeNames"] == []
    assert set(reply["FailedNodes"]) == {"x", "y"}
    assert not reply["FailedAndUnresolvableNodes"]
    assert len(served.extender.decider.unplaced) == 1
    served.extender.node_changed(Change(ChangeKind.ADDED, ("", "x"), None, node("x")))
    assert len(served.extender.decider.could_go_now(10)) == 1


async def test_too_many_gpus_for_any_node_is_for_good(served: Served) -> None:
    reply = (await served.post("filter", served.offer(["a", "b"], gpus=9))).json()
    assert set(reply["FailedAndUnresolvableNodes"]) == {"a", "b"}
    assert not reply["FailedNodes"]


async def test_no_names_leave_no_nodes(served: Served) -> None:
    assert (await served.post("filter", served.offer([]))).json()["NodeNames"] == []
    assert (await served.post("filter", served.offer(None))).json()["NodeNames"] == []


async def test_whole_nodes_in_a_call_are_told_how_to_be_left_out(served: Served) -> None:
    body = orjson.loads(served.offer(None)) | {"Nodes": {"items": []}}
    reply = await served.post("filter", orjson.dumps(body))
    assert reply.status_code == 400
    assert "nodeCacheCapable" in reply.text


async def test_pods_that_are_not_ours_to_place_keep_every_node(served: Served) -> None:
    for change in ({"gpus": 0}, {"gpus": 1, "resource": "gpu.intel.com/i915"}, {"gpus": 1, "resource": "amd.com/gpu"}):
        pod = gpu_pod("other", "ns", **change)
        pod["metadata"]["uid"] = "other"
        body = orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": ["b", "zzz", "a"]})
        assert (await served.post("filter", body)).json()["NodeNames"] == ["b", "zzz", "a"]
        assert (await served.post("prioritize", body)).json() == []
    assert not served.extender.fleet.holdings


async def test_more_than_the_largest_call_is_refused(served: Served) -> None:
    reply = await served.post("filter", b'{"Pod":"' + b"x" * (33 << 20) + b'"}')
    assert reply.status_code == 413
    await served.still_answers()


async def test_a_connection_that_is_cut_in_the_middle_of_a_call_costs_nothing(served: Served) -> None:
    for cut in (b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{", b"\x16\x03\x01", b"GET"):
        _, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
        writer.write(cut)
        await writer.drain()
        writer.close()
    await served.still_answers()


@pytest.mark.parametrize("knows", [False, True])
async def test_a_replica_that_does_not_know_or_lead_answers_nothing_but_its_health(knows: bool) -> None:
    one = Served()
    one.server = ExtenderServer(
        one.extender, one.metrics, ServerSettings(port=0, drain_s=0), ready=lambda: knows, serves=lambda: not knows
    )
    await one.server.start()
    try:
        assert [(await one.post(verb, one.offer(["a"]))).status_code for verb in VERBS] == [503] * 3
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{one.server.port}") as http:
            assert (await http.get("/healthz")).status_code == 200
            assert (await http.get("/readyz")).status_code == (200 if knows else 503)
            assert (await http.get("/leads")).status_code == 503
            assert 'kopt_extender_calls_total{outcome="not_ready",verb="bind"} 1.0' in (await http.get("/metrics")).text
    finally:
        await one.server.stop()
    assert not one.extender.fleet.holdings
