"""The pods that are being bound: each once, few at a time, and what is uncertain stays booked."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from kopt.cluster.client.api import ApiError, Conflict, NotFound, Unreachable
from kopt.cluster.runtime.lease import Deposed
from kopt.cluster.workloads.placement.pod_state import PodState
from kopt.controllers.extender.binding.request import Binder
from kopt.controllers.extender.decider import Decider
from kopt.controllers.extender.metrics import ExtenderMetrics
from kopt.controllers.extender.protocol import BindCall, bind_reply
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.policies.placement.fleet import Holding, Stage
from kopt.policies.placement.state import PlacementError

_LOG = logging.getLogger(__name__)
_OURS = ("no_room", "refused")
"""Why a pod is not bound, where that says that the extender has chosen wrongly."""
_LONGEST_HOLD_S = 0.5
PodLookup = Callable[[BindCall], Awaitable[PodState | None]]
Ended = Callable[[BindCall, Holding | None, float], None]


class BindAnswer(NamedTuple):
    """The reply, and how long the API server took."""

    body: bytes
    posting_s: float = 0.0


class Binds:
    """``lookup`` finds the pod of a call, ``ended`` is called for each that was bound, with the seconds it took."""

    def __init__(
        self,
        decider: Decider,
        binder: Binder,
        settings: ExtenderSettings,
        metrics: ExtenderMetrics,
        lookup: PodLookup,
        ended: Ended,
        clock: Callable[[], float],
    ) -> None:
        self._decider, self._binder, self._settings, self._metrics = decider, binder, settings, metrics
        self._lookup, self._ended, self._clock = lookup, ended, clock
        self._running: dict[str, asyncio.Future[BindAnswer]] = {}
        self._room = asyncio.Event()
        self._room.set()

    def is_binding(self, uid: str) -> bool:
        """Whether a pod is being bound now."""
        return uid in self._running

    def begin(self, call: BindCall) -> asyncio.Future[BindAnswer]:
        """Post the Binding; a pod that is being bound already is bound once. Not to be cancelled: others may wait."""
        running = self._running.get(call.uid)
        if running is None:
            running = asyncio.ensure_future(self._bind(call))
            self._running[call.uid] = running
            running.add_done_callback(lambda _: self._done(call.uid))
            if len(self._running) >= self._settings.most_binding:
                self._room.clear()
        return running

    async def bind(self, call: BindCall) -> BindAnswer:
        """Post the Binding and wait for it; who stops waiting does not stop it, and what comes of it is noted."""
        return await asyncio.shield(self.begin(call))

    @property
    def has_room(self) -> bool:
        """Whether `room` would return at once."""
        return self._room.is_set()

    async def room(self) -> None:
        """Return when fewer Bindings are under way than an API server should have at once, or after half a second.

        The scheduler chooses faster than a busy API server binds. Without this its binds would pile up until they time
        out, and each be sent a second time. While it waits for our answer it makes no more of them. Few are better for
        another reason: it keeps two idle connections to an extender and makes each further one anew.
        """
        if not self.has_room:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_HOLD_S):
                    await self._room.wait()

    async def settle(self) -> None:
        """Return when no pod is being bound any more."""
        while self._running:
            await asyncio.wait(list(self._running.values()))

    def _done(self, uid: str) -> None:
        self._running.pop(uid, None)
        if len(self._running) < self._settings.most_binding:
            self._room.set()

    async def _bind(self, call: BindCall) -> BindAnswer:
        started_s = time.perf_counter()
        try:
            holding = self._decider.hold_for(call, await self._lookup(call))
        except NotFound as error:
            return self._not_bound(call, "gone", error)
        except ApiError as error:
            return self._not_bound(call, "unreachable", error)
        except PlacementError as error:
            return self._not_bound(call, "no_room", error)
        posted_s = time.perf_counter()
        self._metrics.bind_seconds.observe(posted_s - started_s)
        if (refusal := await self._post(call, holding)) is not None:
            return refusal
        posting_s = time.perf_counter() - posted_s
        self._metrics.binding_seconds.observe(posting_s)
        self._decider.fleet.advance(call.uid, Stage.ASSUMED, self._clock() + self._settings.assume_s)
        self._ended(call, holding, posting_s)
        return BindAnswer(bind_reply(), posting_s)

    async def _post(self, call: BindCall, holding: Holding | None) -> BindAnswer | None:
        """None when the pod is bound."""
        gpus = holding.gpus if holding is not None and len(holding.slots) == 1 else ()
        try:
            await self._binder.bind(call.key, call.uid, call.node, gpus)
        except Deposed as error:
            return self._not_bound(call, "deposed", error)
        except NotFound as error:
            self._decider.release(call.uid)
            return self._not_bound(call, "gone", error)
        except Unreachable as error:
            # It may have been written. It counts as bound until the pod itself is read.
            self._decider.fleet.advance(call.uid, Stage.ASSUMED, self._clock())
            return self._not_bound(call, "unreachable", error)
        except ApiError as error:
            # The scheduler now binds it itself, to the same node: the reservation stays until that shows.
            return self._not_bound(call, "conflict" if isinstance(error, Conflict) else "refused", error)
        return None

    def _not_bound(self, call: BindCall, reason: str, error: Exception) -> BindAnswer:
        self._metrics.bindings.labels(reason).inc()
        self._metrics.failed_bindings += reason in _OURS
        text = f"pod {'/'.join(call.key)} is not bound to {call.node}: {error}"
        _LOG.warning("%s", text)
        self._decider.log.ended(call.key, call.uid, "failed", call.node, error=str(error))
        return BindAnswer(bind_reply(text))
