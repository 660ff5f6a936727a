"""The ledger, beside a workload that was pre-empted."""

from typing import Any

from kopt.cluster.client.resources import EVICTIONS, JOBS, KAI_POD_GROUPS, KUEUE_WORKLOADS, PODS, Object
from kopt.cluster.runtime.manager import LedReplica
from kopt.controllers.evictions import main as ledger
from kopt.core.times import stamp

from ..api_in_memory import MemoryKube
from .objects import LEASE, Host, Scenario, job, notes, now, owner, pod, space, workload
from .preemption import EVICTION


def _ledger(kube: Any) -> LedReplica:
    return ledger.Replica(kube, ledger.ProcessSettings(lease=LEASE, port=0))


def evicted(name: str, namespace: str = "team") -> Object:
    found = workload(name, namespace, runs_in="research")
    found["status"]["conditions"] = [
        {"type": "QuotaReserved", "status": "False", "lastTransitionTime": stamp(now() - 60)},
        {"type": "Admitted", "status": "False", "lastTransitionTime": stamp(now() - 59)},
        {
            "type": "Evicted",
            "status": "True",
            "reason": "Preempted",
            "message": "x",
            "lastTransitionTime": stamp(now() - 60),
        },
        {
            "type": "Preempted",
            "status": "True",
            "reason": "InClusterQueue",
            "message": "x",
            "lastTransitionTime": stamp(now() - 60),
        },
    ]
    return found


def _fill_ledger(kube: MemoryKube) -> None:
    space(kube, "team", "tenant")
    kube.put(KUEUE_WORKLOADS, evicted("ordinary"))


GROUP = {
    "metadata": {"name": "g", "namespace": "tenant", "annotations": {}, "labels": {}, "ownerReferences": [owner("x")]},
    "spec": {"queue": "team", "minMember": 1},
    "status": {"phase": "Running"},
}
DISRUPTED = pod("a-pod", "tenant", on="n9", job_name="a-hostile", annotations=notes())
DISRUPTED["status"]["conditions"] = [
    {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "x",
        "lastTransitionTime": stamp(now() - 60),
    }
]
DISRUPTED["metadata"] |= {"deletionTimestamp": stamp(now() - 30), "deletionGracePeriodSeconds": 30}
LEDGER = Scenario(
    "ledger",
    _fill_ledger,
    _ledger,
    lambda kube: any(
        one["spec"]["workload"]["name"] == "ordinary" for one in kube.all(EVICTIONS) if one["metadata"]["name"] != "e"
    ),
    (
        Host(KUEUE_WORKLOADS, evicted("a-hostile", "tenant")),
        Host(PODS, DISRUPTED),
        Host(JOBS, job("a-job", "tenant")),
        Host(PODS, pod("a-runs-0", "tenant", on="n9", annotations=notes())),
        Host(EVICTIONS, EVICTION, schema="evictions"),
        Host(KAI_POD_GROUPS, GROUP),
    ),
)
