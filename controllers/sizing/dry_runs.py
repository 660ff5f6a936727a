"""Profiling Jobs: made for a job type that nothing is known of, and taken away when what they found is kept."""

import json
from collections.abc import Callable

from kopt.cluster.api import AlreadyExists
from kopt.cluster.held import queue_of
from kopt.cluster.lease import Fence
from kopt.cluster.resources import COMPONENT_LABEL, JOBS, PART_OF, PART_OF_LABEL, Object, key_of
from kopt.controllers.sizing.given import Cluster, Tell
from kopt.controllers.sizing.jobs import gpu_container, gpus_per_pod, is_finished
from kopt.controllers.sizing.pods import PodView
from kopt.controllers.sizing.profiles import SIZING_PROFILES, Learned, document_of
from kopt.core.profile import JobType, read_dry_run
from kopt.core.units import WHOLE_GPU
from kopt.policies.profiling_pod import DryRunSettings, profiling_job

COMPONENT = "sizing"
_SOON_S = 0.5


class DryRuns:
    """Every step is one write; raises as the reconciler does."""

    def __init__(self, cluster: Cluster, fence: Fence, settings: DryRunSettings, tell: Tell,
                 clock: Callable[[], float]) -> None:  # fmt: skip
        self._cluster, self._fence, self._settings = cluster, fence, settings
        self._tell, self._clock = tell, clock

    async def start(self, job: Object, kind: JobType) -> None:
        """Create the profiling Job of a Job's type, unless there is one."""
        container = gpu_container(job)
        name = f"kopt-profile-{kind.digest}"
        if container is None or self._cluster.job((job["metadata"]["namespace"], name)) is not None:
            return
        body = profiling_job(
            job, container[0], name=name, digest=kind.digest, settings=self._settings,
            labels={PART_OF_LABEL: PART_OF, COMPONENT_LABEL: COMPONENT}, queue=queue_of(job),
            processes=max(1, gpus_per_pod(job) // WHOLE_GPU),
        )  # fmt: skip
        try:
            await self._fence.create(JOBS, body)
        except AlreadyExists:
            # Another job of the type has asked for it, or this one before a restart.
            return
        self._tell(job, "DryRunStarted", f"Job {name} finds out what it needs.")

    async def finish(self, job: Object, digest: str) -> float | None:
        """A profiling Job: keep what it found, then take it away. In how many seconds to look again."""
        metadata = job["metadata"]
        uid, namespace = metadata["uid"], metadata["namespace"]
        if metadata.get("deletionTimestamp"):
            return None
        known = self._cluster.learned(namespace, digest)
        if known is not None and known.job_uid == uid:
            await self._fence.delete(JOBS, job)
            return None
        pods = self._cluster.pods(key_of(job))
        told = next((one for one in pods if one.message), None)
        if told is None and not is_finished(job):
            return None
        found = _outcome(told, pods, digest, namespace, uid, self._clock())
        await self._keep(found, known)
        self._tell(job, "DryRunEnded", found.reason)
        return _SOON_S

    async def _keep(self, found: Learned, known: Learned | None) -> None:
        document = document_of(found)
        if known is None:
            try:
                await self._fence.create(SIZING_PROFILES, document)
            except AlreadyExists:
                # Not seen yet: it is looked at again when it is.
                return
        else:
            await self._fence.patch(SIZING_PROFILES, known.document, {"spec": {"profile": None} | document["spec"]})


def _outcome(told: PodView | None, pods: list[PodView], digest: str, namespace: str, uid: str,
             now_s: float) -> Learned:  # fmt: skip
    image = next((one.image_id for one in pods if one.image_id), "")
    run, reason = None, "The dry run ended without a profile."
    if told is not None:
        try:
            run = read_dry_run(json.loads(told.message))
            reason = "A dry run has shown what this job type needs."
        except (ValueError, RecursionError) as error:
            reason = f"The dry run's profile cannot be read: {error}"
    return Learned(digest, namespace, run, reason, now_s, image, uid, {})
