"""What compliance policies are compiled with, the kinds that they become, and reading them from a cluster."""

from kopt.cluster.client.api import Kube, NotFound
from kopt.cluster.client.resources import (
    COMPLIANCE_POLICIES,
    COMPONENT_LABEL,
    MUTATING_POLICIES,
    MUTATING_POLICY_BINDINGS,
    PART_OF,
    PART_OF_LABEL,
    POLICIES_COMPONENT,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
    Object,
    Resource,
)
from kopt.cluster.objects.custom.compliance_policy import policy_of
from kopt.cluster.objects.namespace import MANAGED_LABEL, SYSTEM_NAMESPACES
from kopt.cluster.workloads.requests.gpus import CLASS_PREFIX, FRACTION_ANNOTATIONS, MEMORY_ANNOTATIONS
from kopt.core.workload.compliance import CompliancePolicy, Surroundings

LABELS = {PART_OF_LABEL: PART_OF, COMPONENT_LABEL: POLICIES_COMPONENT}
COMPILED_KINDS = (
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
    MUTATING_POLICIES,
    MUTATING_POLICY_BINDINGS,
)
MANAGED = (MANAGED_LABEL, "true")
SPARED_NAMESPACES = SYSTEM_NAMESPACES
RESOURCE_PREFIXES = ("nvidia.com/", "amd.com/", "google.com/tpu", "gpu.intel.com/", "volcano.sh/vgpu", CLASS_PREFIX)
SHARE_ANNOTATIONS = (*FRACTION_ANNOTATIONS, *MEMORY_ANNOTATIONS)
COUNTED_RESOURCES = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "amd.com/gpu",
    "google.com/tpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
)


def resource_of(document: Object) -> Resource:
    """The kind of a compiled object."""
    return next(kind for kind in COMPILED_KINDS if kind.kind == document["kind"])


def surroundings() -> Surroundings:
    """What policies are compiled with."""
    return Surroundings(LABELS, MANAGED, SPARED_NAMESPACES, RESOURCE_PREFIXES, SHARE_ANNOTATIONS, COUNTED_RESOURCES)


async def read_policies(kube: Kube) -> tuple[list[CompliancePolicy], list[str]]:
    """The policies of a cluster, and what is wrong with those that cannot be meant. Raises ApiError; a cluster without
    the kind has none."""
    try:
        listed = (await kube.list(COMPLIANCE_POLICIES)).items
    except NotFound:
        return [], []
    policies, problems = list[CompliancePolicy](), list[str]()
    for document in listed:
        try:
            policies.append(policy_of(document))
        except ValueError as error:
            problems.append(f"CompliancePolicy {document['metadata']['name']}: {error}")
    return policies, problems
