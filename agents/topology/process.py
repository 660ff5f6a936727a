"""``kopt agent topology``: one process, from start to the end."""

import asyncio
import contextlib
import logging
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

from kopt.agents.runtime.contained import Contained
from kopt.agents.runtime.running import beside, end_signals, on_signals
from kopt.agents.topology.allocations import AllocationReporter, AllocationSettings
from kopt.agents.topology.labels import LabelSettings
from kopt.agents.topology.metrics import ScanCounters, serve_metrics
from kopt.agents.topology.publishing import PublishedNode, Publisher, PublishSettings, published_node
from kopt.agents.topology.readings import CollectorProblem
from kopt.agents.topology.scanning import Scanner, ScanResult
from kopt.agents.topology.sources import Sources
from kopt.agents.topology.traffic import TrafficReporter, TrafficSettings
from kopt.cluster.client.api import KubeSettings, connect
from kopt.cluster.client.resources import NODE_TOPOLOGIES, NODES, Object
from kopt.cluster.runtime.informer import Informer

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProcessSettings:
    """Times in seconds."""

    node: str
    sources: Sources = field(default_factory=Sources)
    labels: LabelSettings = field(default_factory=LabelSettings)
    publish: PublishSettings = field(default_factory=PublishSettings)
    interval_s: float = 300.0
    """Between looks at the node, a tenth more or less, so that agents do not come together."""
    first_s: float = 5.0
    """Where the cluster knows nothing of the node yet, slower collectors are not waited for at first."""
    keep_s: float = 900.0
    """So long an earlier reading stands in for a collector that fails."""
    allocations: AllocationSettings | None = None
    """Where the kubelet says what pods have; None: it is not asked."""
    traffic: TrafficSettings | None = None
    """How the traffic of network cards is measured; None: it is not."""
    kubeconfig: Path | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    """Of metrics; None: none."""


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Until SIGTERM, SIGINT or ``stop``; SIGHUP has the node looked at again. Raises NoCluster."""
    ending, again = end_signals(stop), on_signals(asyncio.Event(), signal.SIGHUP)
    scanner = Scanner(settings.sources.collectors(), settings.keep_s)
    async with connect(settings.kubeconfig, KubeSettings(user_agent="kopt-topology", connections=0)) as kube:
        contained, counters = Contained("topology"), ScanCounters()
        publisher = Publisher(kube, settings.node, settings.labels, settings.publish, isolation=contained.isolation)
        own = f"metadata.name={settings.node}"
        nodes: Informer[PublishedNode] = Informer(kube, NODES, keep=published_node, field_selector=own)
        objects: Informer[Object] = Informer(kube, NODE_TOPOLOGIES, field_selector=own)
        nodes.isolation = objects.isolation = contained.isolation
        nodes.subscribe(publisher.node_changed)
        objects.subscribe(publisher.object_changed)
        allocation_settings = settings.allocations
        reporter = (
            AllocationReporter(kube, settings.node, publisher, allocation_settings)
            if allocation_settings is not None
            else None
        )
        measured = settings.traffic
        meter = TrafficReporter(kube, settings.node, publisher, measured) if measured is not None else None
        async with serve_metrics(counters, publisher, reporter, contained, settings.host, settings.port):
            work = [
                nodes.run(),
                objects.run(),
                publisher.run(),
                _scan(settings, scanner, publisher, counters, objects, again),
                *([reporter.run()] if reporter is not None else []),
                *([meter.run()] if meter is not None else []),
            ]
            async with beside(work):
                await ending.wait()


async def _scan(
    settings: ProcessSettings,
    scanner: Scanner,
    publisher: Publisher,
    counters: ScanCounters,
    objects: Informer[Object],
    again: asyncio.Event,
) -> None:
    """Scan after scan. What the object says is known before the first is published: it may say more."""
    limit_s: float | None = settings.first_s
    while True:
        again.clear()
        result = await scanner.scan(limit_s)
        await objects.synced.wait()
        counters.scanned(result)
        late = limit_s is not None and any(reading.problem is CollectorProblem.TIMEOUT for reading in result.readings)
        limit_s = None
        if late and publisher.live is not None:
            continue
        publisher.scanned(result)
        _LOG.info("%s", _summary(result))
        if late:
            continue
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.interval_s * random.uniform(0.9, 1.1)):
                await again.wait()


def _summary(result: ScanResult) -> str:
    read = ", ".join(reading.name for reading in result.readings if reading.problem is None) or "nothing"
    if result.topology is None:
        return f"no GPU found; read: {read}"
    topology = result.topology
    return f"{len(topology.gpus)} GPUs, {len(topology.links)} links, {len(topology.nics)} network ports; read: {read}"
