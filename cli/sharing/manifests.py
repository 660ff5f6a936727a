"""The manifests of a plan, for whoever may apply them: configurations of the device plugin, labels of nodes, claims."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kopt.cli.sharing.planning import NodePlan
from kopt.core.sharing.modes import SharingExecutor, SharingMode
from kopt.formats.sharing_terms import (
    CONFIGURATION_LABEL,
    GPU_DRIVER,
    claim_config,
    client_environment,
    configuration_name,
    configuration_text,
)
from kopt.policies.fractions.sharing import SharingPlan

REQUEST = "gpu"


def manifests(
    plans: Iterable[NodePlan], config_map: tuple[str, str], configurations: Mapping[str, object] | None
) -> list[dict[str, Any]]:
    """For ``kubectl apply --server-side``: the configurations first, then nodes by name, then claims."""
    changed = [plan for plan in plans if plan.plans]
    by_plugin = [plan for plan in changed if is_reconfigured(plan)]
    result: list[dict[str, Any]] = []
    if by_plugin:
        data = {configuration_name(plan.wanted): _configuration(plan, configurations or {}) for plan in by_plugin}
        metadata = {"namespace": config_map[0], "name": config_map[1]}
        result.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    for plan in by_plugin:
        labels = {CONFIGURATION_LABEL: configuration_name(plan.wanted)}
        result.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": plan.node.name, "labels": labels}})
    for plan in changed:
        if plan.node.executor is SharingExecutor.DRA:
            result += _claims(plan)
    return result


def is_reconfigured(plan: NodePlan) -> bool:
    """Whether the node's device plugin needs another configuration, and not only some pods another environment."""
    is_plugin = plan.node.executor is SharingExecutor.DEVICE_PLUGIN
    return is_plugin and bool(plan.plans) and plan.wanted != plan.node.in_force


def _configuration(plan: NodePlan, configurations: Mapping[str, object]) -> str:
    """With the flags that the node's own configuration has."""
    return configuration_text(plan.wanted, configurations.get(plan.node.configuration or "default"))


def environments(plan: SharingPlan) -> dict[str, dict[str, str]]:
    """By pod, of those that are to have less than their daemon gives."""
    most = max((share.percent for share in plan.shares), default=0)
    largest = max((share.mib for share in plan.shares), default=0)
    return {
        share.name: client_environment(plan.mode, share.percent, share.mib)
        for share in plan.shares
        if plan.mode is SharingMode.MPS and (share.percent < most or share.mib < largest)
    }


def _claims(plan: NodePlan) -> Iterator[dict[str, Any]]:
    """A claim for each GPU that pods are to share, in the namespace of all of these."""
    for number, gpu in enumerate(plan.plans):
        config = claim_config(gpu.mode, [(share.percent, share.mib) for share in gpu.shares], REQUEST)
        if config is None:
            continue
        request = {"name": REQUEST, "exactly": {"deviceClassName": GPU_DRIVER}}
        namespace = gpu.shares[0].name.partition("/")[0]
        metadata = {"namespace": namespace, "name": f"kopt-shared-{plan.node.name}-{number}"}
        spec = {"devices": {"requests": [request], "config": [config]}}
        yield {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}
