"""Objects as an API server keeps them: a version for every change, and a log from which watches go on."""

import asyncio
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kopt.cluster.client.resources import Key, Object, Resource, key_of

_REMEMBERED = 2000
"""Changes that a watch can go on from; an older version is answered by 410 Gone."""


@dataclass(frozen=True)
class Event:
    """A change, as a watch sends it."""

    version: int
    resource: Resource
    type: str
    object: Object


class Store:
    """Objects by kind. ``changed`` is notified after every change."""

    def __init__(self) -> None:
        self.version = 1
        self.changed = asyncio.Condition()
        self._objects: dict[Resource, dict[Key, Object]] = {}
        self._log: deque[Event] = deque(maxlen=_REMEMBERED)

    @property
    def resources(self) -> Iterable[Resource]:
        return self._objects.keys()

    def of(self, resource: Resource) -> Sequence[Object]:
        return tuple(self._objects.get(resource, {}).values())

    async def replace(self, objects: Mapping[Resource, Sequence[Object]]) -> None:
        """Make the store hold ``objects``; only what differs gets a new version."""
        for resource, documents in objects.items():
            present = self._objects.setdefault(resource, {})
            wanted = {key_of(document): document for document in documents}
            for key in [key for key in present if key not in wanted]:
                self._record_change(resource, "DELETED", present.pop(key))
            for key, document in wanted.items():
                before = present.get(key)
                if before is not None and _content(before) == _content(document):
                    continue
                uid = document["metadata"].get("uid") or (before["metadata"]["uid"] if before else str(uuid.uuid4()))
                metadata = {**document["metadata"], "uid": uid, "resourceVersion": str(self.version + 1)}
                head = {"apiVersion": resource.api_version, "kind": resource.kind}
                present[key] = {**head, **document, "metadata": metadata}
                self._record_change(resource, "MODIFIED" if before else "ADDED", present[key])
        async with self.changed:
            self.changed.notify_all()

    def _record_change(self, resource: Resource, kind: str, document: Object) -> None:
        self.version += 1
        metadata = {**document["metadata"], "resourceVersion": str(self.version)}
        self._log.append(Event(self.version, resource, kind, {**document, "metadata": metadata}))

    def since(self, resource: Resource, version: int) -> list[Event] | None:
        """Changes of a kind after ``version``; None where they are no longer remembered."""
        if version > self.version or (self._log and version < self._log[0].version - 1):
            return None
        return [event for event in self._log if event.version > version and event.resource == resource]


def _content(document: Object) -> Object:
    metadata = {k: v for k, v in document["metadata"].items() if k not in ("uid", "resourceVersion")}
    return {k: v for k, v in document.items() if k not in ("apiVersion", "kind")} | {"metadata": metadata}
