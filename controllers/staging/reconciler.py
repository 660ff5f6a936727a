"""One reconcile of all StagedData and of all workloads that request some, from the state on the objects."""

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from kopt.cluster.client.resources import KUEUE_WORKLOADS
from kopt.cluster.holds.hold import HoldError
from kopt.cluster.objects.custom.staged_data import STAGED_DATA
from kopt.cluster.runtime.events import EmitEvent
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.runtime.retry import Pauses, Retrying
from kopt.cluster.runtime.tracing import Span, untraced
from kopt.controllers.staging.downloads import Downloads
from kopt.controllers.staging.ports import Cluster, Progresses, Reads, Silent, StagingSettings, Writes
from kopt.controllers.staging.snapshot import snapshot_of
from kopt.controllers.staging.views import HOLDER
from kopt.controllers.staging.workload_hold import Holding

_LOG = logging.getLogger(__name__)
_IDLE_S, _UNSETTLED_S = 30.0, 1.0
_PAUSES = Pauses(changed_s=0.5, failed_s=5.0)


class Reconciler(Retrying):
    """``step`` does what there is to do."""

    def __init__(
        self,
        cluster: Cluster,
        reads: Reads,
        writes: Writes,
        settings: StagingSettings,
        emit_event: EmitEvent,
        progress: Progresses | None = None,
        clock: Callable[[], float] = time.time,
        isolation: Isolation | None = None,
        trace: Callable[[Span], None] = untraced,
    ) -> None:
        self._cluster, self._settings, self._clock = cluster, settings, clock
        super().__init__(isolation or Isolation("staging"), _PAUSES)
        self._progress = progress or Silent()
        self._downloads = Downloads(cluster, reads, writes, settings, emit_event, clock)
        self._holding = Holding(cluster, reads, writes, settings, emit_event, clock, trace)

    async def step(self) -> float:
        """In how many seconds to run again if nothing changes before. Raises Deposed."""
        running = {job.uid for job in self._cluster.jobs() if not job.run.ended}
        self._progress.follow([pod for pod in self._cluster.pods() if pod.job_uid in running])
        snapshot = snapshot_of(self._cluster, self._progress, self._settings, self._clock())
        again_s = [_IDLE_S] + ([_UNSETTLED_S] if snapshot.unsettled else [])
        # Holds come first: they must not be late.
        for workload in snapshot.workloads:
            subject = Subject.of(workload.resource, workload.document)
            again_s.append(await self._handle(subject, partial(self._holding.reconcile, workload, snapshot)))
        snapshot = snapshot_of(self._cluster, self._progress, self._settings, self._clock())
        for kueue in (item for several in snapshot.kueue.values() for item in several if item.holder == HOLDER):
            subject = Subject.of(KUEUE_WORKLOADS, kueue.document)
            again_s.append(await self._handle(subject, partial(self._holding.give_back, kueue, snapshot)))
        self._holding.forget(snapshot)
        self._downloads.begin_pass(snapshot)
        for staged in sorted(snapshot.data_objects.values(), key=lambda data: (data.data.created_at_s, data.data.key)):
            subject = Subject.of(STAGED_DATA, staged.document)
            again_s.append(await self._handle(subject, partial(self._downloads.reconcile, staged, snapshot)))
        return min(again_s)

    async def _handle(self, subject: Subject, handler: Callable[[], Awaitable[float | None]]) -> float:
        async def work() -> float | None:
            try:
                return await handler()
            except HoldError as error:
                _LOG.info("%s %s/%s is not held: %s", subject.kind, subject.namespace, subject.name, error)
                return None

        again_s = await self._tried(work, subject)
        return _IDLE_S if again_s is None else again_s
