"""``kopt controller pairwise``: one replica, from start to the end."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.client.resources import NODE_TOPOLOGIES, Object
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.controllers.pairwise.endpoint_upload import Send, Sender
from kopt.controllers.pairwise.ports import Writer
from kopt.controllers.pairwise.reconciler import Reconciler
from kopt.controllers.pairwise.state import LiveCluster
from kopt.core.hardware.pairwise import Health

_LOG = logging.getLogger(__name__)
NAME = "pairs"
_ENDPOINT_S = 20.0
_GATHER_S = 0.05
"""Changes within this time are handled together."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica."""

    tests_namespace: str = "kopt-benchmarks"
    """Where Jobs of tests run."""
    predictions_url: str = ""
    """The prediction endpoint that measured pairs are sent to; empty: none."""
    cluster: str = "default"
    """By which name the endpoint knows this cluster."""
    port: int = 9449
    taken_pause_s: float = 60.0
    """Before a test that others have ended is tried again."""


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with (
        connect(settings.kubeconfig, KubeSettings(user_agent="kopt-pairs")) as kube,
        _endpoint(settings) as send,
    ):
        await run_until(ending, Replica(kube, settings, send))


@contextlib.asynccontextmanager
async def _endpoint(settings: ProcessSettings) -> AsyncIterator[Send | None]:
    if not settings.predictions_url:
        yield None
        return
    from kopt.serving.client.client import AsyncPredictionClient

    async with AsyncPredictionClient(settings.predictions_url, deadline_s=_ENDPOINT_S) as client:
        yield client.tell_pairs


class Replica(LedReplica):
    """The parts of one process, put together. Tests that run when it ends go on, and are the next leader's."""

    action = "Benchmarking"

    def __init__(self, kube: Kube, settings: ProcessSettings, send: Send | None = None) -> None:
        self._settings, self._send = settings, send
        self.cluster = LiveCluster(kube, settings.tests_namespace)
        self._topologies: Informer[Object] = Informer(kube, NODE_TOPOLOGIES)
        self._switches = LiveSwitches(kube, "pairwise")
        informers = (*self.cluster.informers, *([self._topologies] if send else []))
        super().__init__(kube, NAME, settings, informers, self._switches)
        self.gauge("running_tests", "Tests that there are.", lambda: len(self.cluster.jobs()))
        self.gauge("degraded_nodes", "Nodes whose pairs are slow or fail.", self._degraded)
        self.gauge("errors", "Reconciles that failed and are retried.", lambda: self.errors)

    async def lead(self, fence: Fence) -> None:
        sending = asyncio.create_task(self._keep_sending(self._send)) if self._send else None
        try:
            await self._work(fence)
        finally:
            if sending is not None:
                sending.cancel()

    async def _keep_sending(self, send: Send) -> None:
        sender = self._sender(send)
        while True:
            with self.isolation.guard(self.isolation.itself) as attempt:
                await sender.run()
            await asyncio.sleep(attempt.again_s)

    async def _work(self, fence: Fence) -> None:
        reconciler = Reconciler(
            self.cluster,
            Writer(fence, self.cluster),
            self._settings.tests_namespace,
            self.emit_event,
            evicted_pause_s=self._settings.taken_pause_s,
            isolation=self.isolation,
            gate=self._switches,
        )
        self.cluster.read_anew()
        await self.step_through(reconciler, self.cluster.changed, _GATHER_S)

    def _sender(self, send: Send) -> Sender:
        return Sender(self._settings.cluster, send, self.cluster.bandwidth_objects, self._topologies, self._levels)

    def _levels(self, names: Collection[str]) -> Mapping[str, Sequence[str]]:
        nodes = self.cluster.nodes()
        return {name: nodes[name].levels for name in names if name in nodes and nodes[name].levels}

    def _degraded(self) -> int:
        result = (bandwidth.get("status") or {} for bandwidth in self.cluster.bandwidths().values())
        return sum(item.get("health") in (Health.SLOW.value, Health.FAILED.value) for item in result)
