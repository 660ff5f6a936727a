"""``kopt controller pairs``: one replica, from start to the end."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from kopt.cluster.api import Kube, KubeSettings, connect
from kopt.cluster.events import EventRecorder
from kopt.cluster.informer import Informer
from kopt.cluster.lease import Deposed, Fence, Leader, LeaseSettings
from kopt.cluster.resources import NODE_TOPOLOGIES, Object
from kopt.controllers.http import HttpServer, Reply, Request
from kopt.controllers.lifetime import end_signals, run_until
from kopt.controllers.pairs.given import Writer
from kopt.controllers.pairs.live import LiveCluster
from kopt.controllers.pairs.reconciler import Reconciler
from kopt.controllers.pairs.sending import Send, Sender
from kopt.core.pairs import Health

_LOG = logging.getLogger(__name__)
LEASE = "kopt-pairs"
_ENDPOINT_S = 20.0
_GATHER_S = 0.05
"""What comes together is looked at once."""


@dataclass(frozen=True)
class ProcessSettings:
    """Everything of one replica."""

    lease: LeaseSettings = field(default_factory=LeaseSettings)
    namespace: str = "kopt-system"
    """Of the Lease."""
    tests_namespace: str = "kopt-benchmarks"
    """Where Jobs of tests run."""
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    kubeconfig: Path | None = None
    predictions_url: str = ""
    """The prediction endpoint that is told of measured pairs; empty: none."""
    cluster: str = "default"
    """By which name the endpoint knows this cluster."""
    host: str = "127.0.0.1"
    port: int = 9449
    """Of probes and metrics; 0 takes a free one."""
    taken_pause_s: float = 60.0
    """Before a test that somebody else ended is tried again."""


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with connect(settings.kubeconfig, KubeSettings(user_agent="kopt-pairs")) as kube, _endpoint(settings) as send:
        await run_until(ending, Replica(kube, settings, send))


@contextlib.asynccontextmanager
async def _endpoint(settings: ProcessSettings) -> AsyncIterator[Send | None]:
    if not settings.predictions_url:
        yield None
        return
    from kopt.serving.client import AsyncPredictionClient

    async with AsyncPredictionClient(settings.predictions_url, deadline_s=_ENDPOINT_S) as client:
        yield client.tell_pairs


class Replica:
    """The parts of one process, put together."""

    def __init__(self, kube: Kube, settings: ProcessSettings, send: Send | None = None) -> None:
        self._settings, self._send = settings, send
        self.cluster = LiveCluster(kube, settings.tests_namespace)
        self._topologies: Informer[Object] = Informer(kube, NODE_TOPOLOGIES)
        self._informers = (*self.cluster.informers, *([self._topologies] if send else []))
        self._troubles = 0
        self._leader = Leader(kube, settings.namespace, LEASE, settings.identity, settings.lease)
        self._campaign: asyncio.Task[None] | None = None
        self._events = EventRecorder(kube, "kaiwo.ai/pairs", settings.identity)
        self._registry = CollectorRegistry()
        self._done = Counter("kopt_pairs_steps", "What was done, by the event's reason.", ["reason"],
                             registry=self._registry)  # fmt: skip
        gauges = {
            "kopt_pairs_leading": ("1 while this replica leads.", lambda: self._leader.leading),
            "kopt_pairs_running_tests": ("Tests that there are.", lambda: len(self.cluster.jobs())),
            "kopt_pairs_degraded_nodes": ("Nodes whose pairs are slow or fail.", self._degraded),
            "kopt_pairs_errors": ("Passes that failed and are tried again.", lambda: self._troubles),
        }
        for name, (text, read) in gauges.items():
            Gauge(name, text, registry=self._registry).set_function(read)
        self._http = HttpServer(self._look, 64 << 10)
        self.port = 0

    async def run(self) -> None:
        self.port = await self._http.start(self._settings.host, self._settings.port)
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
                        await self._lead(fence)

    async def stop(self) -> None:
        """Hand the Lease to the other replica. Tests that run go on, and are the next leader's."""
        if self._campaign is not None:
            self._campaign.cancel()
            await asyncio.gather(self._campaign, return_exceptions=True)
        await self._http.stop()

    async def _lead(self, fence: Fence) -> None:
        sending = asyncio.create_task(self._sender(self._send).run()) if self._send else None
        try:
            await self._work(fence)
        finally:
            if sending is not None:
                sending.cancel()

    async def _work(self, fence: Fence) -> None:
        reconciler = Reconciler(self.cluster, Writer(fence, self.cluster), self._settings.tests_namespace, self._tell,
                                taken_pause_s=self._settings.taken_pause_s)  # fmt: skip
        self.cluster.read_anew()
        while True:
            self.cluster.changed.clear()
            before = reconciler.troubles
            again_s = await reconciler.step()
            self._troubles += reconciler.troubles - before
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await self.cluster.changed.wait()
            await asyncio.sleep(_GATHER_S)

    def _sender(self, send: Send) -> Sender:
        return Sender(self._settings.cluster, send, self.cluster.bandwidth_objects, self._topologies, self._levels)

    def _levels(self, names: Collection[str]) -> Mapping[str, Sequence[str]]:
        nodes = self.cluster.nodes()
        return {name: nodes[name].levels for name in names if name in nodes and nodes[name].levels}

    def _degraded(self) -> int:
        found = (one.get("status") or {} for one in self.cluster.bandwidths().values())
        return sum(one.get("health") in (Health.SLOW.value, Health.FAILED.value) for one in found)

    def _tell(self, regarding: Object, reason: str, sentence: str) -> None:
        _LOG.info("%s %s: %s: %s", regarding["kind"], regarding["name"], reason, sentence)
        self._done.labels(reason).inc()
        self._events.record(regarding, reason, "Benchmarking", sentence)

    def _look(self, request: Request) -> Reply:
        if request.path == "/metrics":
            return Reply(generate_latest(self._registry), content_type="text/plain; version=0.0.4; charset=utf-8")
        if request.path == "/healthz":
            return Reply.text("alive\n")
        if request.path == "/readyz":
            ready = all(informer.synced.is_set() for informer in self._informers)
            return Reply.text("ready\n" if ready else "the cluster has not been read yet\n", 200 if ready else 503)
        return Reply.text("there are /healthz, /readyz and /metrics\n", 404)
