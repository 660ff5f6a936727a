"""A read-only Kubernetes API server over a store: discovery, lists with selectors, watches with bookmarks.

Every request needs the token of the kubeconfig; only ``/healthz`` is open. It listens on loopback alone.
"""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from kopt.cli.local.example.store import Store
from kopt.cluster.client.resources import Object, Resource

BOOKMARK_S = 20.0
_LONGEST_WATCH_S = 600.0


def application(store: Store, token: str) -> web.Application:
    server = _Server(store, token)
    app = web.Application(middlewares=[server.guard])
    app.router.add_get("/healthz", server.health)
    app.router.add_get("/{path:api(?:s)?(?:/.*)?}", server.answer)
    return app


class _Server:
    def __init__(self, store: Store, token: str) -> None:
        self._store, self._expected = store, f"Bearer {token}".encode()

    @web.middleware
    async def guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse what brings no token, or would change something."""
        if request.path == "/healthz":
            return await handler(request)
        authorization = request.headers.get("authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(authorization, self._expected):
            return _failure(401, "Unauthorized", "the token of the example's kubeconfig is needed")
        if request.method not in ("GET", "HEAD"):
            return _failure(405, "MethodNotAllowed", "the example cluster can only be read")
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return _failure(404, "NotFound", "the example cluster has nothing there")

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.match_info["path"].strip("/").split("/")
        if len(parts) < (2 if parts[0] == "api" else 3):
            return self._groups(parts)
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        kinds = [
            resource for resource in self._store.resources if (resource.group, resource.version) == (group, version)
        ]
        if not rest:
            return self._kinds(kinds, f"{group}/{version}".lstrip("/"))
        namespace, rest = (rest[1], rest[2:]) if rest[0] == "namespaces" and len(rest) > 2 else ("", rest)
        resource = next((item for item in kinds if item.plural == rest[0]), None)
        if resource is None or len(rest) > 2:
            raise web.HTTPNotFound
        if len(rest) == 2:
            return self._object(resource, namespace, rest[1])
        if request.query.get("watch") in ("true", "1"):
            return await self._watch(request, resource, namespace)
        items = [document for document in self._store.of(resource) if _matches(document, namespace, request)]
        return web.json_response(
            {
                "kind": f"{resource.kind}List",
                "apiVersion": resource.api_version,
                "metadata": {"resourceVersion": str(self._store.version)},
                "items": items,
            }
        )

    def _groups(self, parts: list[str]) -> web.Response:
        versions = {resource.group: resource.version for resource in self._store.resources if resource.group}
        if parts[0] == "api":
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        groups = [
            {
                "name": name,
                "versions": [{"groupVersion": f"{name}/{version}", "version": version}],
                "preferredVersion": {"groupVersion": f"{name}/{version}", "version": version},
            }
            for name, version in sorted(versions.items())
        ]
        if len(parts) == 1:
            return web.json_response({"kind": "APIGroupList", "groups": groups})
        group = next((item for item in groups if item["name"] == parts[1]), None)
        if group is None:
            raise web.HTTPNotFound
        return web.json_response({"kind": "APIGroup", **group})

    def _kinds(self, kinds: list[Resource], group_version: str) -> web.Response:
        if not kinds and group_version != "v1":
            raise web.HTTPNotFound
        resources = [
            {"name": item.plural, "kind": item.kind, "namespaced": item.namespaced, "verbs": ["get", "list", "watch"]}
            for item in kinds
        ]
        return web.json_response({"kind": "APIResourceList", "groupVersion": group_version, "resources": resources})

    def _object(self, resource: Resource, namespace: str, name: str) -> web.Response:
        for document in self._store.of(resource):
            if (document["metadata"].get("namespace", ""), document["metadata"]["name"]) == (namespace, name):
                return web.json_response(document)
        raise web.HTTPNotFound

    async def _watch(self, request: web.Request, resource: Resource, namespace: str) -> web.StreamResponse:
        try:
            version = int(request.query.get("resourceVersion") or self._store.version)
            ends_s = min(float(request.query.get("timeoutSeconds") or _LONGEST_WATCH_S), _LONGEST_WATCH_S)
        except ValueError:
            return _failure(400, "BadRequest", "resourceVersion and timeoutSeconds are numbers")
        if self._store.since(resource, version) is None:
            return _failure(410, "Expired", "this version is no longer remembered")
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        try:
            await self._send(request, response, resource, namespace, version, ends_s)
            await response.write_eof()
        except ConnectionResetError:
            # The reader has gone.
            pass
        return response

    async def _send(
        self,
        request: web.Request,
        response: web.StreamResponse,
        resource: Resource,
        namespace: str,
        version: int,
        ends_s: float,
    ) -> None:
        """Changes and bookmarks until the watch ends."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ends_s
        while (remaining_s := deadline - loop.time()) > 0:
            events = self._store.since(resource, version)
            if events is None:
                break
            for event in events:
                version = event.version
                if _matches(event.object, namespace, request):
                    await response.write(_line(event.type, event.object))
            version = max(version, self._store.version)
            try:
                async with asyncio.timeout(min(remaining_s, BOOKMARK_S)), self._store.changed:
                    await self._store.changed.wait()
            except TimeoutError:
                bookmark = {"metadata": {"resourceVersion": str(version)}}
                head = {"apiVersion": resource.api_version, "kind": resource.kind}
                await response.write(_line("BOOKMARK", head | bookmark))


def _matches(document: Object, namespace: str, request: web.Request) -> bool:
    """Namespace, ``labelSelector`` and ``fieldSelector`` (of the name, namespace and phase)."""
    metadata = document["metadata"]
    if namespace and metadata.get("namespace", "") != namespace:
        return False
    fields = {f"metadata.{name}": metadata.get(name, "") for name in ("name", "namespace")}
    fields["status.phase"] = document.get("status", {}).get("phase", "")
    labels = metadata.get("labels") or {}
    return _holds(request.query.get("labelSelector", ""), labels) and _holds(
        request.query.get("fieldSelector", ""), fields
    )


def _holds(selector: str, values: Mapping[str, str]) -> bool:
    """Of terms ``name=value``, ``name!=value`` and ``name``, for one that must be there."""
    for term in filter(None, selector.split(",")):
        name, equals, wanted = (part.strip() for part in term.partition("="))
        differs = name.endswith("!")
        value, wanted = values.get(name.removesuffix("!").strip()), wanted.removeprefix("=").strip()
        if (value is None) if not equals else (value == wanted) is differs:
            return False
    return True


def _line(kind: str, document: Any) -> bytes:
    return json.dumps({"type": kind, "object": document}, separators=(",", ":")).encode() + b"\n"


def _failure(code: int, reason: str, message: str) -> web.Response:
    document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    return web.json_response({**document, "reason": reason, "message": message}, status=code)
