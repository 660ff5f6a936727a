"""The kinds of workloads that a cluster serves, and which of their objects count."""

from dataclasses import replace

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import Object, Resource
from kopt.cluster.objects.fields import has_condition, mapping, text
from kopt.cluster.objects.namespace import SYSTEM_NAMESPACES
from kopt.cluster.workloads.kinds import WORKLOAD_KINDS, WorkloadKind, is_handled
from kopt.cluster.workloads.workload import Workload, read_workload

_FINISHED = {"Complete", "Failed", "Succeeded", "SuccessCriteriaMet"}


async def served_kinds(kube: Kube) -> list[tuple[WorkloadKind, Resource]]:
    """The kinds that the cluster has, each in the first of its versions that is served."""
    versions = await kube.group_versions() | {("", "v1")}
    result = []
    for kind in WORKLOAD_KINDS:
        for version in (kind.resource.version, *kind.also_versions):
            resource = replace(kind.resource, version=version)
            if (resource.group, version) in versions and await kube.serves(resource):
                result.append((kind, resource))
                break
    return result


def alive(document: Object, kind: WorkloadKind) -> Workload | None:
    """The workload in an object; None for one that has ended, and for the system's own."""
    namespace, name = text(document, "metadata", "namespace"), text(document, "metadata", "name")
    if namespace in SYSTEM_NAMESPACES or has_ended(document):
        return None
    return read_workload(document, *kind.key, namespace, name)


def is_evaluated(workload: Workload) -> bool:
    """Whether the rules apply to this object: it uses GPUs, is not being deleted, and nothing that is judged itself
    has made it."""
    return workload.uses_gpus and not workload.ends and not is_made_by_another(workload)


def is_made_by_another(workload: Workload) -> bool:
    """Whether a workload that is judged itself has made it."""
    return is_handled(workload.controller, mapping(workload.document, "metadata", "labels"))


def has_ended(document: Object) -> bool:
    """Whether a workload has run to its end, by its phase or its conditions."""
    if text(document, "status", "phase") in _FINISHED or text(document, "status", "jobStatus") in (
        "SUCCEEDED",
        "FAILED",
    ):
        return True
    return has_condition(document, *_FINISHED)


def metadata_and_spec(document: Object) -> Object:
    """Without the status and the books of who wrote which field: half of an object."""
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    return {"metadata": metadata, "spec": document.get("spec") or {}}
