"""What the webhook would write for the shares of a manifest, before anything is created (`kopt fractions plan`)."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kopt.cluster.admission.review import Review
from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.workloads.shares.offers import SharedGpus
from kopt.cluster.workloads.workload import NamespaceDefaults, Workload, read_workload
from kopt.controllers.admission.evaluation import FixedState, evaluate
from kopt.controllers.admission.mutating import apply_pools, apply_queue
from kopt.controllers.admission.policy import Rollout
from kopt.controllers.admission.shares.writing import PlannedShare, apply_shares, plan_shares
from kopt.core.decision import Mode
from kopt.core.workload.gpu_share import FRACTION, MEMORY, ShareError


@dataclass(frozen=True)
class ManifestPlan:
    """Of one manifest. ``patch``: JSON patch with which the webhook would let it in, its queue and pools included;
    ``templates``: claim templates that it would create. ``refusal`` is empty where it is let in."""

    kind: str
    namespace: str
    name: str
    shares: tuple[PlannedShare, ...] = ()
    patch: tuple[Object, ...] = ()
    templates: tuple[Object, ...] = ()
    refusal: str = ""


def plan_manifest(document: Object, state: FixedState, sharing: SharedGpus, namespace: str) -> ManifestPlan | None:
    """As in mode enforce; None for what has no pods. ``namespace`` is for a manifest without one."""
    written = copy.deepcopy(document)
    group = text(written, "apiVersion").rpartition("/")[0]
    space, name = text(written, "metadata", "namespace") or namespace, text(written, "metadata", "name")
    workload = read_workload(written, group, text(written, "kind"), space, name)
    if workload is None:
        return None
    kind = workload.kind.resource.kind
    policy = replace(state.policy, mode=Mode.ENFORCE, rollout=Rollout())
    cluster = replace(state, policy=policy, share_offers=sharing)
    defaults = state.namespace(space) or NamespaceDefaults()
    evaluation = evaluate(workload, cluster, NamespaceDefaults(queue=defaults.queue), ())
    patch = JsonPatch(written)
    apply_queue(patch, workload, evaluation, policy)
    apply_pools(patch, workload, evaluation, policy)
    try:
        shares = tuple(plan_shares(workload, sharing, policy.queues.framework, state.covered))
    except ShareError as error:
        return ManifestPlan(kind, space, name, refusal=f"{error}.")
    review = Review("plan", group, kind, space, name, "CREATE", True, "", (), written)
    result = apply_shares(patch, review, workload, Mode.ENFORCE, sharing, policy.queues.framework, state.covered)
    if result.refused is not None:
        return ManifestPlan(kind, space, name, shares, refusal=result.refused.message)
    if not shares and (misplaced := _misplaced(workload)):
        return ManifestPlan(kind, space, name, refusal=misplaced)
    return ManifestPlan(kind, space, name, shares, tuple(patch.operations), tuple(result.templates))


def _misplaced(workload: Workload) -> str:
    """Annotations on an object whose pods come from a template say nothing about these."""
    own: Mapping[str, Any] = mapping(workload.document, "metadata", "annotations")
    templates = [pods.metadata for pods in workload.pod_sets if pods.metadata not in (None, ("metadata",))]
    if templates and (FRACTION in own or MEMORY in own):
        return "The request stands on the object, and has to stand on its pod template (spec.template.metadata)."
    return ""
