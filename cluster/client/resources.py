"""The kinds of Kubernetes objects that this product reads and writes, and their addresses on the API server."""

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
"""A decoded Kubernetes object, as it came over the wire."""

Key = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped objects."""

PART_OF_LABEL = "app.kubernetes.io/part-of"
PART_OF = "kaiwo-optimizer"
COMPONENT_LABEL = "app.kubernetes.io/component"
OURS = f"{PART_OF_LABEL}={PART_OF}"
"""Label selector of everything that the product installs into a cluster."""
TESTS_COMPONENT = "pairs"
"""The component whose Jobs are our own benchmarks: `kopt off` deletes them."""
HOLDS_COMPONENT = "reservations"
"""The component whose Jobs hold reserved GPUs: `kopt off` deletes them, too."""

POLICIES_COMPONENT = "policies"
"""The component whose admission policies are compiled from CompliancePolicies: `kopt off` deletes them."""


@dataclass(frozen=True)
class Resource:
    """One kind of object under one version of its API group; the group is empty for the core API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """As kubectl names the kind: ``jobs.batch``, ``pods``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of a collection (over all namespaces when none is given), of an object or of its subresource.

        Raises ValueError for parts that no object can have: a name from outside cannot lead to another address.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if name and self.namespaced != bool(namespace):
            needed = "needs a namespace" if self.namespaced else "has no namespace"
            raise ValueError(f"{self.kind} {name!r} {needed}")
        parts = [root]
        if namespace and self.namespaced:
            parts += ["namespaces", _segment(namespace)]
        parts.append(self.plural)
        if name:
            parts.append(_segment(name))
        if subresource:
            parts += [_segment(part) for part in subresource.split("/")]
        return "/".join(parts)

    def reference(self, namespace: str, name: str, uid: str = "") -> Object:
        """An ObjectReference, as events and owners hold it."""
        result = {"apiVersion": self.api_version, "kind": self.kind, "name": name}
        return result | ({"namespace": namespace} if namespace else {}) | ({"uid": uid} if uid else {})


def key_of(document: Object) -> Key:
    """The key of an object."""
    metadata = document["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _segment(text: str) -> str:
    # The API server's own rule for names in paths (IsValidPathSegmentName), and no character that a URL would read.
    if not text or text in (".", "..") or not text.isascii() or not text.isprintable() or set(text) & set("/%?# \\"):
        raise ValueError(f"{text[:80]!r} is no name of a Kubernetes object")
    return text


PODS = Resource("", "v1", "pods", "Pod")
UNFINISHED_PODS = "status.phase!=Succeeded,status.phase!=Failed"
"""The field selector of pods that have not ended."""
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
JOBS = Resource("batch", "v1", "jobs", "Job")
CRON_JOBS = Resource("batch", "v1", "cronjobs", "CronJob")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
SELF_REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_POLICIES = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False
)
VALIDATING_POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
MUTATING_POLICIES = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", namespaced=False
)
MUTATING_POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingadmissionpolicybindings",
    "MutatingAdmissionPolicyBinding",
    namespaced=False,
)
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
COMPLIANCE_POLICIES = Resource("kaiwo.ai", "v1alpha1", "compliancepolicies", "CompliancePolicy", namespaced=False)
CONFORMANCE_POLICIES = Resource("kaiwo.ai", "v1alpha1", "conformancepolicies", "ConformancePolicy", namespaced=False)
FEATURE_ROLLOUTS = Resource("kaiwo.ai", "v1alpha1", "featurerollouts", "FeatureRollout", namespaced=False)
NODE_TOPOLOGIES = Resource("kaiwo.ai", "v1alpha1", "nodetopologies", "NodeTopology", namespaced=False)
NODE_ALLOCATIONS = Resource("kaiwo.ai", "v1alpha1", "nodeallocations", "NodeAllocation", namespaced=False)
NODE_BANDWIDTHS = Resource("kaiwo.ai", "v1alpha1", "nodebandwidths", "NodeBandwidth", namespaced=False)
NODE_PLANS = Resource("kaiwo.ai", "v1alpha1", "nodeplans", "NodePlan", namespaced=False)
NODE_HEALTHS = Resource("kaiwo.ai", "v1alpha1", "nodehealths", "NodeHealth", namespaced=False)
NODE_SELECTION_POLICIES = Resource(
    "kaiwo.ai", "v1alpha1", "nodeselectionpolicies", "NodeSelectionPolicy", namespaced=False
)
DEVICE_TAINT_RULES = Resource("resource.k8s.io", "v1beta2", "devicetaintrules", "DeviceTaintRule", namespaced=False)
PAIRWISE_BENCHMARKS = Resource("kaiwo.ai", "v1alpha1", "pairwisebenchmarks", "PairwiseBenchmark", namespaced=False)
EVICTIONS = Resource("kaiwo.ai", "v1alpha1", "evictions", "Eviction")
KAIWO_RESERVATIONS = Resource("kaiwo.ai", "v1alpha1", "kaiworeservations", "KaiwoReservation")
MIG_STRATEGIES = Resource("kgwe.nvidia.io", "v1", "migstrategies", "MIGStrategy", namespaced=False)
PARTITIONING_PLANS = Resource(
    "infrastructure.silogen.ai", "v1alpha1", "partitioningplans", "PartitioningPlan", namespaced=False
)
GPU_WORKLOADS = Resource("kgwe.nvidia.io", "v1", "gpuworkloads", "GPUWorkload")
KUEUE_WORKLOADS = Resource("kueue.x-k8s.io", "v1beta1", "workloads", "Workload")
KAI_POD_GROUPS = Resource("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup")
VOLCANO_POD_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
KUEUE_LOCAL_QUEUES = Resource("kueue.x-k8s.io", "v1beta1", "localqueues", "LocalQueue")
KUEUE_CLUSTER_QUEUES = Resource("kueue.x-k8s.io", "v1beta1", "clusterqueues", "ClusterQueue", namespaced=False)
KUEUE_COHORTS = Resource("kueue.x-k8s.io", "v1beta1", "cohorts", "Cohort", namespaced=False)
KUEUE_FLAVORS = Resource("kueue.x-k8s.io", "v1beta1", "resourceflavors", "ResourceFlavor", namespaced=False)
LENDING_POOLS = Resource("kaiwo.ai", "v1alpha1", "lendingpools", "LendingPool", namespaced=False)
KAIWO_QUEUES = Resource("kaiwo.ai", "v1alpha2", "kaiwoqueues", "KaiwoQueue", namespaced=False)
KAIWO_POOLS = Resource("kaiwo.ai", "v1alpha2", "kaiwopools", "KaiwoPool", namespaced=False)
KAIWO_BUDGETS = Resource("kaiwo.ai", "v1alpha1", "kaiwobudgets", "KaiwoBudget", namespaced=False)
KAI_QUEUES = Resource("scheduling.run.ai", "v2", "queues", "Queue", namespaced=False)
VOLCANO_QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False)
VOLCANO_JOBS = Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job")
VOLCANO_COMMANDS = Resource("bus.volcano.sh", "v1alpha1", "commands", "Command")
