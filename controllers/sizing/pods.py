"""What the pods of Jobs tell when they end."""

from dataclasses import dataclass

from kopt.cluster.resources import Key, Object, key_of
from kopt.controllers.webhook.objects import at, items, mapping, text
from kopt.core.profile import says_out_of_memory
from kopt.policies.profiling_pod import RUN_CONTAINER

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"


@dataclass(frozen=True)
class PodView:
    """A pod of a Job; ``message`` is the termination message of its dry run, ``image_id`` what truly runs, ``begun``
    whether any of its containers has ever started.

    ``failed``: a container ended with an error; ``out_of_memory``: and said that memory ran out.
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


def pod_view(pod: Object) -> PodView | None:
    """None for pods of no Job."""
    job = text(pod, "metadata", "labels", JOB_NAME_LABEL)
    if not job:
        return None
    failed = out_of_memory = False
    message = image_id = ""
    for _, status in items(pod, "status", "containerStatuses"):
        image_id = image_id or text(status, "imageID")
        for place in ("state", "lastState"):
            ended = mapping(status, place, "terminated")
            if ended and text(status, "name") == RUN_CONTAINER and text(ended, "message"):
                message = text(ended, "message")
            if ended and at(ended, "exitCode") != 0:
                failed = True
                said = text(ended, "reason") == "OOMKilled" or says_out_of_memory(text(ended, "message"))
                out_of_memory = out_of_memory or said
    ended_ = text(pod, "status", "phase") in ("Succeeded", "Failed")
    return PodView(key_of(pod), text(pod, "metadata", "uid"), job, ended_, failed, out_of_memory, message, image_id,
                   ended_ or has_begun(pod))  # fmt: skip


def has_begun(pod: Object) -> bool:
    """Also by an init container: it may have written something."""
    return any(
        mapping(status, place, what)
        for part in ("initContainerStatuses", "containerStatuses") for _, status in items(pod, "status", part)
        for place in ("state", "lastState") for what in ("running", "terminated")
    )  # fmt: skip
