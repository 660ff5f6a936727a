"""Profiling Jobs: created for job types without a known size, and deleted once their result is kept."""

from collections.abc import Callable
from dataclasses import replace

from kopt.cluster.client.api import AlreadyExists
from kopt.cluster.client.resources import COMPONENT_LABEL, JOBS, PART_OF, PART_OF_LABEL, Object, key_of
from kopt.cluster.holds.hold import queue_of
from kopt.cluster.runtime.lease import Fence
from kopt.controllers.sizing.jobs import gpu_container, gpus_per_pod, is_finished
from kopt.controllers.sizing.pods import JobPod
from kopt.controllers.sizing.ports import Cluster, EmitEvent
from kopt.controllers.sizing.profiles import SIZING_PROFILES, Learned, document_of, kept_command
from kopt.core.units import WHOLE_GPU
from kopt.core.untrusted import decode_mapping
from kopt.core.workload.profile import JobType, read_dry_run
from kopt.policies.sizing.profiling_pod import DryRunSettings, profiled_command, profiling_job

COMPONENT = "sizing"
_SOON_S = 0.5


class DryRuns:
    """Every step is one write; raises as the reconciler does."""

    def __init__(
        self,
        cluster: Cluster,
        fence: Fence,
        settings: DryRunSettings,
        emit_event: EmitEvent,
        clock: Callable[[], float],
    ) -> None:
        self._cluster, self._fence, self._settings = cluster, fence, settings
        self._emit_event, self._clock = emit_event, clock

    async def start(self, job: Object, kind: JobType) -> None:
        """Create the profiling Job of a Job's type, unless there is one."""
        container = gpu_container(job)
        name = f"kopt-profile-{kind.digest}"
        if container is None or self._cluster.job((job["metadata"]["namespace"], name)) is not None:
            return
        body = profiling_job(
            job,
            container[0],
            name=name,
            digest=kind.digest,
            settings=self._settings,
            labels={PART_OF_LABEL: PART_OF, COMPONENT_LABEL: COMPONENT},
            queue=queue_of(job),
            processes=max(1, gpus_per_pod(job) // WHOLE_GPU),
        )
        try:
            await self._fence.create(JOBS, body)
        except AlreadyExists:
            # Another job of the type has asked for it, or this one before a restart.
            return
        self._emit_event(job, "DryRunStarted", f"Job {name} measures what it needs.")

    async def finish(self, job: Object, digest: str) -> float | None:
        """A profiling Job: keep its result, then delete it. Returns in how many seconds to run again."""
        metadata = job["metadata"]
        uid, namespace = metadata["uid"], metadata["namespace"]
        if metadata.get("deletionTimestamp"):
            return None
        profile = self._cluster.learned(namespace, digest)
        if profile is not None and profile.job_uid == uid:
            await self._fence.delete(JOBS, job)
            return None
        pods = self._cluster.pods(key_of(job))
        reporting = next((pod for pod in pods if pod.message), None)
        if reporting is None and not is_finished(job):
            return None
        learned = replace(
            _outcome(reporting, pods, digest, namespace, uid, self._clock()),
            command=kept_command(profiled_command(job)),
        )
        await self._keep(learned, profile)
        self._emit_event(job, "DryRunEnded", learned.reason)
        return _SOON_S

    async def _keep(self, learned: Learned, profile: Learned | None) -> None:
        document = document_of(learned)
        if profile is None:
            try:
                await self._fence.create(SIZING_PROFILES, document)
            except AlreadyExists:
                # Not seen yet: it is reconciled again when it is.
                return
        else:
            await self._fence.patch(
                SIZING_PROFILES, profile.document, {"spec": {"profile": None, "command": None} | document["spec"]}
            )


def _outcome(
    reporting: JobPod | None, pods: list[JobPod], digest: str, namespace: str, uid: str, now_s: float
) -> Learned:
    image = next((pod.image_id for pod in pods if pod.image_id), "")
    run, reason = None, "The dry run ended without a profile."
    if reporting is not None:
        try:
            run = read_dry_run(decode_mapping(reporting.message))
            reason = "A dry run has shown what this job type needs."
        except ValueError as error:
            reason = f"The dry run's profile cannot be read: {error}"
    return Learned(digest, namespace, run, reason, now_s, image, uid, {})
