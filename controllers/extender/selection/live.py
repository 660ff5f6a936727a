"""Keeps the fleet's weights and history as the policy in force says, and the policies' status as they are."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping

from kopt.cluster.client.api import ApiError, Kube
from kopt.cluster.client.prometheus import PrometheusError, Query
from kopt.cluster.client.resources import NODE_SELECTION_POLICIES, Key
from kopt.cluster.objects.custom.node_selection_policy import StoredPolicy, in_force
from kopt.cluster.runtime.informer import Change
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.workloads.placement.node_use import history_of, usage_query
from kopt.controllers.extender.selection.status import Usage, is_written, status_of
from kopt.core.hardware.node_selection import UtilisationHistory
from kopt.policies.placement.fleet import Fleet

_LOG = logging.getLogger(__name__)
_GATHER_S = 0.2
_REPORT_S = 5.0
"""Between looks at what has to be written: nodes come and go, and so does the lead."""
_READINGS_PER_WINDOW = 600
"""A mean over days changes slowly, and costs Prometheus much."""
_NO_PROMETHEUS = (
    "NoPrometheus",
    "The extender asks no Prometheus: set extender.prometheus.url of the chart (kopt extender --prometheus URL)",
)


class LiveSelection:
    """One replica's. Both replicas measure, so that the other one is warm; who leads writes the status."""

    def __init__(
        self,
        kube: Kube,
        fleet: Fleet,
        policies: Mapping[Key, StoredPolicy],
        *,
        query: Query | None = None,
        leading: Callable[[], bool] = lambda: True,
        isolation: Isolation | None = None,
        interval_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``interval_s``: how often use is read, seldomer where it is averaged over days."""
        self._kube, self._fleet, self._policies, self._query, self._leading = kube, fleet, policies, query, leading
        self._isolation, self._interval_s, self._clock = isolation or Isolation("extender"), interval_s, clock
        self._woken, self._problem = asyncio.Event(), None if query is not None else _NO_PROMETHEUS
        self._due_s = self._measured_s = -math.inf

    def changed(self, _: Change[StoredPolicy]) -> None:
        """Go by the weights from the next decision on."""
        before, current = self._fleet.selection, in_force(self._policies.values())
        self._fleet.select_by(current.policy if current is not None else None)
        if self._fleet.selection != before:
            self._due_s = -math.inf
        self._woken.set()

    async def run(self) -> None:
        """Measure and report until cancelled. Nothing that goes wrong here reaches a decision."""
        while True:
            with self._isolation.guard(self._isolation.itself):
                await self.once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REPORT_S):
                    await self._woken.wait()
                # Several objects are applied together.
                await asyncio.sleep(_GATHER_S)
            self._woken.clear()

    async def once(self) -> None:
        """Measure if that is due, and report."""
        if self._clock() >= self._due_s:
            await self._measure()
        await self._report()

    async def _measure(self) -> None:
        policy = self._fleet.selection
        if policy is None or not policy.weights.utilisation_history or self._query is None:
            if self._fleet.history.of:
                self._fleet.set_history(UtilisationHistory())
            self._due_s = math.inf
            return
        # Another window or policy, which may come meanwhile, is due at once.
        self._due_s = self._clock() + max(self._interval_s, policy.window_s / _READINGS_PER_WINDOW)
        try:
            history = history_of(await self._query(usage_query(policy.window_s)), policy.window_s)
        except PrometheusError as error:
            _LOG.warning("the use of nodes is not read: %s", error)
            self._problem = (error.reason, f"Use cannot be read: {error}")
            # What was measured last goes on counting as long as it is a part of the window.
            if self._clock() - self._measured_s > policy.window_s and self._fleet.history.of:
                self._fleet.set_history(UtilisationHistory())
            return
        self._problem, self._measured_s = None, self._clock()
        self._fleet.set_history(history)

    async def _report(self) -> None:
        if not self._leading():
            return
        current, usage = in_force(self._policies.values()), self._usage()
        for key, stored in list(self._policies.items()):
            status = status_of(stored, current, usage, time.time())
            if is_written(stored, status):
                continue
            # The version keeps a status from being written to another generation.
            body = {"metadata": {"resourceVersion": stored.version}, "status": status}
            kind = NODE_SELECTION_POLICIES
            with self._isolation.guard(Subject(kind.api_version, kind.kind, *key, stored.uid)):
                try:
                    await self._kube.patch(kind, key[1], body, subresource="status")
                except ApiError as error:
                    # The informer delivers the change, which wakes this again.
                    _LOG.info("the status of NodeSelectionPolicy %s is not written: %s", key[1], error)

    def _usage(self) -> Usage:
        nodes, history = self._fleet.nodes, self._fleet.history
        unmeasured = [name for name in nodes if name not in history.of]
        return Usage(len(nodes), unmeasured, history.usual, self._problem)
