"""Jobs of Kubernetes and their pods: what has begun, and what may still be changed."""

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, count, has_condition, items, mapping, text

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
_STOPPING = "kueue.x-k8s.io/stopping"
"""On a Job while Kueue stops it and puts its template back."""


def is_changeable(job: Object) -> bool:
    """Whether its controller has stopped it; only then does the API server let its request be changed."""
    stopped = has_condition(job, "Suspended")
    is_stopping = text(job, "metadata", "annotations", _STOPPING) == "true"
    return stopped and at(job, "spec", "suspend") is True and not is_stopping and not pods_that(job, "active")


def pods_that(job: Object, are: str) -> int:
    """How many pods of a Job its status counts as ``active``, ``terminating`` or the like."""
    return count(job, "status", are, default=0)


def has_begun(pod: Object) -> bool:
    """Also by an init container: it may have written something."""
    return any(
        mapping(status, state, what)
        for part in ("initContainerStatuses", "containerStatuses")
        for _, status in items(pod, "status", part)
        for state in ("state", "lastState")
        for what in ("running", "terminated")
    )
