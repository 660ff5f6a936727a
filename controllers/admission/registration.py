"""Our webhook configurations: what the API server sends here, and what it does without an answer.

Never more than ``failurePolicy: Ignore``: with all our processes dead, objects are created as they were written. CEL
conditions keep everything that is no GPU workload in the API server. The name sorts before Kueue's and KAI's, because
mutating webhooks run in the order of their names and theirs read what ours writes.

Pods are created by the thousand, and a condition costs a tenth of a millisecond. Theirs is evaluated once for each pod:
the marks that the mutation leaves are labels, and by these the selectors of the second round of mutations and of the
validation pass the pod over.
"""

import contextlib
import logging

from kopt.cluster.admission.address import TIMEOUT_S, Address
from kopt.cluster.client.api import AlreadyExists, Conflict, Kube, NotFound
from kopt.cluster.client.resources import (
    COMPONENT_LABEL,
    KUEUE_WORKLOADS,
    MIG_STRATEGIES,
    MUTATING_WEBHOOKS,
    PART_OF,
    PART_OF_LABEL,
    PODS,
    VALIDATING_WEBHOOKS,
    Object,
    Resource,
)
from kopt.cluster.objects.namespace import MANAGED_LABEL, SYSTEM_NAMESPACES
from kopt.cluster.workloads.frameworks import QUEUE_REFERENCES, QUEUE_SOURCE
from kopt.cluster.workloads.kinds import WORKLOAD_KINDS, WorkloadKind
from kopt.cluster.workloads.requests.external import CLAIMS
from kopt.cluster.workloads.shares.writing import SHARE_LABEL
from kopt.controllers.admission.conditions import (
    charge_condition,
    claim_condition,
    mutate_condition,
    opting_out_condition,
    relabelled_condition,
    team_condition,
    unqueued_condition,
    validate_condition,
)
from kopt.controllers.admission.policy import ConformancePolicy, Namespaces
from kopt.core.scheduling.submission import Framework

_LOG = logging.getLogger(__name__)
_ATTEMPTS = 5
CONFIGURATION_NAME = "00-kaiwo-optimizer"


async def register(kube: Kube, address: Address, policy: ConformancePolicy, *, create: bool) -> None:
    """Bring both configurations into the wanted state; any replica may do it at any time.

    With ``create=False`` a deleted configuration is not created again: it was removed to disable us. The CA bundles are
    kept; they belong to the certificate's keeper.
    """
    for resource, document in (
        (MUTATING_WEBHOOKS, mutating_configuration(address, policy)),
        (VALIDATING_WEBHOOKS, validating_configuration(address, policy)),
    ):
        await _bring(kube, resource, document, create=create)


async def _bring(kube: Kube, resource: Resource, wanted: Object, *, create: bool) -> None:
    for _ in range(_ATTEMPTS):
        try:
            result = await kube.get(resource, CONFIGURATION_NAME)
            merged = _with_bundles(wanted, result)
            if merged["webhooks"] != result.get("webhooks"):
                await kube.replace(resource, merged)
            return
        except NotFound:
            if not create:
                return
        except Conflict:
            continue
        with contextlib.suppress(AlreadyExists):
            await kube.create(resource, wanted)
            return
    _LOG.warning("%s %s is being changed by someone else all the time", resource.kind, CONFIGURATION_NAME)


def _with_bundles(wanted: Object, result: Object) -> Object:
    """The wanted configuration with the metadata and the CA bundles of the one that is there."""
    configs = [hook.get("clientConfig") or {} for hook in result.get("webhooks") or []]
    bundle = next((config["caBundle"] for config in configs if config.get("caBundle")), "")
    filled = {"caBundle": bundle} if bundle else {}
    webhooks = [hook | {"clientConfig": hook["clientConfig"] | filled} for hook in wanted["webhooks"]]
    labels = (result["metadata"].get("labels") or {}) | wanted["metadata"]["labels"]
    return wanted | {"metadata": result["metadata"] | {"labels": labels}, "webhooks": webhooks}


def mutating_configuration(address: Address, policy: ConformancePolicy) -> Object:
    """One webhook for each kind of workload, two for pods, one for claims of devices, one for what Kueue charges."""
    webhooks: list[Object] = []
    for kind in WORKLOAD_KINDS:
        hook = _webhook("mutate", kind, address, policy, mutate_condition(kind, policy))
        hook["reinvocationPolicy"] = "IfNeeded"
        # The claim template of a share.
        hook["sideEffects"] = "NoneOnDryRun"
        queue_label = _queue_label_of(kind, policy)
        webhooks += (
            [hook]
            if queue_label is None
            else [
                hook | {"objectSelector": _labels((queue_label, "DoesNotExist"))},
                # Whoever names a queue himself has no source of ours beside it. A pod written with both is as good as
                # judged before: it keeps its queue, and otherwise stays as written.
                hook
                | {
                    "name": f"queued.{hook['name']}",
                    "objectSelector": _labels((queue_label, "Exists"), (QUEUE_SOURCE, "DoesNotExist")),
                },
            ]
        )
    made_by_others = (
        (CLAIMS, (CLAIMS.version,), ("CREATE",), claim_condition()),
        # Kueue builds the pods of one that is pending anew where its job changes.
        (KUEUE_WORKLOADS, (KUEUE_WORKLOADS.version, "v1beta2"), ("CREATE", "UPDATE"), charge_condition()),
    )
    for resource, versions, operations, condition in made_by_others:
        webhooks.append(_hook("mutate", resource, versions, operations, address, policy, condition))
    return _configuration("MutatingWebhookConfiguration", webhooks)


def validating_configuration(address: Address, policy: ConformancePolicy) -> Object:
    """One for each kind, which sees what has no queue after all mutations, and opt-outs without the right to them.

    Pods have one for each of the two; the opt-outs of those that are created are refused by the mutating half.
    """
    webhooks: list[Object] = []
    for kind in WORKLOAD_KINDS:
        hook = _webhook("validate", kind, address, policy, validate_condition(kind, policy))
        queue_label = _queue_label_of(kind, policy)
        webhooks += (
            [hook]
            if queue_label is None
            else [
                _webhook("validate", kind, address, policy, unqueued_condition(kind, policy), ("CREATE",))
                | {"objectSelector": _labels((queue_label, "DoesNotExist"))},
                _webhook("validate", kind, address, policy, opting_out_condition(kind, policy), ("UPDATE",))
                | {"name": f"opt-out.{hook['name']}"},
            ]
        )
    if policy.queues.framework is Framework.KUEUE:
        webhooks.append(_late_shares(address, policy))
    if policy.counts_teams:
        pods = next(kind for kind in WORKLOAD_KINDS if kind.resource == PODS)
        webhooks.append(
            _webhook("validate", pods, address, policy, team_condition(pods), ("CREATE",))
            | {"name": "teams.validate.pods.core.webhook.kaiwo.ai"}
        )
    versions, operations = (MIG_STRATEGIES.version,), ("CREATE", "UPDATE")
    webhooks.append(_hook("validate", MIG_STRATEGIES, versions, operations, address, policy))
    return _configuration("ValidatingWebhookConfiguration", webhooks)


def _late_shares(address: Address, policy: ConformancePolicy) -> Object:
    """What has shares of GPUs and is put into another queue, which may have no quota for them."""
    kinds = [kind for kind in WORKLOAD_KINDS if kind.resource != PODS]
    hooks = [_webhook("validate", kind, address, policy, relabelled_condition(), ("UPDATE",)) for kind in kinds]
    rules = [rule for hook in hooks for rule in hook["rules"]]
    selector = _labels((SHARE_LABEL, "Exists"))
    return hooks[0] | {"name": "late-shares.validate.webhook.kaiwo.ai", "rules": rules, "objectSelector": selector}


def _queue_label_of(kind: WorkloadKind, policy: ConformancePolicy) -> str | None:
    """The label by which selectors tell whether a pod has its queue; None for other kinds, and where it is no label."""
    reference = QUEUE_REFERENCES[policy.queues.framework]
    return reference.key if kind.resource == PODS and reference.section == "labels" else None


def _labels(*wanted: tuple[str, str]) -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator} for key, operator in wanted]}


def _configuration(kind: str, webhooks: list[Object]) -> Object:
    labels = {PART_OF_LABEL: PART_OF, COMPONENT_LABEL: "webhook"}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": CONFIGURATION_NAME, "labels": labels},
        "webhooks": webhooks,
    }


def _webhook(
    verb: str,
    kind: WorkloadKind,
    address: Address,
    policy: ConformancePolicy,
    condition: Object,
    operations: tuple[str, ...] = (),
) -> Object:
    usual = ("CREATE", "UPDATE") if kind.mutable or verb == "validate" else ("CREATE",)
    versions = (kind.resource.version, *kind.also_versions)
    return _hook(verb, kind.resource, versions, operations or usual, address, policy, condition)


def _hook(
    verb: str,
    resource: Resource,
    versions: tuple[str, ...],
    operations: tuple[str, ...],
    address: Address,
    policy: ConformancePolicy,
    condition: Object | None = None,
) -> Object:
    group = resource.group.replace(".", "-") or "core"
    return {
        "name": f"{verb}.{resource.plural}.{group}.webhook.kaiwo.ai",
        "clientConfig": address.client_config(f"/{verb}"),
        "rules": [
            {
                "apiGroups": [resource.group],
                "apiVersions": list(versions),
                "resources": [resource.plural],
                "operations": list(operations),
                "scope": "Namespaced" if resource.namespaced else "Cluster",
            }
        ],
        "namespaceSelector": _selector(policy.namespaces, address.namespace),
        "objectSelector": {},
        **({"matchConditions": [condition]} if condition is not None else {}),
        "matchPolicy": "Equivalent",
        "failurePolicy": "Ignore",
        "timeoutSeconds": TIMEOUT_S,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


def _selector(namespaces: Namespaces, ours: str) -> Object:
    excluded = sorted({*SYSTEM_NAMESPACES, ours} - {""})
    managed = (
        {"key": MANAGED_LABEL, "operator": "In", "values": ["true"]}
        if namespaces is Namespaces.OPT_IN
        else {"key": MANAGED_LABEL, "operator": "NotIn", "values": ["false"]}
    )
    return {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": excluded},
            managed,
        ]
    }
