"""What kube-scheduler and people can ask over HTTP: decisions, ``/explain``, probes and metrics.

A call that cannot be answered gets an error, never a guess: the extender is ``ignorable``, so the scheduler goes on by
itself.
"""

import asyncio
import functools
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import orjson

from kopt.cluster.runtime.http import SMALL_BODY_BYTES, HttpLimits, HttpServer, Reply, Request
from kopt.controllers.extender.binding.queue import BindAnswer
from kopt.controllers.extender.calls.service import Extender
from kopt.controllers.extender.metrics import ExtenderMetrics
from kopt.controllers.extender.node_list import WireError
from kopt.controllers.extender.protocol import parse_binding, parse_offer

_LOG = logging.getLogger(__name__)
LARGEST_CALL_BYTES = 32 << 20
"""A pod of 3 MiB and the names of more nodes than a cluster has."""
_LARGEST_BINDING_BYTES = 64 << 10
_LIMITS = HttpLimits(buffered_bytes=256 << 20, socket_bytes=1 << 20)
"""Callers that pass TLS are schedulers, whose large calls should not wait for the network."""
_PROBE_LIMITS = HttpLimits(connections=64, buffered_bytes=16 << 20)
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class ServerSettings:
    """Where to listen; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 9445
    drain_s: float = 2.0
    """Between the signal to end and closing: until the scheduler uses the other replica."""
    probe_port: int | None = None
    """Where probes, metrics and explanations are served to those who may not have pods bound; None for ``port``."""
    tls: Path | None = None
    """Folder with the certificate, and the CA of those who may call; None speaks plain HTTP to any caller."""


class ExtenderServer:
    """The calls of the scheduler, and for people ``/explain``, ``/metrics``, ``/healthz``, ``/readyz``, ``/leads``.

    ``ready``: whether the books are of now; ``serves``: whether this replica is the one to ask.
    """

    def __init__(
        self,
        extender: Extender,
        metrics: ExtenderMetrics,
        settings: ServerSettings,
        *,
        ready: Callable[[], bool] = lambda: True,
        serves: Callable[[], bool] = lambda: True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._extender, self._metrics, self._settings, self._tls = extender, metrics, settings, tls
        self._ready, self._serves = ready, serves
        self._http = HttpServer(self._answer, _largest_body, limits=_LIMITS)
        self._probes = HttpServer(self._serve_get, SMALL_BODY_BYTES, limits=_PROBE_LIMITS)
        self.port = self.probe_port = 0

    @property
    def ready(self) -> bool:
        """Whether it could answer, now or as soon as it leads."""
        return not self._http.draining and self._ready()

    @property
    def serves(self) -> bool:
        """Whether it answers."""
        return self.ready and self._serves()

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken."""
        settings = self._settings
        self.port = self.probe_port = await self._http.start(settings.host, settings.port, self._tls)
        if settings.probe_port is not None:
            self.probe_port = await self._probes.start(settings.host, settings.probe_port)

    def end_connections(self) -> None:
        """The trusted callers have changed: all of them have to reconnect."""
        self._http.end_connections()

    def leave(self) -> None:
        """Not ready any more: calls are refused, so that the scheduler goes to another replica."""
        self._http.draining = True

    async def stop(self) -> None:
        """Leave; drain; close."""
        self.leave()
        await asyncio.sleep(self._settings.drain_s)
        await self._http.stop()
        await self._probes.stop()

    def _answer(self, request: Request) -> Reply | Awaitable[Reply]:
        verb = request.path.rpartition("/")[2]
        if request.method == "GET":
            return self._serve_get(request)
        if request.method != "POST" or verb not in ("filter", "prioritize", "bind"):
            return Reply.text("there are POST /filter, /prioritize and /bind", 404)
        if not self.serves:
            self._metrics.calls.labels(verb, "not_ready").inc()
            return Reply.text("this replica does not lead, or does not know the cluster yet", 503)
        if verb == "bind":
            return self._bind(request.body)
        if verb == "filter" and not self._extender.binds.has_room:
            return self._held_up(request.body)
        return self._decide(verb, request.body)

    async def _held_up(self, body: bytes) -> Reply:
        await self._extender.binds.room()
        return self._decide("filter", body)

    def _decide(self, verb: str, body: bytes) -> Reply:
        started_s = time.perf_counter()
        try:
            offer = parse_offer(body)
            answer = self._extender.filter(offer) if verb == "filter" else self._extender.prioritize(offer)
            self._extender.timed(verb, offer, time.perf_counter() - started_s)
        except Exception as error:  # noqa: BLE001 - edge: see _failed
            return self._failed(verb, error)
        self._metrics.answered(verb)
        return Reply(answer)

    def _bind(self, body: bytes) -> Reply | asyncio.Future[Reply]:
        try:
            binding = self._extender.binds.begin(parse_binding(body))
        except Exception as error:  # noqa: BLE001 - edge: see _failed
            return self._failed("bind", error)
        # A future, not a task: waiting in one more coroutine would cost as much as reading the call. The scheduler may
        # hang up; the Binding goes on.
        reply: asyncio.Future[Reply] = binding.get_loop().create_future()
        binding.add_done_callback(functools.partial(self._bound, reply))
        return reply

    def _bound(self, reply: asyncio.Future[Reply], binding: asyncio.Future[BindAnswer]) -> None:
        error = asyncio.CancelledError() if binding.cancelled() else binding.exception()
        if error is not None:
            reply.set_result(self._failed("bind", error))
            return
        self._metrics.answered("bind")
        bound = binding.result()
        reply.set_result(Reply(bound.body, more=f"Server-Timing: binding;dur={1000 * bound.posting_s:.3f}\r\n"))

    def _failed(self, verb: str, error: BaseException) -> Reply:
        """A fault, the caller's or ours, must not take the process from the other pods."""
        if isinstance(error, WireError):
            self._metrics.calls.labels(verb, "malformed").inc()
            return Reply.text(str(error), 400)
        _LOG.error("a %s call failed", verb, exc_info=error)
        self._metrics.calls.labels(verb, "failed").inc()
        return Reply.text("internal error; see the log", 500)

    def _serve_get(self, request: Request) -> Reply:
        path = request.path
        if path == "/healthz":
            return Reply.text("ok")
        if path == "/readyz":
            return Reply.text("ready") if self.ready else Reply.text("not ready", 503)
        if path == "/leads":
            return Reply.text("leads") if self.serves else Reply.text("another replica leads", 503)
        if path == "/metrics":
            return Reply(self._metrics.exposition(), content_type=_EXPOSITION)
        if path == "/explain":
            return self._explain(request.argument("pod"))
        return Reply.text("there are /explain?pod=NAMESPACE/NAME, /healthz, /readyz, /leads and /metrics", 404)

    def _explain(self, pod: str) -> Reply:
        namespace, _, name = pod.rpartition("/")
        pod_decision = self._extender.log.find((namespace or "default", name))
        if pod_decision is None:
            problem = {
                "title": "no decision",
                "status": 404,
                "detail": f"no decision about pod {pod[:300]!r} is "
                "remembered; it may be older than the latest 10,000, or no GPU pod",
            }
            return Reply(orjson.dumps(problem), 404, "application/problem+json")
        return Reply(orjson.dumps(pod_decision.to_dict()))


def _largest_body(path: str) -> int:
    verb = path.rpartition("/")[2]
    if verb in ("filter", "prioritize"):
        return LARGEST_CALL_BYTES
    return _LARGEST_BINDING_BYTES if verb == "bind" else SMALL_BODY_BYTES
