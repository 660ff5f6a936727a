"""``kopt controller runs``: one replica, from start to the end."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.client.resources import JOBS, KUEUE_WORKLOADS, Key, Object, Resource, key_of
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.workloads.runs import has_pods, run_of_job, run_of_workload
from kopt.controllers.runs.reporter import Reporter, Send, SendError
from kopt.core.workload.run_time import JobRun

_LOG = logging.getLogger(__name__)
NAME = "runs"
_GATHER_S = 0.2
"""Changes within this time are sent together."""
_SEND_S = 30.0
Observed = tuple[Key, JobRun, bool]
"""Key of the object, its run, and whether that has begun."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica. Without ``predictions`` nothing is sent."""

    predictions: str = ""
    cluster: str = ""
    port: int = 9460


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with (
        _endpoint(settings) as send,
        connect(settings.kubeconfig, KubeSettings(user_agent="kopt-runs")) as kube,
    ):
        workloads = await kube.served(KUEUE_WORKLOADS)
        await run_until(ending, Replica(kube, settings, send, workloads))


@contextlib.asynccontextmanager
async def _endpoint(settings: ProcessSettings) -> AsyncIterator[Send | None]:
    if not settings.predictions:
        _LOG.warning("no run is sent: --predictions names no endpoint")
        yield None
        return
    # Not before it is needed: every `kopt` reads the list of controllers.
    from kopt.serving.client.client import AsyncPredictionClient
    from kopt.serving.client.transport import EndpointFailure, RequestRefused
    from kopt.serving.contract.common import AnswerError

    async with AsyncPredictionClient(settings.predictions, deadline_s=_SEND_S) as client:

        async def send(runs: Sequence[JobRun]) -> int:
            try:
                return (await client.send_runs(runs, settings.cluster)).kept
            except RequestRefused as error:
                raise SendError(str(error), refused=error.status in (400, 422)) from error
            except (EndpointFailure, AnswerError) as error:
                raise SendError(str(error)) from error

        yield send


class Replica(LedReplica):
    """The parts of one process, put together. Every replica observes; the leader sends."""

    def __init__(
        self, kube: Kube, settings: ProcessSettings, send: Send | None, workloads: Resource = KUEUE_WORKLOADS
    ) -> None:
        self._changed = asyncio.Event()
        self._is_sending = send is not None
        self.reporter = Reporter(send or _nowhere, time.time)
        kueue: Informer[Observed] = Informer(kube, workloads, keep=_keyed(run_of_workload, lambda _: True))
        jobs: Informer[Observed] = Informer(kube, JOBS, keep=_keyed(run_of_job, has_pods))
        kueue.subscribe(self._to("Workload"))
        jobs.subscribe(self._to("Job"))
        super().__init__(kube, NAME, settings, (kueue, jobs))
        self.gauge("running", "GPU workloads that run.", lambda: self.reporter.running)
        self.gauge("pending", "Starts and ends that are still to be sent.", lambda: self.reporter.pending)
        self.gauge("sent", "Starts and ends that the endpoint has taken.", lambda: self.reporter.sent)
        self.gauge("errors", "Attempts to send that failed.", lambda: self.errors)

    async def lead(self, fence: Fence) -> None:
        if not self._is_sending:
            await asyncio.Event().wait()
            return
        self.reporter.send_all()
        await self.step_through(self.reporter, self._changed, _GATHER_S)

    def _to(self, kind: str) -> Callable[[Change[Observed]], None]:
        def handler(change: Change[Observed]) -> None:
            if change.old == change.new:
                return
            if change.old is not None and (change.new is None or change.new[0] != change.old[0]):
                self.reporter.observe((kind, change.old[0]), None)
            if change.new is not None:
                self.reporter.observe((kind, change.new[0]), change.new[1], has_begun=change.new[2])
            self._changed.set()

        return handler


def _keyed(read: Callable[[Object], JobRun | None], has_begun: Callable[[Object], bool]) -> Callable[[Object], Any]:
    def keep(document: Object) -> Observed | None:
        run = read(document)
        return None if run is None else (key_of(document), run, run.ended_s is not None or has_begun(document))

    return keep


async def _nowhere(runs: Sequence[JobRun]) -> int:
    raise SendError("no endpoint is named")
