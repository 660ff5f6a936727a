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
from kopt.cli.local.pages.cluster import ClusterWatch
from kopt.cli.local.pages.watch_problems import STALE_S
from kopt.cluster.client.api import Kube
from kopt.cluster.client.credentials import Credentials
from kopt.cluster.runtime.informer import InformerSettings
from kopt.core.hardware.pools import ClusterPools, PoolSize
from kopt.core.scheduling.eviction import Phase
from kopt.core.scheduling.overview import Overview

NOW_S = 1_900_000_000.0
ROOT = "/apis/kaiwo.ai/v1alpha1"
KUEUE, SLICES = "/apis/kueue.x-k8s.io/v1beta1", "/apis/resource.k8s.io/v1"
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
        self.down, self.forbidden = False, set[str]()
        self.lists: list[str] = []
        self.news: list[dict[str, Any]] = []
        self.app = FastAPI()
        pool = objects.pool("chat", NOW_S, moments=3)
        line = objects.eviction("train", NOW_S - 60, Phase.WAITING)
        line["metadata"] |= {"uid": "1"}
        self._items = {"lendingpools": [pool], "evictions": [line, {"metadata": {"name": "torn", "namespace": "n"}}]}
        labels = {"pool": "fast", "nvidia.com/gpu.product": "NVIDIA-L4"}
        self._items["resourceflavors"] = [{"metadata": {"name": "l4"}, "spec": {"nodeLabels": {"pool": "fast"}}}]
        self._items["nodes"] = [
            {"metadata": {"name": f"n{number}", "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": "4"}}}
            for number in range(2)
        ]
        teams = {"research": {"team": "language"}, "play": {}}
        self._items["namespaces"] = [{"metadata": {"name": name, "labels": of}} for name, of in teams.items()]
        for root in (ROOT, "/api/v1", KUEUE, SLICES):
            self.app.add_api_route(root + "/{kind}", self.answer)

    async def answer(self, kind: str, watch: str = "") -> Any:
        if self.down:
            return JSONResponse({"reason": "InternalError", "message": "etcd is away"}, 500)
        if kind not in self._items:
            return JSONResponse({"reason": "NotFound", "message": "no such kind"}, 404)
        if kind in self.forbidden:
            return JSONResponse({"reason": "Forbidden", "message": f"{kind} is forbidden"}, 403)
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
async def watching() -> AsyncIterator[Callable[..., Any]]:
    """``await watching()``: a watch that runs, and the server."""
    running: list[Any] = []

    async def start(*forbidden: str) -> tuple[ClusterWatch, Server]:
        server = Server()
        server.forbidden = set(forbidden)
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
    assert {"evictions", "lendingpools"} <= set(server.lists)
    assert len(server.lists) == len(set(server.lists))


async def test_what_may_not_be_read_is_said_and_the_rest_is_shown(watching: Any) -> None:
    watch, _ = await watching("evictions")
    found = await until(watch, lambda one: one.problems and one.pools)
    assert found.problems == ("These pages may not read evictions.kaiwo.ai: evictions is forbidden",)


async def test_a_server_that_goes_away_leaves_what_was_known_and_says_how_old_it_is(
    watching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, server = await watching()
    await until(watch, lambda one: one.pools and one.ledger)
    server.down = True
    monkeypatch.setattr("kopt.cli.local.pages.watch_problems.STALE_S", 0.1)
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


async def pools_of(watch: ClusterWatch) -> ClusterPools:
    async with asyncio.timeout(60):
        while not (pools := await watch.pools()).ready:
            await asyncio.sleep(0.02)
    return pools


async def test_pools_have_their_nodes_and_namespaces_their_teams(watching: Any) -> None:
    watch, _ = await watching()
    assert not (await watch.pools()).ready
    pools = await pools_of(watch)
    assert pools.sizes == {"l4": PoolSize(8, 4, "NVIDIA-L4")}
    assert pools.of_nodes == {"n0": "l4", "n1": "l4"}
    assert pools.teams == {"research": "language"}
    assert pools.problems == ()


async def test_an_account_that_may_not_list_namespaces_or_slices_sees_pools_all_the_same(watching: Any) -> None:
    watch, _ = await watching("namespaces", "resourceslices")
    pools = await pools_of(watch)
    assert pools.sizes["l4"].gpus == 8
    assert (pools.teams, pools.problems) == ({}, ("These pages may not read namespaces: namespaces is forbidden",))
