"""``kopt controller autoscaling``: one replica, from start to the end. All replicas answer."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, generate_latest

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.client.resources import CONFIG_MAPS
from kopt.cluster.runtime.fall_back import AlarmSource, FallBack, answers_of
from kopt.cluster.runtime.http import SMALL_BODY_BYTES, HttpLimits, HttpServer, Reply, Request
from kopt.cluster.runtime.http.tls_files import TlsFiles
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.controllers.autoscaling import front_proxy
from kopt.controllers.autoscaling.api import MetricsApi
from kopt.controllers.autoscaling.forecasts import Ask
from kopt.controllers.autoscaling.front_proxy import FrontProxy, front_proxy_of
from kopt.serving.contract.demand_answers import DemandForecast, DemandQuery

_LOG = logging.getLogger(__name__)
_LIMITS = HttpLimits(connections=256, buffered_bytes=16 << 20)
_PROBE_LIMITS = HttpLimits(connections=64, buffered_bytes=16 << 20)
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
_DEADLINE_S = 5.0
"""Of a forecast: an autoscaler asks every 15 s, for one metric after the other."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """Everything of one replica. ``port`` is that of probes and metrics; 0 takes a free one."""

    tls: Path
    kubeconfig: Path | None = None
    host: str = "127.0.0.1"
    port: int = 9459
    api_port: int = 9458
    predictions: str = ""
    drain_s: float = 2.0
    """Between the signal to end and closing: until the API server uses the other replica."""


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured, and TlsError."""
    ending = end_signals(stop)
    async with (
        _forecasts(settings.predictions) as (ask, alarms),
        connect(settings.kubeconfig, KubeSettings(user_agent="kopt-autoscaling")) as kube,
    ):
        await run_until(ending, Replica(kube, settings, ask, alarms))


@contextlib.asynccontextmanager
async def _forecasts(url: str) -> AsyncIterator[tuple[Ask | None, Sequence[AlarmSource]]]:
    if not url:
        _LOG.warning("there are no metrics: --predictions is needed")
        yield None, ()
        return
    # Not before it is needed: every `kopt` reads the list of controllers.
    from kopt.serving.client.alarms import drift_of
    from kopt.serving.client.client import AsyncPredictionClient

    async with AsyncPredictionClient(url, deadline_s=_DEADLINE_S) as client:

        async def ask(query: DemandQuery) -> DemandForecast:
            return await client.demand(query)

        yield ask, (drift_of(client, "demand"), answers_of(client))


class Replica:
    """The parts of one process, put together. Raises TlsError where it cannot serve."""

    def __init__(
        self, kube: Kube, settings: ProcessSettings, ask: Ask | None, alarms: Sequence[AlarmSource] = ()
    ) -> None:
        self._settings = settings
        self._proxies: Informer[FrontProxy] = Informer(
            kube,
            CONFIG_MAPS,
            namespace=front_proxy.NAMESPACE,
            field_selector=f"metadata.name={front_proxy.CONFIG_MAP}",
            keep=front_proxy_of,
        )
        self._proxies.subscribe(self._proxy_changed)
        self._tls = TlsFiles(settings.tls, self._authority)
        self._registry = CollectorRegistry()
        self._queries = Counter(
            "kopt_autoscaling_queries",
            "Calls for a metric, by what became of them: answered, or why there was none.",
            ["metric", "outcome"],
            registry=self._registry,
        )
        self.switches = LiveSwitches(kube, "autoscaling")
        self.switches.register(self._registry)
        self._fall_back = FallBack(kube, self.switches, "autoscaling", alarms)
        api = MetricsApi(ask, lambda metric, outcome: self._queries.labels(metric, outcome).inc(), gate=self.switches)
        self._api = HttpServer(api.handle, SMALL_BODY_BYTES, limits=_LIMITS)
        self._api.admits = self._admits
        self._probes = HttpServer(self._probe, SMALL_BODY_BYTES, limits=_PROBE_LIMITS)
        self.port = self.api_port = 0

    async def run(self) -> None:
        settings = self._settings
        self.port = await self._probes.start(settings.host, settings.port)
        self.api_port = await self._api.start(settings.host, settings.api_port, self._tls.context)
        _LOG.info("metrics for autoscalers on port %d, probes on port %d", self.api_port, self.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._proxies.run())
            group.create_task(self.switches.informer.run())
            group.create_task(self._fall_back.run())
            group.create_task(self._tls.run(self._api.end_connections))

    async def stop(self) -> None:
        """Not ready any more; drain; close."""
        self._api.draining = True
        await asyncio.sleep(self._settings.drain_s)
        await self._api.stop()
        await self._probes.stop()

    @property
    def _proxy(self) -> FrontProxy | None:
        return next(iter(self._proxies.objects.values()), None)

    def _authority(self) -> bytes:
        return b"" if self._proxy is None else self._proxy.authority

    def _admits(self, transport: asyncio.Transport) -> bool:
        return self._proxy is not None and self._proxy.admits(transport)

    def _proxy_changed(self, change: Change[FrontProxy]) -> None:
        if change.old != change.new:
            self._tls.reload()
            self._api.end_connections()

    def _probe(self, request: Request) -> Reply:
        if request.path == "/metrics":
            return Reply(generate_latest(self._registry), content_type=_EXPOSITION)
        if request.path == "/healthz":
            return Reply.text("alive\n")
        if request.path == "/readyz":
            if self._proxy is None:
                text = f"{front_proxy.NAMESPACE}/{front_proxy.CONFIG_MAP} has not been read: nobody may call yet\n"
                return Reply.text(text, 503)
            if not self.switches.informer.synced.is_set():
                return Reply.text("the switches have not been read yet\n", 503)
            return Reply.text("draining\n", 503) if self._api.draining else Reply.text("ready\n")
        return Reply.text("there are /healthz, /readyz and /metrics\n", 404)
