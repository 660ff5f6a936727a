"""A compliance policy as objects of the API server, which then enforces it by itself.

A ValidatingAdmissionPolicy judges pods as they are created; another one only warns of the templates of workloads, so
that whoever submits a Job hears of it at once: what defaults add to its pods later is not known then. A
MutatingAdmissionPolicy sets defaults. Totals over several pods no expression can see; they are the webhook's
(``teams``).

CEL has no clock. The API server stamps ``creationTimestamp`` before it validates what is created, whatever the user
wrote there: that is the time by which exemptions end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kopt.core.times import stamp
from kopt.core.workload.compliance import Applies, CompliancePolicy, Exemption, PolicyMode, Surroundings
from kopt.policies.compliance.defaults import mutations
from kopt.policies.compliance.expressions import both, either, glob, listed, literal, matches_any, present
from kopt.policies.compliance.rules import Rule, rules_of

API = "admissionregistration.k8s.io/v1"
Object = dict[str, Any]
_SUFFIX = "policies.kaiwo.ai"


@dataclass(frozen=True)
class Shape:
    """Kinds of objects that have a pod template at the same place; ``at`` is that template."""

    name: str
    rules: tuple[tuple[str, tuple[str, ...]], ...]
    """(API group, resources)."""
    at: str


PODS = Shape("pods", (("", ("pods", "pods/ephemeralcontainers")),), "object")
TEMPLATES = Shape(
    "templates", (("apps", ("deployments", "statefulsets")), ("batch", ("jobs",))), "object.spec.template"
)
SHAPES = (PODS, TEMPLATES)


def compile_policy(policy: CompliancePolicy, around: Surroundings) -> list[Object]:
    """The objects in the order in which they are applied: a policy before what binds it.

    Raises ValueError for what cannot be meant.
    """
    rules, result = rules_of(policy, around.gpu_resources), list[Object]()
    if rules:
        result += _validating(policy, PODS, rules, around)
        if pod_rules := [rule for rule in rules if not (rule.on_nodes and policy.defaults.node_selector)]:
            result += _validating(policy, TEMPLATES, pod_rules, around)
    if policy.defaults:
        result += _mutating(policy, around)
    return result


def object_name(policy: str, part: str) -> str:
    """The name of the objects of a part of a policy: ``pods``, ``templates`` or ``defaults``."""
    return f"{part}.{policy}.{_SUFFIX}"


def names_of(policy: str) -> list[str]:
    """Every name that objects of a policy may have."""
    return [object_name(policy, part) for part in (*(shape.name for shape in SHAPES), "defaults")]


def policy_name(document: Object) -> str:
    """The policy of a compiled object."""
    return str(document["metadata"]["name"]).removesuffix(f".{_SUFFIX}").partition(".")[2]


def variables(policy: CompliancePolicy, shape: Shape, around: Surroundings) -> list[Object]:
    """Each may use those before it."""
    meta = "object.metadata" if shape is PODS else f"(has({shape.at}.metadata) ? {shape.at}.metadata : object.metadata)"
    affinity = "variables.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    named = {
        "now": "timestamp(object.metadata.creationTimestamp)",
        "meta": meta,
        "spec": f"{shape.at}.spec",
        "labels": _or_empty("variables.meta", "labels", "{}"),
        "annotations": _or_empty("variables.meta", "annotations", "{}"),
        "selector": _or_empty("variables.spec", "nodeSelector", "{}"),
        "terms": f"{_inside(affinity)} ? {affinity}.nodeSelectorTerms : []",
        "containers": "variables.spec.containers + "
        f"({_or_empty('variables.spec', 'initContainers', '[]')}) + "
        f"({_or_empty('variables.spec', 'ephemeralContainers', '[]')})",
        "images": "variables.containers.map(c, c.image)",
        "accelerated": _accelerated(around),
        "exempt": either(expression for _, expression in exemption_expressions(policy)),
    }
    return [{"name": name, "expression": expression} for name, expression in named.items()]


def _or_empty(owner: str, field_name: str, empty: str) -> str:
    return f"has({owner}.{field_name}) ? {owner}.{field_name} : {empty}"


def _inside(path: str) -> str:
    """Whether the steps behind ``variables.spec`` are there."""
    root, rest = "variables.spec", path.removeprefix("variables.spec.")
    tested, result = root, []
    for step in rest.split("."):
        tested += f".{step}"
        result.append(f"has({tested})")
    return both(result)


def _accelerated(around: Surroundings) -> str:
    begins = either(f"k.startsWith({literal(prefix)})" for prefix in around.resource_prefixes)
    requests = [
        f"variables.containers.exists(c, {present(f'c.resources.{part}')} && c.resources.{part}.exists(k, {begins}))"
        for part in ("limits", "requests")
    ]
    claims = "has(variables.spec.resourceClaims) && size(variables.spec.resourceClaims) > 0"
    shares = f"variables.annotations.exists(k, k in {listed(around.share_annotations)})"
    return either((*requests, claims, shares))


def exemption_expressions(policy: CompliancePolicy) -> Iterator[tuple[Exemption, str]]:
    """Each exemption with CEL that is true of the pods it is for, until it ends."""
    for exemption in policy.exemptions:
        parts = [
            "request.operation == 'CREATE'",
            f"variables.now < timestamp({literal(stamp(exemption.until_s))})",
        ]
        if exemption.namespace:
            parts.append(f"object.metadata.namespace == {literal(exemption.namespace)}")
        if exemption.image:
            parts.append(f"variables.images.all(i, {matches_any('i', [glob(exemption.image)])})")
        parts += [
            f"{literal(key)} in variables.labels && variables.labels[{literal(key)}] == {literal(value)}"
            for key, value in sorted(exemption.labels.items())
        ]
        yield exemption, both(parts)


def _validating(policy: CompliancePolicy, shape: Shape, rules: list[Rule], around: Surroundings) -> list[Object]:
    denies = policy.mode is PolicyMode.DENY and shape is PODS
    operations = ["CREATE", "UPDATE"] if shape is PODS and any(rule.also_updates for rule in rules) else ["CREATE"]
    spec = {
        "failurePolicy": "Fail" if denies else "Ignore",
        "matchConstraints": _constraints(policy, shape, operations, around),
        "variables": variables(policy, shape, around),
        "validations": [validation(policy, rule) for rule in rules],
    }
    if len(operations) > 1:
        spec["matchConditions"] = [{"name": "new-images", "expression": _NEW_IMAGES}]
    actions = ["Deny" if denies else "Warn", "Audit"]
    name = object_name(policy.name, shape.name)
    return [
        _object("ValidatingAdmissionPolicy", name, spec, around),
        _object("ValidatingAdmissionPolicyBinding", name, {"policyName": name, "validationActions": actions}, around),
    ]


_NEW_IMAGES = "request.operation == 'CREATE' || " + either(
    f"(has(object.spec.{part}) ? object.spec.{part}.map(c, c.image) : []) != "
    f"(has(oldObject.spec.{part}) ? oldObject.spec.{part}.map(c, c.image) : [])"
    for part in ("containers", "initContainers", "ephemeralContainers")
)
"""Of a pod that is there, only images can be changed that a policy asks about."""


def validation(policy: CompliancePolicy, rule: Rule) -> Object:
    """A rule with the exceptions that hold for all rules of a policy."""
    skips = ["variables.exempt"] if policy.exemptions else []
    if policy.applies is Applies.ACCELERATED:
        skips.append("!variables.accelerated")
    if not rule.also_updates:
        skips.append("request.operation != 'CREATE'")
    hint = f" {policy.message}" if policy.message else ""
    text = f"CompliancePolicy {policy.name}: {rule.message}{hint}"
    result = {"expression": either((*skips, rule.expression)), "message": text}
    if rule.shows:
        result["messageExpression"] = f"{literal(f'CompliancePolicy {policy.name}: ')} + {rule.shows} + {literal(hint)}"
    return result


def _constraints(policy: CompliancePolicy, shape: Shape, operations: list[str], around: Surroundings) -> Object:
    return {
        "matchPolicy": "Equivalent",
        "namespaceSelector": _namespaces(policy, around),
        "objectSelector": {},
        "resourceRules": [
            {
                "apiGroups": [group],
                "apiVersions": ["v1"],
                "operations": list(operations),
                "resources": list(resources),
                "scope": "Namespaced",
            }
            for group, resources in shape.rules
        ],
    }


def _namespaces(policy: CompliancePolicy, around: Surroundings) -> Object:
    key, value = around.managed
    selector: Any = policy.namespace_selector or {"matchLabels": {key: value}}
    spared = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": sorted(around.spared_namespaces)}
    expressions = [*(selector.get("matchExpressions") or ()), *([spared] if around.spared_namespaces else [])]
    return {**selector, **({"matchExpressions": expressions} if expressions else {})}


def _mutating(policy: CompliancePolicy, around: Surroundings) -> list[Object]:
    pods = Shape("defaults", (("", ("pods",)),), "object")
    conditions = []
    if policy.applies is Applies.ACCELERATED:
        conditions = [{"name": "accelerated", "expression": "variables.accelerated"}]
    name = object_name(policy.name, "defaults")
    spec = {
        "failurePolicy": "Ignore",
        "matchConstraints": _constraints(policy, pods, ["CREATE"], around),
        "mutations": mutations(policy.defaults, guard="variables.accelerated" if conditions else ""),
        "reinvocationPolicy": "Never",
    }
    if conditions:
        spec["variables"] = [each for each in variables(policy, PODS, around) if each["name"] in _FOR_DEFAULTS]
    return [
        _object("MutatingAdmissionPolicy", name, spec, around),
        _object("MutatingAdmissionPolicyBinding", name, {"policyName": name}, around),
    ]


_FOR_DEFAULTS = ("meta", "spec", "annotations", "containers", "accelerated")


def _object(kind: str, name: str, spec: Object, around: Surroundings) -> Object:
    return {
        "apiVersion": API,
        "kind": kind,
        "metadata": {"name": name, "labels": dict(around.labels)},
        "spec": spec,
    }
