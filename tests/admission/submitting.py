"""Workloads as their users submit them."""

from typing import Any

from admission.conftest import Webhooks
from admission.workloads import Object
from controlplane.api import Api
from controlplane.processes import wait_for

KUEUE = "kueue.x-k8s.io/queue-name"
SOURCE = "kaiwo.ai/queue-source"
OPT_OUT = {"kaiwo.ai/opt-out": "true"}


def placed(workload: Object, namespace: str, **metadata: Any) -> Object:
    return workload | {"metadata": workload["metadata"] | {"namespace": namespace} | metadata}


def labelled(one: Object) -> bool:
    return KUEUE in one["metadata"].get("labels", {})


def person(webhooks: Webhooks, name: str, groups: tuple[str, ...] = (), *, bypass: bool = False) -> Api:
    """A user who may do everything with workloads, but only with ``bypass`` take them out of the queues."""
    allowed = [{"apiGroups": ["", "batch", "apps", "kubeflow.org"], "resources": ["*"], "verbs": ["*"]}]
    if bypass:
        allowed.append({"apiGroups": ["kaiwo.ai"], "resources": ["conformancepolicies"], "verbs": ["bypass"]})
    rbac = "rbac.authorization.k8s.io"
    webhooks.api.apply(
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": f"user-{name}"}, "rules": allowed},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"user-{name}"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": f"user-{name}"},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": name}],
        },
    )
    api = Api(webhooks.plane.kubeconfig_as(name, groups))
    wait_for(lambda: api.http.get(api.path("batch/v1", "Job", "default")).is_success)
    return api
