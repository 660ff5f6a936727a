"""What the pods of Jobs report at their end."""

from dataclasses import dataclass

from kopt.cluster.client.resources import Key, Object, key_of
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.workloads.jobs import JOB_NAME_LABEL, has_begun
from kopt.core.workload.profile import says_out_of_memory
from kopt.policies.sizing.profiling_pod import RUN_CONTAINER


@dataclass(frozen=True)
class JobPod:
    """A pod of a Job; ``message`` is the termination message of its dry run, ``image_id`` what truly runs, ``begun``
    whether any of its containers has ever started.

    ``failed``: a container ended with an error; ``out_of_memory``: because memory ran out.
    """

    key: Key
    uid: str
    job: str
    ended: bool
    failed: bool
    out_of_memory: bool
    message: str
    image_id: str
    begun: bool = False


def job_pod(pod: Object) -> JobPod | None:
    """None for pods of no Job."""
    job = text(pod, "metadata", "labels", JOB_NAME_LABEL)
    if not job:
        return None
    failed = out_of_memory = False
    message = image_id = ""
    for _, status in items(pod, "status", "containerStatuses"):
        image_id = image_id or text(status, "imageID")
        for field in ("state", "lastState"):
            ended = mapping(status, field, "terminated")
            if ended and text(status, "name") == RUN_CONTAINER and text(ended, "message"):
                message = text(ended, "message")
            if ended and at(ended, "exitCode") != 0:
                failed = True
                is_oom = text(ended, "reason") == "OOMKilled" or says_out_of_memory(text(ended, "message"))
                out_of_memory = out_of_memory or is_oom
    ended_ = text(pod, "status", "phase") in ("Succeeded", "Failed")
    return JobPod(
        key_of(pod),
        text(pod, "metadata", "uid"),
        job,
        ended_,
        failed,
        out_of_memory,
        message,
        image_id,
        ended_ or has_begun(pod),
    )
