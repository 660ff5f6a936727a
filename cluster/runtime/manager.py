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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, generate_latest

from kopt.cluster.client.api import ApiError, Kube
from kopt.cluster.client.resources import LEASES, Object
from kopt.cluster.objects.annotations import Checks
from kopt.cluster.objects.seals import adopt_key
from kopt.cluster.runtime.backoff import Backoff
from kopt.cluster.runtime.events import WARNING, EventRecorder
from kopt.cluster.runtime.fall_back import AlarmSource, FallBack
from kopt.cluster.runtime.http import SMALL_BODY_BYTES, HttpLimits, HttpServer, Reply, Request
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.runtime.isolation import FORGED_ANNOTATION, INVALID_ANNOTATION, Isolation, Subject
from kopt.cluster.runtime.lease import Deposed, Fence, Leader, LeaseSettings
from kopt.cluster.runtime.switches import LiveSwitches

_LOG = logging.getLogger(__name__)
_LIMITS = HttpLimits(connections=64, buffered_bytes=16 << 20)
_LONGEST_PAUSE_S = 15.0
"""After a pass that failed as a whole: everybody waits for the next."""
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
    even if nothing changes, None for never; ``errors`` counts what failed and is tried again."""

    errors: int

    async def step(self) -> float | None: ...


class Collected:
    """Metrics that a function gives whenever they are asked for; for ``CollectorRegistry.register``."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering asks for nothing."""
        return ()


class LedReplica(ABC):
    """``name`` is the controller's: the Lease is ``kopt-NAME``, metrics begin with ``kopt_NAME_``. ``alarms`` switch
    off the first feature of ``switches``."""

    action = ""
    """What it does, as its events say."""

    reads_seals = False
    """Whether it goes by annotations that our controllers have sealed (``cluster.objects.seals``)."""

    annotation_checks: ClassVar[Checks] = {}
    """The annotations that it relies on: errors in one are reported on its object."""

    def __init__(
        self,
        kube: Kube,
        name: str,
        settings: ReplicaSettings,
        informers: Sequence[Informer[Any]],
        switches: LiveSwitches | None = None,
        alarms: Sequence[AlarmSource] = (),
    ) -> None:
        self._kube_for_key, self._namespace = kube, settings.namespace
        informers = (*informers, *([switches.informer] if switches is not None else []))
        self._name, self._address, self._informers = name, (settings.host, settings.port), informers
        self._awaited: set[asyncio.Event] = set()
        self._leader = Leader(kube, settings.namespace, f"kopt-{name}", settings.identity, settings.lease)
        self._campaign: asyncio.Task[None] | None = None
        self._events = EventRecorder(kube, f"kaiwo.ai/{name}", settings.identity)
        self.registry = CollectorRegistry()
        self.errors = 0
        """What failed and is tried again, of all terms; counted by ``step_through``."""
        self._stepper: Stepper | None = None
        self._steps = Counter(
            f"kopt_{name}_steps", "What was done, by the event's reason.", ["reason"], registry=self.registry
        )
        self._failures = Counter(
            "kopt_object_errors",
            "Objects that cannot be read or handled; all others are.",
            ["controller", "kind", "reason"],
            registry=self.registry,
        )
        lease = Subject(LEASES.api_version, LEASES.kind, settings.namespace, f"kopt-{name}")
        self.isolation = Isolation(name, self._warn, lease, checks=self.annotation_checks)
        for informer in informers:
            informer.isolation = self.isolation
        self._fall_back: FallBack | None = None
        if switches is not None:
            switches.register(self.registry)
            switches.on_change(self.switched)
            self._fall_back = FallBack(kube, switches, switches.features[0], alarms, self._announce_fall_back)
        self.gauge("leading", "1 while this replica leads.", lambda: self._leader.leading)
        self._http = HttpServer(self._handle, SMALL_BODY_BYTES, limits=_LIMITS)
        self.port = 0

    @abstractmethod
    async def lead(self, fence: Fence) -> None:
        """The controller's work: called with each term's Fence once all informers have seen the cluster, cancelled when
        the term ends."""

    async def step_through(self, stepper: Stepper, changed: asyncio.Event, gather_s: float) -> None:
        """Run ``step`` for ever, at every change; changes within ``gather_s`` share one step."""
        self._awaited.add(changed)
        self._stepper = stepper
        while True:
            changed.clear()
            before = stepper.errors
            # What failed for one object is contained inside of the step; this is for faults in what all of them share.
            with self.isolation.guard(self.isolation.itself) as attempt:
                again_s = await stepper.step()
            self.errors += stepper.errors - before
            if attempt.error is not None:
                self.errors += 1
                await asyncio.sleep(min(attempt.again_s, _LONGEST_PAUSE_S))
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await changed.wait()
            await asyncio.sleep(gather_s)

    def switched(self) -> None:
        """A switch was set: everything is decided anew."""
        for changed in self._awaited:
            changed.set()

    def gauge(self, what: str, text: str, read: Callable[[], float]) -> None:
        """``kopt_NAME_WHAT``, read when it is asked for."""
        Gauge(f"kopt_{self._name}_{what}", text, registry=self.registry).set_function(read)

    def gauge_of_stepper(self, what: str, text: str, attribute: str = "") -> None:
        """``kopt_NAME_WHAT``: an attribute of what is stepped through, ``what`` where none is named; 0 before."""
        self.gauge(what, text, lambda: float(getattr(self._stepper, attribute or what, 0)))

    def emit_event(self, regarding: Object, reason: str, sentence: str) -> None:
        """Log, count and record an event; ``regarding`` is an object reference."""
        path = "/".join(filter(None, (regarding.get("namespace"), regarding["name"])))
        _LOG.info("%s %s: %s: %s", regarding["kind"], path, reason, sentence)
        self._steps.labels(reason).inc()
        self._events.record(regarding, reason, self.action, sentence)

    def _announce_fall_back(self, regarding: Object, reason: str, sentence: str) -> None:
        self._events.record(regarding, reason, "Switching", sentence, kind=WARNING)

    def _warn(self, subject: Subject, reason: str, sentence: str) -> None:
        self._failures.labels(self._name, subject.kind, reason).inc()
        if self._leader.leading and subject.name:
            # One of the replicas is enough.
            once = reason in (INVALID_ANNOTATION, FORGED_ANNOTATION)
            self._events.record(subject.reference, reason, "Isolating", sentence, kind=WARNING, once=once)

    async def run(self) -> None:
        self.port = await self._http.start(*self._address)
        _LOG.info("probes and metrics on port %d", self.port)
        if self.reads_seals:
            await self._adopt_key()
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())
            group.create_task(self._events.run())
            await asyncio.gather(*(informer.synced.wait() for informer in self._informers))
            if self._fall_back is not None:
                group.create_task(self._fall_back.run())
            self._campaign = group.create_task(self._leader.run())
            while True:
                with contextlib.suppress(Deposed):
                    async with self._leader.lead() as fence:
                        self.isolation.repeat()
                        await self.lead(fence)

    async def _adopt_key(self) -> None:
        """Before anything is read: what was sealed with another key counts as forged."""
        backoff = Backoff(0.5, 10.0)
        while True:
            try:
                await adopt_key(self._kube_for_key, self._namespace)
                return
            except ApiError as error:
                _LOG.warning("the key of notices has not been read yet: %s", error)
                await asyncio.sleep(backoff.next_s())

    async def stop(self) -> None:
        """Hand the Lease to the other replica."""
        if self._campaign is not None:
            self._campaign.cancel()
            await asyncio.gather(self._campaign, return_exceptions=True)
        await self._http.stop()

    def _handle(self, request: Request) -> Reply:
        if request.path == "/metrics":
            return Reply(generate_latest(self.registry), content_type=_METRICS)
        if request.path == "/healthz":
            return Reply.text("alive\n")
        if request.path == "/readyz":
            missing = [informer for informer in self._informers if not informer.synced.is_set()]
            return Reply.text(f"{_unread(missing)}\n", 503) if missing else Reply.text("ready\n")
        return Reply.text("there are /healthz, /readyz and /metrics\n", 404)


def _unread(informers: Sequence[Informer[Any]]) -> str:
    """What has not been read, and why; the server's message may say more than a probe's caller is to know."""
    reasons = [informer.error.reason if informer.error is not None else "no answer yet" for informer in informers]
    kinds = [f"{informer.resource.full_name} ({reason})" for informer, reason in zip(informers, reasons, strict=True)]
    return f"the cluster has not been read yet: {', '.join(kinds)}"
