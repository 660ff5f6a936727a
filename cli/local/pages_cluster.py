"""What the controllers say in the cluster, for the pages: kept by watches, so that a page never waits for a server."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.api import ApiError, Forbidden, Kube, NoCluster, NotFound, Unauthorized, Unreachable
from kopt.cluster.client.resources import EVICTIONS, LENDING_POOLS, NODE_TOPOLOGIES, Object
from kopt.cluster.objects.eviction import entry_of
from kopt.cluster.objects.node_topology import degraded_of, topology_of
from kopt.cluster.objects.staged_data import STAGED_DATA
from kopt.cluster.runtime.informer import Informer, InformerSettings
from kopt.controllers.overview.documents import pool_of, staged_of
from kopt.controllers.overview.text import span
from kopt.core.scheduling.eviction import Entry
from kopt.core.scheduling.overview import Overview, PoolState, StagedState
from kopt.dashboard.data.sources import ClusterNode, Nodes

STALE_S = 150.0
"""The server confirms every 60 to 75 s that a watch is alive."""


@dataclass(frozen=True)
class Torn:
    """A NodeTopology that contradicts itself."""


class ClusterWatch:
    """LendingPools, Evictions, StagedData and NodeTopologies as last observed. ``clock`` gives Unix seconds."""

    def __init__(
        self,
        kube: Kube,
        clock: Callable[[], float] = time.time,
        settings: InformerSettings | None = None,
        patience_s: float = 5.0,
    ) -> None:
        self._clock = clock
        self._pools: Informer[PoolState] = Informer(kube, LENDING_POOLS, keep=pool_of, settings=settings)
        self._evictions: Informer[Entry] = Informer(kube, EVICTIONS, keep=entry_of, settings=settings)
        self._staged: Informer[StagedState] = Informer(kube, STAGED_DATA, keep=staged_of, settings=settings)
        self._nodes: Informer[ClusterNode | Torn] = Informer(kube, NODE_TOPOLOGIES, keep=_node, settings=settings)
        self._patience_s = patience_s

    @property
    def _all(self) -> tuple[Informer[Any], ...]:
        return self._pools, self._evictions, self._staged

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in (*self._all, self._nodes):
                tasks.create_task(informer.run())

    async def nodes(self) -> Nodes:
        """By name, those that cannot be read named. Waits a little for the first list."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await self._nodes.synced.wait()
        problem = _problem(self._nodes)
        if problem:
            problem = f"Nodes are those of the last answer of the cluster. {problem}"
        entries = sorted(self._nodes.objects.items())
        torn = [name for (_, name), item in entries if isinstance(item, Torn)]
        more = f" and {len(torn) - 3} more" if len(torn) > 3 else ""
        if torn and not problem:
            problem = f"Left out, as their objects contradict themselves: {', '.join(torn[:3])}{more}."
        return Nodes(
            tuple(cluster_node for _, cluster_node in entries if isinstance(cluster_node, ClusterNode)), True, problem
        )

    def overview(self) -> Overview:
        """Of now."""
        return Overview(
            cluster=True,
            ready=all(informer.synced.is_set() or informer.error is not None for informer in self._all),
            now_s=self._clock(),
            pools=tuple(self._pools.objects.values()),
            ledger=tuple(self._evictions.objects.values()),
            staged=tuple(self._staged.objects.values()),
            missing=frozenset(
                informer.resource.plural for informer in self._all if isinstance(informer.error, NotFound)
            ),
            problems=_problems(self._all),
        )


def _node(document: Object) -> ClusterNode | Torn:
    try:
        return ClusterNode(topology_of(document), degraded_of(document))
    except (ValueError, KeyError, TypeError):
        return Torn()


def _problems(informers: Sequence[Informer[Any]]) -> tuple[str, ...]:
    """What is wrong; a server that is away is said once."""
    away = [informer for informer in informers if isinstance(informer.error, NoCluster | Unreachable)]
    if len(away) == len(informers) and (stale := [informer for informer in informers if _problem(informer)]):
        newest_s = min(informer.age_s() for informer in stale)
        old = "nothing of it has been read yet" if newest_s == float("inf") else f"this is {span(newest_s)} old"
        return (f"The cluster does not answer, {old}: {_short(stale[0].error)}",)
    return tuple(sentence for informer in informers if (sentence := _problem(informer)))


def _problem(informer: Informer[Any]) -> str:
    """What is wrong with one kind, as the reader has to know it; empty for what is well or not installed."""
    name, error = f"{informer.resource.plural}.{informer.resource.group}", informer.error
    if error is None or isinstance(error, NotFound):
        return ""
    if isinstance(error, Forbidden | Unauthorized):
        return f"These pages may not read {name}: {error.message}"
    if not informer.synced.is_set():
        return f"{name} could not be read yet: {_short(error)}"
    if informer.age_s() > STALE_S:
        return f"Data about {name} is {span(informer.age_s())} old: {_short(error)}"
    return ""


def _short(error: ApiError | None) -> str:
    return error.message[:300] if error is not None else "for an unknown reason"
