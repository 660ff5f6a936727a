"""``kopt controller lending``: one replica, from start to the end."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import Gauge, Histogram

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.objects.eviction import EVICTING_ANNOTATION
from kopt.cluster.runtime.annotation_checks import checks
from kopt.cluster.runtime.fall_back import AlarmSource, FailureRate, answers_of
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.controllers.lending.executor import Executor
from kopt.controllers.lending.forecasts import NEW_WITHIN_S, Ask, Forecasts
from kopt.controllers.lending.planner import Planner
from kopt.controllers.lending.ports import ControllerSettings, Writer
from kopt.controllers.lending.queueing.queues import Queues
from kopt.controllers.lending.reconciler import Reconciler
from kopt.controllers.lending.state import LiveCluster
from kopt.controllers.lending.views import HOLDER
from kopt.core.error_budget import Objective
from kopt.core.scheduling.lending_pool import ForecastState
from kopt.core.switches import AlarmKind
from kopt.core.workload.checkpoint_request import REQUEST_ANNOTATION

NAME = "reallocation"
_GATHER_S = 0.02
"""Changes within this time are handled together."""
_ENDPOINT_S = 2.0
_FIRST_S = 20.0
"""A new leader asks about all pools this long before it decides: hundreds of them, where the endpoint knows them."""
LATE = Objective(target=0.99, least=20)
"""Of the checks of pools, one in 30 s: GPUs are back when their services need them (`spec.violationTarget` is the
share of time that may fail; this is where it burns fourteen times too fast)."""
_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica. Without ``predictions`` nothing is ever lent."""

    controller: ControllerSettings = field(default_factory=ControllerSettings)
    predictions: str = ""
    port: int = 9455


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with (
        _endpoint(settings) as (ask, alarms),
        connect(settings.kubeconfig, KubeSettings(user_agent="kopt-reallocation")) as kube,
    ):
        await run_until(ending, Replica(kube, settings, ask, alarms))


@contextlib.asynccontextmanager
async def _endpoint(settings: ProcessSettings) -> AsyncIterator[tuple[Ask | None, Sequence[AlarmSource]]]:
    if not settings.predictions:
        yield None, ()
        return
    from kopt.serving.client.alarms import drift_of
    from kopt.serving.client.client import AsyncPredictionClient

    # Requests have their own interval, and nothing waits for them: longer pauses would only make forecasts older.
    pause_s = settings.controller.refresh_s
    async with AsyncPredictionClient(settings.predictions, deadline_s=_ENDPOINT_S, longest_pause_s=pause_s) as client:
        yield client.demand, (drift_of(client, "demand"), answers_of(client))


class Replica(LedReplica):
    """The parts of one process, put together. The next leader goes on with what is lent or held at its end."""

    action = "Lending"
    reads_seals = True
    annotation_checks = checks(EVICTING_ANNOTATION, REQUEST_ANNOTATION, holder=HOLDER)

    def __init__(
        self, kube: Kube, settings: ProcessSettings, ask: Ask | None = None, alarms: Sequence[AlarmSource] = ()
    ) -> None:
        self._settings, self._kube = settings, kube
        late = "found GPUs overdue"
        self._late = FailureRate(
            "checks of pools", self._checks, failed=late, kind=AlarmKind.ERROR_BUDGET, objective=LATE
        )
        self._good = self._bad = 0
        switches = LiveSwitches(kube, "lending")
        self.cluster = LiveCluster(kube, switches)
        super().__init__(kube, NAME, settings, self.cluster.informers, switches, (*alarms, self._late))
        self._forecasts = Forecasts(ask, self.cluster.nudge, settings.controller.stale_s)
        self._decided = Histogram(
            "kopt_reallocation_event_seconds",
            "From an event to the writes that follow from it.",
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._gpus = Gauge(
            "kopt_reallocation_gpus",
            "GPUs of a pool: lent, borrowed, service, provision.",
            ["pool", "what"],
            registry=self.registry,
        )
        self._fresh = Gauge(
            "kopt_reallocation_forecasts_fresh",
            "1 while forecasts are fresh.",
            ["pool"],
            registry=self.registry,
        )
        self.gauge("errors", "Reconciles that failed and are retried.", lambda: self.errors)
        self.gauge("forecast_failures", "Questions without an answer.", lambda: self._forecasts.failures)

    async def lead(self, fence: Fence) -> None:
        settings, writer = self._settings.controller, Writer(fence, self.cluster, self._kube)
        queues = Queues(self.cluster, settings.policy.stale_s, settings.workload_may_lower)
        planner = Planner(self.cluster, self._forecasts, settings, queues)
        executor = Executor(writer, self.emit_event, settings.policy.stale_s)
        reconciler = Reconciler(
            self.cluster,
            writer,
            self._forecasts,
            planner,
            executor,
            settings,
            self.emit_event,
            isolation=self.isolation,
        )
        # Before the first reconcile: a new leader must not reclaim for lack of forecasts.
        await self._ask(planner, new_within_s=_FIRST_S)
        task = asyncio.create_task(self._keep_asking(planner))
        try:
            await self.step_through(_Timed(self, reconciler), self.cluster.changed, _GATHER_S)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_asking(self, planner: Planner) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._forecasts.due_s(self._settings.controller.refresh_s)):
                    await self.cluster.pools_changed.wait()
            self.cluster.pools_changed.clear()
            # A task that ends would leave every pool without new forecasts.
            with self.isolation.guard(self.isolation.itself):
                await self._ask(planner)

    async def _ask(self, planner: Planner, new_within_s: float = NEW_WITHIN_S) -> None:
        pools = [(pool.spec, planner.lead_s(pool)) for pool in self.cluster.pools() if pool.spec is not None]
        await self._forecasts.refresh(pools, self._settings.controller.refresh_s, new_within_s)

    def observe(self, seconds: float | None) -> None:
        """Called after a reconcile; ``seconds`` since the first event that led to it."""
        if seconds is not None:
            self._decided.observe(seconds)
        self._gpus.clear()
        self._fresh.clear()
        for pool in self.cluster.pools():
            status = pool.status
            for what, gpus in (
                ("lent", status.lent_gpus),
                ("borrowed", status.borrowed_gpus),
                ("service", status.service_gpus),
                ("provision", status.provision_gpus),
            ):
                self._gpus.labels(pool.name, what).set(gpus)
            self._fresh.labels(pool.name).set(status.forecast is ForecastState.FRESH)

    def _checks(self) -> tuple[int, int]:
        """A check of a pool counts as bad while GPUs that its services need are overdue."""
        now_s = time.time()
        for pool in self.cluster.pools():
            reclaiming = pool.status.reclaiming
            overdue = reclaiming is not None and reclaiming.by_s < now_s
            self._bad += overdue
            self._good += not overdue
        return self._good, self._bad


class _Timed:
    """The reconciler, with a measurement of its delay after an event."""

    def __init__(self, replica: Replica, reconciler: Reconciler) -> None:
        self._replica, self._reconciler = replica, reconciler

    @property
    def errors(self) -> int:
        return self._reconciler.errors

    @errors.setter
    def errors(self, count: int) -> None:
        self._reconciler.errors = count

    async def step(self) -> float:
        since_s, self._replica.cluster.since_s = self._replica.cluster.since_s, None
        again_s = await self._reconciler.step()
        self._replica.observe(None if since_s is None else time.monotonic() - since_s)
        return again_s
