"""``kopt controller preemption``: one replica, from start to the end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from kopt.cluster.api import Kube, KubeSettings, connect
from kopt.cluster.lease import Fence
from kopt.cluster.resources import KUEUE_WORKLOADS
from kopt.controllers.lifetime import end_signals, run_until
from kopt.controllers.preemption.deciding import Deciding
from kopt.controllers.preemption.given import ControllerSettings, Writer
from kopt.controllers.preemption.holding import Holding, HoldSettings
from kopt.controllers.preemption.live import LiveCluster
from kopt.controllers.preemption.reconciler import Reconciler
from kopt.controllers.preemption.views import WorkloadView
from kopt.controllers.replica import LedReplica, ReplicaSettings

NAME = "preemption"
_GATHER_S = 0.02
"""What comes together is looked at once."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica."""

    controller: ControllerSettings = field(default_factory=ControllerSettings)
    hold: HoldSettings | None = None
    """Where new Workloads are reviewed; without it nothing is held, so nothing is decided for Kueue."""
    port: int = 9452


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with connect(settings.kubeconfig, KubeSettings(user_agent="kopt-preemption")) as kube:
        await run_until(ending, Replica(kube, settings))


class Replica(LedReplica):
    """The parts of one process, put together. What is covered or held when it ends is the next leader's."""

    def __init__(self, kube: Kube, settings: ProcessSettings) -> None:
        self._settings = settings
        self.cluster = LiveCluster(kube)
        super().__init__(kube, NAME, settings, self.cluster.informers)
        deciding = Deciding(self.cluster, settings.controller)
        self._holding = Holding(kube, settings.hold, deciding.would_preempt, self._is_led) if settings.hold else None
        self.gauge("held_workloads", "Workloads that wait for a decision.",
                   lambda: sum(one.held for one in self.cluster.workloads()))  # fmt: skip
        self.gauge("covered_workloads", "Running Workloads whose priority is raised.",
                   lambda: sum(one.cover is not None for one in self.cluster.workloads()))  # fmt: skip
        self.gauge("errors", "Passes that failed and are tried again.", lambda: self.troubles)

    async def run(self) -> None:
        async with self._reviewing():
            await super().run()

    async def stop(self) -> None:
        if self._holding is not None:
            await self._holding.stop()
        await super().stop()

    async def lead(self, fence: Fence) -> None:
        reconciler = Reconciler(self.cluster, Writer(fence, self.cluster), self._settings.controller, self._about)
        await self.step_through(reconciler, self.cluster.changed, _GATHER_S)

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
            await asyncio.gather(*(informer.synced.wait() for informer in self.cluster.informers))
            await self._holding.run()

    def _is_led(self) -> bool:
        """Somebody is there who would let go what is held."""
        return self._leader.leading or bool(self._leader.holder)

    def _about(self, view: WorkloadView, reason: str, sentence: str) -> None:
        regarding = KUEUE_WORKLOADS.reference(*view.key, view.uid)
        self.tell(regarding, reason, "Preempting", sentence)
