"""``kopt agent topology``: one process, from start to the end."""

import asyncio
import contextlib
import logging
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

from kopt.agents.running import beside, end_signals, on_signals
from kopt.agents.topology.labels import LabelSettings
from kopt.agents.topology.metrics import Tally, serve_metrics
from kopt.agents.topology.publishing import NodeView, Publisher, PublishSettings, node_view
from kopt.agents.topology.readings import Trouble
from kopt.agents.topology.scanning import Found, Scanner
from kopt.agents.topology.sources import Sources
from kopt.cluster.api import KubeSettings, connect
from kopt.cluster.informer import Informer
from kopt.cluster.resources import NODE_TOPOLOGIES, NODES, Object

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
    kubeconfig: Path | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    """Of metrics; None: none."""


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Until SIGTERM, SIGINT or ``stop``; SIGHUP has the node looked at again. Raises NoCluster."""
    ending, again = end_signals(stop), on_signals(asyncio.Event(), signal.SIGHUP)
    scanner = Scanner(settings.sources.collectors(), settings.keep_s)
    async with connect(settings.kubeconfig, KubeSettings(user_agent="kopt-topology", connections=0)) as kube:
        publisher, tally = Publisher(kube, settings.node, settings.labels, settings.publish), Tally()
        own = f"metadata.name={settings.node}"
        nodes: Informer[NodeView] = Informer(kube, NODES, keep=node_view, field_selector=own)
        objects: Informer[Object] = Informer(kube, NODE_TOPOLOGIES, field_selector=own)
        nodes.subscribe(publisher.node_changed)
        objects.subscribe(publisher.object_changed)
        with serve_metrics(tally, publisher, settings.host, settings.port):
            work = [nodes.run(), objects.run(), publisher.run(),
                    _look(settings, scanner, publisher, tally, objects, again)]  # fmt: skip
            async with beside(work):
                await ending.wait()


async def _look(settings: ProcessSettings, scanner: Scanner, publisher: Publisher, tally: Tally,
                objects: Informer[Object], again: asyncio.Event) -> None:  # fmt: skip
    """Scan after scan. What the object says is known before the first is published: it may say more."""
    limit_s: float | None = settings.first_s
    while True:
        again.clear()
        found = await scanner.scan(limit_s)
        await objects.synced.wait()
        tally.scanned(found)
        late = limit_s is not None and any(one.trouble is Trouble.TIMEOUT for one in found.readings)
        limit_s = None
        if late and publisher.live is not None:
            continue
        publisher.found(found)
        _LOG.info("%s", _summary(found))
        if late:
            continue
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.interval_s * random.uniform(0.9, 1.1)):
                await again.wait()


def _summary(found: Found) -> str:
    read = ", ".join(one.name for one in found.readings if one.trouble is None) or "nothing"
    if found.topology is None:
        return f"no GPU found; read: {read}"
    topology = found.topology
    return f"{len(topology.gpus)} GPUs, {len(topology.links)} links, {len(topology.nics)} network ports; read: {read}"
