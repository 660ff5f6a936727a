"""The informer while the connection, the API server and etcd misbehave: no ghosts, nothing lost.

Objects change all the time. In the end the informer must hold what a fresh list shows, and so must a copy that is
kept from the delivered changes alone.
"""

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from controlplane.plane import ControlPlane
from controlplane.processes import PATIENCE_S, until

from kopt.cluster.client.api import Gone, Kube, Listing, Unreachable, connect
from kopt.cluster.client.resources import CONFIG_MAPS, NAMESPACES, Key, Object, key_of
from kopt.cluster.runtime.informer import Change, ChangeKind, Informer, InformerSettings, wait_synced

from .faults import FaultProxy, proxied

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
LABEL = "test=informer"
QUICK = InformerSettings(page=20, watch_s=2.0, read_timeout_s=4.0, first_pause_s=0.05, longest_pause_s=0.4)


def version(document: Object) -> str:
    return str(document["metadata"]["resourceVersion"])


@dataclass
class Copy:
    """What a subscriber knows; ``wrong`` are changes that cannot follow what it knows."""

    objects: dict[Key, str] = field(default_factory=dict)
    wrong: list[Change[str]] = field(default_factory=list)
    changes: int = 0

    def take(self, change: Change[str]) -> None:
        self.changes += 1
        known = self.objects.pop(change.key, None)
        expected = ChangeKind.DELETED if change.new is None else ChangeKind.UPDATED if known else ChangeKind.ADDED
        if change.kind is not expected or change.old != known:
            self.wrong.append(change)
        if change.new is not None:
            self.objects[change.key] = change.new


@dataclass
class Scene:
    """A writer with a good connection, an informer behind the proxy, and its subscriber's copy."""

    plane: ControlPlane
    proxy: FaultProxy
    writer: Kube
    informer: Informer[str]
    copy: Copy
    namespace: str
    generator: random.Random

    async def churn(self, operations: int) -> None:
        """Create, change, delete and re-create objects, as the seed wants."""
        names = [f"m-{number:02d}" for number in range(40)]
        for _ in range(operations):
            name = self.generator.choice(names)
            body = {"metadata": {"name": name, "namespace": self.namespace, "labels": {"test": "informer"}}}
            with contextlib.suppress(Exception):
                match self.generator.randrange(4):
                    case 0:
                        await self.writer.delete(CONFIG_MAPS, name, self.namespace)
                    case 1:
                        changes = {"data": {"n": str(self.generator.random())}}
                        await self.writer.patch(CONFIG_MAPS, name, changes, self.namespace)
                    case _:
                        await self.writer.create(CONFIG_MAPS, body)

    async def truth(self) -> dict[Key, str]:
        listing: Listing = await self.writer.list(CONFIG_MAPS, self.namespace, label_selector=LABEL)
        return {key_of(document): version(document) for document in listing.items}

    async def settles(self, within_s: float = PATIENCE_S) -> None:
        """The informer and its subscriber come to hold what the cluster holds."""
        truth = await self.truth()
        ends_s = asyncio.get_running_loop().time() + within_s
        while (self.informer.objects != truth or self.informer.error) and asyncio.get_running_loop().time() < ends_s:
            await asyncio.sleep(0.02)
        held = dict(self.informer.objects)
        ghosts, lost = held.keys() - truth.keys(), truth.keys() - held.keys()
        assert (ghosts, lost, held) == (set(), set(), truth)
        assert (self.copy.objects, self.copy.wrong) == (truth, [])
        assert self.informer.error is None


@pytest.fixture
async def scene(hurt_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Scene]:
    async with contextlib.AsyncExitStack() as stack:
        writer = await stack.enter_async_context(connect(hurt_plane.kubeconfig))
        namespace = f"t-{uuid.uuid4().hex[:8]}"
        await writer.create(NAMESPACES, {"metadata": {"name": namespace}})
        proxy, through = await stack.enter_async_context(proxied(hurt_plane.kubeconfig, tmp_path))
        kube = await stack.enter_async_context(connect(through))
        informer: Informer[str] = Informer(
            kube, CONFIG_MAPS, namespace=namespace, label_selector=LABEL, keep=version, settings=QUICK
        )
        copy = Copy()
        informer.subscribe(copy.take)
        scene = Scene(hurt_plane, proxy, writer, informer, copy, namespace, random.Random(7))
        await scene.churn(60)
        running = asyncio.create_task(informer.run())
        await wait_synced([informer], PATIENCE_S)
        yield scene
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def during(work: Awaitable[None], faults: Callable[[], Awaitable[None]]) -> None:
    busy = asyncio.ensure_future(work)
    while not busy.done():
        await faults()
    await busy


@pytest.mark.long
async def test_a_connection_that_is_cut_again_and_again(scene: Scene) -> None:
    cuts = 0

    async def cut() -> None:
        nonlocal cuts
        await asyncio.sleep(scene.generator.uniform(0.01, 0.2))
        scene.proxy.cut()
        cuts += 1

    await during(scene.churn(300), cut)
    assert cuts >= 5
    assert scene.copy.changes > 100
    await scene.settles()
    # Cut, not forgotten: every watch went on where it was.
    assert scene.informer.relists == 1


@pytest.mark.long
async def test_a_proxy_that_is_away_for_a_while(scene: Scene) -> None:
    scene.proxy.refuse()
    scene.proxy.cut()
    await scene.churn(120)
    assert scene.informer.error is not None
    scene.proxy.refuse(False)
    await scene.settles()


@pytest.mark.long
async def test_connections_that_fall_silent_without_being_closed(scene: Scene) -> None:
    scene.proxy.lose()
    await scene.churn(120)
    await scene.settles()
    assert scene.informer.relists == 1


@pytest.mark.long
async def test_everything_stands_still_for_longer_than_the_read_timeout(scene: Scene) -> None:
    scene.proxy.stall()
    await scene.churn(120)
    await until(lambda: isinstance(scene.informer.error, Unreachable))
    await until(lambda: scene.informer.age_s() > QUICK.read_timeout_s)
    assert isinstance(scene.informer.error, Unreachable)
    scene.proxy.flow()
    await scene.settles()


@pytest.mark.long
async def test_the_api_server_restarts(scene: Scene) -> None:
    await scene.churn(40)
    await asyncio.to_thread(scene.plane.restart_api_server)
    await scene.churn(40)
    await scene.settles()


async def test_the_api_server_restarts_and_etcd_has_forgotten(scene: Scene) -> None:
    scene.proxy.refuse()
    scene.proxy.cut()
    await scene.churn(120)
    await asyncio.to_thread(scene.plane.restart_api_server, compact=True)
    scene.proxy.refuse(False)
    await scene.settles()
    assert scene.informer.relists >= 2


async def test_faults_of_all_kinds_in_any_order(scene: Scene) -> None:
    async def any_fault() -> None:
        await asyncio.sleep(scene.generator.uniform(0.05, 0.3))
        match scene.generator.randrange(4):
            case 0:
                scene.proxy.cut()
            case 1:
                scene.proxy.lose()
            case 2:
                await asyncio.to_thread(scene.plane.compact)
                scene.proxy.cut()
            case _:
                scene.proxy.stall()
                await asyncio.sleep(0.3)
                scene.proxy.flow()

    await during(scene.churn(500), any_fault)
    await scene.settles()


class ForgettingKube(Kube):
    """After a list's first page etcd forgets everything but the present, ``times`` times."""

    def forget(self, scene: Scene, times: int) -> None:
        self.scene, self.times, self.refused = scene, times, 0

    async def request(self, method: str, path: str, **options: Any) -> Object:
        try:
            document = await super().request(method, path, **options)
        except Gone:
            self.refused += 1
            raise
        if (document.get("metadata") or {}).get("continue") and self.times:
            self.times -= 1
            await self.scene.churn(20)
            await asyncio.to_thread(self.scene.plane.compact)
            await asyncio.to_thread(self.scene.plane.restart_api_server)
        return document


async def test_continue_tokens_that_expire_between_two_pages(scene: Scene) -> None:
    async with connect(scene.plane.kubeconfig) as kube:
        forgetting = ForgettingKube(kube._access, kube.settings)
        forgetting.forget(scene, times=1)
        informer: Informer[str] = Informer(
            forgetting,
            CONFIG_MAPS,
            namespace=scene.namespace,
            label_selector=LABEL,
            keep=version,
            settings=InformerSettings(page=5, first_pause_s=0.05),
        )
        running = asyncio.create_task(informer.run())
        await wait_synced([informer], PATIENCE_S)
        assert forgetting.refused == 1
        assert dict(informer.objects) == await scene.truth()
        running.cancel()
        forgetting.forget(scene, times=1)
        listing = await forgetting.list(CONFIG_MAPS, scene.namespace, label_selector=LABEL)
        assert {key_of(document): version(document) for document in listing.items} == await scene.truth()
        await forgetting.close()
