"""Publishes what jobs put on the node's network cards now, as rates, in ``status.traffic`` of its NodeTopology.

Counters are read from ``/sys`` again and again; what lies between two readings is a rate. A node whose cards are quiet
is written once and then left alone; a busy one when a rate has changed by a twentieth of its card, and now and then, so
that readers know that the rates are of now.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kopt.agents.topology.commands import Limits, Tool
from kopt.agents.topology.publishing import Publisher
from kopt.agents.topology.readings import Collector, CollectorError
from kopt.cluster.client.api import ApiError, Kube, Patch
from kopt.cluster.client.resources import NODE_TOPOLOGIES, Object
from kopt.cluster.objects.custom.node_traffic import traffic_status
from kopt.cluster.runtime.backoff import Backoff
from kopt.core.hardware.node_topology import NodeTopology
from kopt.core.untrusted import decode
from kopt.formats.topology.linux.counters import ByteCounters, parse_counters, rates_gbps

_LOG = logging.getLogger(__name__)
FIELD_MANAGER = "kopt-topology-traffic"


@dataclass(frozen=True)
class TrafficSettings:
    """Times in seconds."""

    root: Path = Path("/")
    interval_s: float = 60.0
    renew_s: float = 300.0
    """A busy node is written again after so long, whatever has changed."""
    quiet_share: float = 0.05
    """Of a card's speed: less counts as nothing, and so much is a change."""
    retry_longest_s: float = 600.0
    limits: Limits = Limits()


class TrafficReporter:
    """Of one node. ``publisher`` knows its object and what was scanned."""

    def __init__(
        self,
        kube: Kube,
        node: str,
        publisher: Publisher,
        settings: TrafficSettings,
        collector: Collector | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        command = [sys.executable, "-P", "-m", "kopt.agents.topology.sysfs", "traffic", str(settings.root)]
        self._collector = collector or Tool("traffic", command, settings.limits, absent=(3,))
        self._kube, self._node, self._publisher, self._settings = kube, node, publisher, settings
        self._now, self._clock = now, clock
        self._retry = Backoff(settings.interval_s, settings.retry_longest_s)
        self._before: tuple[float, ByteCounters] | None = None
        self._written: Mapping[str, float] = {}
        self._written_s = float("-inf")
        self._problem = ""
        self.writes: dict[str, int] = {}
        """By outcome."""

    async def run(self) -> None:
        """Never ends by itself; survives counters that cannot be read and an API server that is away."""
        while True:
            await asyncio.sleep(await self.step())

    async def step(self) -> float:
        """Read once, and write where rates have changed; returns in how many seconds to read again."""
        try:
            counters = parse_counters(decode(await self._collector.collect()))
        except (CollectorError, ValueError) as error:
            self._before = None
            self._say(f"counters of network cards cannot be read: {error}")
            return self._settings.interval_s
        at_s, before = self._clock(), self._before
        self._before = at_s, counters
        result = self._publisher.result
        topology = result.topology if result is not None else None
        if before is None or topology is None or self._publisher.live is None:
            return self._settings.interval_s
        rates = self._busy(rates_gbps(before[1], counters, at_s - before[0]), topology)
        try:
            await self._publish(rates)
        except ApiError as error:
            self._count(error.reason)
            self._say(f"traffic is not written yet: {error}")
            return self._retry.next_s()
        self._retry.reset()
        self._say("")
        return self._settings.interval_s

    def _busy(self, rates: Mapping[str, float], topology: NodeTopology) -> dict[str, float]:
        """By card as the topology names it; no more than it carries, as two readings are never of the same moment."""
        result = {}
        for nic in topology.nics:
            rate = rates.get(nic.name, rates.get(nic.interface, 0.0))
            most = nic.gbit_per_s / 8 if nic.gbit_per_s else 0.0
            if most and rate >= self._settings.quiet_share * most:
                result[nic.name] = round(min(rate, most), 2)
        return result

    async def _publish(self, rates: Mapping[str, float]) -> None:
        due = bool(rates) and self._now() - self._written_s >= self._settings.renew_s
        if not due and not self._changed(rates):
            return
        at_s = self._now()
        changes: Object = {
            "apiVersion": NODE_TOPOLOGIES.api_version,
            "kind": NODE_TOPOLOGIES.kind,
            "metadata": {"name": self._node},
            "status": {"traffic": traffic_status(rates, at_s)},
        }
        await self._kube.patch(
            NODE_TOPOLOGIES, self._node, changes, kind=Patch.APPLY, field_manager=FIELD_MANAGER, force=True
        )
        self._count("ok")
        self._written, self._written_s = dict(rates), at_s

    def _changed(self, rates: Mapping[str, float]) -> bool:
        result = self._publisher.result
        topology = result.topology if result is not None else None
        most = {nic.name: (nic.gbit_per_s or 0.0) / 8 for nic in (topology.nics if topology else ())}
        return any(
            abs(rates.get(name, 0.0) - self._written.get(name, 0.0)) >= self._settings.quiet_share * most.get(name, 0.0)
            for name in rates.keys() | self._written.keys()
        )

    def _say(self, problem: str) -> None:
        if problem and problem != self._problem:
            _LOG.warning("%s", problem)
        self._problem = problem

    def _count(self, outcome: str) -> None:
        self.writes[outcome] = self.writes.get(outcome, 0) + 1
