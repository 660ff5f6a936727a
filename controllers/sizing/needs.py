"""What is known of a Job's need, and what it asks for accordingly."""

import logging
from collections.abc import Callable

from kopt.cluster.held import queue_of
from kopt.cluster.resources import Object
from kopt.controllers.sizing.given import AskEndpoint, Cluster, Queueing
from kopt.controllers.sizing.jobs import as_written, pod_of
from kopt.controllers.sizing.profiles import Learned
from kopt.controllers.webhook.objects import at
from kopt.controllers.webhook.sizing import parse_need
from kopt.core.prediction import Prediction
from kopt.core.profile import DryRun, JobType
from kopt.policies.profiling import Ask, JobFacts, PartitionOffer, ProfilingSettings, ask_for, has_expired, need_of

_LOG = logging.getLogger(__name__)


class Needs:
    """Looks at dry runs, the endpoint, nodes and quotas; changes nothing."""

    def __init__(self, cluster: Cluster, queues: Queueing, settings: ProfilingSettings, ask: AskEndpoint | None,
                 clock: Callable[[], float]) -> None:  # fmt: skip
        self._cluster, self._queues, self._settings = cluster, queues, settings
        self._ask_endpoint, self._clock = ask, clock

    async def ask(self, job: Object, facts: JobFacts, learned: Learned) -> Ask:
        need = await self.need(job, learned.run)
        return ask_for(facts, need, learned.run, await self.offers(job, facts), self._settings)

    async def offers(self, job: Object, facts: JobFacts) -> tuple[PartitionOffer, ...]:
        """Partitions that the Job may use: on its nodes, and with quota in its queue."""
        found = self._cluster.offers(pod_of(job))
        if not facts.queued or not found:
            return found
        covered = await self._queues.covered(job["metadata"]["namespace"], queue_of(job))
        return tuple([one for one in found if one.resource in covered])

    async def need(self, job: Object, run: DryRun | None) -> Prediction | None:
        return need_of(await self._answer(job, run), run, self._settings)

    async def _answer(self, job: Object, run: DryRun | None) -> Prediction | None:
        """The endpoint's prediction from code and dry run; None when it does not give one in time."""
        if self._ask_endpoint is None or run is None:
            return None
        template = {"metadata": {}, "spec": at(as_written(job), "spec", "template", "spec")}
        try:
            body = {"workload": template, "profile": run.to_dict(), "gpu": run.profile.gpu,
                    "namespace": job["metadata"]["namespace"]}  # fmt: skip
            found = parse_need(await self._ask_endpoint(body))
        except Exception as error:  # noqa: BLE001 - edge: whatever the endpoint does, the dry run alone must do
            _LOG.info("no size from the endpoint: %s", error)
            return None
        return found.prediction if found is not None else None

    def known(self, job: Object, kind: JobType | None) -> Learned | None:
        """What counts now of what is known of a Job's type."""
        found = self._cluster.learned(job["metadata"]["namespace"], kind.digest) if kind is not None else None
        return self.counts(found, job) if found is not None else None

    def counts(self, found: Learned, job: Object) -> Learned | None:
        """What was learned, if it is not too old, nor of another image than the Job's."""
        image = next(
            (
                one.image_id
                for one in self._cluster.pods((job["metadata"]["namespace"], job["metadata"]["name"]))
                if one.image_id
            ),
            "",
        )
        expired = has_expired(self._clock() - found.at_s, failed=found.failed, image=found.image_id, image_now=image,
                              settings=self._settings)  # fmt: skip
        return None if expired else found
