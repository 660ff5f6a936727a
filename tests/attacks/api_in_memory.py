"""An API server in memory, as far as controllers' clients use one: lists, watches, and writes with preconditions."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from kopt.cluster.client.api import Listing, Page, Patch, WatchEvent
from kopt.cluster.client.errors import AlreadyExists, Conflict, NotFound
from kopt.cluster.client.resources import EVENTS, PODS, Object, Resource

_BETWEEN_TERMS, _EXCLUDED = re.compile(r",(?![^(]*\))"), re.compile(r"(?P<key>\S+) notin \((?P<values>.*)\)")
Place = tuple[str, str, str]
"""(path of the collection, namespace, name)."""


@dataclass
class _Watch:
    resource: Resource
    namespace: str
    selectors: tuple[str, str]
    events: asyncio.Queue[WatchEvent] = field(default_factory=asyncio.Queue)


class MemoryKube:
    """What ``kopt.cluster.client.api.Kube`` offers. Objects go through JSON both ways, as over the wire."""

    def __init__(self) -> None:
        self.objects: dict[Place, Object] = {}
        self.evicted: list[str] = []
        self._versions = itertools.count(1)
        self._watches: list[_Watch] = []

    # --- What tests do

    def put(self, resource: Resource, document: Object) -> Object:
        """As somebody's write, without preconditions."""
        found = _copied(document)
        metadata = found["metadata"]
        number = next(self._versions)
        metadata.setdefault("uid", f"uid-{number}")
        metadata.setdefault("creationTimestamp", "2026-11-23T12:00:00Z")
        metadata["resourceVersion"] = str(number)
        place = _place(resource, metadata)
        kind = "MODIFIED" if place in self.objects else "ADDED"
        self.objects[place] = found
        self._send(resource, kind, found)
        return _copied(found)

    def all(self, resource: Resource) -> list[Object]:
        return [one for (path, *_), one in self.objects.items() if path == resource.path()]

    def find(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        return self.objects.get((resource.path(), namespace, name))

    def events_on(self, name: str) -> set[str]:
        """Reasons of the warnings on an object."""
        found = [one for one in self.all(EVENTS) if one["type"] == "Warning"]
        return {one["reason"] for one in found if one["regarding"]["name"] == name}

    # --- What clients do

    async def close(self) -> None:
        """Nothing is open."""

    async def get(self, resource: Resource, name: str, namespace: str = "", subresource: str = "") -> Object:
        return _copied(self._found(resource, name, namespace))

    async def list(
        self, resource: Resource, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing:
        wanted = _Watch(resource, namespace, (label_selector, field_selector))
        items = [_copied(one) for one in self.all(resource) if _is_selected(wanted, one)]
        return Listing(items, str(next(self._versions)))

    async def served(self, default: Resource) -> Resource:
        return default

    async def pages(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        page: int | None = None,
    ) -> AsyncIterator[Page]:
        found = await self.list(resource, namespace, label_selector=label_selector, field_selector=field_selector)
        yield Page(found.items, found.resource_version, "")

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        opened: Any = lambda: None,
        **_: Any,
    ) -> AsyncIterator[WatchEvent]:
        opened()
        watch = _Watch(resource, namespace, (label_selector, field_selector))
        for one in self.all(resource):
            # What was written between the list and the watch.
            if int(one["metadata"]["resourceVersion"]) > int(resource_version) and _is_selected(watch, one):
                yield WatchEvent("MODIFIED", _copied(one))
        self._watches.append(watch)
        try:
            while True:
                yield await watch.events.get()
        finally:
            self._watches.remove(watch)

    async def create(self, resource: Resource, body: Object, namespace: str = "", *, dry_run: bool = False) -> Object:
        filled = _copied(body)
        if namespace:
            filled["metadata"]["namespace"] = namespace
        if _place(resource, filled["metadata"]) in self.objects:
            raise AlreadyExists(409, "AlreadyExists", filled["metadata"]["name"])
        return filled if dry_run else self.put(resource, filled)

    async def create_at(self, resource: Resource, namespace: str, name: str, subresource: str, body: Object) -> Object:
        found = self._found(resource, name, namespace)
        if subresource == "eviction" and not (body.get("deleteOptions") or {}).get("dryRun"):
            self.evicted.append(name)
            self.put(PODS, found | {"metadata": found["metadata"] | {"deletionTimestamp": "2026-11-23T12:00:00Z"}})
        return {}

    async def replace(
        self, resource: Resource, body: Object, *, subresource: str = "", dry_run: bool = False
    ) -> Object:
        metadata = body["metadata"]
        found = self._found(resource, metadata["name"], metadata.get("namespace", ""))
        self._check(found, metadata)
        after = _copied(body)
        if subresource:
            after = found | {subresource: after.get(subresource)}
            after["metadata"] = _copied(found["metadata"])
        return self.put(resource, after)

    async def patch(
        self,
        resource: Resource,
        name: str,
        changes: Object | Sequence[Object],
        namespace: str = "",
        *,
        kind: Patch = Patch.MERGE,
        subresource: str = "",
        dry_run: bool = False,
        **_: Any,
    ) -> Object:
        assert isinstance(changes, dict)
        if kind is Patch.APPLY:
            # All fields are the caller's.
            named = merged(_copied(changes), {"metadata": {"name": name}})
            after = merged(self.find(resource, name, namespace) or {}, named)
            return after if dry_run else self.put(resource, after)
        found = self._found(resource, name, namespace)
        metadata = changes.get("metadata") or {}
        self._check(found, metadata)
        if metadata.get("uid", found["metadata"]["uid"]) != found["metadata"]["uid"]:
            raise Conflict(409, "Conflict", "another object has its name")
        if kind is Patch.STRATEGIC:
            changes = _by_name(found, changes)
        after = merged(found, _copied(changes))
        return after if dry_run else self.put(resource, after)

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", *, uid: str = "", resource_version: str = "", **_: Any
    ) -> Object:
        found = self._found(resource, name, namespace)
        self._check(found, {"resourceVersion": resource_version} if resource_version else {})
        del self.objects[_place(resource, found["metadata"])]
        self._send(resource, "DELETED", found)
        return found

    async def log(self, namespace: str, pod: str, container: str = "", **_: Any) -> str:
        return ""

    async def follow_log(self, *_: Any, **__: Any) -> AsyncIterator[bytes]:
        raise NotFound(404, "NotFound", "no log")
        yield b""

    async def group_versions(self) -> set[tuple[str, str]]:
        groups = {
            "batch": "v1",
            "apps": "v1",
            "kueue.x-k8s.io": "v1beta1",
            "jobset.x-k8s.io": "v1alpha2",
            "kaiwo.ai": "v1alpha1",
            "scheduling.run.ai": "v2",
            "ray.io": "v1",
        }
        return set(groups.items())

    async def serves(self, resource: Resource) -> bool:
        return True

    async def preferred(self, resource: Resource) -> Resource | None:
        return resource

    # --- How

    def _found(self, resource: Resource, name: str, namespace: str) -> Object:
        found = self.find(resource, name, namespace)
        if found is None:
            raise NotFound(404, "NotFound", f"{resource.plural} {name} is not there")
        return found

    def _check(self, found: Object, wanted: Object) -> None:
        version = wanted.get("resourceVersion")
        if version and version != found["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "it has changed")

    def _send(self, resource: Resource, kind: str, document: Object) -> None:
        for watch in self._watches:
            if watch.resource.path() == resource.path() and _is_selected(watch, document):
                watch.events.put_nowait(WatchEvent(kind, _copied(document)))


def _by_name(pod: Object, changes: Object) -> Object:
    """A strategic merge patch of a pod's containers as a merge patch: they are known by their names."""
    wanted = {one["name"]: one for one in changes["spec"]["containers"]}
    containers = [merged(one, wanted.get(one["name"], {})) for one in pod["spec"]["containers"]]
    return changes | {"spec": changes["spec"] | {"containers": containers}}


def merged(before: Any, changes: Any) -> Any:
    """RFC 7386."""
    if not isinstance(changes, dict):
        return changes
    found = dict(before) if isinstance(before, dict) else {}
    for name, value in changes.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def _copied(document: Object) -> Object:
    return dict(orjson.loads(orjson.dumps(document)))


def _place(resource: Resource, metadata: Object) -> Place:
    return resource.path(), metadata.get("namespace", "") if resource.namespaced else "", metadata["name"]


def _is_selected(watch: _Watch, document: Object) -> bool:
    metadata = document["metadata"]
    if watch.namespace and metadata.get("namespace") != watch.namespace:
        return False
    labels, fields = watch.selectors
    own = metadata.get("labels") or {}
    for term in filter(None, _BETWEEN_TERMS.split(labels)):
        if (excluded := _EXCLUDED.fullmatch(term)) is not None:
            if own.get(excluded["key"]) in excluded["values"].split(","):
                return False
            continue
        key, equals, value = term.partition("=")
        if key not in own or (equals and own[key] != value):
            return False
    for term in filter(None, fields.split(",")):
        path, value = term.replace("!=", "=").split("=")
        found: Any = document
        for step in path.split("."):
            found = (found or {}).get(step)
        if (found == value) == ("!=" in term):
            return False
    return True
