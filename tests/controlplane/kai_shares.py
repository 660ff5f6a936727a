"""Shares of a GPU by KAI: its configuration with sharing on, and what the container of its reservation pods does."""

from collections.abc import Iterator
from contextlib import contextmanager

from controlplane import build
from controlplane.api import Api, Object
from controlplane.plane import Cluster

CONFIG_MAP = "runai/shared-gpu-configmap"
"""KAI's own webhook writes it on pods with a share; that listens on fixed ports and does not run here."""
_NAMESPACE = "kai-resource-reservation"
_INDEX = "run.ai/reserve_for_gpu_index"


@contextmanager
def sharing(plane: Cluster, api: Api) -> Iterator[None]:
    """A cluster whose KAI has GPU sharing on."""
    folder = build.manifests("kai") / "deployments" / "kai-scheduler" / "crds"
    plane.apply_crds([folder / "kai.scheduler_configs.yaml"])
    config = {"apiVersion": "kai.scheduler/v1", "kind": "Config", "metadata": {"name": "kai-config"}}
    api.apply(config | {"spec": {"admission": {"gpuSharing": True}}})
    account = {"name": _NAMESPACE, "namespace": _NAMESPACE}
    api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    yield
    api.delete("kai.scheduler/v1", "Config", "kai-config")


def bound(api: Api, namespace: str, count: int) -> list[Object]:
    """The pods of a namespace, once as many are bound and run, and so do KAI's reservations, which say which GPU they
    have; else none. Wait for it after each pod: until its reservation runs, KAI may reserve the same GPU again."""
    reservations = api.list("v1", "Pod", _NAMESPACE)
    for pod in reservations:
        if _INDEX not in pod["metadata"].get("annotations", {}):
            index = {"metadata": {"annotations": {_INDEX: "0"}}}
            api.patch("v1", "Pod", pod["metadata"]["name"], index, _NAMESPACE)
    pods = api.list("v1", "Pod", namespace, fields="spec.nodeName!=")
    run = all(pod.get("status", {}).get("phase") == "Running" for pod in (*pods, *reservations))
    return pods if len(pods) == count and run else []
