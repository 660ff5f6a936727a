"""Ordinary objects, of which hostile ones are made, and what a scenario consists of."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import NAMESPACES, NODES, Object, Resource
from kopt.cluster.runtime.lease import LeaseSettings
from kopt.cluster.runtime.manager import LedReplica
from kopt.core.times import stamp

from ..api_in_memory import MemoryKube

GPU = "nvidia.com/gpu"
LEASE = LeaseSettings(duration_s=15.0, renew_within_s=10.0, retry_s=0.3)
Handled = Callable[[MemoryKube], Any]


@dataclass(frozen=True)
class Host:
    """A kind of object that is made hostile, from an ordinary one."""

    resource: Resource
    base: Object
    fixed: tuple[tuple[str, ...], ...] = ()
    schema: str = ""


@dataclass(frozen=True)
class Scenario:
    """``fill`` writes the ordinary objects; ``handled`` says whether the controller has done its work on them."""

    name: str
    fill: Callable[[MemoryKube], None]
    start: Callable[[Any], LedReplica]
    handled: Handled
    hosts: tuple[Host, ...]


def now() -> float:
    return time.time()


def space(kube: MemoryKube, *names: str) -> None:
    for name in names:
        labels = {"kaiwo.ai/managed": "true", "kubernetes.io/metadata.name": name}
        metadata = {"name": name, "labels": labels, "annotations": {"kaiwo.ai/mode": "enforce"}}
        kube.put(NAMESPACES, {"metadata": metadata})


def notes(**more: str) -> dict[str, str]:
    """What a log agent writes about a job that may be taken."""
    return {
        "kaiwo.ai/checkpoint-state": "TRAIN",
        "kaiwo.ai/checkpoint-safe": "true",
        "kaiwo.ai/checkpoint-observed-at": stamp(now()),
        "kaiwo.ai/work-at-risk": "100",
        "kaiwo.ai/work-at-risk-interval": "50-200",
        "kaiwo.ai/checkpoint-model": "logs/7",
        "kaiwo.ai/last-checkpoint-time": stamp(now() - 30),
        "kaiwo.ai/last-checkpoint-step": "500",
        **more,
    }


def owner(name: str, kind: str = "Job") -> Object:
    return {"apiVersion": "batch/v1", "kind": kind, "name": name, "uid": f"job-{name}", "controller": True}


def job(name: str, namespace: str = "team", **metadata: Any) -> Object:
    container = {"name": "train", "image": "team/train:1", "command": ["train"], "resources": {"limits": {GPU: "1"}}}
    template = {
        "metadata": {"annotations": {}, "labels": {}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    return {
        "metadata": {"name": name, "namespace": namespace, "annotations": {}, "labels": {}, **metadata},
        "spec": {"suspend": False, "parallelism": 1, "completions": 1, "backoffLimit": 6, "template": template},
        "status": {"active": 0, "failed": 0},
    }


def pod(
    name: str, namespace: str = "team", *, on: str = "", gpus: int = 1, job_name: str = "", **metadata: Any
) -> Object:
    running = {
        "phase": "Running",
        "startTime": stamp(now() - 9000),
        "containerStatuses": [
            {"name": "a", "restartCount": 0, "state": {"running": {"startedAt": stamp(now() - 9000)}}}
        ],
    }
    waits = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    resources = {"limits": {GPU: str(gpus)}, "requests": {"cpu": "1"}}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {},
            "labels": {},
            "creationTimestamp": stamp(now() - 9000),
            "ownerReferences": [owner(job_name or name)],
            **metadata,
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "priority": 0,
            "nodeName": on,
            "preemptionPolicy": "PreemptLowerPriority",
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "a", "resources": resources}],
        },
        "status": running if on else waits,
    }


def node(name: str, gpus: int = 4, **labels: str) -> Object:
    amounts = {GPU: str(gpus), "cpu": "64", "memory": "512Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}, "annotations": {}},
        "spec": {"taints": [], "unschedulable": False},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": amounts,
            "capacity": dict(amounts),
        },
    }


def workload(
    name: str, namespace: str = "team", queue: str = "gpus", *, runs_in: str = "", priority: int = 100, **metadata: Any
) -> Object:
    """A Workload of Kueue's with one pod of four GPUs; it runs in a ClusterQueue, or waits."""
    resources = {"limits": {GPU: "4"}, "requests": {"cpu": "1"}}
    template = {"metadata": {"annotations": {}}, "spec": {"containers": [{"name": "a", "resources": resources}]}}
    usage = {"name": "main", "count": 1, "flavors": {GPU: "h100"}, "resourceUsage": {GPU: "4"}}
    quota = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": stamp(now() - 3600)}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {},
            "labels": {},
            "ownerReferences": [owner(name)],
            "creationTimestamp": stamp(now() - (3600 if runs_in else 2)),
            **metadata,
        },
        "spec": {
            "queueName": queue,
            "priority": priority,
            "active": True,
            "podSets": [{"name": "main", "count": 1, "template": template}],
        },
        "status": {"admission": {"clusterQueue": runs_in, "podSetAssignments": [usage]}, "conditions": [quota]}
        if runs_in
        else {},
    }


def cluster_queue(name: str, quota: str = "4", **spec: Any) -> Object:
    resources = [{"name": GPU, "nominalQuota": quota}, {"name": "cpu", "nominalQuota": "100"}]
    groups = [{"coveredResources": [GPU, "cpu"], "flavors": [{"name": "h100", "resources": resources}]}]
    active = {"type": "Active", "status": "True", "lastTransitionTime": stamp(now())}
    return {
        "metadata": {"name": name, "annotations": {}, "labels": {}},
        "status": {"conditions": [active]},
        "spec": {"resourceGroups": groups, "preemption": {"withinClusterQueue": "LowerPriority"}, **spec},
    }


def flavor(name: str) -> Object:
    return {"metadata": {"name": name, "annotations": {}, "labels": {}}, "spec": {}}


def local_queue(name: str, namespace: str, target: str) -> Object:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterQueue": target}}


SPACE = Host(NAMESPACES, {"metadata": {"name": "hostile", "labels": {"kaiwo.ai/managed": "true"}, "annotations": {}}})
NODE = Host(NODES, node("hostile"))
FULL_NODE = Host(NODES, node("n9", 0), fixed=(("status", "allocatable", GPU),))
SUSPENDED = {"conditions": [{"type": "Suspended", "status": "True"}], "active": 0}
ENDED = {
    "phase": "Failed",
    "containerStatuses": [
        {"name": "main", "imageID": "x", "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "{}"}}}
    ],
}


def label_of(
    kube: MemoryKube, resource: Resource, name: str, label: str = "kaiwo.ai/held", namespace: str = "team"
) -> str:
    found = kube.find(resource, name, namespace)
    return "" if found is None else str((found["metadata"].get("labels") or {}).get(label, ""))


def note_of(kube: MemoryKube, resource: Resource, name: str, note: str, namespace: str = "team") -> str:
    found = kube.find(resource, name, namespace)
    return "" if found is None else str((found["metadata"].get("annotations") or {}).get(note, ""))
