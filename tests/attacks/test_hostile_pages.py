"""The pages of the cluster over their own watch: whatever stands in one pool, eviction, download or node, every page is
answered and shows the others."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from hypothesis import given, settings

from dashboard import cluster_objects as objects
from kopt.cli.local.pages.cluster import ClusterWatch
from kopt.cluster.client.resources import EVICTIONS, LENDING_POOLS, NODE_TOPOLOGIES, Object
from kopt.cluster.objects.custom.staged_data import STAGED_DATA
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.feed import AnyFeed
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Endpoint, Snapshot
from kopt.dashboard.pages.cluster.data import OVERVIEW
from kopt.dashboard.pages.topology.data import NODES

from .api_in_memory import MemoryKube
from .scenarios.asked import TOPOLOGY
from .scenarios.objects import Host
from .test_hostile_objects import PATIENCE_S, Drawn, some

FEW, MANY = 8, int(os.environ.get("KOPT_ATTACK_EXAMPLES", "1500"))
PAGES, NOW_S = "http://127.0.0.1:8701", time.time()
HOSTS = (
    Host(LENDING_POOLS, objects.pool("a-pool", NOW_S, reclaiming=True, moments=6), schema="lendingpools"),
    Host(EVICTIONS, objects.eviction("a-job", NOW_S - 60), schema="evictions"),
    Host(STAGED_DATA, objects.staged("a-data", NOW_S), schema="stageddata"),
    Host(NODE_TOPOLOGIES, TOPOLOGY, schema="nodetopologies"),
)
SHOWN = {"/cluster": ("o-pool", "o-job", "o-data"), "/topology": ("o-node",), "/topology?node=hostile": ()}


class Watching:
    """A source that knows the cluster and nothing else; the pages are made once, as their templates are dear."""

    def __init__(self) -> None:
        self._watch = ClusterWatch(cast(Any, MemoryKube()))
        self.app = create_app(Settings(home=Path("/nowhere")), source=cast(Any, self))

    def of(self, kube: MemoryKube) -> ClusterWatch:
        self._watch = ClusterWatch(cast(Any, kube))
        return self._watch

    async def latest(self, feed: AnyFeed) -> Any:
        if feed is SNAPSHOT:
            return Snapshot({}, Endpoint("http://127.0.0.1:8700"), time.time())
        if feed is OVERVIEW:
            return self._watch.overview()
        return await self._watch.nodes() if feed is NODES else feed.empty()


def ordinary(kube: MemoryKube) -> None:
    kube.put(LENDING_POOLS, objects.pool("o-pool", NOW_S, moments=6))
    kube.put(EVICTIONS, objects.eviction("o-job", NOW_S - 60))
    kube.put(STAGED_DATA, objects.staged("o-data", NOW_S))
    kube.put(NODE_TOPOLOGIES, _named(TOPOLOGY, "o-node"))


def _named(document: Object, name: str) -> Object:
    return document | {"metadata": document["metadata"] | {"name": name}}


async def shows(source: Watching, hostile: Drawn) -> None:
    kube = MemoryKube()
    for host, document in hostile:
        kept = {key: text for key, text in host.base["metadata"].items() if key in ("name", "namespace")}
        kube.put(host.resource, document | {"metadata": document["metadata"] | kept})
    # What is hostile comes first in every list.
    ordinary(kube)
    watch = source.of(kube)
    task = asyncio.create_task(watch.run())
    transport = httpx.ASGITransport(source.app)
    try:
        async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(transport=transport, base_url=PAGES) as client:
            await watch.nodes()
            while not watch.overview().ready:
                await asyncio.sleep(0.005)
            for path, names in SHOWN.items():
                reply = await client.get(path)
                assert reply.status_code == 200, (path, reply.text)
                assert all(name in reply.text for name in names), path
            assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def pages(examples: int, most: int) -> None:
    source = Watching()

    @settings(max_examples=examples)
    @given(some(HOSTS, most))
    def holds(hostile: Drawn) -> None:
        asyncio.run(shows(source, hostile))

    holds()


def test_ordinary_objects_are_shown() -> None:
    asyncio.run(shows(Watching(), []))


def test_an_eviction_that_cannot_be_read_costs_no_other_its_line() -> None:
    broken = objects.eviction("a-job", NOW_S - 60)
    broken["spec"] |= {"gpus": "many"}
    asyncio.run(shows(Watching(), [(HOSTS[1], broken)]))


def test_no_object_costs_others_their_page() -> None:
    pages(FEW, 3)


@pytest.mark.thorough
def test_no_object_of_very_many_costs_others_their_page() -> None:
    pages(MANY, 6)
