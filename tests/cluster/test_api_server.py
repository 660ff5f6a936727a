"""The client against a real API server."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from kopt.cluster.client.api import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    Kube,
    KubeSettings,
    NotFound,
    Patch,
    Unauthorized,
    connect,
)
from kopt.cluster.client.resources import CONFIG_MAPS, GPU_WORKLOADS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS

pytestmark = pytest.mark.cluster


def config_map(name: str, namespace: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "labels": {"a": "b"}}, "data": data}


async def test_an_object_is_created_read_changed_and_deleted(kube: Kube, namespace: str) -> None:
    made = await kube.create(CONFIG_MAPS, config_map("one", namespace, a="1"))
    assert (await kube.get(CONFIG_MAPS, "one", namespace))["data"] == {"a": "1"}
    patched = await kube.patch(CONFIG_MAPS, "one", {"data": {"b": "2"}}, namespace)
    assert patched["data"] == {"a": "1", "b": "2"}
    json_patch = [{"op": "remove", "path": "/data/a"}]
    patched = await kube.patch(CONFIG_MAPS, "one", json_patch, namespace, kind=Patch.JSON)
    replaced = await kube.replace(CONFIG_MAPS, patched | {"data": {"c": "3"}})
    assert replaced["data"] == {"c": "3"}
    await kube.delete(CONFIG_MAPS, "one", namespace, uid=made["metadata"]["uid"])
    with pytest.raises(NotFound):
        await kube.get(CONFIG_MAPS, "one", namespace)


async def test_errors_have_types(kube: Kube, namespace: str) -> None:
    made = await kube.create(CONFIG_MAPS, config_map("one", namespace, a="1"))
    with pytest.raises(AlreadyExists):
        await kube.create(CONFIG_MAPS, config_map("one", namespace))
    await kube.patch(CONFIG_MAPS, "one", {"data": {"a": "2"}}, namespace)
    with pytest.raises(Conflict) as conflict:
        await kube.replace(CONFIG_MAPS, made)
    assert conflict.value.status == 409
    with pytest.raises(Conflict):
        await kube.patch(CONFIG_MAPS, "one", {"metadata": {"resourceVersion": "1"}}, namespace)
    with pytest.raises(Conflict):
        await kube.delete(CONFIG_MAPS, "one", namespace, resource_version=made["metadata"]["resourceVersion"])
    with pytest.raises(Invalid, match="Invalid value"):
        await kube.create(CONFIG_MAPS, {"metadata": {"name": "Not A Name", "namespace": namespace}})
    with pytest.raises(NotFound):
        await kube.list(GPU_WORKLOADS.__class__("no.such.group", "v1", "things", "Thing"))


async def test_a_service_account_may_do_what_rbac_says(control_plane: Any, kube: Kube, namespace: str) -> None:
    await kube.create(SERVICE_ACCOUNTS, {"metadata": {"name": "nobody", "namespace": namespace}})
    async with connect(control_plane.kubeconfig_for("nobody", namespace)) as nobody:
        with pytest.raises(Forbidden, match="cannot list resource"):
            await nobody.list(NODES)


async def test_a_token_that_was_renewed_in_the_file_is_taken_up(
    control_plane: Any, kube: Kube, namespace: str, tmp_path: Path
) -> None:
    await kube.create(SERVICE_ACCOUNTS, {"metadata": {"name": "nobody", "namespace": namespace}})
    good = control_plane.kubeconfig_for("nobody", namespace).read_text()
    path = tmp_path / "kubeconfig"
    path.write_text(good.replace("token: ", "token: broken"))
    async with connect(path) as client:
        with pytest.raises(Unauthorized):
            await client.list(NODES)
        path.write_text(good)
        with pytest.raises(Forbidden):
            await client.list(NODES)


async def test_a_list_in_pages_is_whole(kube: Kube, namespace: str) -> None:
    names = {f"m-{number:02d}" for number in range(23)}
    await asyncio.gather(*(kube.create(CONFIG_MAPS, config_map(name, namespace)) for name in names))
    pages = [page async for page in kube.pages(CONFIG_MAPS, namespace, label_selector="a=b", page=5)]
    assert [len(page.items) for page in pages] == [5, 5, 5, 5, 3]
    assert {item["metadata"]["name"] for page in pages for item in page.items} == names
    assert len({page.resource_version for page in pages}) == 1
    one = await kube.list(CONFIG_MAPS, namespace, field_selector="metadata.name=m-07")
    assert [item["metadata"]["name"] for item in one.items] == ["m-07"]


async def test_a_watch_brings_changes_and_bookmarks_and_ends(kube: Kube, namespace: str) -> None:
    listing = await kube.list(CONFIG_MAPS, namespace, label_selector="a=b")
    await kube.create(CONFIG_MAPS, config_map("one", namespace))
    await kube.delete(CONFIG_MAPS, "one", namespace)
    kinds = [
        event.kind
        async for event in kube.watch(
            CONFIG_MAPS, namespace, resource_version=listing.resource_version, label_selector="a=b", timeout_s=3
        )
    ]
    assert kinds[:2] == ["ADDED", "DELETED"]
    assert set(kinds[2:]) <= {"BOOKMARK"}


async def test_dry_run_changes_nothing(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAPS, config_map("one", namespace), dry_run=True)
    assert not (await kube.list(CONFIG_MAPS, namespace, label_selector="a=b")).items


async def test_what_is_served(kube: Kube) -> None:
    assert await kube.serves(PODS)
    assert not await kube.serves(PODS.__class__("no.such.group", "v1", "things", "Thing"))


async def test_many_requests_at_once_share_a_few_connections(control_plane: Any, namespace: str) -> None:
    async with connect(control_plane.kubeconfig, KubeSettings(connections=4)) as client:
        found = await asyncio.gather(*(client.get(NAMESPACES, namespace) for _ in range(64)))
    assert {one["metadata"]["name"] for one in found} == {namespace}


async def test_a_cancelled_request_leaves_the_client_usable(kube: Kube, namespace: str) -> None:
    for _ in range(5):
        task = asyncio.create_task(kube.list(NAMESPACES))
        await asyncio.sleep(0.001)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert (await kube.get(NAMESPACES, namespace))["metadata"]["name"] == namespace
