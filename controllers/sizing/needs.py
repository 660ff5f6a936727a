"""What is known of a Job's need, and what it asks for accordingly."""

import logging
from collections.abc import Callable

from kopt.cluster.client.resources import Object
from kopt.cluster.holds.hold import queue_of
from kopt.cluster.objects.fields import at
from kopt.cluster.workloads.memory_need import parse_need
from kopt.controllers.sizing.jobs import as_written, pod_of
from kopt.controllers.sizing.ports import AskEndpoint, Cluster, Queueing
from kopt.controllers.sizing.profiles import Learned
from kopt.core.prediction import Prediction
from kopt.core.workload.profile import DryRun, JobType
from kopt.policies.sizing.profiling import (
    GpuShareRequest,
    JobSnapshot,
    PartitionOffer,
    ProfilingSettings,
    has_expired,
    need_of,
    request_for,
)

_LOG = logging.getLogger(__name__)


class Needs:
    """Reads dry runs, the endpoint, nodes and quotas; changes nothing."""

    def __init__(
        self,
        cluster: Cluster,
        queues: Queueing,
        settings: ProfilingSettings,
        request: AskEndpoint | None,
        clock: Callable[[], float],
    ) -> None:
        self._cluster, self._queues, self._settings = cluster, queues, settings
        self._ask_endpoint, self._clock = request, clock

    async def request(self, job: Object, snapshot: JobSnapshot, learned: Learned) -> GpuShareRequest:
        need = await self.need(job, learned.run)
        return request_for(snapshot, need, learned.run, await self.offers(job, snapshot), self._settings)

    async def offers(self, job: Object, snapshot: JobSnapshot) -> tuple[PartitionOffer, ...]:
        """Partitions that the Job may use: on its nodes, and with quota in its queue."""
        partition_offers = self._cluster.offers(pod_of(job))
        if not snapshot.queued or not partition_offers:
            return partition_offers
        resources = await self._queues.usable_resources(job["metadata"]["namespace"], queue_of(job))
        return tuple([partition_offer for partition_offer in partition_offers if partition_offer.resource in resources])

    async def need(self, job: Object, run: DryRun | None) -> Prediction | None:
        return need_of(await self._answer(job, run), run, self._settings)

    async def _answer(self, job: Object, run: DryRun | None) -> Prediction | None:
        """The endpoint's prediction from code and dry run; None when it does not give one in time."""
        if self._ask_endpoint is None or run is None:
            return None
        template = {"metadata": {}, "spec": at(as_written(job), "spec", "template", "spec")}
        try:
            body = {
                "workload": template,
                "profile": run.to_dict(),
                "gpu": run.profile.gpu,
                "namespace": job["metadata"]["namespace"],
            }
            need = parse_need(await self._ask_endpoint(body))
        except Exception as error:  # noqa: BLE001 - edge: whatever the endpoint does, the dry run alone must do
            _LOG.info("no size from the endpoint: %s", error)
            return None
        return need.prediction if need is not None else None

    def current(self, job: Object, kind: JobType | None) -> Learned | None:
        """What counts now of what is known of a Job's type."""
        learned = self._cluster.learned(job["metadata"]["namespace"], kind.digest) if kind is not None else None
        return self.counts(learned, job) if learned is not None else None

    def counts(self, learned: Learned, job: Object) -> Learned | None:
        """What was learned, if it is not too old, nor of another image than the Job's."""
        image = next(
            (
                pod.image_id
                for pod in self._cluster.pods((job["metadata"]["namespace"], job["metadata"]["name"]))
                if pod.image_id
            ),
            "",
        )
        expired = has_expired(
            self._clock() - learned.at_s,
            failed=learned.failed,
            image=learned.image_id,
            image_now=image,
            settings=self._settings,
        )
        return None if expired else learned
