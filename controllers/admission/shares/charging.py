"""Workloads of Kueue are charged for the claims of shares that we wrote: in the overhead of their pods, which Kueue
counts against the quota of the queue and compares with nothing, and which stays out of the pods themselves.
"""

from collections.abc import Iterator

from kopt.cluster.admission.review import Review
from kopt.cluster.client.resources import KUEUE_WORKLOADS, Object
from kopt.cluster.objects.fields import items, mapping, text
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.workloads.requests.external import CLAIM_TEMPLATES, ObjectRef
from kopt.cluster.workloads.requests.gpus import SHARE_CLAIM
from kopt.cluster.workloads.shares.writing import charge_of_template
from kopt.controllers.admission.lookups import Lookups
from kopt.core.workload.gpu_share import CHARGE_RESOURCE


def is_kueue_workload(review: Review) -> bool:
    return (review.group, review.kind) == (KUEUE_WORKLOADS.group, KUEUE_WORKLOADS.kind)


async def charge_workload(review: Review, lookups: Lookups) -> JsonPatch:
    """What is added to a Workload that is being created; nothing for claims that are not ours, or cannot be read."""
    patch = JsonPatch(review.object)
    for number, spec in _pod_sets(review.object):
        names = {
            text(claim, "resourceClaimTemplateName")
            for _, claim in items(spec, "resourceClaims")
            if text(claim, "name") == SHARE_CLAIM
        }
        templates = [await lookups.find(ObjectRef(CLAIM_TEMPLATES, review.namespace, name)) for name in names if name]
        if milli := sum(charge_of_template(template) for template in templates if template is not None):
            path = ("spec", "podSets", number, "template", "spec", "overhead", CHARGE_RESOURCE)
            patch.put(path, str(milli))
    return patch


def _pod_sets(workload: Object) -> Iterator[tuple[int, Object]]:
    for number, pods in items(workload, "spec", "podSets"):
        yield int(number), dict(mapping(pods, "template", "spec"))
