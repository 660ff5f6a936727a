"""What the chart renders to, read as an attacker would: accounts, their rights, and the fences around these."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
NAMESPACE, RELEASE = "kopt-system", "kopt"

#: Every component with every right that it can have.
EVERYTHING: Object = {
    "mode": "enforce",
    "scheduler": {"deploy": True},
    "tracing": {"endpoint": "http://collector.monitoring:4318"},
    "predictions": {
        "deploy": True,
        "mlflowUri": "http://mlflow.mlops:5000",
        "redisUrl": "redis://redis.mlops/0",
        "database": {"secret": "kopt-database"},
    },
    "training": {
        "signingSecret": "kopt-signing",
        "jobs": [{"name": "demand", "predictor": "demand", "schedule": "@weekly", "dataClaim": "demand"}],
    },
    "logtail": {"enabled": True, "form": "cluster"},
    "topology": {"enabled": True},
    "telemetry": {"enabled": True},
    "health": {"enabled": True},
    "rightsizing": {"enabled": True},
    "nodeExecutor": {"enabled": True, "keysConfigMap": "keys"},
    "pairs": {"enabled": True},
    "preemption": {"enabled": True, "plainPods": True, "kai": True},
    "partitions": {"enabled": True, "drain": {"enabled": True}, "sharing": {"enabled": True}},
    "staging": {"enabled": True},
    "ledger": {"enabled": True},
    "reallocation": {"enabled": True},
    "ingest": {"enabled": True},
    "autoscaling": {"enabled": True},
    "pages": {"enabled": True},
    "logs": {"everywhere": True},
}


def everything(**more: Any) -> Object:
    return copy.deepcopy(EVERYTHING) | more


@dataclass(frozen=True)
class Right:
    """What an account may do: ``name`` where the rule names objects, ``namespace`` where it holds in one only."""

    account: str
    verb: str
    group: str
    resource: str
    name: str = ""
    namespace: str = ""

    @property
    def operation(self) -> str:
        return {"create": "CREATE", "delete": "DELETE"}.get(self.verb, "UPDATE")


def rights_of(objects: Iterable[Object]) -> Iterator[Right]:
    """Every right that the bindings give, also by roles that are Kubernetes' own (of which nothing is known here)."""
    found = list(objects)
    roles = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one
        for one in found
        if one["kind"] in ("Role", "ClusterRole")
    }
    for binding in found:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        space, reference = binding["metadata"].get("namespace", ""), binding["roleRef"]
        role = roles.get((reference["kind"], space if reference["kind"] == "Role" else "", reference["name"]))
        for subject in binding["subjects"]:
            account = f"{subject['namespace']}:{subject['name']}"
            for rule in (role or {}).get("rules", ()):
                for verb, group, resource, name in _each(rule):
                    yield Right(account, verb, group, resource, name, space)


def _each(rule: Object) -> Iterator[tuple[str, str, str, str]]:
    for verb in rule["verbs"]:
        for group in rule.get("apiGroups", ()):
            for resource in rule.get("resources", ()):
                for name in rule.get("resourceNames", [""]):
                    yield verb, group, resource, name


def is_fenced(right: Right, objects: Iterable[Object]) -> bool:
    """Whether an admission policy that is in force looks at what the account does by this right."""
    found = list(objects)
    bound = {
        one["spec"]["policyName"]
        for one in found
        if one["kind"] == "ValidatingAdmissionPolicyBinding"
        and one["spec"]["validationActions"] == ["Deny"]
        and "matchResources" not in one["spec"]
    }
    return any(
        one["metadata"]["name"] in bound
        and one["spec"]["failurePolicy"] == "Fail"
        and one["spec"]["validations"]
        and _looks_at(one["spec"].get("matchConditions"), right)
        and any(_covers(rule, right) for rule in one["spec"]["matchConstraints"]["resourceRules"])
        for one in found
        if one["kind"] == "ValidatingAdmissionPolicy"
    )


def _looks_at(conditions: list[Object] | None, right: Right) -> bool:
    """A policy without conditions looks at what everybody does."""
    return not conditions or any(f":{right.account}'" in each["expression"] for each in conditions)


def _covers(rule: Object, right: Right) -> bool:
    return (
        right.group in rule["apiGroups"]
        and right.resource in rule["resources"]
        and right.operation in rule["operations"]
    )
