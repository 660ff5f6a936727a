"""Whether a Job restarts after its pods were evicted: each counts as a failure, and too many end it for good."""

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, count, items, text

_USUAL_LIMIT = 6


def outlives(job: Object, pods: int) -> bool:
    """Whether ``pods`` more that are evicted leave it within its limits. A rule for exit codes that comes before the
    one for disruptions may end it: how a program ends is not known."""
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
    return failed + pods <= count(job, "spec", "backoffLimit", default=_USUAL_LIMIT)
