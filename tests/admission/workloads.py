"""Builders of workload manifests of every kind in the table, with GPUs where they are asked for."""

from typing import Any

Object = dict[str, Any]
IMAGE = "registry.example/train:1"


def pod_spec(gpus: int | str = 1, resource: str = "amd.com/gpu", **fields: Any) -> Object:
    limits = {resource: str(gpus)} if gpus else {"cpu": "1"}
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "command": ["train"],
        "resources": {"limits": limits},
    }
    return {"containers": [container], "restartPolicy": "Never"} | fields


def template(gpus: int | str = 1, labels: Object | None = None, **fields: Any) -> Object:
    return {"metadata": {"labels": labels or {"app": "x"}}, "spec": pod_spec(gpus, **fields)}


def pod(name: str, gpus: int | str = 1, **fields: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod_spec(gpus, **fields)}


def job(name: str, gpus: int | str = 1, pods: int = 1, **fields: Any) -> Object:
    spec = {"parallelism": pods, "completions": pods, "template": template(gpus, **fields)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def deployment(name: str, gpus: int | str = 1, pods: int = 1, kind: str = "Deployment") -> Object:
    inner = template(gpus)
    inner["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": pods, "selector": {"matchLabels": {"app": "x"}}, "template": inner}
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def pytorch_job(name: str, gpus: int | str = 8, workers: int = 3) -> Object:
    def role(pods: int) -> Object:
        inner = template(gpus)
        inner["spec"]["containers"][0]["name"] = "pytorch"
        return {"replicas": pods, "restartPolicy": "Never", "template": inner}

    spec = {"pytorchReplicaSpecs": {"Master": role(1), "Worker": role(workers)}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}, "spec": spec}


def ray_cluster_spec(gpus: int | str, workers: int = 2) -> Object:
    head, worker = template(0), template(gpus)
    for each in (head, worker):
        each["spec"].pop("restartPolicy")
    group = {
        "groupName": "gpu",
        "replicas": workers,
        "minReplicas": 0,
        "maxReplicas": 8,
        "rayStartParams": {},
        "template": worker,
    }
    return {"headGroupSpec": {"rayStartParams": {}, "template": head}, "workerGroupSpecs": [group]}


def every_kind(name: str, gpus: int | str = 1) -> list[Object]:
    """One workload of each kind, each with GPUs."""
    cron = job(name, gpus)["spec"]
    lws_worker = template(gpus)
    lws_worker["spec"].pop("restartPolicy")
    mpi = pytorch_job(name, gpus)["spec"]["pytorchReplicaSpecs"]
    resources = pod_spec(gpus)["containers"][0]["resources"]
    predictor = {"model": {"modelFormat": {"name": "huggingface"}, "resources": resources}}
    bodies: list[tuple[str, str, Object]] = [
        ("batch/v1", "CronJob", {"schedule": "0 3 * * *", "jobTemplate": {"spec": cron}}),
        (
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            {"replicatedJobs": [{"name": "w", "replicas": 2, "template": {"spec": cron}}]},
        ),
        (
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": lws_worker}},
        ),
        ("kubeflow.org/v2beta1", "MPIJob", {"mpiReplicaSpecs": {"Launcher": mpi["Master"], "Worker": mpi["Worker"]}}),
        (
            "trainer.kubeflow.org/v1alpha1",
            "TrainJob",
            {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2, "resourcesPerNode": resources}},
        ),
        ("ray.io/v1", "RayJob", {"entrypoint": "python train.py", "rayClusterSpec": ray_cluster_spec(gpus)}),
        ("ray.io/v1", "RayCluster", ray_cluster_spec(gpus)),
        ("ray.io/v1", "RayService", {"rayClusterConfig": ray_cluster_spec(gpus)}),
        ("serving.kserve.io/v1beta1", "InferenceService", {"predictor": predictor}),
        ("kaiwo.silogen.ai/v1alpha1", "KaiwoJob", {"gpus": 4 * bool(gpus), "image": IMAGE}),
        ("kaiwo.silogen.ai/v1alpha1", "KaiwoService", {"gpus": 2 * bool(gpus), "image": IMAGE}),
    ]
    made = [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
        for version, kind, spec in bodies
    ]
    return [
        pod(name, gpus),
        deployment(name, gpus),
        deployment(name, gpus, kind="StatefulSet"),
        job(name, gpus),
        pytorch_job(name, gpus),
        *made,
    ]


def review(
    workload: Object, namespace: str = "team", operation: str = "CREATE", groups: tuple[str, ...] = (), **fields: Any
) -> Object:
    """The AdmissionReview that the API server would send."""
    group, _, version = workload["apiVersion"].rpartition("/")
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "operation": operation,
        "namespace": namespace,
        "name": workload["metadata"].get("name", ""),
        "object": workload,
        "kind": {"group": group, "version": version, "kind": workload["kind"]},
        "userInfo": {"username": "ada", "groups": list(groups)},
    } | fields
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
