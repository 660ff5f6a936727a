"""``kopt controller preemption``: one replica, from start to the end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.client.resources import KUEUE_WORKLOADS
from kopt.cluster.runtime.annotation_checks import checks
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.cluster.workloads.kueue.objects import DECISION_ANNOTATION, EVICTING_ANNOTATION, HOLDER, KueueWorkload
from kopt.controllers.preemption.kai.preemptor import KaiPreemption
from kopt.controllers.preemption.kai.scheduling_gates import Gating
from kopt.controllers.preemption.kai.state import LiveKai
from kopt.controllers.preemption.kube_scheduler.preemptor import PlainPreemption
from kopt.controllers.preemption.kube_scheduler.state import LivePods, PodWriter, node_informer
from kopt.controllers.preemption.observer import QueueObserver
from kopt.controllers.preemption.planner import Planner
from kopt.controllers.preemption.ports import ControllerSettings, Writer
from kopt.controllers.preemption.reconciler import Reconciler
from kopt.controllers.preemption.state import LiveCluster
from kopt.controllers.preemption.workload_hold import Holding, HoldSettings, Reviewer, Workloads
from kopt.core.workload.checkpoint_request import REQUEST_ANNOTATION

NAME = "preemption"
_GATHER_S = 0.02
"""Changes within this time are handled together."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica."""

    controller: ControllerSettings = field(default_factory=ControllerSettings)
    hold: HoldSettings | None = None
    """Where new Workloads are reviewed; without it nothing is held, so nothing is decided for Kueue."""
    port: int = 9454
    plain_pods: bool = False
    """Make room for plain pods of classes that never preempt, too."""
    kai: bool = False
    """And for pods of KAI's queues, ahead of KAI's own rule; it takes ``hold``."""


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with connect(settings.kubeconfig, KubeSettings(user_agent="kopt-preemption")) as kube:
        await run_until(ending, Replica(kube, settings))


class Replica(LedReplica):
    """The parts of one process, put together. What is covered or held when it ends is the next leader's."""

    action = "Preempting"
    reads_seals = True
    annotation_checks = checks(EVICTING_ANNOTATION, DECISION_ANNOTATION, REQUEST_ANNOTATION, holder=HOLDER)

    def __init__(self, kube: Kube, settings: ProcessSettings) -> None:
        self._settings, self._kube = settings, kube
        switches = LiveSwitches(kube, NAME)
        self.cluster = LiveCluster(kube, settings.controller.mode, settings.controller.workload_may_lower, switches)
        stale_s = settings.controller.policy.stale_s
        nodes = node_informer(kube)
        self._plain = LivePods(self.cluster, nodes, stale_s) if settings.plain_pods else None
        self._kai = LiveKai(kube, self.cluster, nodes, stale_s) if settings.kai else None
        informers: list[Informer[Any]] = [*self.cluster.informers]
        informers += [nodes, self.cluster.job_sets] if self._plain or self._kai else []
        informers += self._kai.informers if self._kai else ()
        super().__init__(kube, NAME, settings, informers, switches)
        planner = Planner(self.cluster, settings.controller, QueueObserver(self.cluster, settings.controller))
        reviewers: list[Reviewer] = [Workloads(planner.would_preempt)]
        self._reviewed = [*informers, switches.informer]
        if self._kai is not None:
            reviewers.append(Gating(self._kai, settings.controller.mode))
        self._holding = Holding(kube, settings.hold, reviewers, self._is_led) if settings.hold else None
        self.gauge(
            "held_workloads",
            "Workloads that wait for a decision.",
            lambda: sum(workload.held for workload in self.cluster.workloads()),
        )
        self.gauge(
            "covered_workloads",
            "Running Workloads whose priority is raised.",
            lambda: sum(workload.shield is not None for workload in self.cluster.workloads()),
        )
        self.gauge("errors", "Reconciles that failed and are retried.", lambda: self.errors)

    async def run(self) -> None:
        async with self._reviewing():
            await super().run()

    async def stop(self) -> None:
        if self._holding is not None:
            await self._holding.stop()
        await super().stop()

    async def lead(self, fence: Fence) -> None:
        reconciler = Reconciler(
            self.cluster,
            Writer(fence, self.cluster, self._kube),
            self._settings.controller,
            self._emit_workload_event,
            isolation=self.isolation,
        )
        work = [asyncio.create_task(self.step_through(reconciler, self.cluster.changed, _GATHER_S))]
        if self._plain is not None:
            writer = PodWriter(self._kube, fence, self._plain.reads)
            pod_preemption = PlainPreemption(
                self._plain, writer, self._settings.controller, self.emit_event, isolation=self.isolation
            )
            work.append(asyncio.create_task(self.step_through(pod_preemption, self._plain.changed, _GATHER_S)))
        if self._kai is not None:
            writer = PodWriter(self._kube, fence, self._kai.reads)
            ahead = KaiPreemption(
                self._kai, writer, self._settings.controller, self.emit_event, isolation=self.isolation
            )
            work.append(asyncio.create_task(self.step_through(ahead, self._kai.changed, _GATHER_S)))
        try:
            await asyncio.gather(*work)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _reviewing(self) -> AsyncIterator[None]:
        """Both replicas answer reviews, as soon as they have read the cluster."""
        task = asyncio.create_task(self._review())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _review(self) -> None:
        if self._holding is not None:
            await asyncio.gather(*(informer.synced.wait() for informer in self._reviewed))
            await self._holding.run()

    def _is_led(self) -> bool:
        """A replica runs that would release what is held."""
        return self._leader.leading or bool(self._leader.holder)

    def _emit_workload_event(self, workload: KueueWorkload, reason: str, sentence: str) -> None:
        regarding = KUEUE_WORKLOADS.reference(*workload.key, workload.uid)
        self.emit_event(regarding, reason, sentence)
