"""Jobs of Kubernetes and their pods: what has begun, what may still be changed, and what evictions end for good."""

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, count, has_condition, items, mapping, text

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
_STOPPING = "kueue.x-k8s.io/stopping"
"""On a Job while Kueue stops it and puts its template back."""
_USUAL_BACKOFF_LIMIT = 6


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


def outlives(job: Object, pods: int) -> bool:
    """Whether ``pods`` more that are evicted, each of which counts as a failure, leave it within its limits. A rule for
    exit codes that comes before the one for disruptions may end it: how a program ends is not known."""
    for _, rule in items(job, "spec", "podFailurePolicy", "rules"):
        action = text(rule, "action")
        disrupted = any(
            text(item, "type") == "DisruptionTarget" and text(item, "status") in ("", "True")
            for _, item in items(rule, "onPodConditions")
        )
        if action in ("FailJob", "FailIndex") and (disrupted or at(rule, "onExitCodes")):
            return False
        if disrupted and action == "Ignore":
            return True
        if disrupted:
            break
    failed = count(job, "status", "failed", default=0)
    of_index = at(job, "spec", "backoffLimitPerIndex")
    # How often each index has failed is not known; none has more often than all together.
    if isinstance(of_index, int) and failed >= of_index:
        return False
    return failed + pods <= count(job, "spec", "backoffLimit", default=_USUAL_BACKOFF_LIMIT)
