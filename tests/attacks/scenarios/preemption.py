"""The preemption controller in its three forms: workloads of Kueue's, plain pods, and KAI's pods."""

from typing import Any

from kopt.cluster.client.resources import (
    EVICTIONS,
    JOBS,
    KAI_QUEUES,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    NODES,
    PODS,
    Object,
)
from kopt.cluster.runtime.manager import LedReplica
from kopt.controllers.preemption import main as preemption
from kopt.controllers.preemption.ports import ControllerSettings
from kopt.core.decision import Mode
from kopt.core.times import stamp

from ..api_in_memory import MemoryKube
from .objects import (
    FULL_NODE,
    LEASE,
    NODE,
    SPACE,
    Host,
    Scenario,
    cluster_queue,
    flavor,
    job,
    local_queue,
    node,
    note_of,
    notes,
    now,
    pod,
    space,
    workload,
)


def _preemption(kube: Any) -> LedReplica:
    wanted = preemption.ProcessSettings(
        lease=LEASE, controller=ControllerSettings(Mode.ENFORCE), plain_pods=True, kai=True, port=0
    )
    return preemption.Replica(kube, wanted)


def fill_kueue(kube: MemoryKube) -> None:
    space(kube, "team", "tenant")
    kube.put(KUEUE_FLAVORS, flavor("h100"))
    kube.put(KUEUE_CLUSTER_QUEUES, cluster_queue("research"))
    kube.put(KUEUE_LOCAL_QUEUES, local_queue("gpus", "team", "research"))
    kube.put(KUEUE_CLUSTER_QUEUES, cluster_queue("other"))
    kube.put(KUEUE_LOCAL_QUEUES, local_queue("gpus", "tenant", "other"))
    kube.put(KUEUE_WORKLOADS, workload("victim", runs_in="research"))
    kube.put(PODS, pod("victim-0", on="n0", gpus=4, job_name="victim", annotations=notes()))
    held = workload(
        "urgent",
        priority=1000,
        labels={"kaiwo.ai/held": "preemption"},
        annotations={"kaiwo.ai/held-undo": '{"active":true}'},
    )
    held["spec"]["active"] = False
    kube.put(KUEUE_WORKLOADS, held)


def _went(kube: MemoryKube) -> bool:
    urgent = kube.find(KUEUE_WORKLOADS, "urgent", "team")
    assert urgent is not None
    return urgent["spec"].get("active") is not False and bool(
        note_of(kube, KUEUE_WORKLOADS, "victim", "kaiwo.ai/evicting")
    )


HELD_WORKLOAD = workload(
    "a-held", "tenant", labels={"kaiwo.ai/held": "preemption"}, annotations={"kaiwo.ai/held-undo": '{"active":true}'}
)
HELD_WORKLOAD["spec"]["active"] = False
EVICTION = {
    "metadata": {"name": "e", "namespace": "tenant", "labels": {}, "annotations": {}},
    "spec": {
        "workload": {"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "job-x"},
        "system": "Kueue",
        "evictedAt": "2026-11-23T12:00:00Z",
        "cause": "Preempted",
        "gpus": 1000,
        "order": 1,
    },
    "status": {},
}
KUEUE_HOSTS = (
    Host(KUEUE_WORKLOADS, workload("a-waits", "tenant")),
    Host(KUEUE_WORKLOADS, HELD_WORKLOAD),
    Host(
        KUEUE_WORKLOADS, workload("a-runs", "tenant", runs_in="other"), fixed=(("status", "admission", "clusterQueue"),)
    ),
    Host(KUEUE_CLUSTER_QUEUES, cluster_queue("other")),
    Host(KUEUE_FLAVORS, flavor("other")),
    Host(PODS, pod("a-runs-0", "tenant", on="n9", job_name="a-runs", annotations=notes())),
    Host(EVICTIONS, EVICTION, schema="evictions"),
    SPACE,
    NODE,
)
KUEUE = Scenario("preemption (Kueue)", fill_kueue, _preemption, _went, KUEUE_HOSTS)


def _fill_plain(kube: MemoryKube) -> None:
    space(kube, "team", "tenant")
    kube.put(NODES, node("n0"))
    kube.put(JOBS, job("victim"))
    kube.put(PODS, pod("victim-0", on="n0", gpus=4, job_name="victim", annotations=notes()))
    waits = pod("urgent-0", gpus=4, job_name="urgent")
    waits["spec"] |= {"priority": 1000, "preemptionPolicy": "Never"}
    kube.put(PODS, waits)


RUNS = pod("a-runs-0", "tenant", on="n9", job_name="a-runs", annotations=notes())
WAITS = pod("a-waits-0", "tenant", job_name="a-waits")
WAITS["spec"] |= {"priority": -5, "preemptionPolicy": "Never"}
COMPETES = (("spec", "priority"), ("spec", "nodeName"), ("status", "nominatedNodeName"))
PLAIN = Scenario(
    "preemption (plain pods)",
    _fill_plain,
    _preemption,
    lambda kube: "victim-0" in kube.evicted,
    (
        Host(PODS, RUNS, fixed=COMPETES),
        Host(PODS, WAITS, fixed=COMPETES),
        FULL_NODE,
        SPACE,
        Host(JOBS, job("a-runs", "tenant")),
        Host(EVICTIONS, EVICTION, schema="evictions"),
    ),
)


def _of_kai(found: Object, *, held: bool = False, queue: str = "team") -> Object:
    metadata, spec = found["metadata"], found["spec"]
    metadata["labels"] = {"kai.scheduler/queue": queue}
    spec |= {"schedulerName": "kai-scheduler", "priorityClassName": "any"}
    if held:
        metadata["labels"]["kaiwo.ai/held"] = "preemption"
        metadata["annotations"] = {"kaiwo.ai/held-undo": '{"gates":["kaiwo.ai/preemption"]}'}
        metadata["creationTimestamp"] = stamp(now() - 5)
        spec["schedulingGates"] = [{"name": "kaiwo.ai/preemption"}]
    return found


def kai_queue(name: str) -> Object:
    return {
        "metadata": {"name": name, "labels": {}, "annotations": {}},
        "spec": {"parentQueue": "", "preemptMinRuntime": "0s", "resources": {"gpu": {"quota": 12, "limit": -1}}},
    }


def fill_kai(kube: MemoryKube) -> None:
    _fill_plain(kube)
    kube.put(KAI_QUEUES, kai_queue("team"))
    kube.put(KAI_QUEUES, kai_queue("other"))
    kube.put(PODS, _of_kai(pod("victim-0", on="n0", gpus=4, job_name="victim", annotations=notes())))
    waits = _of_kai(pod("urgent-0", gpus=4, job_name="urgent"), held=True)
    waits["spec"] |= {"priority": 1000}
    kube.put(PODS, waits)


KAI_RUNS = _of_kai(pod("a-runs-0", "tenant", on="n9", job_name="a-runs", annotations=notes()), queue="other")
KAI_WAITS = _of_kai(pod("a-waits-0", "tenant", job_name="a-waits"), held=True, queue="other")
KAI_WAITS["spec"]["priority"] = -5
KAI = Scenario(
    "preemption (KAI)",
    fill_kai,
    _preemption,
    lambda kube: not (kube.find(PODS, "urgent-0", "team") or {})["spec"].get("schedulingGates"),
    (
        Host(PODS, KAI_RUNS, fixed=COMPETES),
        Host(PODS, KAI_WAITS, fixed=COMPETES),
        FULL_NODE,
        SPACE,
        Host(JOBS, job("a-runs", "tenant")),
    ),
)
