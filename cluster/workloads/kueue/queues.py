"""Reads ClusterQueues, cohorts and flavours, and what Workloads ask and use of their quota.

Nothing that anybody may have written into them makes this raise.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, has_condition, items, mapping, text, texts
from kopt.cluster.workloads.kueue.objects import ClusterQueue, Flavor, KueueWorkload
from kopt.cluster.workloads.kueue.reading import amount
from kopt.cluster.workloads.node_selection import runs_on
from kopt.cluster.workloads.requests.gpus import gpus_in, per_device
from kopt.core.scheduling.quota import (
    Admitted,
    Demand,
    FlavorResource,
    PodSetDemand,
    QueueRules,
    Quota,
    QuotaNode,
    ResourceGroup,
    cohort_key,
)
from kopt.core.workload.gpu_share import CHARGE_RESOURCE

_TERMS = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")


def read_cluster_queue(document: Object) -> ClusterQueue:
    active = has_condition(document, "Active")
    return ClusterQueue(
        document["metadata"]["name"],
        _quotas(document),
        _rules(document),
        text(document, "spec", "cohort") or text(document, "spec", "cohortName"),
        active and text(document, "spec", "stopPolicy") in ("", "None"),
        # Kueue writes the status where it shares fairly among queues.
        bool(at(document, "status", "fairSharing")) or bool(at(document, "spec", "admissionScope")),
        bool(text(document, "spec", "flavorFungibility", "preference")),
        bool(at(document, "spec", "admissionScope")),
        text(document, "spec", "queueingStrategy") == "StrictFIFO",
    )


def covered_resources(document: Object) -> frozenset[str]:
    """What a ClusterQueue has quota for: Kueue admits nothing that requests another resource."""
    return frozenset(resource for _, resource in _quotas(document))


def read_cohort(document: Object) -> QuotaNode:
    parent = text(document, "spec", "parentName") or text(document, "spec", "parent")
    return QuotaNode(cohort_key(document["metadata"]["name"]), cohort_key(parent), _quotas(document))


def read_flavor(document: Object) -> Flavor:
    return Flavor(
        document["metadata"]["name"],
        {str(name): str(value) for name, value in mapping(document, "spec", "nodeLabels").items()},
        tuple(taint for _, taint in items(document, "spec", "nodeTaints")),
        tuple(toleration for _, toleration in items(document, "spec", "tolerations")),
        text(document, "spec", "topologyName"),
    )


def demand_of(workload: KueueWorkload, queue: ClusterQueue, flavors: Mapping[str, Flavor] | None) -> Demand:
    """What a Workload asks of a queue. ``flavors`` are the ResourceFlavors by name; None: its pods may use all."""
    pod_sets = []
    for pods in workload.pod_sets:
        allowed = {
            name
            for group in queue.rules.groups
            for name in group.flavors
            if flavors is None or allows(flavors.get(name), pods.spec, label_keys(group.flavors, flavors))
        }
        pod_sets.append(PodSetDemand(pods.requests, frozenset(allowed)))
    return Demand(workload.name, queue.name, workload.priority, workload.created_s, tuple(pod_sets))


def charged_of(requests: Mapping[str, int], resource: str, queue: ClusterQueue, *, is_counted: bool) -> int:
    """What requests take of a queue's quota of a GPU resource, in thousandths of devices.

    Kueue may count whole GPUs as ``kaiwo.ai/milli-gpu``, and says so only of what it has looked at and not given quota
    (``is_counted``). Until then whole GPUs count as these where the queue has no quota of their own for them.
    """
    charged = requests.get(resource, 0) // per_device(resource)
    if resource != CHARGE_RESOURCE or is_counted:
        return charged
    others = (gpus_in(name, each) for name, each in requests.items() if name not in queue.resources)
    return charged + sum(others)


def not_in_thousandths(queue: str, gpu: str, workload: str) -> str:
    """Why quota of ``kaiwo.ai/milli-gpu`` is none of whole GPUs: Kueue counts those of ``workload`` as they are."""
    return (
        f"Queue {queue} has no quota for {gpu}, and its quota for {CHARGE_RESOURCE} is of shares alone: Kueue counts "
        f"{gpu} of {workload} as it is. Have Kueue count whole GPUs as {CHARGE_RESOURCE} (resources.transformations "
        f"of its configuration), or give the queue quota for {gpu}."
    )


def admitted_of(workload: KueueWorkload) -> Admitted:
    """A Workload with quota."""
    return Admitted(
        workload.name,
        workload.cluster_queue,
        workload.priority,
        workload.created_s,
        workload.reserved_s or 0.0,
        workload.uses,
        terminating=not workload.running,
    )


def label_keys(names: Iterable[str], flavors: Mapping[str, Flavor]) -> frozenset[str]:
    """The labels by which the flavours of a group are told apart."""
    return frozenset(key for name in names if name in flavors for key in flavors[name].labels)


def allows(flavor: Flavor | None, spec: Mapping[str, Any], keys: Collection[str]) -> bool:
    """Whether Kueue may give a flavour to pods of this spec: by its taints, and by those of its labels that are
    ``keys``. A flavour that does not exist is not given to any."""
    if flavor is None:
        return False
    selector = {name: value for name, value in mapping(spec, "nodeSelector").items() if name in keys}
    terms = [_restricted(term, keys) for _, term in items(spec, *_TERMS)]
    # A term without known labels matches every flavour, and one term that matches is enough.
    required = {"nodeSelectorTerms": terms if all(terms) else []}
    pod = {
        "nodeSelector": selector,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "tolerations": [*(item for _, item in items(spec, "tolerations")), *flavor.tolerations],
    }
    return runs_on(pod, flavor.labels, flavor.taints)


def _restricted(term: Any, keys: Collection[str]) -> Object:
    expressions = [item for _, item in items(term, "matchExpressions") if text(item, "key") in keys]
    return {"matchExpressions": expressions} if expressions else {}


def _quotas(document: Object) -> dict[FlavorResource, Quota]:
    result = {}
    for _, group in items(document, "spec", "resourceGroups"):
        for _, flavor in items(group, "flavors"):
            for _, item in items(flavor, "resources"):
                limits = (at(item, "borrowingLimit"), at(item, "lendingLimit"))
                borrowing, lending = (None if limit is None else amount(limit) for limit in limits)
                result[text(flavor, "name"), text(item, "name")] = Quota(
                    amount(at(item, "nominalQuota")), borrowing, lending
                )
    return result


def _rules(document: Object) -> QueueRules:
    groups = []
    for _, group in items(document, "spec", "resourceGroups"):
        names = tuple(text(flavor, "name") for _, flavor in items(group, "flavors"))
        resources = texts(group, "coveredResources") or sorted(
            {text(item, "name") for _, flavor in items(group, "flavors") for _, item in items(flavor, "resources")}
        )
        groups.append(ResourceGroup(tuple(resources), names))
    threshold = at(document, "spec", "preemption", "borrowWithinCohort", "maxPriorityThreshold")
    return QueueRules(
        tuple(groups),
        text(document, "spec", "preemption", "withinClusterQueue") or "Never",
        text(document, "spec", "preemption", "reclaimWithinCohort") or "Never",
        text(document, "spec", "preemption", "borrowWithinCohort", "policy") not in ("", "Never"),
        threshold if isinstance(threshold, int) else None,
        text(document, "spec", "flavorFungibility", "whenCanBorrow") == "TryNextFlavor",
        text(document, "spec", "flavorFungibility", "whenCanPreempt") != "Preempt",
    )
