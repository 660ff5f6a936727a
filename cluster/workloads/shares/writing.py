"""Making pod templates ask for a share of a GPU in an executor's terms."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import PART_OF, PART_OF_LABEL, Object
from kopt.cluster.objects.fields import Path, at, items, mapping, text
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.workloads.kinds import PodSet
from kopt.cluster.workloads.pod_sizing import changed_resources, write_annotations
from kopt.cluster.workloads.requests.external import CLAIM_TEMPLATES
from kopt.cluster.workloads.requests.gpus import SHARE_CLAIM, milli_of, resources_milli
from kopt.core.units import WHOLE_GPU, counted
from kopt.core.workload.gpu_share import COUNT, MOST_GPUS, Enforcement, ShareExecutor, ShareRequest
from kopt.core.workload.share_enforcement import ENFORCED
from kopt.formats.gpu_shares import KAI_CONTAINER, WHOLE_GPU_RESOURCE
from kopt.formats.share_terms import ShareForm

EXECUTOR_ANNOTATION, ENFORCED_ANNOTATION = "kaiwo.ai/gpu-executor", "kaiwo.ai/gpu-enforced"
"""On a template: which executor was asked for its share, and what of the request that enforces."""
SHARE_LABEL = "kaiwo.ai/gpu-share"
"""On a workload that was given a share, and on the claim templates that were made for it: the same word."""
WORKLOAD_ANNOTATION = "kaiwo.ai/gpu-share-of"
"""On a claim template: PLURAL.VERSION.GROUP of the workload with its label."""
CHARGE_ANNOTATION = "kaiwo.ai/gpu-charge"
"""On a claim template: thousandths of a GPU that a queue of Kueue charges a pod with such a claim."""
_MOST_MILLI = MOST_GPUS * WHOLE_GPU


class CannotShare(ValueError):
    """A template that cannot be made to ask for a share; the message says why."""


@dataclass(frozen=True)
class Sharer:
    """The container that has the share: where it is, and what it says."""

    path: Path
    body: Mapping[str, Any]
    is_first: bool


def sharer_of(document: Object, pods: PodSet, count: int = 1) -> Sharer:
    """The one container that asks for GPUs, as many as the share is of, else the first. Raises CannotShare."""
    if pods.spec is None or pods.metadata is None:
        raise CannotShare("this kind has no pod template that could say it")
    containers = list(_containers(document, pods.spec))
    if not containers:
        raise CannotShare("its pod template has no container that could have the share")
    starting = (item for _, item in items(document, *pods.spec, "initContainers"))
    if any(resources_milli(mapping(item, "resources")) for item in starting):
        raise CannotShare("an init container asks for GPUs beside the share")
    asking = [item for item in containers if resources_milli(mapping(item.body, "resources"))]
    if len(asking) > 1:
        raise CannotShare("several containers ask for GPUs, and a share is of one container")
    if asking and not _names_whole(mapping(asking[0].body, "resources"), count):
        raise CannotShare(f"it asks for {_stated(asking[0].body)} beside shares of {counted(count, 'GPU')} ({COUNT})")
    return asking[0] if asking else containers[0]


def _containers(document: Object, spec: Path) -> Iterator[Sharer]:
    for index, item in items(document, *spec, "containers"):
        if isinstance(item, Mapping):
            yield Sharer((*spec, "containers", index), item, index == 0)
    # KServe's: the server of a model, which is a container of its own.
    model = at(document, *spec, "model")
    if isinstance(model, Mapping) and not at(document, *spec, "containers"):
        yield Sharer((*spec, "model"), model, is_first=True)


def _names_whole(resources: Mapping[str, Any], count: int) -> bool:
    """Whether it asks for that many whole GPUs and nothing else, which give way to the share."""
    amounts = [mapping(resources, part).get(WHOLE_GPU_RESOURCE) for part in ("limits", "requests")]
    wholes = {str(amount) for amount in amounts if amount is not None}
    return wholes == {str(count)} and resources_milli(resources) == count * WHOLE_GPU


def _stated(container: Mapping[str, Any]) -> str:
    amounts = {**mapping(container, "resources", "requests"), **mapping(container, "resources", "limits")}
    return ", ".join(f"{amount} {name}" for name, amount in amounts.items() if milli_of(str(name), amount))


def write_share(
    patch: JsonPatch, pods: PodSet, request: ShareRequest, executor: ShareExecutor, form: ShareForm, template: str
) -> None:
    """``template`` names the claim template where the form has a claim. Raises CannotShare before it writes."""
    sharer = sharer_of(patch.document, pods, request.count)
    env = _with_env(sharer, form.env)
    assert pods.spec is not None, "a sharer is in a template"
    annotations = dict(form.annotations)
    if not sharer.is_first and any(annotations.values()):
        # KAI gives the share to the first container that it is not told otherwise.
        annotations[KAI_CONTAINER] = text(sharer.body, "name")
    enforced = [field for field in request.fields if ENFORCED[executor][field] is Enforcement.ENFORCED]
    annotations |= {EXECUTOR_ANNOTATION: str(executor), ENFORCED_ANNOTATION: ",".join(enforced)}
    write_annotations(patch, pods, annotations)
    resources = changed_resources(mapping(sharer.body, "resources"), form.limits)
    if form.claim is not None:
        resources["claims"] = _with_claim(at(sharer.body, "resources", "claims"), {"name": SHARE_CLAIM})
        entry = {"name": SHARE_CLAIM, "resourceClaimTemplateName": template}
        claims = _with_claim(at(patch.document, *pods.spec, "resourceClaims"), entry)
        patch.put((*pods.spec, "resourceClaims"), claims)
    patch.put((*sharer.path, "resources"), resources)
    if form.env:
        patch.put((*sharer.path, "env"), env)
    if form.scheduler:
        patch.put((*pods.spec, "schedulerName"), form.scheduler)
    for label, value in form.selector.items():
        patch.put((*pods.spec, "nodeSelector", label), value)


def _with_claim(listed: Any, entry: Object) -> list[Object]:
    others = [item for item in listed if text(item, "name") != SHARE_CLAIM] if isinstance(listed, list) else []
    return [*others, entry]


def _with_env(sharer: Sharer, wanted: Mapping[str, str]) -> list[Object]:
    now = [dict(item) for _, item in items(sharer.body, "env") if isinstance(item, Mapping)]
    for item in now:
        if item.get("name") in wanted and item.get("value") != wanted[item["name"]]:
            raise CannotShare(f"its variable {item['name']} says otherwise than the limit of the share")
    names = {item.get("name") for item in now}
    return [*now, *({"name": name, "value": value} for name, value in wanted.items() if name not in names)]


def claim_template(
    name: str, namespace: str, word: str, workload: str, form: ShareForm, charged_milli: int = 0
) -> Object:
    """The ResourceClaimTemplate of a share; see ``SHARE_LABEL``, ``WORKLOAD_ANNOTATION`` and ``CHARGE_ANNOTATION``."""
    labels = {PART_OF_LABEL: PART_OF, SHARE_LABEL: word}
    charge = {CHARGE_ANNOTATION: str(charged_milli)} if charged_milli else {}
    return {
        "apiVersion": CLAIM_TEMPLATES.api_version,
        "kind": CLAIM_TEMPLATES.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": {WORKLOAD_ANNOTATION: workload, **charge},
        },
        "spec": {"spec": {"devices": form.claim}},
    }


def charge_of_template(template: Object) -> int:
    """Thousandths of a GPU, as ``CHARGE_ANNOTATION`` says; 0 for a template that is not of a share in a queue."""
    charged = text(template, "metadata", "annotations", CHARGE_ANNOTATION)
    return min(int(charged), _MOST_MILLI) if charged.isascii() and charged.isdigit() and len(charged) < 7 else 0
