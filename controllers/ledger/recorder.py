"""Writes lines, and what became of the workloads in them. Deciding is ``judging``'s and ``returns``'."""

import logging
from collections.abc import Callable
from typing import Protocol

from kopt.cluster.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from kopt.cluster.evictions import body_of, status_of
from kopt.cluster.resources import EVICTIONS, Object, Resource
from kopt.controllers.ledger.judging import evictions
from kopt.controllers.ledger.lines import Lines
from kopt.controllers.ledger.returns import UNVERIFIED_AFTER_S, outcome
from kopt.controllers.ledger.seen import Seen
from kopt.core.evictions import Entry, Eviction, Phase
from kopt.policies.evictions import Keeping, outlived

_LOG = logging.getLogger(__name__)
_SOON_S, _LATER_S, _TIDY_S = 0.5, 10.0, 60.0
Tell = Callable[[Eviction, str, str], None]


class Writer(Protocol):
    """The writes of one term (``cluster.lease.Fence``)."""

    async def create(self, resource: Resource, body: Object) -> Object: ...

    async def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object: ...

    async def delete(self, resource: Resource, seen: Object) -> None: ...


class Recorder:
    """One term. ``step`` looks at every workload that something was seen of; it raises Deposed, nothing else.

    ``monotonic`` is the clock of ``seen``, ``clock`` gives Unix seconds.
    """

    def __init__(self, seen: Seen, lines: Lines, writer: Writer, tell: Tell, keeping: Keeping,
                 monotonic: Callable[[], float], clock: Callable[[], float]) -> None:  # fmt: skip
        self._seen, self._lines, self._writer, self._tell, self._keeping = seen, lines, writer, tell, keeping
        self._monotonic, self._clock = monotonic, clock
        self._again: dict[str, float] = {}
        self._tidied_s = float("-inf")
        self.troubles = 0

    async def step(self) -> float:
        """In how many seconds to look again, if nothing happens before."""
        now_s = self._monotonic()
        due = {root for root, at_s in self._again.items() if at_s <= now_s}
        roots, self._seen.dirty = self._seen.dirty | due, set()
        for root in sorted(roots):
            self._again.pop(root, None)
            try:
                again_s = await self._look_at(root)
            except (Conflict, NotFound) as error:
                again_s = self._failed(root, error, _SOON_S if isinstance(error, Conflict) else _LATER_S)
            except ApiError as error:
                again_s = self._failed(root, error, _LATER_S if isinstance(error, Forbidden | Invalid) else _SOON_S)
            if again_s < float("inf"):
                self._again[root] = self._monotonic() + again_s
        if self._monotonic() - self._tidied_s >= _TIDY_S:
            await self._tidy()
        return max(0.0, min([self._tidied_s + _TIDY_S, *self._again.values()]) - self._monotonic())

    def _failed(self, root: str, error: ApiError, again_s: float) -> float:
        self.troubles += 1
        _LOG.warning("evictions of %s are not written yet: %s", root, error)
        return again_s

    async def _look_at(self, root: str) -> float:
        found, again_s = evictions(
            self._seen, root, self._lines.of(root), self._monotonic(), self._clock() - self._keeping.age_s
        )
        for one in found:
            await self._write(one)
        lines = self._lines.of(root)
        for line in lines:
            again_s = min(again_s, await self._follow(line, newest=line is lines[-1]))
        return again_s

    async def _write(self, eviction: Eviction) -> None:
        body = body_of(eviction)
        try:
            self._lines.put(await self._writer.create(EVICTIONS, body))
        except AlreadyExists:
            # Another replica's, or ours before a restart: its news is on the way.
            raise
        self._tell(eviction, "Evicted", sentence(eviction))

    async def _follow(self, line: Entry, *, newest: bool) -> float:
        eviction, key = line.eviction, (line.eviction.namespace, line.eviction.name)
        found = outcome(self._seen, line, newest=newest, now_s=self._clock())
        document, status = self._lines.documents[key], status_of(found)
        if document.get("status") != status:
            self._lines.put(await self._writer.replace(EVICTIONS, document | {"status": status}, subresource="status"))
            if found.phase is not line.outcome.phase:
                self._tell(eviction, found.phase.value, found.message or f"After an eviction: {found.phase.lower()}.")
        waits_for_word = newest and found.phase is Phase.RESUMED and found.verified is None
        return UNVERIFIED_AFTER_S / 10 if waits_for_word else float("inf")

    async def _tidy(self) -> None:
        self._tidied_s = self._monotonic()
        self._seen.forget()
        for line in outlived(self._lines.entries.values(), self._clock(), self._keeping):
            key = (line.eviction.namespace, line.eviction.name)
            try:
                await self._writer.delete(EVICTIONS, self._lines.documents[key])
            except NotFound:
                pass
            except ApiError as error:
                self._failed(line.eviction.workload.uid, error, _LATER_S)
                continue
            self._lines.remove(key)


def sentence(one: Eviction) -> str:
    """For people."""
    by, for_whom = (f" by {one.by}" if one.by else ""), (f" for {one.for_whom}" if one.for_whom else "")
    lost = "" if one.lost_gpu_s is None else f", {one.lost_gpu_s / 3600:.2f} GPU-hours of work are lost"
    return f"{one.cause.value}{by}{for_whom}: lost {one.gpus / 1000:g} GPUs{lost}. {one.reason}"
