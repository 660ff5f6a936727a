"""The reallocation controller, beside a pool that can lend all it has."""

from typing import Any

from kopt.cluster.client.resources import (
    EVICTIONS,
    JOBS,
    KAI_QUEUES,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    LENDING_POOLS,
    PODS,
    VOLCANO_JOBS,
    VOLCANO_QUEUES,
    Object,
)
from kopt.cluster.runtime.manager import LedReplica
from kopt.controllers.lending import main as reallocation
from kopt.core.prediction import ModelVersion, Prediction
from kopt.serving.contract.demand_answers import DemandForecast, DemandQuery, HorizonForecast, SeriesForecast

from ..api_in_memory import MemoryKube
from .objects import (
    GPU,
    LEASE,
    SPACE,
    Host,
    Scenario,
    cluster_queue,
    job,
    local_queue,
    notes,
    now,
    pod,
    space,
    workload,
)
from .preemption import EVICTION, kai_queue


async def demand(query: DemandQuery) -> DemandForecast:
    """Nothing is asked for: all can be lent."""
    model = ModelVersion("demand-pooled", "7")
    told = Prediction(
        0.0,
        0.0,
        0.0,
        0.98,
        "requests",
        0.9,
        model,
        quantiles=dict.fromkeys((0.5, 0.9, 0.95, 0.99), 0.0),
        features_at_s=now(),
    )
    horizons = tuple(HorizonForecast(int(one), told) for one in query.horizons_s)
    return DemandForecast(tuple(SeriesForecast(one.name, "requests", 300, horizons) for one in query.series), model)


def _reallocation(kube: Any) -> LedReplica:
    return reallocation.Replica(kube, reallocation.ProcessSettings(lease=LEASE, port=0), demand)


def pool(name: str, system: str = "Kueue", queue: str = "lent") -> Object:
    service = {"name": name, "namespace": "serving", "selector": {"matchLabels": {"app": name}}, "capacityPerGpu": 1}
    spec = {
        "gpus": 8,
        "services": [service],
        "hold": "0s",
        "leadTime": "5m",
        "mode": "enforce",
        "borrowers": [{"system": system, "queue": queue}],
    }
    return {"metadata": {"name": name, "annotations": {}, "labels": {}, "generation": 1}, "spec": spec, "status": {}}


def _fill_reallocation(kube: MemoryKube) -> None:
    space(kube, "team", "tenant", "serving")
    kube.put(LENDING_POOLS, pool("ordinary"))
    for name, namespace in (("lent", "team"), ("hostile", "tenant")):
        found = cluster_queue(name, "0")
        found["spec"]["resourceGroups"][0]["flavors"][0]["resources"] = [{"name": GPU, "nominalQuota": "0"}]
        kube.put(KUEUE_CLUSTER_QUEUES, found)
        kube.put(KUEUE_LOCAL_QUEUES, local_queue(name, namespace, name))
    kube.put(KUEUE_WORKLOADS, workload("waits", queue="lent"))


def _lent(kube: MemoryKube) -> bool:
    found = kube.find(KUEUE_CLUSTER_QUEUES, "lent")
    status = (kube.find(LENDING_POOLS, "ordinary") or {}).get("status") or {}
    assert found is not None
    return found["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] != "0" and bool(status)


VOLCANO_JOB = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {
        "name": "v",
        "namespace": "tenant",
        "annotations": {},
        "labels": {},
        "creationTimestamp": "2026-11-23T12:00:00Z",
    },
    "spec": {
        "queue": "hostile",
        "minAvailable": 1,
        "tasks": [
            {
                "name": "t",
                "replicas": 1,
                "template": {"spec": {"containers": [{"name": "a", "resources": {"limits": {GPU: "1"}}}]}},
            }
        ],
    },
    "status": {"state": {"phase": "Running"}},
}
REALLOCATION = Scenario(
    "reallocation",
    _fill_reallocation,
    _reallocation,
    _lent,
    (
        Host(LENDING_POOLS, pool("a-pool", queue="hostile"), schema="lendingpools", fixed=(("spec", "borrowers"),)),
        Host(LENDING_POOLS, pool("a-kai", "Kai", "hostile"), schema="lendingpools", fixed=(("spec", "borrowers"),)),
        Host(
            LENDING_POOLS,
            pool("a-volcano", "Volcano", "hostile"),
            schema="lendingpools",
            fixed=(("spec", "borrowers"),),
        ),
        Host(KUEUE_WORKLOADS, workload("a-runs", "tenant", "hostile", runs_in="hostile")),
        Host(KUEUE_WORKLOADS, workload("a-held", "tenant", "hostile", labels={"kaiwo.ai/held": "lending"})),
        Host(
            KUEUE_CLUSTER_QUEUES,
            cluster_queue(
                "hostile",
                "0",
            ),
        ),
        Host(KAI_QUEUES, kai_queue("hostile")),
        Host(VOLCANO_QUEUES, {"metadata": {"name": "hostile"}, "spec": {"capability": {GPU: "1"}, "weight": 1}}),
        Host(VOLCANO_JOBS, VOLCANO_JOB),
        Host(EVICTIONS, EVICTION, schema="evictions"),
        SPACE,
        Host(PODS, pod("a-runs-0", "tenant", on="n9", job_name="a-runs", annotations=notes())),
        Host(PODS, pod("a-service", "serving", on="n9", labels={"app": "a-pool"})),
        Host(JOBS, job("a-job", "tenant", labels={"kai.scheduler/queue": "hostile"})),
    ),
)
