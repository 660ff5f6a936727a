"""What every controller's process is made of: informers, a Lease, probes, metrics and events.

class Replica(LedReplica):
    def __init__(self, kube, settings):
        super().__init__(kube, "sizing", settings, informers)

    async def lead(self, fence): ...  # while this replica leads

async with connect(...) as kube:
    await run_until(end_signals(), Replica(kube, settings))
"""

import asyncio
import contextlib
import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from kopt.cluster.api import Kube
from kopt.cluster.events import EventRecorder
from kopt.cluster.informer import Informer
from kopt.cluster.lease import Deposed, Fence, Leader, LeaseSettings
from kopt.cluster.resources import Object
from kopt.controllers.http import HttpServer, Reply, Request

_LOG = logging.getLogger(__name__)
_LONGEST_BODY = 64 << 10
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """Of one replica of any controller."""

    lease: LeaseSettings = field(default_factory=LeaseSettings)
    namespace: str = "kopt-system"
    """Of the Lease."""
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    kubeconfig: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    """Of probes and metrics; 0 takes a free one."""


class Stepper(Protocol):
    """A controller's passes over what it has seen. ``step`` returns in how many seconds it wants to be called again
    even if nothing changes, None for never; ``troubles`` counts what failed and is tried again."""

    troubles: int

    async def step(self) -> float | None: ...


class LedReplica(ABC):
    """``name`` is the controller's: the Lease is ``kopt-NAME``, metrics begin with ``kopt_NAME_``."""

    def __init__(
        self, kube: Kube, name: str, settings: ReplicaSettings, informers: Sequence[Informer[Any]]
    ) -> None:  # fmt: skip
        self._name, self._place, self._informers = name, (settings.host, settings.port), informers
        self._leader = Leader(kube, settings.namespace, f"kopt-{name}", settings.identity, settings.lease)
        self._campaign: asyncio.Task[None] | None = None
        self._events = EventRecorder(kube, f"kaiwo.ai/{name}", settings.identity)
        self.registry = CollectorRegistry()
        self.troubles = 0
        """What failed and is tried again, of all terms; counted by ``step_through``."""
        self._steps = Counter(f"kopt_{name}_steps", "What was done, by the event's reason.", ["reason"],
                              registry=self.registry)  # fmt: skip
        self.gauge("leading", "1 while this replica leads.", lambda: self._leader.leading)
        self._http = HttpServer(self._look, _LONGEST_BODY)
        self.port = 0

    @abstractmethod
    async def lead(self, fence: Fence) -> None:
        """The controller's work: called with each term's Fence once all informers have seen the cluster, cancelled when
        the term ends."""

    async def step_through(self, stepper: Stepper, changed: asyncio.Event, gather_s: float) -> None:
        """Step for ever, at every change; what comes within ``gather_s`` is looked at once."""
        while True:
            changed.clear()
            before = stepper.troubles
            again_s = await stepper.step()
            self.troubles += stepper.troubles - before
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await changed.wait()
            await asyncio.sleep(gather_s)

    def gauge(self, what: str, text: str, read: Callable[[], float]) -> None:
        """``kopt_NAME_WHAT``, read when it is asked for."""
        Gauge(f"kopt_{self._name}_{what}", text, registry=self.registry).set_function(read)

    def tell(self, regarding: Object, reason: str, action: str, sentence: str) -> None:
        """Log, count and record an event; ``regarding`` is an object reference."""
        place = "/".join(filter(None, (regarding.get("namespace"), regarding["name"])))
        _LOG.info("%s %s: %s: %s", regarding["kind"], place, reason, sentence)
        self._steps.labels(reason).inc()
        self._events.record(regarding, reason, action, sentence)

    async def run(self) -> None:
        self.port = await self._http.start(*self._place)
        _LOG.info("probes and metrics on port %d", self.port)
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())
            group.create_task(self._events.run())
            await asyncio.gather(*(informer.synced.wait() for informer in self._informers))
            self._campaign = group.create_task(self._leader.run())
            while True:
                with contextlib.suppress(Deposed):
                    async with self._leader.lead() as fence:
                        await self.lead(fence)

    async def stop(self) -> None:
        """Hand the Lease to the other replica."""
        if self._campaign is not None:
            self._campaign.cancel()
            await asyncio.gather(self._campaign, return_exceptions=True)
        await self._http.stop()

    def _look(self, request: Request) -> Reply:
        if request.path == "/metrics":
            return Reply(generate_latest(self.registry), content_type=_METRICS)
        if request.path == "/healthz":
            return Reply.text("alive\n")
        if request.path == "/readyz":
            ready = all(informer.synced.is_set() for informer in self._informers)
            return Reply.text("ready\n" if ready else "the cluster has not been read yet\n", 200 if ready else 503)
        return Reply.text("there are /healthz, /readyz and /metrics\n", 404)
