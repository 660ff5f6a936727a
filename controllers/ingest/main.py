"""``kopt controller ingest``: one replica, from start to the end."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import Counter, Gauge

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.client.resources import LENDING_POOLS
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.controllers.ingest.connections import Connections, connected
from kopt.controllers.ingest.demand_source import DemandSource
from kopt.controllers.ingest.ingester import Followed, Ingester, IngestSettings, SourceState
from kopt.controllers.ingest.sources import SourceError, read_services, sources_of_pool, unique
from kopt.serving.contract.common import GRID_S

_LOG = logging.getLogger(__name__)
NAME = "ingest"
_SERVICES_S = 30.0
"""How often the services.toml is read again: the kubelet replaces it."""
PoolSources = tuple[tuple[DemandSource, ...], tuple[str, ...]]
"""The sources that a LendingPool names, and what is wrong with others."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica. Without ``prometheus`` or ``predictions`` nothing is followed."""

    ingest: IngestSettings = field(default_factory=IngestSettings)
    prometheus: str = ""
    token_file: Path | None = None
    certificate_authority: Path | None = None
    predictions: str = ""
    services: Path | None = None
    port: int = 9457


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with (
        _connections(settings) as connections,
        connect(settings.kubeconfig, KubeSettings(user_agent="kopt-ingest")) as kube,
    ):
        await run_until(ending, Replica(kube, settings, connections))


@contextlib.asynccontextmanager
async def _connections(settings: ProcessSettings) -> AsyncIterator[Connections | None]:
    if not settings.prometheus or not settings.predictions:
        _LOG.warning("no demand is followed: --prometheus and --predictions are both needed")
        yield None
        return
    files = settings.token_file, settings.certificate_authority
    async with connected(settings.prometheus, settings.predictions, *files) as connections:
        yield connections


class Replica(LedReplica):
    """The parts of one process, put together. Every replica knows the sources; the one that leads follows them."""

    def __init__(self, kube: Kube, settings: ProcessSettings, connections: Connections | None = None) -> None:
        self._settings, self._connections = settings, connections
        self._changed = asyncio.Event()
        self._pools: Informer[PoolSources] = Informer(kube, LENDING_POOLS, keep=sources_of_pool)
        self._pools.subscribe(self._pool_changed)
        self._from_file: tuple[DemandSource, ...] = ()
        self._errors: tuple[str, ...] = ()
        self._ingester: Ingester | None = None
        self._exported: set[str] = set()
        super().__init__(kube, NAME, settings, (self._pools,))
        self._buckets = Counter(
            "kopt_ingest_buckets", "Buckets that were new to the endpoint, or restated.", registry=self.registry
        )
        self._failed = Counter(
            "kopt_ingest_failures",
            "Passes that failed and are tried again.",
            ["service", "reason"],
            registry=self.registry,
        )
        self._newest = Gauge(
            "kopt_ingest_newest_bucket_timestamp_seconds",
            "End of the newest bucket that the endpoint has.",
            ["service"],
            registry=self.registry,
        )
        for state in SourceState:
            self.gauge(f"{state}_services", f"Services that are {state}.", functools.partial(self._count, state))
        self.gauge("errors", "Services whose source cannot be meant.", lambda: len(self._errors))

    async def lead(self, fence: Fence) -> None:
        if self._connections is None:
            await asyncio.Event().wait()
            return
        ingest = self._settings.ingest
        ends = self._connections
        ingester = Ingester(ends.read, ends.push, ingest, self._report, read_group=ends.read_group)
        self._ingester = ingester
        try:
            while True:
                self._changed.clear()
                sources = await self._sources()
                ingester.follow(sources)
                self._forget_others(sources)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SERVICES_S if self._settings.services else None):
                        await self._changed.wait()
        finally:
            self._ingester = None
            self._forget_others(())
            await ingester.stop()

    async def _sources(self) -> tuple[DemandSource, ...]:
        """Of all LendingPools and of the services.toml; one that cannot be read is as it was before."""
        errors = []
        if self._settings.services is not None:
            try:
                self._from_file = await asyncio.to_thread(read_services, self._settings.services)
            except SourceError as error:
                errors.append(str(error))
        pools = [pool for _, pool in sorted(self._pools.objects.items())]
        sources, twice = unique([*self._from_file, *(source for named, _ in pools for source in named)])
        errors += [*twice, *(message for _, wrong in pools for message in wrong)]
        for message in sorted(set(errors) - set(self._errors)):
            _LOG.warning("a service is not followed: %s", message)
        self._errors = tuple(errors)
        return sources

    def _forget_others(self, sources: Iterable[DemandSource]) -> None:
        """What is not followed any more must not look old for ever."""
        now = {source.series for source in sources}
        for service in self._exported - now:
            self._newest.remove(service)
        self._exported &= now

    def _pool_changed(self, change: Change[PoolSources]) -> None:
        if change.old != change.new:
            self._changed.set()

    def _report(self, followed: Followed) -> None:
        service = followed.source.series
        self._buckets.inc(followed.changed)
        if followed.state is SourceState.FAILING:
            self._failed.labels(service, followed.reason).inc()
        if followed.newest is not None:
            self._newest.labels(service).set((followed.newest + 1) * GRID_S)
            self._exported.add(service)

    def _count(self, state: SourceState) -> int:
        followed = () if self._ingester is None else self._ingester.followed
        return sum(source.state is state for source in followed)
