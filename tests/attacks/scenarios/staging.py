"""The staging controller, beside a Job that waits for its data."""

from typing import Any

from kopt.cluster.client.resources import JOBS, KUEUE_WORKLOADS, NODES, PODS, Object
from kopt.cluster.objects.custom.staged_data import STAGED_DATA
from kopt.cluster.runtime.manager import LedReplica
from kopt.controllers.staging import main as staging
from kopt.controllers.staging.ports import StagingSettings
from kopt.core.decision import Mode
from kopt.policies.staging.pod import PodSettings

from ..api_in_memory import MemoryKube
from .objects import ENDED, LEASE, NODE, SPACE, SUSPENDED, Host, Scenario, job, label_of, node, pod, space, workload


def _staging(kube: Any) -> LedReplica:
    wanted = StagingSettings(PodSettings("stage:1"), Mode.ENFORCE)
    return staging.Replica(kube, staging.ProcessSettings(lease=LEASE, staging=wanted, port=0, reads_logs=False))


def staged(name: str, namespace: str = "team") -> Object:
    place = {"claim": "data", "path": name}
    return {
        "metadata": {"name": name, "namespace": namespace, "annotations": {}, "labels": {}, "generation": 1},
        "spec": {"source": f"s3://bucket/{name}", "destination": place},
        "status": {},
    }


def _fill_staging(kube: MemoryKube) -> None:
    space(kube, "team", "tenant")
    kube.put(NODES, node("n0"))
    kube.put(STAGED_DATA, staged("tokens"))
    kube.put(
        JOBS,
        job("ordinary", annotations={"kaiwo.ai/staged-data": "tokens"}, labels={"kueue.x-k8s.io/queue-name": "gpus"})
        | {"spec": job("x")["spec"] | {"suspend": True}},
    )


def _staged(kube: MemoryKube) -> bool:
    begun = any(
        one["metadata"]["namespace"] == "team" and one["metadata"]["name"] != "ordinary" for one in kube.all(JOBS)
    )
    return label_of(kube, JOBS, "ordinary") == "staging" and begun


OWN_JOB = job(
    "a-own",
    "tenant",
    annotations={"kaiwo.ai/staging-place": "claim"},
    labels={
        "kaiwo.ai/staging-of": "uid",
        "kaiwo.ai/staging-verb": "stage",
        "kaiwo.ai/staging-attempt": "1",
        "kaiwo.ai/staging-generation": "1",
    },
)
ASKS = {"kaiwo.ai/staged-data": "a-data"}
STAGING = Scenario(
    "staging",
    _fill_staging,
    _staging,
    _staged,
    (
        Host(JOBS, job("a-hostile", "tenant", annotations=ASKS)),
        Host(STAGED_DATA, staged("a-data", "tenant"), schema="stageddata"),
        Host(
            JOBS, job("a-held", "tenant", annotations=ASKS, labels={"kaiwo.ai/held": "staging"}) | {"status": SUSPENDED}
        ),
        Host(PODS, pod("a-pod", "tenant", annotations=ASKS, labels={"kaiwo.ai/asks-for-data": "true"})),
        Host(JOBS, OWN_JOB),
        Host(PODS, pod("a-own", "tenant", labels={"kaiwo.ai/staging-of": "uid"}) | {"status": ENDED}),
        Host(KUEUE_WORKLOADS, workload("a-hostile", "tenant")),
        SPACE,
        NODE,
    ),
)
