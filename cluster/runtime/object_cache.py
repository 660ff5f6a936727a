"""What an informer shows, with a process's own writes on top until the informer has come as far.

A controller that decides again before its last write has come back through the watch must see that write, or it does
the same thing twice. kube-scheduler has its AssumeCache for that; unlike there, only what the API server has answered
counts, so that a write that fails leaves nothing to be undone.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kopt.cluster.client.resources import Key, Object, key_of
from kopt.cluster.client.versions import is_newer
from kopt.cluster.runtime.informer import Change, ChangeKind, Handler, Informer, ObjectVersion
from kopt.cluster.runtime.isolation import SUBSCRIBER_ERROR, Subject
from kopt.cluster.runtime.lease import Fence

T = TypeVar("T")


@dataclass
class _Write(Generic[T]):
    """The last that is known of an object from elsewhere than the informer."""

    object_version: ObjectVersion
    value: T | None
    deleted: bool = False
    confirmed: bool = False
    """The informer has shown this object: if it is not there any more, it is gone."""


class ObjectCache(Generic[T]):
    """The newest that is known of each object of one kind.

    - A recorded object is shown until the informer shows the same version or a later one.
    - A recorded deletion hides its object, also while finalizers keep it, until the informer agrees that it is gone or
      shows another one under its name.
    - What is gone does not come back: an answer that arrives after the informer saw the deletion is not shown.

    Recorded objects have to match the informer's namespace and selectors. Make the cache before the informer runs.
    """

    def __init__(self, informer: Informer[T]) -> None:
        self.informer = informer
        self._current: dict[Key, T] = {}
        self._uids: dict[Key, str] = {}
        self._writes: dict[Key, _Write[T]] = {}
        self._restores = informer.restores
        self._handlers: list[Handler[T]] = []
        informer.subscribe(self._follow)
        informer.subscribe_progress(self._settle)

    @property
    def objects(self) -> Mapping[Key, T]:
        """What there is, by (namespace, name). A live view: copy it before the next await if it must stand still."""
        return self._current

    def record(self, document: Object) -> None:
        """This is what the API server has just answered, to a write or to a read past the informer."""
        key, object_version = key_of(document), ObjectVersion.of(document)
        before = self._writes.get(key)
        if before is not None:
            # Answers may arrive in another order than the server gave them in.
            if before.deleted and before.object_version.uid == object_version.uid:
                return
            if not is_newer(object_version.version, than=before.object_version.version):
                return
        self._put(key, _Write(object_version, self.informer.read(document)))

    def record_deletion(self, document: Object) -> None:
        """The API server has just accepted the deletion of this object."""
        key, object_version = key_of(document), ObjectVersion.of(document)
        before = self._writes.get(key)
        if before is not None and is_newer(before.object_version.version, than=object_version.version):
            if before.object_version.uid != object_version.uid:
                return
            object_version = before.object_version
        self._put(key, _Write(object_version, None, deleted=True))

    def subscribe(self, handler: Handler[T]) -> Callable[[], None]:
        """Deliver every change of what is shown, in the way of ``Informer.subscribe``: own writes among them. Returns
        what ends it."""
        self._handlers.append(handler)
        for key, value in list(self._current.items()):
            self._deliver(handler, Change(ChangeKind.ADDED, key, None, value))
        return lambda: self._handlers.remove(handler)

    def _put(self, key: Key, write: _Write[T]) -> None:
        if self._is_superseded(key, write):
            if self._writes.pop(key, None) is not None:
                self._show_informers(key)
            return
        self._writes[key] = write
        self._show(key, write.object_version.uid, write.value)

    def _is_superseded(self, key: Key, write: _Write[T]) -> bool:
        """Whether the informer is as far as this. Before its first list it is behind everything."""
        object_version = self.informer.version_of(key)
        if object_version is None:
            return write.confirmed or not is_newer(write.object_version.version, than=self.informer.version)
        if object_version.uid == write.object_version.uid:
            write.confirmed = True
            if write.deleted:
                return False
        return not is_newer(write.object_version.version, than=object_version.version)

    def _follow(self, change: Change[T]) -> None:
        """The informer shows something else than before."""
        self._start_anew_after_restore()
        write = self._writes.get(change.key)
        if write is not None:
            if not self._is_superseded(change.key, write):
                return
            del self._writes[change.key]
        self._show_informers(change.key)

    def _settle(self) -> None:
        """The informer has come further, perhaps past objects that it never showed."""
        self._start_anew_after_restore()
        for key in [key for key, write in self._writes.items() if self._is_superseded(key, write)]:
            del self._writes[key]
            self._show_informers(key)

    def _start_anew_after_restore(self) -> None:
        # After a restore from a backup, versions from before and after do not compare.
        if self._restores != self.informer.restores:
            self._restores = self.informer.restores
            keys, self._writes = list(self._writes), {}
            for key in keys:
                self._show_informers(key)

    def _show_informers(self, key: Key) -> None:
        object_version = self.informer.version_of(key)
        self._show(key, object_version.uid if object_version is not None else "", self.informer.objects.get(key))

    def _show(self, key: Key, uid: str, value: T | None) -> None:
        old = self._current.get(key)
        if old is not None and (value is None or self._uids[key] != uid):
            del self._current[key], self._uids[key]
            self._notify(Change(ChangeKind.DELETED, key, old, None))
            old = None
        if value is not None:
            self._current[key], self._uids[key] = value, uid
            self._notify(Change(ChangeKind.ADDED if old is None else ChangeKind.UPDATED, key, old, value))

    def _notify(self, change: Change[T]) -> None:
        for handler in tuple(self._handlers):
            self._deliver(handler, change)

    def _deliver(self, handler: Handler[T], change: Change[T]) -> None:
        resource = self.informer.resource
        subject = Subject(resource.api_version, resource.kind, *change.key, self._uids.get(change.key, ""))
        # One subscriber's fault must not blind the others.
        with self.informer.isolation.guard(subject, SUBSCRIBER_ERROR):
            handler(change)


class LiveState:
    """What a controller's informers show, and the fence of this term's writes. ``changed`` is set by every change.

    Derive from it, make the informers and hand them to ``_observe``.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.informers: tuple[Informer[Any], ...] = ()
        self._writes: Fence | None = None

    def begin(self, fence: Fence) -> None:
        """Writes are this term's from now on."""
        self._writes = fence

    @property
    def _fence(self) -> Fence:
        assert self._writes is not None, "only a leader writes"
        return self._writes

    def _observe(self, *informers: Informer[Any]) -> None:
        self.informers = informers
        for informer in informers:
            informer.subscribe(self._on_change)

    def _on_change(self, change: Change[Any]) -> None:
        if change.old != change.new:
            self.changed.set()
