"""A copy of the cluster's objects of one kind that stays right whatever happens to the connection.

List in pages, then watch with bookmarks. A watch that is cut or stays silent is resumed where it was; when the
server no longer remembers that point (410 Gone after a restart or a compaction) the list is read again and the
difference delivered: what vanished meanwhile as DELETED, so that there are no ghosts.

The informers of the official client, kopf, lightkube and kr8s were measured against the same faults; each kept
deleted objects or hung.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from kopt.cluster.client.api import ApiError, Gone, Kube, NotFound, Unreachable
from kopt.cluster.client.resources import Key, Object, Resource, key_of
from kopt.cluster.client.versions import is_older
from kopt.cluster.runtime.backoff import Backoff
from kopt.cluster.runtime.isolation import INVALID_OBJECT, SUBSCRIBER_ERROR, Isolation, Subject

_LOG = logging.getLogger(__name__)
_SHORT_WATCH_S = 1.0
_PUT_OFF = (429, 503)
T = TypeVar("T")


class ChangeKind(StrEnum):
    ADDED = "ADDED"
    UPDATED = "UPDATED"
    DELETED = "DELETED"


class Change(NamedTuple, Generic[T]):
    """``old`` is None for ADDED, ``new`` for DELETED. An object made anew under its name is DELETED, then ADDED."""

    kind: ChangeKind
    key: Key
    old: T | None
    new: T | None


Handler = Callable[[Change[T]], None]


class ObjectVersion(NamedTuple):
    """Which object stands under a name, and in which version."""

    uid: str
    version: str

    @classmethod
    def of(cls, document: Object) -> "ObjectVersion":
        metadata = document["metadata"]
        return cls(metadata.get("uid", ""), metadata.get("resourceVersion", ""))


@dataclass(frozen=True)
class InformerSettings:
    """Times in seconds."""

    page: int = 500
    """Objects per page of a list."""
    watch_s: float = 300.0
    """The server is asked to end a watch after this long; the next one goes on from there."""
    read_timeout_s: float = 90.0
    """Without a byte for so long a connection counts as dead; the server sends a bookmark every 60 to 75 s."""
    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0
    """Between attempts."""
    absent_after_s: float = 30.0
    """A kind that is not served for this long has been removed, and its objects with it. Not at once: a starting API
    server does not know its custom resources yet."""


def identity(document: Object) -> Any:
    return document


class Informer(Generic[T]):
    """Objects of one kind, in one namespace or in all, as ``keep`` reduces them.

    ``keep`` is called once for each version of an object; None leaves it out, and so does an exception, which is
    reported by ``isolation``. ``run`` never ends by itself; it survives every ApiError (``error`` says what is wrong
    now), and objects stay as last seen meanwhile. A kind that is not served counts as one without objects, unless it is
    ``required``: then there is no first list until it is served.
    """

    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        keep: Callable[[Object], T | None] = identity,
        required: bool = False,
        settings: InformerSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.resource, self._required = resource, required
        self.synced = asyncio.Event()
        self.error: ApiError | None = None
        self.relists = self.restores = 0
        """How often the list was read, and how often the server's versions had gone back when it was."""
        self.isolation = Isolation("informer")
        """The process that runs the informer sets its own."""
        self._kube, self._namespace, self._keep, self._clock = kube, namespace or "", keep, clock
        self._selectors = {"label_selector": label_selector, "field_selector": field_selector}
        self._settings = settings or InformerSettings()
        self._backoff = Backoff(self._settings.first_pause_s, self._settings.longest_pause_s)
        self._objects: dict[Key, T] = {}
        self._versions: dict[Key, ObjectVersion] = {}
        self._handlers: list[Handler[T]] = []
        self._followers: list[Callable[[], None]] = []
        self._version, self._resumable = "", False
        self._alive_at_s = float("-inf")
        self._absent_since_s: float | None = None
        self._logged = ""

    @property
    def objects(self) -> Mapping[Key, T]:
        """What there is, by (namespace, name). A live view: copy it before the next await if it must stand still."""
        return self._objects

    @property
    def version(self) -> str:
        """The server's resourceVersion up to which everything has been delivered; empty before the first list."""
        return self._version

    def version_of(self, key: Key) -> ObjectVersion | None:
        """Of the object as it was last seen, also where ``keep`` leaves it out; None for what is not there."""
        return self._versions.get(key)

    def age_s(self) -> float:
        """Seconds since the server last gave a sign of life; infinite before the first."""
        return self._clock() - self._alive_at_s

    def subscribe(self, handler: Handler[T]) -> Callable[[], None]:
        """Deliver every change, in order, beginning with an ADDED for each object there is; returns what ends it.

        ``handler`` runs inside ``run`` and must not block. An exception in it is logged and goes no further.
        """
        self._handlers.append(handler)
        for key, value in list(self._objects.items()):
            self._deliver(handler, Change(ChangeKind.ADDED, key, None, value))
        return lambda: self._handlers.remove(handler)

    def subscribe_progress(self, handler: Callable[[], None]) -> None:
        """Call ``handler`` after each list and each event, once ``version`` has moved on; it must not raise."""
        self._followers.append(handler)

    def read(self, document: Object) -> T | None:
        """An object that came in another way, as ``keep`` reduces it; None for one that it leaves out."""
        return self._kept(document)

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if not self._resumable:
                    await self._list()
                started_s = self._clock()
                await self._watch()
                if self._clock() - started_s > _SHORT_WATCH_S:
                    continue
            except ApiError as error:
                self._report_failure(error)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self._resumable = False
                self._report_failure(
                    Unreachable(f"{self.resource.plural}: the server sent something other than an object ({error!r})")
                )
            await asyncio.sleep(self._backoff.next_s())

    def _report_failure(self, error: ApiError) -> None:
        """What an error means for the next attempt: resume, unless the server answered that it cannot."""
        if not isinstance(error, Unreachable) and error.status not in _PUT_OFF:
            self._resumable = False
        if isinstance(error, NotFound):
            self._not_served()
        elif isinstance(error, Gone):
            _LOG.info("%s: the watch cannot be resumed, listing again: %s", self.resource.plural, error)
        elif self.error is not None and self._logged != str(error):
            # A connection that is cut once is everyday; one that does not come back is not.
            _LOG.warning("%s cannot be watched: %s", self.resource.plural, error)
            self._logged = str(error)
        self.error = error

    def _not_served(self) -> None:
        now_s = self._clock()
        self._alive_at_s = now_s
        if self._absent_since_s is None:
            level = logging.WARNING if self._required else logging.INFO
            _LOG.log(level, "%s are not served here", self.resource.full_name)
            self._absent_since_s = now_s
        if not self._versions or now_s - self._absent_since_s >= self._settings.absent_after_s:
            self._replace({})
            if not self._required:
                self.synced.set()

    def _well(self) -> None:
        self._alive_at_s = self._clock()
        self._absent_since_s = None
        self.error, self._logged = None, ""
        self._backoff.reset()

    async def _list(self) -> None:
        """Read everything and deliver the difference; nothing changes if a page fails."""
        result: dict[Key, Object | None] = {}
        versions, version, restored = self._versions, "", False
        pages = self._kube.pages(self.resource, self._namespace, **self._selectors, page=self._settings.page)
        async with contextlib.aclosing(pages):
            async for page in pages:
                if not version and is_older(page.resource_version, self._version):
                    # Restored from a backup: the server counts anew, and equal versions may mean different objects.
                    _LOG.warning("%s: the server's versions went back, listing everything again", self.resource.plural)
                    versions, restored = {}, True
                self._alive_at_s, version = self._clock(), page.resource_version
                for document in page.items:
                    key = key_of(document)
                    # Only what changed is held, or a large cluster's list would be in memory twice.
                    object_version = ObjectVersion.of(document)
                    result[key] = None if object_version.version and versions.get(key) == object_version else document
                await asyncio.sleep(0)
        self.restores += restored
        self._replace(result)
        self._move_on(version)
        self._resumable = True
        self.relists += 1
        self._well()
        self.synced.set()

    async def _watch(self) -> None:
        events = self._kube.watch(
            self.resource,
            self._namespace,
            resource_version=self._version,
            **self._selectors,
            timeout_s=self._settings.watch_s,
            read_timeout_s=self._settings.read_timeout_s,
            opened=self._well,
        )
        async with contextlib.aclosing(events):
            async for kind, document in events:
                if kind == "DELETED":
                    self._remove(key_of(document))
                elif kind != "BOOKMARK":
                    self._put(key_of(document), document)
                self._move_on(document["metadata"]["resourceVersion"])
                self._well()

    def _move_on(self, version: str) -> None:
        self._version = version
        for handler in self._followers:
            handler()

    def _replace(self, result: Mapping[Key, Object | None]) -> None:
        """Make the copy equal to a list, in which None stands for an object that has not changed."""
        for key in [key for key in self._versions if key not in result]:
            self._remove(key)
        for key, document in result.items():
            if document is not None:
                self._put(key, document)

    def _put(self, key: Key, document: Object) -> None:
        object_version, before = ObjectVersion.of(document), self._versions.get(key)
        if before is not None and before.uid != object_version.uid:
            self._remove(key)
        self._versions[key] = object_version
        new = self._kept(document)
        if new is None:
            self._drop(key)
            return
        old = self._objects.get(key)
        self._objects[key] = new
        self._notify(Change(ChangeKind.ADDED if old is None else ChangeKind.UPDATED, key, old, new))

    def _remove(self, key: Key) -> None:
        object_version = self._versions.pop(key, None)
        uid = object_version.uid if object_version is not None else ""
        self.isolation.forget(Subject(self.resource.api_version, self.resource.kind, *key, uid))
        self._drop(key)

    def _drop(self, key: Key) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            self._notify(Change(ChangeKind.DELETED, key, old, None))

    def _kept(self, document: Object) -> T | None:
        # Custom resources hold what their authors wrote; one that cannot be read must not cost all the others.
        subject = Subject.of(self.resource, document)
        with self.isolation.guard(subject, INVALID_OBJECT):
            kept = self._keep(document)
            if kept is not None:
                self.isolation.check(subject, document)
            return kept
        return None

    def _notify(self, change: Change[T]) -> None:
        for handler in tuple(self._handlers):
            self._deliver(handler, change)

    def _deliver(self, handler: Handler[T], change: Change[T]) -> None:
        uid, version = self._versions.get(change.key) or ObjectVersion("", "")
        subject = Subject(self.resource.api_version, self.resource.kind, *change.key, uid, version)
        # One subscriber's fault must not blind the others.
        with self.isolation.guard(subject, SUBSCRIBER_ERROR):
            handler(change)


async def wait_synced(informers: Iterable[Informer[Any]], within_s: float) -> None:
    """Return when all informers have their first list. Raises Unreachable naming those that have not in time."""
    pending = list(informers)
    try:
        async with asyncio.timeout(within_s):
            for informer in pending:
                await informer.synced.wait()
    except TimeoutError:
        late = [f"{i.resource.plural} ({i.error or 'no answer yet'})" for i in pending if not i.synced.is_set()]
        raise Unreachable(f"not listed within {within_s:g} s: {', '.join(late)}") from None
