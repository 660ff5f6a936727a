"""What the controllers say in the cluster, for the pages: kept by watches, so that a page never waits for a server."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kopt.cli.local.pages.diagnoses import DiagnosisWriter
from kopt.cli.local.pages.gpus import GpuWatch
from kopt.cli.local.pages.queue import QueueWatch
from kopt.cli.local.pages.watch_problems import is_ready, problem, problems
from kopt.cluster.client.api import Forbidden, Kube, NotFound, Unauthorized
from kopt.cluster.client.resources import (
    DEVICE_TAINT_RULES,
    EVICTIONS,
    FEATURE_ROLLOUTS,
    KAIWO_BUDGETS,
    KAIWO_RESERVATIONS,
    KUEUE_FLAVORS,
    LENDING_POOLS,
    NAMESPACES,
    NODE_HEALTHS,
    NODE_TOPOLOGIES,
    NODES,
    Object,
    Resource,
)
from kopt.cluster.objects.custom.feature_rollout import ROLLOUT_NAME, switches_of
from kopt.cluster.objects.custom.kaiwo_budget import standing_of
from kopt.cluster.objects.custom.node_topology import degraded_of, topology_of
from kopt.cluster.objects.custom.reservation import standing_of as standing_of_reservation
from kopt.cluster.objects.custom.staged_data import STAGED_DATA
from kopt.cluster.objects.eviction import entry_of
from kopt.cluster.objects.fields import mapping, slim
from kopt.cluster.runtime.informer import Change, Informer, InformerSettings
from kopt.cluster.workloads.kueue.pool_sizes import node_pools, pool_sizes
from kopt.cluster.workloads.node_standing import standing_of as standing_of_node
from kopt.cluster.workloads.requests.external import CLAIMS, RESOURCE_SLICES
from kopt.controllers.overview.devices.claims import allocated_devices
from kopt.controllers.overview.devices.gpu_map import Activity
from kopt.controllers.overview.diagnosis.questions import Predictions
from kopt.controllers.overview.documents import pool_of, staged_of
from kopt.controllers.overview.queue_standings import NEEDED
from kopt.core.cost.budgets import BudgetStanding
from kopt.core.hardware.pools import ClusterPools
from kopt.core.scheduling.eviction import Entry
from kopt.core.scheduling.gpu_map import GpuMap
from kopt.core.scheduling.overview import Overview, PoolState, StagedState
from kopt.core.scheduling.queue_standing import QueueTreeState, ReservationStanding
from kopt.core.scheduling.queued import QueueState
from kopt.core.switches import FEATURES, OFF, Switches
from kopt.dashboard.data.sources import ClusterNode, Nodes
from kopt.policies.cost.attribution import label_of


@dataclass(frozen=True)
class Torn:
    """A NodeTopology that contradicts itself, or a budget that cannot be meant."""


class ClusterWatch:
    """LendingPools, Evictions, StagedData, NodeTopologies and what waits and runs, as last observed.

    ``clock`` gives Unix seconds; ``predictions`` knows run times; ``activity`` asks, in a thread, how busy GPUs are.
    With ``diagnoses`` why a workload waits is written as an Event on it.
    """

    def __init__(
        self,
        kube: Kube,
        clock: Callable[[], float] = time.time,
        settings: InformerSettings | None = None,
        patience_s: float = 5.0,
        predictions: Predictions | None = None,
        activity: Callable[[], Activity] | None = None,
        *,
        diagnoses: bool = False,
    ) -> None:
        self._clock = clock
        self._pools: Informer[PoolState] = Informer(kube, LENDING_POOLS, keep=pool_of, settings=settings)
        self._evictions: Informer[Entry] = Informer(kube, EVICTIONS, keep=entry_of, settings=settings)
        self._staged: Informer[StagedState] = Informer(kube, STAGED_DATA, keep=staged_of, settings=settings)
        self._nodes: Informer[ClusterNode | Torn] = Informer(kube, NODE_TOPOLOGIES, keep=_node, settings=settings)
        # Not among all: pages of an account from before there were switches, or budgets, go on without them.
        self._switches: Informer[Switches] = Informer(kube, FEATURE_ROLLOUTS, keep=switches_of, settings=settings)
        self._budgets: Informer[BudgetStanding | Torn] = Informer(kube, KAIWO_BUDGETS, keep=_budget, settings=settings)
        self._reservations: Informer[ReservationStanding] = Informer(
            kube, KAIWO_RESERVATIONS, keep=standing_of_reservation, settings=settings
        )
        self._slices: Informer[Object] = Informer(kube, RESOURCE_SLICES, keep=slim, settings=settings)
        self._teams: Informer[str] = Informer(kube, NAMESPACES, keep=_team, settings=settings)
        self._queue = QueueWatch(kube, self.overview, settings, predictions)
        # Who may not read these sees GPUs without what is said of their health, or who holds those that are claimed.
        self._of_gpus: dict[Resource, Informer[Any]] = {
            NODE_HEALTHS: Informer(kube, NODE_HEALTHS, keep=standing_of_node, settings=settings),
            DEVICE_TAINT_RULES: Informer(kube, DEVICE_TAINT_RULES, keep=slim, settings=settings),
            CLAIMS: Informer(kube, CLAIMS, keep=allocated_devices, settings=settings),
        }
        of_gpus = {**self._queue.informers, **self._of_gpus, RESOURCE_SLICES: self._slices}
        self._gpus = GpuWatch(of_gpus, activity)
        self._diagnoses = DiagnosisWriter(kube, self._queue, self._switched) if diagnoses else None
        self._patience_s = patience_s
        self._tree_changed = asyncio.Event()
        of_tree: list[Informer[Any]] = [self._reservations, *(self._queue.informers[kind] for kind in NEEDED)]
        for informer in of_tree:
            informer.subscribe(self._record_tree)

    @property
    def _all(self) -> tuple[Informer[Any], ...]:
        return self._pools, self._evictions, self._staged

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            of_objects = (self._nodes, self._switches, self._budgets, self._reservations, self._slices, self._teams)
            for informer in (*self._all, *of_objects, *self._of_gpus.values()):
                tasks.create_task(informer.run())
            tasks.create_task(self._queue.run())
            tasks.create_task(self._gpus.run())
            if self._diagnoses is not None:
                tasks.create_task(self._diagnoses.run())

    def _switched(self) -> Switches:
        """Those of now; all off until they are known."""
        if not self._switches.synced.is_set():
            return Switches({feature.name: OFF for feature in FEATURES})
        return self._switches.objects.get(("", ROLLOUT_NAME), Switches())

    async def queue(self) -> QueueState:
        """GPU workloads that wait and run."""
        return await self._queue.state()

    async def changed(self) -> None:
        """Return when the queue, or what is in it, has changed since the last time."""
        await self._queue.changed()

    async def queue_tree(self) -> QueueTreeState:
        """Queues with what runs and waits in them, and reservations."""
        state = await self._queue.standings()
        missing = NotFound | Forbidden | Unauthorized
        unread = "" if isinstance(self._reservations.error, missing) else problem(self._reservations)
        reservations = sorted(self._reservations.objects.values(), key=lambda each: (each.start_s or 0.0, each.name))
        reported = tuple(filter(None, (*state.problems, unread)))
        return replace(state, reservations=tuple(reservations), problems=reported)

    async def queue_tree_changed(self) -> None:
        """Return when that has changed since the last time."""
        await self._tree_changed.wait()
        self._tree_changed.clear()

    def _record_tree(self, change: Change[Any]) -> None:
        if change.old != change.new:
            self._tree_changed.set()

    async def pools(self) -> ClusterPools:
        """ResourceFlavors with their nodes, and the teams of namespaces."""
        flavors, nodes = self._queue.informers[KUEUE_FLAVORS], self._queue.informers[NODES]
        kinds: tuple[Informer[Any], ...] = (flavors, nodes, self._slices, self._teams)
        # Who may not read slices sees what device plugins offer.
        reported = problems((flavors, nodes, self._teams))
        if not is_ready(kinds):
            return ClusterPools(problems=reported)
        objects = [tuple(informer.objects.values()) for informer in (flavors, nodes, self._slices)]
        sizes, of_nodes = await asyncio.to_thread(lambda: (pool_sizes(*objects), node_pools(*objects)))
        teams = {name: team for (_, name), team in self._teams.objects.items()}
        return ClusterPools(sizes, of_nodes, teams, True, reported)

    def gpus(self) -> GpuMap:
        """Who holds which GPU, and how busy it is."""
        return self._gpus.state()

    async def gpus_changed(self) -> None:
        """Return when that has changed since the last time."""
        await self._gpus.changed()

    async def nodes(self) -> Nodes:
        """By name, those that cannot be read named. Waits a little for the first list."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await self._nodes.synced.wait()
        sentence = problem(self._nodes)
        if sentence:
            sentence = f"Nodes are those of the last answer of the cluster. {sentence}"
        entries = sorted(self._nodes.objects.items())
        torn = [name for (_, name), item in entries if isinstance(item, Torn)]
        more = f" and {len(torn) - 3} more" if len(torn) > 3 else ""
        if torn and not sentence:
            sentence = f"Left out, as their objects contradict themselves: {', '.join(torn[:3])}{more}."
        return Nodes(
            tuple(cluster_node for _, cluster_node in entries if isinstance(cluster_node, ClusterNode)), True, sentence
        )

    def overview(self) -> Overview:
        """Of now."""
        return Overview(
            cluster=True,
            ready=is_ready(self._all),
            now_s=self._clock(),
            pools=tuple(self._pools.objects.values()),
            ledger=tuple(self._evictions.objects.values()),
            staged=tuple(self._staged.objects.values()),
            switches=self._switches.objects.get(("", ROLLOUT_NAME)),
            budgets=tuple(each for each in self._budgets.objects.values() if isinstance(each, BudgetStanding)),
            missing=frozenset(
                informer.resource.plural for informer in self._all if isinstance(informer.error, NotFound)
            ),
            problems=problems(self._all),
        )


def _node(document: Object) -> ClusterNode | Torn:
    try:
        return ClusterNode(topology_of(document), degraded_of(document))
    except (ValueError, KeyError, TypeError):
        return Torn()


def _team(namespace: Object) -> str | None:
    return label_of(mapping(namespace, "metadata", "labels")) or None


def _budget(document: Object) -> BudgetStanding | Torn:
    try:
        return standing_of(document)
    except (ValueError, KeyError, TypeError):
        return Torn()
