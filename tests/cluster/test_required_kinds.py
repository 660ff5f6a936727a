"""A controller whose own kind is not installed says so, and does not take it for a cluster without objects."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from kopt.cluster.client.api import Kube, NotFound, Page, WatchEvent
from kopt.cluster.client.resources import EVICTIONS, Resource
from kopt.cluster.runtime.informer import Informer, InformerSettings
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings

QUICK = InformerSettings(first_pause_s=0.001, longest_pause_s=0.002)


class Server(Kube):
    """One kind, installed or not."""

    def __init__(self) -> None:
        self.is_served = False

    async def pages(self, resource: Resource, namespace: str = "", **_: Any) -> AsyncGenerator[Page]:
        if not self.is_served:
            raise NotFound(404, "NotFound", "the server could not find the requested resource")
        yield Page([], "7", "")

    async def watch(self, resource: Resource, namespace: str = "", **_: Any) -> AsyncGenerator[WatchEvent]:
        await asyncio.Event().wait()
        yield WatchEvent("", {})


class Replica(LedReplica):
    async def lead(self, fence: Fence) -> None:
        raise AssertionError


@pytest.mark.parametrize("required", [False, True])
async def test_only_what_can_do_without_a_kind_goes_on_without_it(required: bool) -> None:
    server = Server()
    informer: Informer[Any] = Informer(server, EVICTIONS, required=required, settings=QUICK)
    running = asyncio.create_task(informer.run())
    while informer.error is None:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert informer.synced.is_set() is not required

    server.is_served = True
    async with asyncio.timeout(20):
        while informer.error is not None:
            await asyncio.sleep(0.001)
        await informer.synced.wait()
    running.cancel()


async def test_the_probe_names_the_kind() -> None:
    informer: Informer[Any] = Informer(Server(), EVICTIONS, required=True, settings=QUICK)
    replica = Replica(Server(), "test", ReplicaSettings(), [informer])
    running = asyncio.create_task(informer.run())
    while informer.error is None:
        await asyncio.sleep(0.001)
    reply = replica._handle(type("Request", (), {"path": "/readyz"})())
    assert reply.status == 503
    assert reply.body == b"the cluster has not been read yet: evictions.kaiwo.ai (NotFound)\n"
    running.cancel()
