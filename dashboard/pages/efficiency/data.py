"""GPU-hours of some windows, as their reader may see them: the cluster's are for those who may list all pods."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kopt.core.hardware.pools import ClusterPools
from kopt.core.workload.gpu_hours import GpuHourHistory
from kopt.dashboard.data.access import ALL_NAMESPACES, Holds, pods_in
from kopt.dashboard.data.feed import Background, Connections, Feed
from kopt.dashboard.data.gpu_hours import GpuHoursError
from kopt.dashboard.data.utilisation import UtilisationError
from kopt.policies.efficiency.busy_counts import PoolUse, day_of

DAY_S = 86_400
WINDOWS_S: Mapping[str, int] = {"24h": DAY_S, "7d": 7 * DAY_S, "30d": 30 * DAY_S}
"""By what the address of the page calls them."""
_EVERY_S, _AFTER_FAILURE_S = 600.0, 60.0
"""Days change little in ten minutes."""
_DAYS_BEFORE = 89
"""Whole days, before the one that is under way."""
_POOLS_EVERY_S = 60.0


@dataclass(frozen=True)
class Efficiency:
    """``histories`` are by the name of their window. ``configured`` is False where these pages know no Prometheus;
    ``hides`` whether the cluster's own GPU-hours, or namespaces, are left out for the reader. ``pools`` says which
    nodes are in which pool, and which namespaces are whose; None where these pages have no cluster. ``days`` are what
    the meter has stored of the last 90, by pool."""

    histories: Mapping[str, GpuHourHistory] = field(default_factory=dict)
    configured: bool = False
    problem: str = ""
    hides: bool = False
    pools: ClusterPools | None = None
    days: tuple[PoolUse, ...] = ()
    days_problem: str = ""


class _Reader:
    def __init__(self, connections: Connections) -> None:
        self._source, self._cluster, self._clock = connections.records.gpu_hours, connections.cluster, connections.clock
        self._utilisation = connections.records.utilisation
        self._pools_due_s = 0.0
        self._latest = Efficiency(configured=self._source is not None)
        self.background = Background(self._read, connections.clock)
        self.background_of_days = Background(self._read_days, connections.clock)

    async def refresh(self) -> None:
        if self._utilisation is not None:
            self.background_of_days.begin()
        if self._source is not None:
            self.background.begin()
            if self._cluster is not None and self._clock() >= self._pools_due_s:
                pools = await self._cluster.pools()
                self._latest = replace(self._latest, pools=pools)
                self._pools_due_s = self._clock() + (_POOLS_EVERY_S if pools.ready else 0.0)

    async def latest(self) -> Efficiency:
        return self._latest

    async def _read_days(self) -> float:
        assert self._utilisation is not None
        since_s = day_of(int(self._clock())) - _DAYS_BEFORE * DAY_S
        try:
            days = await asyncio.to_thread(self._utilisation.days, since_s)
        except UtilisationError as error:
            self._latest = replace(self._latest, days_problem=f"{error}")
            return _AFTER_FAILURE_S
        self._latest = replace(self._latest, days=tuple(days), days_problem="")
        return _EVERY_S

    async def _read(self) -> float:
        assert self._source is not None
        for name, window_s in WINDOWS_S.items():
            try:
                history = await asyncio.to_thread(self._source.history, window_s)
            except GpuHoursError as error:
                self._latest = replace(self._latest, problem=f"{error}")
                return _AFTER_FAILURE_S
            histories = {**self._latest.histories, name: history}
            self._latest = replace(self._latest, histories=histories, problem="")
        return _EVERY_S


def _restrict(efficiency: Efficiency, holds: Holds) -> Efficiency:
    names = {workload.namespace for each in efficiency.histories.values() for workload in each.by_workload}
    visible = {name for name in sorted(names) if holds(pods_in(name))}
    if holds(pods_in(ALL_NAMESPACES)):
        return efficiency
    histories = {name: _of_namespaces(each, visible) for name, each in efficiency.histories.items()}
    # Why Prometheus does not answer names its address.
    problem = "GPU-hours cannot be read now." if efficiency.problem else ""
    pools = efficiency.pools
    if pools is not None:
        teams = {name: team for name, team in pools.teams.items() if name in visible}
        pools = ClusterPools(teams=teams, ready=pools.ready)
    # What pools have is the cluster's.
    return replace(efficiency, histories=histories, problem=problem, hides=True, pools=pools, days=(), days_problem="")


def _of_namespaces(history: GpuHourHistory, visible: set[str]) -> GpuHourHistory:
    """Without what the cluster has: the steps keep their times alone."""
    workloads = {each: hours for each, hours in history.by_workload.items() if each.namespace in visible}
    steps = tuple(replace(step, **dict.fromkeys(_AMOUNTS, 0.0)) for step in history.steps)
    return replace(history, steps=steps, by_workload=workloads, by_node={}, waited_by_pool={})


_AMOUNTS = ("installed", "available", "requested", "allocated", "measured", "used")
EFFICIENCY: Feed[Efficiency] = Feed("efficiency", Efficiency, _Reader, _restrict)
