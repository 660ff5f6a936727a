"""Events on Kubernetes objects (``events.k8s.io/v1``): why we did what we did, where ``kubectl describe`` shows it.

``record`` never waits and never fails; ``run`` writes. A repeated event becomes a series on the first one. Events are
rate-limited for each object and for the API server as a whole; dropped ones are counted.
"""

import asyncio
import hashlib
import logging
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kopt.cluster.client.api import AlreadyExists, ApiError, Kube, NotFound, Unreachable
from kopt.cluster.client.resources import EVENTS, Object
from kopt.cluster.runtime.audit import audit_event
from kopt.core.redaction import redact
from kopt.core.times import micro_stamp

_LOG = logging.getLogger(__name__)
NORMAL, WARNING = "Normal", "Warning"
_LONGEST_MESSAGE = 1024
_LONGEST_WORD = 128
_LONGEST_NAME = 200
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

EmitEvent = Callable[[Object, str, str], None]
"""Emits an event on an object: its reference, a reason, a sentence."""


@dataclass(frozen=True)
class EventSettings:
    """Limits; what an object may have is what client-go's spam filter gives it."""

    per_second: float = 20.0
    """Requests to the API server, in the long run."""
    burst: int = 50
    object_burst: int = 25
    object_every_s: float = 300.0
    """After its burst an object gets one event in this time."""
    series_every_s: float = 60.0
    """The count of a repeated event is written this often at most."""
    series_lasts_s: float = 360.0
    """An event that was not repeated for so long begins anew."""
    queued: int = 1000
    """Events in the queue; more are dropped."""
    remembered: int = 4096
    """Objects and series that are remembered."""


@dataclass
class _Series:
    """One event as the server has it; ``count`` is how often it occurred."""

    document: Object
    last_s: float
    count: int = 1
    written_count: int = 0
    written_s: float = 0.0
    waits: bool = True


class EventRecorder:
    """Events of one component (``kaiwo.ai/extender``) in one process (the pod's name)."""

    def __init__(
        self,
        kube: Kube,
        component: str,
        instance: str,
        settings: EventSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dropped = 0
        self._kube, self._component, self._instance = kube, component, instance
        self._settings, self._clock = settings or EventSettings(), clock
        self._series: _Recent[tuple[str, ...], _Series] = _Recent(self._settings.remembered)
        self._objects: _Recent[tuple[str, ...], _Bucket] = _Recent(self._settings.remembered)
        self._all = _Bucket(self._settings.burst, 1 / self._settings.per_second, clock())
        self._queue: deque[_Series] = deque()
        self._work = asyncio.Event()

    def record(
        self,
        regarding: Object,
        reason: str,
        action: str,
        note: str,
        *,
        kind: str = NORMAL,
        related: Object | None = None,
        once: bool = False,
    ) -> None:
        """``regarding`` and ``related`` are ObjectReferences (``Resource.reference``); ``reason`` is CamelCase and
        says why, ``action`` what was done; ``note`` is a sentence with numbers. ``once``: not if any of our components
        has recorded the same on the object already."""
        now_s = self._clock()
        note = _cut(redact(note), _LONGEST_MESSAGE)
        of = (regarding.get("kind", ""), regarding.get("namespace", ""), regarding["name"], regarding.get("uid", ""))
        series = self._series.get((*of, kind, reason, action, note))
        if series is not None and now_s - series.last_s < self._settings.series_lasts_s:
            series.count, series.last_s = series.count + 1, now_s
            if not series.waits and now_s - series.written_s >= self._settings.series_every_s:
                self._enqueue(series)
            return
        # Before the limits: the audit log has what no event has room for. What is only said again is in it once.
        audit_event(regarding, reason, action, note)
        bucket = self._objects.get(of) or _Bucket(self._settings.object_burst, self._settings.object_every_s, now_s)
        self._objects.put(of, bucket)
        if not bucket.try_acquire(now_s):
            self.dropped += 1
            return
        document = self._document(regarding, reason, action, note, kind, related)
        if once:
            # The name is the same for all components: the API server keeps the first.
            same = hashlib.sha256("\n".join((*of, reason, note)).encode()).hexdigest()[:16]
            document["metadata"]["name"] = document["metadata"]["name"].rpartition(".")[0] + f".{same}"
        series = _Series(document, now_s)
        self._series.put((*of, kind, reason, action, note), series)
        self._enqueue(series)

    async def run(self) -> None:
        """Write what is recorded, until cancelled."""
        while True:
            await self.flush()
            self._work.clear()
            await self._work.wait()

    async def flush(self) -> None:
        """Write what is recorded until nothing is left; never fails, what cannot be written is dropped."""
        while self._queue:
            if (wait_s := self._all.wait_s(self._clock())) > 0:
                await asyncio.sleep(wait_s)
                continue
            self._all.try_acquire(self._clock())
            await self._write(self._queue.popleft())

    def _enqueue(self, series: _Series) -> None:
        if len(self._queue) >= self._settings.queued:
            self.dropped += 1
            series.waits = False
            return
        series.waits = True
        self._queue.append(series)
        self._work.set()

    async def _write(self, series: _Series) -> None:
        series.waits = False
        count, metadata = series.count, series.document["metadata"]
        try:
            if series.written_count:
                changes: Object = {"series": {"count": count, "lastObservedTime": micro_stamp(time.time())}}
                await self._kube.patch(EVENTS, metadata["name"], changes, metadata["namespace"])
            else:
                await self._kube.create(EVENTS, series.document)
        except AlreadyExists:
            # Recorded with ``once`` by another component.
            series.written_count, series.written_s = count, self._clock()
        except NotFound:
            # Its namespace is gone, or the event has expired; the next one begins a new series.
            series.last_s = float("-inf")
        except ApiError as error:
            self.dropped += 1
            series.last_s = float("-inf")
            level = logging.INFO if isinstance(error, Unreachable) else logging.WARNING
            _LOG.log(level, "an event on %s could not be written: %s", metadata["name"], error)
        else:
            series.written_count, series.written_s = count, self._clock()

    def _document(
        self, regarding: Object, reason: str, action: str, note: str, kind: str, related: Object | None
    ) -> Object:
        # Events on cluster-scoped objects live in the namespace "default".
        namespace = regarding.get("namespace") or "default"
        name = f"{regarding['name'][:_LONGEST_NAME].rstrip('.-')}.{uuid.uuid4().hex[:16]}"
        document = {
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": micro_stamp(time.time()),
            "reportingController": self._component,
            "reportingInstance": _cut(self._instance, _LONGEST_WORD),
            "type": kind,
            "reason": _cut(reason, _LONGEST_WORD),
            "action": _cut(action, _LONGEST_WORD),
            "regarding": regarding,
            "note": note,
        }
        return document if related is None else document | {"related": related}


class _Bucket:
    """A token bucket: ``burst`` at once, then one each ``every_s`` seconds."""

    def __init__(self, burst: int, every_s: float, now_s: float) -> None:
        self._burst, self._every_s, self._tokens, self._at_s = burst, every_s, float(burst), now_s

    def wait_s(self, now_s: float) -> float:
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) / self._every_s)
        self._at_s = now_s
        # A hair less than a token counts, or rounding would make the caller wait again.
        return 0.0 if self._tokens >= 1 - 1e-9 else (1 - self._tokens) * self._every_s

    def try_acquire(self, now_s: float) -> bool:
        if self.wait_s(now_s) > 0:
            return False
        self._tokens -= 1
        return True


class _Recent(Generic[K, V]):
    """The ``most`` values used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        result = self._values.get(key)
        if result is not None:
            self._values.move_to_end(key)
        return result

    def put(self, key: K, value: V) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)


def _cut(text: str, most: int) -> str:
    """At most ``most`` bytes: the API server counts bytes."""
    # What people wrote may hold halves of surrogate pairs, which are no bytes.
    content = text.encode(errors="replace")
    return content.decode() if len(content) <= most else content[: most - 3].decode(errors="ignore") + "…"
