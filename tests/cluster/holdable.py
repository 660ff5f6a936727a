"""The least that an API server takes for an object of each kind that can be held by a field of its own."""

from typing import Any

Object = dict[str, Any]
POD: Object = {"containers": [{"name": "main", "image": "none"}]}
TEMPLATE: Object = {"spec": POD | {"restartPolicy": "Never"}}
JOB: Object = {"template": TEMPLATE}
_ROLE: Object = {"replicas": 1, "template": {"spec": POD}}
_RAY: Object = {"headGroupSpec": {"rayStartParams": {}, "template": {"spec": POD}}}
SPECS: dict[str, Object] = {
    "Job": JOB,
    "CronJob": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": JOB}},
    "JobSet": {"replicatedJobs": [{"name": "node", "template": {"spec": JOB}}]},
    "TrainJob": {"runtimeRef": {"name": "torch"}},
    "PyTorchJob": {"pytorchReplicaSpecs": {"Master": _ROLE}},
    "MPIJob": {"mpiReplicaSpecs": {"Launcher": _ROLE}},
    "RayJob": {"rayClusterSpec": _RAY, "entrypoint": "true"},
    "RayCluster": _RAY,
}
