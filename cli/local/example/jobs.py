"""Jobs of the example cluster, in the queue that borrows from the pool: what runs, and what waits for which reason."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kopt.cluster.client.resources import (
    JOBS,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_COHORTS,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    PODS,
    Object,
    Resource,
)
from kopt.cluster.holds.hold import PARKED, QUEUE_LABEL, hold_metadata
from kopt.cluster.objects.custom.staged_data import NAMES_ANNOTATION, STAGING_ANNOTATION
from kopt.core.times import stamp

BORROWERS = ("llama-3-8b-sft", "mamba-130m-pretrain", "resnet50-imagenet")
DATA, DATA_USER = "fineweb-sample", "olmo-7b-pretrain"
"""StagedData on its way, and the job that is held until it is there."""
QUEUE, OWN, LENT = "research", "own", "lent"
"""The ClusterQueue that borrows, the flavor of its own GPUs, and that of what it borrows."""
DEPARTMENT, EVALUATION = "quality", "evaluation"
"""A cohort and its queue, with a LocalQueue of its name, for which GPUs are reserved."""
PRODUCT_LABEL, H100 = "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"
"""By which the queue's own GPUs are told from others."""
_LOCAL_QUEUE = "gpus"
_OWN_GPUS, _EVALUATION_GPUS = 16, 8
_GPU = "nvidia.com/gpu"
_HOUR_S = 3600.0


@dataclass(frozen=True)
class ExampleJob:
    """A Job of ``pods`` with ``gpus`` each. ``flavor`` is empty for one that waits, ``says`` what Kueue says then.

    ``began_s``: when it last began to run, in Unix seconds, if later than when it was created.
    """

    namespace: str
    name: str
    gpus: int
    hours: int
    """Since it was created."""
    pods: int = 1
    priority: int = 100
    node: str = ""
    flavor: str = ""
    says: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    holder: str = ""
    began_s: float = 0.0

    @property
    def uid(self) -> str:
        return f"uid-{self.name}"


def job_objects(
    now_s: float, nodes: Sequence[str], lent: int, back_s: Mapping[str, float | None], progress: Mapping[str, Any]
) -> Mapping[Resource, Sequence[Object]]:
    """Jobs, their Workloads and pods, and their queues. ``lent``: GPUs that the pool lends; ``back_s``: when
    evicted jobs returned, None for one that has not; ``progress``: of the data that one waits for."""
    jobs = [*_borrowers(nodes, back_s), *_pending(lent, progress)]
    return {
        JOBS: [_job(job, now_s) for job in jobs],
        KUEUE_WORKLOADS: [_workload(job, now_s) for job in jobs],
        PODS: [_pod(job, now_s) for job in jobs if job.flavor],
        KUEUE_LOCAL_QUEUES: [
            {"metadata": {"name": _LOCAL_QUEUE, "namespace": namespace}, "spec": {"clusterQueue": QUEUE}}
            for namespace in sorted({job.namespace for job in jobs})
        ]
        + [
            {"metadata": {"name": EVALUATION, "namespace": "vision"}, "spec": {"clusterQueue": EVALUATION}},
        ],
        KUEUE_CLUSTER_QUEUES: [
            _cluster_queue(QUEUE, {OWN: _OWN_GPUS, LENT: lent}),
            _cluster_queue(EVALUATION, {OWN: _EVALUATION_GPUS}, DEPARTMENT),
        ],
        KUEUE_FLAVORS: [
            {"metadata": {"name": OWN}, "spec": {"nodeLabels": {PRODUCT_LABEL: H100}}},
            {"metadata": {"name": LENT}, "spec": {}},
        ],
        KUEUE_COHORTS: [],
    }


def _borrowers(nodes: Sequence[str], back_s: Mapping[str, float | None]) -> list[ExampleJob]:
    sft, mamba, resnet = BORROWERS
    running = [
        ExampleJob("research", sft, 8, 9, node=nodes[0], flavor=OWN),
        ExampleJob("research", mamba, 4, 6, node=nodes[1], flavor=LENT),
        ExampleJob("vision", resnet, 8, 14, node=nodes[2], flavor=OWN),
    ]
    return [_since_its_return(job, back_s.get(job.name, 0.0)) for job in running]


def _since_its_return(job: ExampleJob, back_s: float | None) -> ExampleJob:
    """As it was, or held where it has not returned."""
    if back_s is None:
        return replace(job, flavor="", node="", holder="lending")
    return replace(job, began_s=back_s)


def _pending(lent: int, progress: Mapping[str, Any]) -> list[ExampleJob]:
    """For quota, for something that the queue will never have, and for data."""
    prefix, most = "couldn't assign flavors to pod set main: ", max(_OWN_GPUS, lent)
    report = {
        "state": "held",
        "data": [DATA],
        "bytes": progress["bytes"],
        "bytesDone": progress["bytesDone"],
        "secondsLeft": progress["secondsLeft"],
        "at": progress["at"],
    }
    annotations = {NAMES_ANNOTATION: DATA, STAGING_ANNOTATION: json.dumps(report)}
    unused = f"{prefix}insufficient unused quota for {_GPU} in flavor own, 16 more needed"
    never = f"{prefix}insufficient quota for {_GPU} in flavor own, request > maximum capacity (64 > {most})"
    return [
        ExampleJob("research", "qwen-32b-sft", 8, 2, pods=2, priority=200, says=unused),
        ExampleJob("vision", "video-moe-pretrain", 8, 5, pods=8, says=never),
        ExampleJob("research", DATA_USER, 8, 1, annotations=annotations, holder="staging"),
    ]


def _template(job: ExampleJob) -> Object:
    container = {
        "name": "train",
        "image": f"registry.example.com/{job.namespace}/{job.name}:1",
        "resources": {"limits": {_GPU: str(job.gpus)}},
    }
    return {"spec": {"restartPolicy": "Never", "containers": [container]}}


def _created_s(job: ExampleJob, now_s: float) -> float:
    return now_s - now_s % _HOUR_S - job.hours * _HOUR_S


def _admitted_s(job: ExampleJob, now_s: float) -> float:
    return max(_created_s(job, now_s), job.began_s) + 30.0


def _job(job: ExampleJob, now_s: float) -> Object:
    undo = {"suspend": True, "queue": _LOCAL_QUEUE}
    marked = hold_metadata(job.holder, undo) if job.holder == "staging" else {"labels": {}, "annotations": {}}
    queue = PARKED if job.holder == "staging" else _LOCAL_QUEUE
    return {
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
            "creationTimestamp": stamp(_created_s(job, now_s)),
            "labels": {QUEUE_LABEL: queue, **marked["labels"]},
            "annotations": {**job.annotations, **marked["annotations"]},
        },
        "spec": {"parallelism": job.pods, "suspend": not job.flavor, "template": _template(job)},
        "status": {"active": job.pods, "ready": job.pods} if job.flavor else {},
    }


def _workload(job: ExampleJob, now_s: float) -> Object:
    created_s = _created_s(job, now_s)
    at = stamp(_admitted_s(job, now_s))
    admitted = "True" if job.flavor else "False"
    reserved = {"type": "QuotaReserved", "status": admitted, "message": job.says, "lastTransitionTime": at}
    status: Object = {"conditions": [reserved]}
    if job.flavor:
        status["conditions"].append({"type": "Admitted", "status": "True", "lastTransitionTime": at})
        use = {"name": "main", "count": job.pods, "flavors": {_GPU: job.flavor}}
        use["resourceUsage"] = {_GPU: str(job.pods * job.gpus)}
        status["admission"] = {"clusterQueue": QUEUE, "podSetAssignments": [use]}
    marked = (
        hold_metadata(job.holder, {"active": True}) if job.holder == "lending" else {"labels": {}, "annotations": {}}
    )
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": job.uid, "controller": True}
    return {
        "metadata": {
            "name": f"job-{job.name}",
            "namespace": job.namespace,
            "uid": f"uid-workload-{job.name}",
            "creationTimestamp": stamp(created_s),
            "ownerReferences": [owner],
            **marked,
        },
        "spec": {
            "queueName": PARKED if job.holder == "staging" else _LOCAL_QUEUE,
            "priority": job.priority,
            "active": job.holder != "lending",
            "podSets": [{"name": "main", "count": job.pods, "template": _template(job)}],
        },
        "status": status,
    }


def _pod(job: ExampleJob, now_s: float) -> Object:
    began = stamp(_admitted_s(job, now_s) + 60)
    template = _template(job)
    return {
        "metadata": {
            "name": f"{job.name}-0",
            "namespace": job.namespace,
            "uid": f"uid-pod-{job.name}",
            "creationTimestamp": began,
            "labels": {
                "batch.kubernetes.io/controller-uid": job.uid,
                "batch.kubernetes.io/job-name": job.name,
                "kueue.x-k8s.io/podset": "main",
            },
            "annotations": {"kueue.x-k8s.io/workload": f"job-{job.name}"},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": job.uid, "controller": True}
            ],
        },
        "spec": {**template["spec"], "nodeName": job.node},
        "status": {
            "phase": "Running",
            "startTime": began,
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": began}],
            "containerStatuses": [{"name": "train", "ready": True, "state": {"running": {"startedAt": began}}}],
        },
    }


def _cluster_queue(queue: str, quotas: Mapping[str, int], cohort: str = "") -> Object:
    flavors = [
        {"name": name, "resources": [{"name": _GPU, "nominalQuota": str(quota)}]} for name, quota in quotas.items()
    ]
    return {
        "metadata": {"name": queue},
        "spec": {
            **({"cohort": cohort} if cohort else {}),
            "queueingStrategy": "BestEffortFIFO",
            "resourceGroups": [{"coveredResources": [_GPU], "flavors": flavors}],
        },
        "status": {"conditions": [{"type": "Active", "status": "True"}]},
    }
