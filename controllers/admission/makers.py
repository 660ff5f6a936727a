"""What an AIMService says for the InferenceService that AIM Engine makes of it.

AIM Engine passes on the labels of its own domain, others only where its runtime config lists them, and no annotations.
So the queue, class and mode that somebody writes on the AIMService would be lost one object further down.
"""

from collections.abc import Mapping
from dataclasses import replace

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.objects.kaiwo_workloads import MAKERS
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.workloads.frameworks import QUEUE_REFERENCES
from kopt.cluster.workloads.kinds import INFERENCE_SERVICES
from kopt.cluster.workloads.requests.external import ObjectRef
from kopt.cluster.workloads.workload import Workload
from kopt.cluster.workloads.workload_class import CLASS_KEY
from kopt.core.scheduling.submission import Framework
from kopt.policies.admission.hardware import HARDWARE_KEY, MEMORY_KEY, PLACEMENT_KEY
from kopt.policies.admission.pools import POOLS_ANNOTATION

_KEYS = (MODE_ANNOTATION, CLASS_KEY, POOLS_ANNOTATION, HARDWARE_KEY, MEMORY_KEY, PLACEMENT_KEY)
"""Not the opt-out: the right to it is that of who writes an object, and AIM Engine writes the InferenceService."""
_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
_RESOURCES = {(resource.group, resource.kind): resource for resource in MAKERS}
Stated = Mapping[tuple[str, str], str]
"""Values by section of the metadata and key."""


def maker_of(workload: Workload) -> ObjectRef | None:
    """The AIMService of an InferenceService; None for what nobody has made so."""
    resource = _RESOURCES.get(workload.controller)
    if workload.kind.resource != INFERENCE_SERVICES or resource is None:
        return None
    name = text(_controller(workload.document), "name")
    return ObjectRef(resource, workload.namespace, name) if name else None


def stated_by(maker: Object | None, workload: Workload, framework: Framework) -> Stated:
    """What the maker says and the workload does not; nothing of another object that has the maker's name by now."""
    if maker is None or text(maker, "metadata", "uid") != text(_controller(workload.document), "uid"):
        return {}
    reference = QUEUE_REFERENCES[framework]
    wanted = [(section, key) for section in ("labels", "annotations") for key in _KEYS]
    wanted += [(reference.section, reference.key), ("labels", _PRIORITY_LABEL)]
    return {
        (section, key): value
        for section, key in wanted
        if (value := text(maker, "metadata", section, key)) and key not in mapping(workload.document, *_path(section))
    }


def with_stated(workload: Workload, stated: Stated) -> Workload:
    """The workload as if it said so itself."""
    if not stated:
        return workload
    metadata = dict(mapping(workload.document, "metadata"))
    for (section, key), value in stated.items():
        metadata[section] = {**mapping(metadata, section), key: value}
    return replace(workload, document={**workload.document, "metadata": metadata})


def write_stated(patch: JsonPatch, stated: Stated) -> None:
    """Put it where the queue, KServe and all that comes later read it."""
    for (section, key), value in stated.items():
        patch.put((*_path(section), key), value)


def _path(section: str) -> tuple[str, str]:
    return "metadata", section


def _controller(document: Object) -> Object:
    references = (item for _, item in items(document, "metadata", "ownerReferences"))
    return next((item for item in references if at(item, "controller") is True), {})
