"""Workloads of Kueue are charged for the claims of shares that we wrote: in the overhead of their pods, which Kueue
counts against the quota of the queue and compares with nothing, and which stays out of the pods themselves.
"""

from collections.abc import Iterator

from kopt.cluster.admission.review import Answer, Review
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


async def charge_workload(review: Review, lookups: Lookups) -> Answer:
    """What is added to the pods of a Workload; nothing for claims that are not ours.

    A new Workload is refused while a claim template of it cannot be read, and Kueue, which makes it, tries again: let
    in, it would take quota without being charged. A change is let in, so that nothing that is pending gets stuck.
    """
    patch = JsonPatch(review.object)
    for number, spec in _pod_sets(review.object):
        names = sorted(
            {
                text(claim, "resourceClaimTemplateName")
                for _, claim in items(spec, "resourceClaims")
                if text(claim, "name") == SHARE_CLAIM
            }
            - {""}
        )
        milli = 0
        for name in names:
            template = await lookups.find(ObjectRef(CLAIM_TEMPLATES, review.namespace, name))
            if template is not None:
                milli += charge_of_template(template)
            elif review.operation == "CREATE":
                about = f"ResourceClaimTemplate {review.namespace}/{name} of claim {SHARE_CLAIM}"
                return Answer(refusal=f"{about} cannot be read, so its pods cannot be charged for it. Try again.")
        if milli:
            path = ("spec", "podSets", number, "template", "spec", "overhead", CHARGE_RESOURCE)
            patch.put(path, str(milli))
    return Answer(patch=patch.operations)


def _pod_sets(workload: Object) -> Iterator[tuple[int, Object]]:
    for number, pods in items(workload, "spec", "podSets"):
        yield int(number), dict(mapping(pods, "template", "spec"))
