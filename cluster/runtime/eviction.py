"""Writes to parts of a pod: its eviction, which respects PodDisruptionBudgets, and its nominated node."""

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import PODS, Key, Object
from kopt.cluster.runtime.audit import audit_write


async def evict_pod(kube: Kube, pod: Key, uid: str, *, dry_run: bool = False) -> None:
    """Evict this very pod, not one that was made anew under its name. Raises ApiError, 429 where a budget forbids."""
    namespace, name = pod
    options: Object = {"preconditions": {"uid": uid}} | ({"dryRun": ["All"]} if dry_run else {})
    metadata = {"name": name, "namespace": namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options, "metadata": metadata}
    await kube.create_at(PODS, namespace, name, "eviction", body)
    if not dry_run:
        audit_write("evict", PODS, metadata | {"uid": uid})


async def nominate_node(kube: Kube, pod: Key, uid: str, node: str) -> None:
    """Promise this very pod a node, as kube-scheduler does for pods that preempt. Raises ApiError."""
    changes = {"metadata": {"uid": uid}, "status": {"nominatedNodeName": node}}
    await kube.patch(PODS, pod[1], changes, pod[0], subresource="status")
