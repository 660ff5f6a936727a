"""Jobs of several pods as their users write them: where the command, the processes and the GPUs stand, by kind.

Each pod with GPUs asks for eight and runs two processes.
"""

from typing import Any

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
IMAGE = "registry.example/megatron:1"
TRAIN = (
    "pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 16 --bf16"
)
ASKED, NEEDED = 8, 2
RUNTIME = "torch"


def container(name: str, command: str | None, gpus: int = ASKED) -> Object:
    amounts = {"cpu": "1"} | ({GPU: str(gpus)} if gpus else {})
    result: Object = {"name": name, "image": IMAGE, "resources": {"limits": amounts, "requests": dict(amounts)}}
    return result | ({} if command is None else {"command": command.split()})


def template(name: str, command: str | None, gpus: int = ASKED, **fields: Any) -> Object:
    spec = {"containers": [container(name, command, gpus)], "restartPolicy": "Never", "nodeSelector": dict(H100)}
    return {"metadata": {"labels": {"app": "x"}}, "spec": spec | fields}


def whole(version: str, kind: str, spec: Object) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": kind.lower()}, "spec": spec}


def job_of(pods: int, command: str) -> Object:
    return {"parallelism": pods, "completions": pods, "template": template("main", command)}


def pytorch_job() -> Object:
    roles = {
        role: {"replicas": pods, "restartPolicy": "Never", "template": template("pytorch", f"torchrun {TRAIN}")}
        for role, pods in (("Master", 1), ("Worker", 3))
    }
    return whole("kubeflow.org/v1", "PyTorchJob", {"nprocPerNode": "2", "pytorchReplicaSpecs": roles})


def mpi_job() -> Object:
    launcher = template("mpi", f"mpirun -np 4 --allow-run-as-root python {TRAIN}", gpus=0)
    worker = template("mpi", "/usr/sbin/sshd -De")
    roles = {"Launcher": {"replicas": 1, "template": launcher}, "Worker": {"replicas": 2, "template": worker}}
    return whole("kubeflow.org/v2beta1", "MPIJob", {"slotsPerWorker": 2, "mpiReplicaSpecs": roles})


def ray_job(reserved: int | None = ASKED, pods: int = 1) -> Object:
    head, worker = template("head", None, gpus=0), template("worker", None)
    for each in (head, worker):
        each["spec"].pop("restartPolicy")
    group = {"groupName": "gpus", "replicas": pods, "minReplicas": pods, "maxReplicas": pods}
    group |= {"rayStartParams": {"num-gpus": "8"}, "template": worker}
    cluster = {"headGroupSpec": {"rayStartParams": {}, "template": head}, "workerGroupSpecs": [group]}
    spec: Object = {"entrypoint": f"torchrun --nproc-per-node 2 {TRAIN}", "rayClusterSpec": cluster}
    spec |= {"shutdownAfterJobFinishes": True} | ({} if reserved is None else {"entrypointNumGpus": reserved})
    return whole("ray.io/v1", "RayJob", spec)


def job_set() -> Object:
    job = job_of(1, f"torchrun --nnodes 2 --nproc-per-node 2 {TRAIN}")
    return whole(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        {"replicatedJobs": [{"name": "node", "replicas": 2, "template": {"spec": job}}]},
    )


def deployment() -> Object:
    served = template("vllm", "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2")
    served["spec"].pop("restartPolicy")
    return whole(
        "apps/v1", "Deployment", {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": served}
    )


def runtime(gpus: int = ASKED) -> Object:
    """What a TrainJob is made from; the command and the GPUs may stand here or in the TrainJob."""
    node = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}}
    node["spec"] = {"parallelism": 1, "completions": 1, "template": template("node", "sleep 1", gpus)}
    steps = [{"name": "node", "template": node}]
    spec = {"mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}}, "template": {"spec": {}}}
    spec["template"]["spec"]["replicatedJobs"] = steps
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": RUNTIME},
        "spec": spec,
    }


def train_job(*, asks: bool = True) -> Object:
    trainer: Object = {"command": ["torchrun"], "args": TRAIN.split(), "numNodes": 2, "numProcPerNode": 2}
    if asks:
        trainer["resourcesPerNode"] = container("x", None)["resources"]
    made = whole("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": {"name": RUNTIME}, "trainer": trainer})
    made["metadata"]["name"] += "" if asks else "-by-runtime"
    return made


JOBS: dict[str, Object] = {
    "Job": whole("batch/v1", "Job", job_of(2, f"torchrun --nnodes 2 --nproc-per-node 2 {TRAIN}")),
    "Deployment": deployment(),
    "JobSet": job_set(),
    "PyTorchJob": pytorch_job(),
    "MPIJob": mpi_job(),
    "RayJob": ray_job(),
    "TrainJob": train_job(),
    "TrainJob-by-runtime": train_job(asks=False),
}
"""Every kind, whose pods with GPUs are given back six of eight."""
PODS = {
    "Job": 2,
    "Deployment": 2,
    "JobSet": 2,
    "PyTorchJob": 4,
    "MPIJob": 2,
    "RayJob": 1,
    "TrainJob": 2,
    "TrainJob-by-runtime": 2,
}
"""Pods with GPUs of each."""


def asked(workload: Object) -> list[str]:
    """GPUs that each template with any asks for, in limits and requests, wherever the kind has them."""
    found: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(
                str(part[GPU]) for part in (value.get("limits"), value.get("requests")) if part and GPU in part
            )
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    look(workload["spec"])
    return found
