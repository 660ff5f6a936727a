"""One pass: what is there now is compared with what is recorded as open, and the difference is stored.

A pass that fails leaves the meter as it was, so that the next one does it again; whatever a leader that dies has not
stored is found by the next leader from the database and the cluster.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from kopt.controllers.meter.clock import SteadyClock
from kopt.controllers.meter.store import CostStore, Overtaken, Recorded
from kopt.core.cost.metering import MeteredNode, MeteredPod, Milliseconds, Rule
from kopt.policies.cost import Meter, Mix, Observation, advance, recent_mix
from kopt.policies.cost.reconciliation import Reconciliation, reconciled
from kopt.serving.base.database.interface import DatabaseError

_LOG = logging.getLogger(__name__)
HEARTBEAT_S, HOUR_MS = 30.0, 3_600_000
GAP_MS = 180_000
"""What is free while nobody watched for longer is unobserved."""
_FAILED_S = 5.0


@dataclass(frozen=True)
class MeterSettings:
    """``keep_s``: what ended longer ago is deleted."""

    rule: Rule = Rule.MAX
    label_keys: tuple[str, ...] = ("kaiwo.ai/team", "team", "project", "cost-center")
    keep_s: float = 400 * 86400.0
    reconcile_s: float = 3600.0


class Cluster(Protocol):
    """What informers have seen."""

    def nodes(self) -> Mapping[str, MeteredNode]: ...

    def pods(self) -> list[MeteredPod]: ...

    @property
    def departed(self) -> Mapping[str, Milliseconds]: ...

    def settled(self, departed: Mapping[str, Milliseconds]) -> None: ...


class Metering:
    """``step`` stores what has changed. ``then`` runs after each pass that was stored, with the time of it."""

    def __init__(
        self,
        cluster: Cluster,
        store: CostStore,
        settings: MeterSettings,
        clock: SteadyClock,
        holder: str,
        then: Callable[[Milliseconds], Awaitable[float | None]] | None = None,
    ) -> None:
        self._cluster, self._store, self._settings, self._clock = cluster, store, settings, clock
        self._holder, self._then = holder, then
        self._meters: Mapping[str, Meter] | None = None
        self._metered_ms: Milliseconds | None = None
        self._recorded: frozenset[str] = frozenset()
        self._mix: Mix = {}
        self._reconciled_ms: Milliseconds | None = None
        self.last: Reconciliation | None = None
        self.errors = 0

    @property
    def meters(self) -> Mapping[str, Meter]:
        return self._meters or {}

    @property
    def metered_ms(self) -> Milliseconds:
        return self._metered_ms or 0

    async def step(self) -> float:
        """In how many seconds to run again if nothing changes before."""
        try:
            await self._meter()
        except (DatabaseError, Overtaken) as error:
            self.errors += 1
            self._meters = None if isinstance(error, Overtaken) else self._meters
            _LOG.warning("nothing is stored for now: %s", error)
            return _FAILED_S
        again_s = await self._then(self.metered_ms) if self._then is not None else None
        return min(HEARTBEAT_S, self._settings.reconcile_s, again_s or HEARTBEAT_S)

    async def _meter(self) -> None:
        unobserved = False
        if self._meters is None:
            recorded = await asyncio.to_thread(self._store.begin, self._holder, self._settings.rule)
            self._clock.not_before(recorded.metered_ms or 0)
            unobserved = recorded.metered_ms is not None and self._clock.now_ms() - recorded.metered_ms > GAP_MS
            self._metered_ms = recorded.metered_ms
            self._meters = _merged(recorded, self._cluster)
        pods, departed = self._cluster.pods(), self._cluster.departed
        await self._recall(pods)
        now_ms = max(self._clock.now_ms(), self.metered_ms)
        if not self._mix or self._is_due(now_ms):
            self._mix = recent_mix((pod.demand for pod in pods), self._settings.rule)
        observation = Observation(
            now_ms, self._cluster.nodes(), pods, departed, self._metered_ms, unobserved, self._recorded
        )
        meters, changes = advance(self._meters, observation, self._settings.rule, self._mix)
        await asyncio.to_thread(self._store.store, self._holder, changes, now_ms)
        self._meters, self._metered_ms = meters, now_ms
        self._recorded = (self._recorded | set(changes.ended)) & {pod.uid for pod in pods}
        self._cluster.settled(departed)
        if self._is_due(now_ms):
            await self._reconcile(now_ms, pods)

    async def _recall(self, pods: list[MeteredPod]) -> None:
        """Pods that have ended and are listed still: whether that is recorded."""
        assert self._meters is not None
        held = {uid for meter in self._meters.values() for uid in meter.pods}
        unknown = [
            pod.uid
            for pod in pods
            if pod.ended_ms is not None and pod.uid not in held and pod.uid not in self._recorded
        ]
        if unknown:
            self._recorded |= await asyncio.to_thread(self._store.ended, unknown)

    def _is_due(self, now_ms: Milliseconds) -> bool:
        return self._reconciled_ms is None or now_ms - self._reconciled_ms >= self._settings.reconcile_s * 1000

    async def _reconcile(self, now_ms: Milliseconds, pods: list[MeteredPod]) -> None:
        """The last hour: GPU time of nodes against that of pods and idleness, and pods against their own times."""
        first_ms = max(now_ms - HOUR_MS, min((meter.since_ms for meter in self.meters.values()), default=0))
        window = await asyncio.to_thread(self._store.window, first_ms, now_ms)
        totals, lengths = await asyncio.to_thread(self._store.totals, window)
        self.last = reconciled(totals, lengths, pods, window.start_ms, window.end_ms)
        self._reconciled_ms = now_ms
        _LOG.info("%s", self.last.sentence)
        await asyncio.to_thread(self._store.forget, now_ms - int(self._settings.keep_s * 1000))


def _merged(recorded: Recorded, cluster: Cluster) -> Mapping[str, Meter]:
    """What is open, with what the cluster says of the pods and nodes that are there still."""
    pods, nodes = {pod.uid: pod for pod in cluster.pods()}, cluster.nodes()
    result = {}
    for uid, meter in recorded.meters.items():
        node = nodes.get(uid, meter.node)
        same = (node.gpus, node.offer) == (meter.node.gpus, meter.node.offer)
        held = {pod_uid: pods.get(pod_uid, pod) for pod_uid, pod in meter.pods.items()}
        result[uid] = replace(meter, node=node if same else meter.node, pods=held)
    return result
