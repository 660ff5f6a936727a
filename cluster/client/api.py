"""Requests to an API server: decoded JSON in and out, typed errors, no models.

    async with connect() as kube:
        pod = await kube.get(PODS, "trainer-0", namespace="research")
        async for event in kube.watch(PODS, resource_version=pod["metadata"]["resourceVersion"]):
            ...

The official client's generated classes cost milliseconds for a pod; the scheduler extender has one and a half in all.
"""

import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import aiohttp

from kopt.cluster.client.connection import ApiConnection, KubeSettings, chunks, decoded
from kopt.cluster.client.credentials import find_access
from kopt.cluster.client.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NoCluster,
    NotFound,
    Unauthorized,
    Unreachable,
    from_status,
    unreachable,
)
from kopt.cluster.client.resources import PODS, Object, Resource
from kopt.core.times import stamp

__all__ = [
    "AlreadyExists",
    "ApiError",
    "Conflict",
    "Forbidden",
    "Gone",
    "Invalid",
    "Kube",
    "KubeSettings",
    "Listing",
    "NoCluster",
    "NotFound",
    "Object",
    "Page",
    "Patch",
    "Unauthorized",
    "Unreachable",
    "WatchEvent",
    "connect",
]

_LARGEST_EVENT_BYTES = 32 << 20


class Patch(StrEnum):
    """How a patch is written; APPLY is server-side apply and needs a ``field_manager``."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class Page(NamedTuple):
    """One page of a list; ``more`` is the token of the next one, empty on the last."""

    items: list[Object]
    resource_version: str
    more: str


class Listing(NamedTuple):
    """All objects, and the version from which a watch goes on."""

    items: list[Object]
    resource_version: str


class WatchEvent(NamedTuple):
    """``kind`` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    kind: str
    object: Object


@contextlib.asynccontextmanager
async def connect(kubeconfig: Path | None = None, settings: KubeSettings | None = None) -> AsyncIterator["Kube"]:
    """A client of the cluster that ``kubeconfig``, ``KUBECONFIG``, the pod or ``~/.kube/config`` names.

    Raises NoCluster when none does or it cannot be read; whether the cluster answers shows with the first request.
    """
    access = find_access(kubeconfig, os.environ)
    await access.credentials()
    kube = Kube(access, settings)
    try:
        yield kube
    finally:
        await kube.close()


class Kube(ApiConnection):
    """The objects of one API server, by kind and name."""

    async def get(self, resource: Resource, name: str, namespace: str = "", subresource: str = "") -> Object:
        return await self.request("GET", resource.path(namespace, name, subresource))

    async def list(
        self, resource: Resource, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing:
        """All objects of a kind, read in pages; begins again when the pages expire on the way."""
        for page_size in (self.settings.page, self.settings.page, 0):
            items: list[Object] = []
            version = ""
            try:
                async for page in self.pages(
                    resource, namespace, label_selector=label_selector, field_selector=field_selector, page=page_size
                ):
                    items += page.items
                    version = page.resource_version
                return Listing(items, version)
            except Gone:
                if not page_size:
                    raise
        raise AssertionError("the last round returns or raises")

    async def pages(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        page: int | None = None,
    ) -> AsyncGenerator[Page]:
        """Pages of at most ``page`` objects (0: all in one). Raises Gone when the continue token expired."""
        query = _selectors(label_selector, field_selector)
        limit = self.settings.page if page is None else page
        if limit:
            query["limit"] = str(limit)
        path = resource.path(namespace)
        while True:
            document = await self.request("GET", path, query=query)
            metadata = document.get("metadata") or {}
            more = metadata.get("continue") or ""
            yield Page(document.get("items") or [], metadata.get("resourceVersion", ""), more)
            if not more:
                return
            query["continue"] = more

    async def create(self, resource: Resource, body: Object, namespace: str = "", *, dry_run: bool = False) -> Object:
        """``namespace`` may stand in the body. Raises AlreadyExists."""
        namespace_ = namespace or body.get("metadata", {}).get("namespace", "")
        if resource.namespaced and not namespace_:
            raise ValueError(f"a {resource.kind} needs a namespace")
        filled = {"apiVersion": resource.api_version, "kind": resource.kind} | body
        return await self.request("POST", resource.path(namespace_), query=_dry(dry_run), body=filled)

    async def create_at(self, resource: Resource, namespace: str, name: str, subresource: str, body: Object) -> Object:
        """POST to a subresource: ``binding``, ``eviction``, ``token``."""
        return await self.request("POST", resource.path(namespace, name, subresource), body=body)

    async def replace(
        self, resource: Resource, body: Object, *, subresource: str = "", dry_run: bool = False
    ) -> Object:
        """PUT. With ``metadata.resourceVersion`` in the body it raises Conflict if the object has changed since."""
        metadata = body["metadata"]
        path = resource.path(metadata.get("namespace", ""), metadata["name"], subresource)
        filled = {"apiVersion": resource.api_version, "kind": resource.kind} | body
        return await self.request("PUT", path, query=_dry(dry_run), body=filled)

    async def patch(
        self,
        resource: Resource,
        name: str,
        changes: Object | Sequence[Object],
        namespace: str = "",
        *,
        kind: Patch = Patch.MERGE,
        subresource: str = "",
        field_manager: str = "",
        force: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """A merge patch with ``metadata.resourceVersion`` in it raises Conflict when the object has another."""
        query = _dry(dry_run)
        if field_manager:
            query["fieldManager"] = field_manager
        if force:
            query["force"] = "true"
        path = resource.path(namespace, name, subresource)
        return await self.request("PATCH", path, query=query, body=changes, content_type=kind)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_s: int | None = None,
        propagation: str = "Background",
        dry_run: bool = False,
    ) -> Object:
        """Raises NotFound when it is not there, Conflict when ``uid`` or ``resource_version`` is another."""
        wanted = {"uid": uid, "resourceVersion": resource_version}
        body: Object = {"propagationPolicy": propagation, "preconditions": {k: v for k, v in wanted.items() if v}}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        return await self.request("DELETE", resource.path(namespace, name), query=_dry(dry_run), body=body)

    async def log(
        self,
        namespace: str,
        pod: str,
        container: str = "",
        *,
        tail_lines: int = 100,
        limit_bytes: int = 64 << 10,
        timeout_s: float = 10.0,
    ) -> str:
        """The end of a container's log; undecodable bytes are replaced."""
        query = {"tailLines": str(tail_lines), "limitBytes": str(limit_bytes)}
        if container:
            query["container"] = container
        path = PODS.path(namespace, pod, "log")
        timeout = aiohttp.ClientTimeout(timeout_s, sock_connect=self.settings.connect_timeout_s)
        async with self.send("GET", path, query, timeout=timeout) as response:
            try:
                return (await response.content.read(limit_bytes)).decode(errors="replace")
            except (aiohttp.ClientError, TimeoutError) as error:
                raise unreachable(path, error) from error

    async def follow_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        since_s: int | None = None,
        previous: bool = False,
        read_timeout_s: float = 300.0,
    ) -> AsyncGenerator[bytes]:
        """A container's log as it grows, in pieces, each line behind its time; ends when the container does.

        ``since_s``: Unix seconds; ``previous``: of the run before, to its end. Raises Unreachable when the connection
        is cut or brings nothing for ``read_timeout_s``.
        """
        query = {"container": container, "timestamps": "true", "previous" if previous else "follow": "true"}
        if since_s is not None:
            query["sinceTime"] = stamp(since_s)
        timeout = aiohttp.ClientTimeout(sock_connect=self.settings.connect_timeout_s, sock_read=read_timeout_s)
        path = PODS.path(namespace, pod, "log")
        async with (
            self.send("GET", path, query, timeout=timeout) as response,
            contextlib.aclosing(chunks(response)) as pieces,
        ):
            async for chunk in pieces:
                yield chunk

    async def group_versions(self) -> set[tuple[str, str]]:
        """(group, version) of every API group that the server has, now."""
        result = await self.request("GET", "/apis")
        return {
            (group["name"], version["version"])
            for group in result.get("groups") or []
            for version in group.get("versions") or []
        }

    async def serves(self, resource: Resource) -> bool:
        """Whether the API server has this kind, in this version."""
        root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
        try:
            result = await self.request("GET", root)
        except NotFound:
            return False
        return any(item.get("name") == resource.plural for item in result.get("resources") or [])

    async def served(self, default: Resource) -> Resource:
        """The version of a kind that the API server serves; ``default`` where it serves none, as the kind may also be
        installed later."""
        with contextlib.suppress(ApiError):
            if not await self.serves(default):
                return await self.preferred(default) or default
        return default

    async def preferred(self, resource: Resource) -> Resource | None:
        """The kind in the version that the API server prefers; None where it has no such group."""
        if not resource.group:
            return resource
        try:
            group = await self.request("GET", f"/apis/{resource.group}")
        except NotFound:
            return None
        return replace(resource, version=group["preferredVersion"]["version"])

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_s: float = 300.0,
        read_timeout_s: float = 90.0,
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[WatchEvent]:
        """Changes since ``resource_version``, with bookmarks, until the server ends the watch after ``timeout_s``.

        Raises Gone when the version is too old, and Unreachable when the connection is cut or brings nothing for
        ``read_timeout_s`` (the server sends a bookmark every 60 to 75 s). ``opened`` is called when the server accepts.
        """
        query = _selectors(label_selector, field_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(timeout_s))),
        }
        timeout = aiohttp.ClientTimeout(sock_connect=self.settings.connect_timeout_s, sock_read=read_timeout_s)
        async with self.send("GET", resource.path(namespace), query, timeout=timeout) as response:
            opened()
            rest = b""
            async with contextlib.aclosing(chunks(response)) as pieces:
                async for chunk in pieces:
                    lines = (rest + chunk).split(b"\n")
                    rest = lines.pop()
                    if len(rest) > _LARGEST_EVENT_BYTES:
                        raise Unreachable("the watch sent an event without an end")
                    for line in lines:
                        if line:
                            yield _event(line)


def _event(line: bytes) -> WatchEvent:
    document = decoded(line)
    kind, changed = document.get("type"), document.get("object")
    if not isinstance(kind, str) or not isinstance(changed, dict):
        raise Unreachable("the watch sent something other than an event")
    if kind == "ERROR":
        status = changed.get("code")
        raise from_status(status if isinstance(status, int) else 500, changed)
    return WatchEvent(kind, changed)


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    wanted = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: text for name, text in wanted.items() if text}


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}
