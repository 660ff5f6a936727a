"""Who holds which GPU, and how busy it is, for the page of GPUs: kept by the watches of the queue, and a Prometheus."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kopt.cli.local.pages.prometheus import prometheus_of
from kopt.cli.local.pages.watch_problems import is_ready, problems
from kopt.cluster.client.resources import DEVICE_TAINT_RULES, NODE_HEALTHS, NODES, PODS, Object, Resource
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.workloads.requests.external import CLAIMS, RESOURCE_SLICES
from kopt.controllers.overview.devices.gpu_map import Activity, GpuMapKeeper
from kopt.core.scheduling.gpu_map import GpuMap, NodeStanding

_LOG = logging.getLogger(__name__)
ASK_EVERY_S = 15.0
"""Exporters are scraped no more often."""
_OLDEST_S = 120.0
"""Of what was reported before a Prometheus stopped to answer: afterwards nothing is measured."""
_GATHER_S = 0.02
"""Changes that come together share one look."""


def activity_of(environ: Mapping[str, str]) -> Callable[[], Activity] | None:
    """What asks the Prometheus of the environment, and blocks; None where none is named."""
    prometheus = prometheus_of(environ)
    if prometheus is None:
        return None

    def ask() -> Activity:
        from kopt.data.gpu_activity import read_gpu_activity

        with prometheus() as server:
            return read_gpu_activity(server)

    return ask


class GpuWatch:
    """Follows ``informers`` of pods, nodes, their devices and health, which somebody else runs. ``activity``
    blocks, and raises ValueError or OSError where nobody answers; without it nothing is measured."""

    def __init__(
        self, informers: Mapping[Resource, Informer[Any]], activity: Callable[[], Activity] | None = None
    ) -> None:
        self._informers = informers[NODES], informers[PODS]
        self._activity, self._keeper, self._problem = activity, GpuMapKeeper(), ""
        self._changed = asyncio.Event()
        self._informers[0].subscribe(self._node)
        self._informers[1].subscribe(self._pod)
        informers[RESOURCE_SLICES].subscribe(self._slice)
        informers[CLAIMS].subscribe(self._claim)
        informers[NODE_HEALTHS].subscribe(self._health)
        informers[DEVICE_TAINT_RULES].subscribe(self._rule)

    def _node(self, change: Change[Object]) -> None:
        if change.old != change.new:
            self._keeper.node(change.key[1], change.new)
            self._record_change()

    def _pod(self, change: Change[Object]) -> None:
        if change.old != change.new:
            self._keeper.pod(change.key, change.old, change.new)
            self._record_change()

    def _slice(self, change: Change[Object]) -> None:
        if change.old != change.new:
            self._keeper.slice(change.key, change.new)
            self._record_change()

    def _claim(self, change: Change[Object]) -> None:
        if change.old != change.new:
            self._keeper.claim(change.key, change.new)
            self._record_change()

    def _health(self, change: Change[NodeStanding]) -> None:
        if change.old != change.new:
            self._keeper.health(change.key[1], change.new)
            self._record_change()

    def _rule(self, change: Change[Object]) -> None:
        self._keeper.device_taint(change.key, change.new)
        self._record_change()

    def _record_change(self) -> None:
        if self._keeper.is_behind:
            self._changed.set()

    def state(self) -> GpuMap:
        """Of now; not ready before nodes and pods have been read once."""
        reported = (*problems(self._informers), *filter(None, [self._problem]))
        if not is_ready(self._informers):
            return GpuMap(cluster=True, ready=False, problems=reported)
        current = self._keeper.current()
        return current if current.problems == reported else replace(current, problems=reported)

    async def changed(self) -> None:
        """Return when something has changed since the last time."""
        await self._changed.wait()
        await asyncio.sleep(_GATHER_S)
        self._changed.clear()

    async def run(self) -> None:
        """Ask how busy GPUs are until cancelled."""
        loop, answered_s = asyncio.get_running_loop(), 0.0
        while self._activity is not None:
            try:
                self._keeper.measured(await asyncio.to_thread(self._activity))
                problem, answered_s = "", loop.time()
            except (ValueError, OSError) as error:
                problem = f"How busy GPUs are was not read: {error}"
                if loop.time() - answered_s > _OLDEST_S:
                    self._keeper.measured({})
            if problem != self._problem:
                _LOG.warning("%s", problem or "how busy GPUs are is read again")
                self._problem = problem
                self._changed.set()
            self._record_change()
            await asyncio.sleep(ASK_EVERY_S)
