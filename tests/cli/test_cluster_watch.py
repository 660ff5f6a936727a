"""What the pages keep of a cluster: by watches, with what is missing, refused or old said in a sentence."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from asgi_server import served
from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse

from dashboard import cluster_objects as objects
from kopt.cli.local.pages_cluster import ClusterWatch
from kopt.cli.local.watch_problems import STALE_S
from kopt.cluster.client.api import Kube
from kopt.cluster.client.credentials import Credentials
from kopt.cluster.runtime.informer import InformerSettings
from kopt.core.scheduling.eviction import Phase
from kopt.core.scheduling.overview import Overview

NOW_S = 1_900_000_000.0
ROOT = "/apis/kaiwo.ai/v1alpha1"
QUICK = InformerSettings(first_pause_s=0.02, longest_pause_s=0.05)


class Anybody:
    """Signs in as nobody in particular."""

    def __init__(self, host: str) -> None:
        self._host = host

    async def credentials(self) -> Credentials:
        return Credentials(self._host, "", None)

    renew = credentials


class Server:
    """Pools, no StagedData, and a ledger that may be refused."""

    def __init__(self) -> None:
        self.refused = self.down = False
        self.lists: list[str] = []
        self.news: list[dict[str, Any]] = []
        self.app = FastAPI()
        pool = objects.pool("chat", NOW_S, moments=3)
        line = objects.eviction("train", NOW_S - 60, Phase.WAITING)
        line["metadata"] |= {"uid": "1"}
        self._items = {"lendingpools": [pool], "evictions": [line, {"metadata": {"name": "torn", "namespace": "n"}}]}
        self.app.add_api_route(ROOT + "/{kind}", self.answer)

    async def answer(self, kind: str, watch: str = "") -> Any:
        if self.down:
            return JSONResponse({"reason": "InternalError", "message": "etcd is away"}, 500)
        if kind not in self._items:
            return JSONResponse({"reason": "NotFound", "message": "no such kind"}, 404)
        if kind == "evictions" and self.refused:
            return JSONResponse({"reason": "Forbidden", "message": "evictions is forbidden"}, 403)
        if watch:
            return StreamingResponse(self._stream(kind))
        self.lists.append(kind)
        return JSONResponse({"metadata": {"resourceVersion": "1"}, "items": self._items[kind]})

    async def _stream(self, kind: str) -> AsyncIterator[bytes]:
        told = 0
        while not self.down:
            for event in self.news[told:]:
                told += 1
                if event["kind"] == kind:
                    yield json.dumps({"type": "MODIFIED", "object": event["object"]}).encode() + b"\n"
            await asyncio.sleep(0.02)


Watching = Callable[[], Awaitable[tuple[ClusterWatch, Server]]]


@pytest.fixture
async def watching() -> AsyncIterator[Callable[[bool], Any]]:
    """``await watching()``: a watch that runs, and the server."""
    running: list[Any] = []

    async def start(refused: bool = False) -> tuple[ClusterWatch, Server]:
        server = Server()
        server.refused = refused
        serving = served(server.app, lifespan="off")
        kube = Kube(Anybody(serving.__enter__()))
        watch = ClusterWatch(kube, lambda: NOW_S, QUICK)
        running.append((serving, kube, asyncio.create_task(watch.run()), server))
        return watch, server

    yield start
    for serving, kube, task, server in running:
        server.down = True
        task.cancel()
        await kube.close()
        serving.__exit__(None, None, None)


async def until(watch: ClusterWatch, is_so: Callable[[Overview], object]) -> Overview:
    async with asyncio.timeout(60):
        while not (watch.overview().ready and is_so(watch.overview())):
            await asyncio.sleep(0.02)
    return watch.overview()


async def test_it_lists_once_and_then_hears_of_changes(watching: Any) -> None:
    watch, server = await watching()
    assert not watch.overview().ready
    first = await until(watch, lambda one: one.pools)
    assert [one.name for one in first.pools] == ["chat"]
    assert [one.eviction.workload.name for one in first.ledger] == ["train"], "one that cannot be read costs no other"
    assert first.missing == {"stageddata"}
    assert first.problems == ()
    newer = objects.pool("chat", NOW_S, moments=3, lentGpus=3)
    newer["metadata"] |= {"resourceVersion": "2"}
    server.news.append({"kind": "lendingpools", "object": newer})
    await until(watch, lambda one: one.pools[0].lent == 3)
    assert sorted(server.lists) == ["evictions", "lendingpools"]


async def test_what_may_not_be_read_is_said_and_the_rest_is_shown(watching: Any) -> None:
    watch, _ = await watching(True)
    found = await until(watch, lambda one: one.problems and one.pools)
    assert found.problems == ("These pages may not read evictions.kaiwo.ai: evictions is forbidden",)


async def test_a_server_that_goes_away_leaves_what_was_known_and_says_how_old_it_is(
    watching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, server = await watching()
    await until(watch, lambda one: one.pools and one.ledger)
    server.down = True
    monkeypatch.setattr("kopt.cli.local.watch_problems.STALE_S", 0.1)
    await until(watch, lambda overview: any("etcd is away" in problem for problem in overview.problems))
    # A stream that was open when the server went away may end later than the first failed watch.
    old = "Data about lendingpools.kaiwo.ai is "
    last = await until(watch, lambda overview: any(problem.startswith(old) for problem in overview.problems))
    assert last.pools
    assert last.ledger
    assert STALE_S > 90, "as long as a watch may be silent"


async def test_a_cluster_that_never_answered_is_said_once() -> None:
    kube = Kube(Anybody("http://127.0.0.1:9"))
    watch = ClusterWatch(kube, lambda: NOW_S, QUICK)
    task = asyncio.create_task(watch.run())
    found = await until(watch, lambda one: len(one.problems) == 1)
    assert found.problems[0].startswith("The cluster does not answer, nothing of it has been read yet: ")
    task.cancel()
    await kube.close()
