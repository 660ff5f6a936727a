"""Size recommendations at admission: written when known, never waited for past the budget."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from admission.patching import patched
from admission.workloads import Object, pod, review
from aiohttp import web
from aiohttp.test_utils import TestServer

from kopt.cluster.admission.review import parse_review
from kopt.cluster.workloads.pod_sizing import JobType
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.main import sizing_source
from kopt.controllers.admission.policy import parse_policy
from kopt.controllers.admission.sizes.cache import SizingCache, SizingSettings
from kopt.core.units import MilliGpu
from kopt.serving.client.client import AsyncPredictionClient

TYPE = JobType("image", ("train",), MilliGpu(1000), 1)
GIB = 1 << 30
ANSWER = {
    "memory": {"peak_bytes": 6 * GIB, "low_bytes": 5 * GIB, "high_bytes": 8 * GIB, "probability": 0.95},
    "model": {"name": "sizing", "version": "7"},
    "method": "combined",
    "gpu": "A100-SXM4-80GB",
}


def view(mode: str) -> FixedState:
    return FixedState(
        parse_policy(
            {
                "metadata": {"name": "default"},
                "spec": {"mode": mode, "queues": {"default": "main"}, "tracing": {"samplesPerThousand": 0}},
            }
        )
    )


async def answer_always(_: Mapping[str, Any]) -> Mapping[str, Any]:
    return ANSWER


@contextlib.asynccontextmanager
async def stalled_endpoint() -> AsyncIterator[str]:
    """Accepts connections and never says a word."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@contextlib.asynccontextmanager
async def sizing_endpoint(answer: Object) -> AsyncIterator[str]:
    """Speaks ``/v1/sizing`` as interfaces define it."""

    async def sizing(request: web.Request) -> web.Response:
        asked = await request.json()
        assert asked.keys() == {"workload", "profile", "gpu", "namespace"}
        return web.json_response(answer)

    application = web.Application()
    application.router.add_post("/v1/sizing", sizing)
    runner = web.AppRunner(application)
    await runner.setup()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        await web.SockSite(runner, listening).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        await runner.cleanup()


async def admit(workload: Object, mode: str, sizes: SizingCache, **fields: Any) -> Object:
    admissions = Admissions(view(mode), sizes)
    one = await admissions.mutate(parse_review(orjson.dumps(review(workload, **fields))))
    return patched(workload, one.answer.patch)


async def test_a_stalled_endpoint_costs_one_budget_and_then_nothing() -> None:
    async with stalled_endpoint() as url, AsyncPredictionClient(url, deadline_s=5) as client:
        sizes = SizingCache(client.sizing)
        started_s = time.monotonic()
        first = await admit(pod("one"), "enforce", sizes)
        waited_s = time.monotonic() - started_s
        assert 0.29 <= waited_s < 1.0
        assert "annotations" not in first["metadata"]
        started_s = time.monotonic()
        for number in range(20):
            other = pod("two")
            other["spec"]["containers"][0]["args"] = [str(number)]
            await admit(other, "enforce", sizes)
        assert time.monotonic() - started_s < 2.0, "they waited again"
        await sizes.close()


async def test_a_burst_on_a_stalled_endpoint_waits_together() -> None:
    async with stalled_endpoint() as url, AsyncPredictionClient(url, deadline_s=5) as client:
        sizes = SizingCache(client.sizing)
        started_s = time.monotonic()
        await asyncio.gather(*(admit(pod(f"p{number}"), "annotate", sizes) for number in range(200)))
        assert time.monotonic() - started_s < 5.0, "they waited one after the other"
        await sizes.close()


async def test_a_known_size_is_written_down_with_model_reason_and_confidence() -> None:
    async with sizing_endpoint(ANSWER) as url, AsyncPredictionClient(url, deadline_s=5) as client:
        sizes = SizingCache(client.sizing)
        notes = (await admit(pod("one"), "annotate", sizes))["metadata"]["annotations"]
        assert notes["kaiwo.ai/recommended-memory"] == str(8 * 1024)
        assert notes["kaiwo.ai/recommended-model"] == "sizing:7"
        assert notes["kaiwo.ai/recommended-confidence"] == "0.95"
        assert "95% of such jobs stay below 8.0 GiB" in notes["kaiwo.ai/recommended-reason"]
        assert "kaiwo.ai/gpu-memory" not in notes


@pytest.mark.parametrize(("mode", "asked"), [("observe", "9000"), ("annotate", "9000"), ("enforce", "8192")])
async def test_only_enforce_changes_what_is_asked_for(mode: str, asked: str) -> None:
    one = pod("one")
    one["metadata"]["annotations"] = {"kaiwo.ai/gpu-memory": "9000"}
    sizes = SizingCache(answer_always)
    assert (await admit(one, mode, sizes))["metadata"]["annotations"]["kaiwo.ai/gpu-memory"] == asked


async def test_what_a_run_was_seen_to_use_is_never_undercut() -> None:
    async def seen_more(_: Mapping[str, Any]) -> Mapping[str, Any]:
        return ANSWER | {"observed_peak_bytes": 10 * GIB}

    one = pod("one")
    one["metadata"]["annotations"] = {"kaiwo.ai/gpu-memory": "9000"}
    after = await admit(one, "enforce", SizingCache(seen_more))
    assert after["metadata"]["annotations"]["kaiwo.ai/gpu-memory"] == str(10 * 1024)


async def test_a_dry_run_asks_nobody() -> None:
    asked: list[Mapping[str, Any]] = []

    async def note(body: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(body)
        return ANSWER

    await admit(pod("one"), "annotate", SizingCache(note), dryRun=True)
    assert not asked


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"memory": {"peak_bytes": None}},
        {"memory": {"peak_bytes": 5, "low_bytes": 9, "high_bytes": 1}},
        {"memory": "much"},
    ],
)
async def test_an_answer_without_sense_leaves_the_pod_as_written(answer: Object) -> None:
    async def say(_: Mapping[str, Any]) -> Mapping[str, Any]:
        return answer

    assert "annotations" not in (await admit(pod("one"), "enforce", SizingCache(say)))["metadata"]


async def test_the_cache_is_bounded_refreshes_and_forgets_failures_after_their_pause() -> None:
    now = [0.0]
    calls: list[str] = []
    broken = [False]

    async def ask(body: Mapping[str, Any]) -> Mapping[str, Any]:
        calls.append(str(body))
        if broken[0]:
            raise OSError("down")
        return ANSWER

    sizes = SizingCache(ask, SizingSettings(fresh_s=100, pause_s=30, most=3), clock=lambda: now[0])
    for number in range(10):
        assert await sizes.need(JobType(str(number), (), MilliGpu(1000), 1), {}, 1) is not None
    assert sum(sizes.cached(JobType(str(number), (), MilliGpu(1000), 1)) is not None for number in range(10)) == 3
    now[0] = 200.0
    assert await sizes.need(JobType("9", (), MilliGpu(1000), 1), {}, 1) is not None
    await asyncio.sleep(0.01)
    assert len(calls) == 11
    broken[0] = True
    assert await sizes.need(TYPE, {}, 1) is None
    assert await sizes.need(TYPE, {}, 1) is None
    assert len(calls) == 12
    now[0], broken[0] = 300.0, False
    assert await sizes.need(TYPE, {}, 1) is not None


class _Endpoint:
    """Answers with ``need`` GiB, or not at all; ``answers`` holds it up."""

    def __init__(self) -> None:
        self.need: int | None = 8
        self.asked, self.broken = 0, False
        self.answers = asyncio.Event()
        self.answers.set()

    async def ask(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked += 1
        await self.answers.wait()
        if self.broken:
            raise OSError("down")
        if self.need is None:
            return {}
        amounts = dict.fromkeys(("peak_bytes", "low_bytes", "high_bytes"), self.need * GIB)
        return ANSWER | {"memory": amounts | {"probability": 0.95}}


async def gib(sizes: SizingCache) -> int | None:
    found = await sizes.need(TYPE, {}, 20)
    return None if found is None or found.prediction.value is None else round(found.prediction.value / GIB)


async def test_a_newer_trace_is_seen_by_the_next_pod_once_the_answer_is_not_fresh() -> None:
    now, endpoint = [0.0], _Endpoint()
    sizes = SizingCache(endpoint.ask, SizingSettings(fresh_s=15, refresh_wait_s=20), clock=lambda: now[0])
    endpoint.need = None
    assert await gib(sizes) is None
    endpoint.need, now[0] = 8, 15.1
    assert await gib(sizes) == 8, "what was not known is asked about again, too"
    endpoint.need, now[0] = 12, 30.0
    assert (await gib(sizes), endpoint.asked) == (8, 2), "still fresh"
    now[0] = 30.3
    assert (await gib(sizes), endpoint.asked) == (12, 3)
    endpoint.need, now[0] = None, 46.0
    assert await gib(sizes) is None, "what has been forgotten is not written down any more"


async def test_a_slow_endpoint_leaves_the_old_answer_and_brings_the_new_one_later() -> None:
    now, endpoint = [0.0], _Endpoint()
    sizes = SizingCache(endpoint.ask, SizingSettings(fresh_s=15, refresh_wait_s=0.01), clock=lambda: now[0])
    assert await gib(sizes) == 8
    endpoint.answers.clear()
    endpoint.need, now[0] = 12, 20.0
    assert [await gib(sizes) for _ in range(5)] == [8] * 5
    assert endpoint.asked == 2, "one question for all of them"
    endpoint.answers.set()
    await asyncio.gather(*sizes._asking.values())
    assert await gib(sizes) == 12


async def test_an_endpoint_that_fails_leaves_the_old_answer() -> None:
    now, endpoint = [0.0], _Endpoint()
    sizes = SizingCache(endpoint.ask, SizingSettings(fresh_s=15, refresh_wait_s=20, pause_s=30), clock=lambda: now[0])
    assert await gib(sizes) == 8
    endpoint.broken, now[0] = True, 20.0
    assert [await gib(sizes), await gib(sizes), endpoint.asked] == [8, 8, 2]


async def test_a_namespaces_size_is_asked_for_by_its_name_and_is_no_other_namespaces() -> None:
    asked: list[Any] = []

    async def note(body: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(body["namespace"])
        return ANSWER

    sizes = SizingCache(note)
    for namespace in ("blue", "red", "blue"):
        one = pod("one")
        one["metadata"]["namespace"] = namespace
        await admit(one, "annotate", sizes, namespace=namespace)
    assert asked == ["blue", "red"]


async def test_the_webhook_shows_the_endpoint_its_mounted_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = []

    async def answer(request: web.Request) -> web.Response:
        shown.append(request.headers.get("Authorization"))
        return web.json_response({"schema": 1})

    app = web.Application()
    app.router.add_post("/v1/sizing", answer)
    mounted = tmp_path / "token"
    mounted.write_text("first")
    monkeypatch.setenv("KOPT_TOKEN_FILE", str(mounted))
    async with TestServer(app) as endpoint, sizing_source(str(endpoint.make_url("/"))) as (ask, _):
        assert ask is not None
        await ask({})
        mounted.write_text("renewed")
        await ask({})
    assert shown == ["Bearer first", "Bearer renewed"]


USEFUL = {
    "requested_gpus": 64,
    "useful_gpus": 16,
    "advised_gpus": 16,
    "reasons": [{"code": "FEWER_USEFUL", "message": "16 of the 64 GPUs are useful.", "numbers": {}}],
}


@pytest.mark.parametrize(("mode", "written"), [("observe", None), ("annotate", "16"), ("enforce", "16")])
async def test_useful_gpus_are_an_annotation_and_change_no_request(mode: str, written: str | None) -> None:
    async def answer(_: Mapping[str, Any]) -> Mapping[str, Any]:
        return ANSWER | {"gpu_count": USEFUL}

    asked = pod("one", gpus=8)
    admissions = Admissions(view(mode), SizingCache(answer))
    reviewed = await admissions.mutate(parse_review(orjson.dumps(review(asked))))
    after = patched(asked, reviewed.answer.patch)
    assert after["metadata"].get("annotations", {}).get("kaiwo.ai/useful-gpus") == written
    limits = [pod_["spec"]["containers"][0]["resources"]["limits"] for pod_ in (asked, after)]
    assert limits[0] == limits[1]
    (record,) = [record for record in reviewed.records if record.row == "useful-gpus"]
    assert (record.code, record.mode) == ("FEWER_USEFUL", mode)


@pytest.mark.parametrize(
    "count", [None, {}, USEFUL | {"advised_gpus": 65}, USEFUL | {"advised_gpus": 0}, USEFUL | {"useful_gpus": None}]
)
async def test_no_count_and_one_that_contradicts_itself_are_not_written(count: Any) -> None:
    async def answer(_: Mapping[str, Any]) -> Mapping[str, Any]:
        return ANSWER | {"gpu_count": count}

    after = await admit(pod("one", gpus=8), "enforce", SizingCache(answer))
    assert "kaiwo.ai/useful-gpus" not in after["metadata"]["annotations"]
