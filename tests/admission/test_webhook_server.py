"""The HTTPS server by itself: garbage, faults of our own, probes, and leaving in order."""

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from admission.workloads import deployment, job, review

from kopt.cluster.admission.review import LARGEST_REVIEW_BYTES
from kopt.cluster.runtime.http.certificates import make_pair
from kopt.cluster.workloads.workload import NamespaceDefaults
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.metrics import WebhookMetrics
from kopt.controllers.admission.policy import parse_policy
from kopt.controllers.admission.server import ServerSettings, WebhookServer
from kopt.core.scheduling.submission import Framework

ENFORCE = parse_policy({"metadata": {"name": "default"}, "spec": {"mode": "enforce"}})

UNJUDGED = (
    "kopt met an error of its own and let this object through as it is: no rule was checked, and no queue, scheduler "
    "or size was added. The log of the Deployment kopt-webhook has the error."
)


class Broken(FixedState):
    def queues(self, framework: Framework, namespace: str) -> Any:
        raise RuntimeError("a fault of ours")


class Unknown(FixedState):
    def namespace(self, name: str) -> NamespaceDefaults | None:
        return None


def said_to_its_owner(answer: Any) -> str:
    """The one warning; the API server cuts it at 256 bytes and shows it to whoever submits the object."""
    (warning,) = answer["warnings"]
    assert len(warning) < 250
    return str(warning)


class Serving:
    def __init__(self, tls: tuple[ssl.SSLContext, ssl.SSLContext], view: FixedState, ready: bool) -> None:
        self._client_tls, self.metrics = tls[1], WebhookMetrics()
        settings = ServerSettings(port=0, probe_port=0, drain_s=0.3)
        self.server = WebhookServer(Admissions(view), tls[0], settings, self.metrics, lambda: ready)
        self.http = aiohttp.ClientSession()

    async def post(self, body: bytes, path: str = "/validate") -> tuple[int, Any]:
        url = f"https://127.0.0.1:{self.server.port}{path}"
        async with self.http.post(url, data=body, ssl=self._client_tls) as answer:
            raw = await answer.read()
            return answer.status, orjson.loads(raw)["response"] if answer.status == 200 else raw.decode()

    async def get(self, path: str) -> tuple[int, str]:
        async with self.http.get(f"http://127.0.0.1:{self.server.probe_port}{path}") as answer:
            return answer.status, await answer.text()


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    pair = make_pair(["127.0.0.1"], time.time(), 3600)
    chain = tmp_path / "tls.pem"
    chain.write_bytes(pair.certificate + pair.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain)
    return server, ssl.create_default_context(cadata=pair.authority.decode())


@contextlib.asynccontextmanager
async def serving(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], view: FixedState | None = None, ready: bool = True
) -> AsyncIterator[Serving]:
    one = Serving(tls, view or FixedState(ENFORCE), ready)
    await one.server.start_probes()
    assert (await one.get("/readyz"))[0] == 503, "ready before anything is served"
    await one.server.start()
    try:
        yield one
    finally:
        await one.http.close()
        await one.server.stop()


async def test_a_job_without_a_rule_is_refused_and_counted(tls: Any) -> None:
    async with serving(tls) as one:
        status, answer = await one.post(orjson.dumps(review(job("train"))))
        assert (status, answer["allowed"]) == (200, False)
        assert answer["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
        _, metrics = await one.get("/metrics")
        assert 'kopt_webhook_requests_total{outcome="refused",path="/validate"} 1.0' in metrics


async def test_garbage_is_answered_and_the_server_lives_on(tls: Any) -> None:
    async with serving(tls) as one:
        for body in (b"", b"{", b"null", b"[" * 10_000, b"\xff\xfe", b'{"request": {"uid": ""}}'):
            status, text = await one.post(body)
            assert status == 400, body
            assert "AdmissionReview" in text
        status, answer = await one.post(b'{"request": {"uid": "u", "object": 7}}')
        assert (status, answer["allowed"], answer["uid"]) == (200, True, "u")
        assert (await one.post(b" " * (LARGEST_REVIEW_BYTES + 1)))[0] == 413
        assert (await one.post(b"{}", "/elsewhere"))[0] == 404
        assert not (await one.post(orjson.dumps(review(job("train")))))[1]["allowed"]


async def test_a_fault_of_ours_lets_the_object_through(tls: Any) -> None:
    async with serving(tls, Broken(ENFORCE)) as one:
        for path in ("/mutate", "/validate"):
            status, answer = await one.post(orjson.dumps(review(job("train"))), path)
            assert (status, answer["allowed"]) == (200, True)
            assert "patch" not in answer
            assert said_to_its_owner(answer) == UNJUDGED
        _, metrics = await one.get("/metrics")
        assert 'kopt_webhook_requests_total{outcome="failed",path="/validate"} 1.0' in metrics


async def test_an_object_of_a_namespace_that_cannot_be_read_is_let_through_and_its_owner_told(tls: Any) -> None:
    async with serving(tls, Unknown(ENFORCE)) as one:
        for path in ("/mutate", "/validate"):
            status, answer = await one.post(orjson.dumps(review(job("train"))), path)
            assert (status, answer["allowed"]) == (200, True)
            (warning,) = answer["warnings"]
            assert "could not read its namespace in time" in warning
            assert "warnings" not in (await one.post(orjson.dumps(review(job("cpu", gpus=0))), path))[1]


async def test_an_answer_that_cannot_be_written_lets_the_object_through(tls: Any) -> None:
    policy = parse_policy(
        {
            "metadata": {"name": "default"},
            "spec": {"mode": "enforce", "queues": {"default": "main"}, "schedulers": {"spread": {}}},
        }
    )
    deep: Any = "end"
    for _ in range(500):
        deep = {"a": deep}
    web = deployment("web", pods=3)
    web["spec"]["selector"]["matchLabels"] = deep
    body = json.dumps(review(web)).encode()
    async with serving(tls, FixedState(policy)) as one:
        for path in ("/mutate", "/validate"):
            status, answer = await one.post(body, path)
            assert (status, answer["allowed"]) == (200, True)
            assert "patch" not in answer
        assert said_to_its_owner((await one.post(body, "/mutate"))[1]) == UNJUDGED
        assert "patch" in (await one.post(orjson.dumps(review(job("train"))), "/mutate"))[1]


async def test_before_it_knows_the_policy_it_lets_everything_through(tls: Any) -> None:
    async with serving(tls, ready=False) as one:
        assert (await one.post(orjson.dumps(review(job("train")))))[1]["allowed"]
        assert (await one.get("/readyz"))[0] == 503
        assert (await one.get("/healthz"))[0] == 200


async def test_leaving_it_says_so_first_and_still_answers(tls: Any) -> None:
    async with serving(tls) as one:
        await one.post(orjson.dumps(review(job("train"))))
        leaving = asyncio.ensure_future(one.server.stop())
        await asyncio.sleep(0.05)
        assert (await one.get("/readyz"))[0] == 503
        assert (await one.post(orjson.dumps(review(job("train")))))[0] == 200
        await leaving
        with pytest.raises(aiohttp.ClientConnectorError):
            await one.post(b"{}")
