"""An informer of a custom resource that is not installed, comes, and goes."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest
from controlplane.processes import PATIENCE_S, until

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import CUSTOM_RESOURCE_DEFINITIONS, Object, Resource
from kopt.cluster.runtime.informer import Informer, InformerSettings, wait_synced

pytestmark = pytest.mark.cluster
QUICK = InformerSettings(first_pause_s=0.05, longest_pause_s=0.2, absent_after_s=1.0)


@pytest.fixture
async def definition(kube: Kube) -> AsyncIterator[tuple[Resource, Object]]:
    word = f"t{uuid.uuid4().hex[:6]}"
    resource = Resource("test.kaiwo.ai", "v1", f"{word}s", word.capitalize(), namespaced=False)
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    body = {
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Cluster",
            "names": {"plural": resource.plural, "kind": resource.kind},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    yield resource, body
    with contextlib.suppress(Exception):
        await kube.delete(CUSTOM_RESOURCE_DEFINITIONS, body["metadata"]["name"])


async def test_a_kind_comes_and_goes(kube: Kube, definition: tuple[Resource, Object]) -> None:
    resource, body = definition
    informer: Informer[Object] = Informer(kube, resource, settings=QUICK)
    running = asyncio.create_task(informer.run())
    await wait_synced([informer], PATIENCE_S)
    assert dict(informer.objects) == {}
    assert informer.age_s() < PATIENCE_S

    await kube.create(CUSTOM_RESOURCE_DEFINITIONS, body)
    await until(lambda: informer.error is None)
    await kube.create(resource, {"metadata": {"name": "one"}})
    await until(lambda: ("", "one") in informer.objects)

    await kube.delete(CUSTOM_RESOURCE_DEFINITIONS, body["metadata"]["name"])
    await until(lambda: not informer.objects)
    running.cancel()


async def test_one_object_that_cannot_be_read_does_not_hide_the_others(
    kube: Kube, definition: tuple[Resource, Object]
) -> None:
    resource, body = definition
    await kube.create(CUSTOM_RESOURCE_DEFINITIONS, body)
    while not await kube.serves(resource):
        await asyncio.sleep(0.05)
    seen: list[tuple[str, str]] = []

    def broken(change: object) -> None:
        raise RuntimeError("a subscriber's bug")

    informer: Informer[int] = Informer(kube, resource, keep=lambda found: int(found["spec"]["size"]), settings=QUICK)
    informer.subscribe(broken)
    informer.subscribe(lambda change: seen.append((change.kind, change.key[1])))
    running = asyncio.create_task(informer.run())
    await wait_synced([informer], PATIENCE_S)
    for name, size in (("good", 1), ("bad", "many"), ("worse", None), ("fine", 2)):
        await kube.create(resource, {"metadata": {"name": name}, "spec": {"size": size}})
    await until(lambda: len(informer.objects) == 2)
    await kube.patch(resource, "good", {"spec": {"size": "much"}})
    await until(lambda: len(informer.objects) == 1)
    assert seen == [("ADDED", "good"), ("ADDED", "fine"), ("DELETED", "good")]
    running.cancel()
