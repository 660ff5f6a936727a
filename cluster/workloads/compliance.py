"""What compliance policies are compiled with, the kinds that they become, and what they are about."""

from kopt.cluster.client.resources import (
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
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.objects.namespace import MANAGED_LABEL, SYSTEM_NAMESPACES
from kopt.cluster.workloads.node_selection import matches_labels
from kopt.cluster.workloads.requests.gpus import CLASS_PREFIX, FRACTION_ANNOTATIONS, MEMORY_ANNOTATIONS, gpus_of
from kopt.core.workload.compliance import CompliancePolicy, Surroundings, TeamPod

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


def is_subject(policy: CompliancePolicy, namespace: Object) -> bool:
    """Whether a policy is about the pods of a namespace, as the selector of its compiled objects has it."""
    labels = {str(key): str(value) for key, value in mapping(namespace, "metadata", "labels").items()}
    if text(namespace, "metadata", "name") in SPARED_NAMESPACES:
        return False
    selector = dict(policy.namespace_selector) or {"matchLabels": dict((MANAGED,))}
    return matches_labels(selector, labels)


def team_pod(pod: Object) -> TeamPod:
    """What counts of a pod for its team."""
    metadata = mapping(pod, "metadata")
    labels = {str(key): str(value) for key, value in mapping(metadata, "labels").items()}
    return TeamPod(text(metadata, "namespace"), labels, gpus_of(mapping(pod, "spec"), mapping(metadata, "annotations")))
