"""Writes Eviction objects and their outcomes. ``detection`` and ``recovery`` decide."""

import logging
from collections.abc import Callable
from typing import Protocol

from kopt.cluster.client.errors import AlreadyExists, ApiError, NotFound
from kopt.cluster.client.resources import EVICTIONS, Object, Resource
from kopt.cluster.objects.eviction import body_of, status_of
from kopt.cluster.runtime.isolation import Isolation
from kopt.cluster.runtime.retry import Pauses
from kopt.controllers.evictions.detection import evictions
from kopt.controllers.evictions.observations import Observed
from kopt.controllers.evictions.recovery import UNVERIFIED_AFTER_S, outcome
from kopt.controllers.evictions.store import EvictionStore
from kopt.core.scheduling.eviction import Entry, Eviction, Phase
from kopt.core.units import counted
from kopt.core.workload.checkpoint import claimed
from kopt.policies.evictions import Keeping, outlived

_LOG = logging.getLogger(__name__)
_TIDY_S = 60.0
_PAUSES = Pauses(changed_s=0.5, failed_s=0.5, missing_s=10.0, refused_s=10.0)
EmitEvictionEvent = Callable[[Eviction, str, str], None]


class Writer(Protocol):
    """The writes of one term (``cluster.runtime.lease.Fence``)."""

    async def create(self, resource: Resource, body: Object) -> Object: ...

    async def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object: ...

    async def delete(self, resource: Resource, document: Object) -> None: ...


class Recorder:
    """One term. ``step`` evaluates every workload with changes; it raises Deposed, nothing else.

    ``monotonic`` is the clock of ``observed``, ``clock`` gives Unix seconds.
    """

    def __init__(
        self,
        observed: Observed,
        store: EvictionStore,
        writer: Writer,
        emit_event: EmitEvictionEvent,
        keeping: Keeping,
        monotonic: Callable[[], float],
        clock: Callable[[], float],
        isolation: Isolation | None = None,
    ) -> None:
        self._isolation = isolation or Isolation("ledger")
        self._observed, self._store, self._writer, self._emit_event, self._keeping = (
            observed,
            store,
            writer,
            emit_event,
            keeping,
        )
        self._monotonic, self._clock = monotonic, clock
        self._again: dict[str, float] = {}
        self._tidied_s = float("-inf")
        self.errors = 0

    async def step(self) -> float:
        """In how many seconds to run again if nothing changes before."""
        now_s = self._monotonic()
        due = {root for root, at_s in self._again.items() if at_s <= now_s}
        roots, self._observed.dirty = self._observed.dirty | due, set()
        for root in sorted(roots):
            self._again.pop(root, None)
            subject = self._observed.subject_of(root)
            try:
                with self._isolation.guard(subject) as attempt:
                    again_s = await self._reconcile(root)
                if attempt.error is not None:
                    self.errors += 1
                    again_s = attempt.again_s
            except ApiError as error:
                again_s = self._failed(root, error)
            if again_s < float("inf"):
                self._again[root] = self._monotonic() + again_s
        if self._monotonic() - self._tidied_s >= _TIDY_S:
            await self._tidy()
        return max(0.0, min([self._tidied_s + _TIDY_S, *self._again.values()]) - self._monotonic())

    def _failed(self, root: str, error: ApiError) -> float:
        self.errors += 1
        _LOG.warning("evictions of %s are not written yet: %s", root, error)
        return _PAUSES.after(error)

    async def _reconcile(self, root: str) -> float:
        result, again_s = evictions(
            self._observed, root, self._store.of(root), self._monotonic(), self._clock() - self._keeping.age_s
        )
        for eviction in result:
            await self._write(eviction)
        lines = self._store.of(root)
        for line in lines:
            again_s = min(again_s, await self._follow(line, newest=line is lines[-1]))
        return again_s

    async def _write(self, eviction: Eviction) -> None:
        body = body_of(eviction)
        try:
            self._store.record(await self._writer.create(EVICTIONS, body))
        except AlreadyExists:
            # Written by another replica, or by us before a restart: the watch will deliver it.
            raise
        self._emit_event(eviction, "Evicted", sentence(eviction))

    async def _follow(self, line: Entry, *, newest: bool) -> float:
        eviction, document = line.eviction, self._store.document(line)
        if document is None:
            return float("inf")
        result = outcome(self._observed, line, newest=newest, now_s=self._clock())
        status = status_of(result)
        if document.get("status") != status:
            written = await self._writer.replace(EVICTIONS, document | {"status": status}, subresource="status")
            self._store.record(written)
            if result.phase is not line.outcome.phase:
                self._emit_event(
                    eviction, result.phase.value, result.message or f"After an eviction: {result.phase.lower()}."
                )
        waits_for_word = newest and result.phase is Phase.RESUMED and result.verified is None
        return UNVERIFIED_AFTER_S / 10 if waits_for_word else float("inf")

    async def _tidy(self) -> None:
        self._tidied_s = self._monotonic()
        self._observed.forget()
        for line in outlived(self._store.entries(), self._clock(), self._keeping):
            document = self._store.document(line)
            if document is None:
                continue
            try:
                await self._writer.delete(EVICTIONS, document)
            except NotFound:
                pass
            except ApiError as error:
                self._failed(line.eviction.workload.uid, error)
                continue
            self._store.record_deletion(document)


def sentence(eviction: Eviction) -> str:
    """For people."""
    by, for_whom = (
        (f" by {eviction.by}" if eviction.by else ""),
        (f" for {eviction.for_whom}" if eviction.for_whom else ""),
    )
    lost = (
        ""
        if eviction.lost_gpu_s is None
        else f", {eviction.lost_gpu_s / 3600:.2f} GPU-hours of work lost{claimed(eviction.source)}"
    )
    gpus = counted(f"{eviction.gpus / 1000:g}", "GPU")
    return f"{eviction.cause.value}{by}{for_whom}: lost {gpus}{lost}. {eviction.reason}"
