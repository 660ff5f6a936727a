"""Controllers that have no scenario with hostile objects, with something that they have to do."""

import tempfile
from pathlib import Path
from typing import Any

from attacks.api_in_memory import MemoryKube
from attacks.scenarios.objects import (
    LEASE,
    Scenario,
    cluster_queue,
    flavor,
    job,
    label_of,
    local_queue,
    node,
    notes,
    now,
    pod,
    space,
    workload,
)
from queues.trees import declared

from kopt.cluster.client.resources import (
    CONFIG_MAPS,
    JOBS,
    KAIWO_BUDGETS,
    KAIWO_QUEUES,
    KAIWO_RESERVATIONS,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    MIG_STRATEGIES,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
)
from kopt.cluster.runtime.manager import LedReplica
from kopt.cluster.workloads.queue_trees.live import KINDS
from kopt.controllers.gangs import main as gangs
from kopt.controllers.health import main as health
from kopt.controllers.health.reconciler import HealthSettings
from kopt.controllers.meter import main as meter
from kopt.controllers.meter.reconciler import MeterSettings
from kopt.controllers.meter.store import CostStore
from kopt.controllers.partitions import main as partitions
from kopt.controllers.partitions.executors import MigManager
from kopt.controllers.partitions.pools import Managers
from kopt.controllers.partitions.sharing.reconciler import SharingSettings
from kopt.controllers.partitions.sharing.steps import StepSettings
from kopt.controllers.queues import main as declared_queues
from kopt.controllers.queues.reconciler import Carrying
from kopt.controllers.reservations import main as reservations
from kopt.controllers.rightsizing import main as rightsizing
from kopt.controllers.rightsizing.reconciler import RightsizingSettings
from kopt.core.decision import Mode
from kopt.core.scheduling.queue_tree import Engine
from kopt.core.sharing.modes import SharingMode
from kopt.core.times import stamp
from kopt.core.units import GIB
from kopt.core.workload.rightsizing import ContainerUse
from kopt.formats.sharing_terms import ReplicaSetting, configuration_text
from kopt.policies.gangs import GangSettings
from kopt.policies.priority.queue_order import QueueOrder
from kopt.policies.rightsizing.watch import WatchSettings

CLUSTER_QUEUES = next(kind for kind in KINDS[Engine.KUEUE] if kind.kind == "ClusterQueue")


def _fill_gangs(kube: MemoryKube) -> None:
    """Two gangs of two pods; each has one of two nodes."""
    space(kube, "team")
    for number, name in enumerate(("older", "newer")):
        kube.put(NODES, node(f"n{number}"))
        document = job(name, uid=f"job-{name}")
        document["spec"] |= {"completionMode": "Indexed", "parallelism": 2, "completions": 2}
        kube.put(JOBS, document)
        kube.put(PODS, pod(f"{name}-0", on=f"n{number}", gpus=4, job_name=name))
        kube.put(PODS, pod(f"{name}-1", gpus=4, job_name=name))


def _gangs(kube: Any) -> LedReplica:
    controller = gangs.ControllerSettings(Mode.ENFORCE, GangSettings(60.0))
    return gangs.Replica(kube, gangs.ProcessSettings(lease=LEASE, controller=controller, port=0))


GANGS = Scenario(
    "gangs",
    _fill_gangs,
    _gangs,
    lambda kube: any(label_of(kube, JOBS, name) == "gangs" for name in ("older", "newer")),
    (),
)


def _fill_queues(kube: MemoryKube) -> None:
    kube.put(KAIWO_QUEUES, declared("research"))


def _queues(kube: Any) -> LedReplica:
    carrying = Carrying(Engine.KUEUE, Mode.ENFORCE)
    return declared_queues.Replica(kube, declared_queues.ProcessSettings(lease=LEASE, carrying=carrying, port=0))


DECLARED_QUEUES = Scenario(
    "queues",
    _fill_queues,
    _queues,
    lambda kube: kube.find(CLUSTER_QUEUES, "research") is not None,
    (),
)


def _fill_order(kube: MemoryKube) -> None:
    """A workload waits in a queue that evicts nobody."""
    space(kube, "team")
    kube.put(KUEUE_CLUSTER_QUEUES, cluster_queue("research", preemption={"withinClusterQueue": "Never"}))
    kube.put(KUEUE_LOCAL_QUEUES, local_queue("gpus", "team", "research"))
    kube.put(KUEUE_WORKLOADS, workload("waits"))


def _ordered(kube: Any) -> LedReplica:
    carrying, order = Carrying(Engine.KUEUE, Mode.ENFORCE), QueueOrder()
    settings = declared_queues.ProcessSettings(lease=LEASE, carrying=carrying, order=order, port=0)
    return declared_queues.Replica(kube, settings)


def _has_a_number(kube: MemoryKube) -> bool:
    waits = kube.find(KUEUE_WORKLOADS, "waits", "team")
    return waits is not None and waits["spec"]["priority"] > 1000


QUEUE_ORDER = Scenario("queue order", _fill_order, _ordered, _has_a_number, ())


def _fill_reservations(kube: MemoryKube) -> None:
    """All of four nodes is reserved from just now on, and a job that saved has one."""
    space(kube, "team")
    for number in range(4):
        kube.put(NODES, node(f"n{number}"))
    kube.put(KUEUE_FLAVORS, flavor("h100"))
    kube.put(KUEUE_CLUSTER_QUEUES, cluster_queue("research", quota="16"))
    for name in ("gpus", "nightly"):
        kube.put(KUEUE_LOCAL_QUEUES, local_queue(name, "team", "research"))
    kube.put(KUEUE_WORKLOADS, workload("saves", runs_in="research"))
    kube.put(PODS, pod("saves-0", on="n0", gpus=4, job_name="saves", annotations=notes()))
    window = {"start": stamp(now() - 10), "until": stamp(now() + 3600)}
    kube.put(
        KAIWO_RESERVATIONS,
        {
            "metadata": {"name": "night", "namespace": "team", "annotations": {}},
            "spec": {"queueName": "nightly", "nodes": 4, "gpusPerNode": 4, **window},
        },
    )


def _reservations(kube: Any) -> LedReplica:
    controller = reservations.ControllerSettings(Mode.ENFORCE)
    return reservations.Replica(kube, reservations.ProcessSettings(lease=LEASE, controller=controller, port=0))


RESERVATIONS = Scenario(
    "reservations",
    _fill_reservations,
    _reservations,
    lambda kube: label_of(kube, KUEUE_WORKLOADS, "saves") == "reservations" and len(kube.all(JOBS)) == 3,
    (),
)


def _fill_budget(kube: MemoryKube) -> None:
    """A pod has eight GPUs, and its team's budget is four seconds of one."""
    space(kube, "team")
    kube.put(NODES, node("n0", gpus=8))
    kube.put(PODS, pod("trains", on="n0", gpus=8))
    kube.put(KUEUE_LOCAL_QUEUES, {"metadata": {"name": "gpus", "namespace": "team"}, "spec": {"clusterQueue": "all"}})
    spec = {"target": {"namespace": "team"}, "limit": {"gpuHours": "0.001"}, "period": "Month", "action": "Hold"}
    kube.put(KAIWO_BUDGETS, {"metadata": {"name": "team", "generation": 1}, "spec": spec})


def _meter(kube: Any) -> LedReplica:
    store = CostStore(Path(tempfile.mkdtemp(prefix="kopt-cost-")) / "cost.db")
    settings = meter.ProcessSettings(lease=LEASE, meter=MeterSettings(reconcile_s=0.1), mode=Mode.ENFORCE, port=0)
    return meter.Replica(kube, settings, store)


BUDGETS = Scenario(
    "budgets", _fill_budget, _meter, lambda kube: label_of(kube, KUEUE_LOCAL_QUEUES, "gpus") == "budget", ()
)


def _fill_partitions(kube: MemoryKube) -> None:
    """A pod waits for an instance, and a node is idle."""
    space(kube, "team")
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "4",
        "nvidia.com/mig.config.state": "success",
    }
    kube.put(NODES, node("n0", **labels))
    waits = pod("infer")
    waits["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
    kube.put(PODS, waits)
    file = 'mig-configs: {all-1g.10gb: [{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 7}}]}'
    metadata = {"name": "default-mig-parted-config", "namespace": "gpu-operator"}
    kube.put(CONFIG_MAPS, {"metadata": metadata, "data": {"config.yaml": file}})
    spec = {"partitionStrategy": {"preferredProfiles": [{"1g.10gb": "100%"}]}}
    kube.put(MIG_STRATEGIES, {"metadata": {"name": "infer", "generation": 1}, "spec": spec})


def _partitions(kube: Any) -> LedReplica:
    controller = partitions.ControllerSettings(Mode.ENFORCE, managers=Managers(MigManager(settle_s=0.1)))
    return partitions.Replica(kube, partitions.ProcessSettings(lease=LEASE, controller=controller, port=0))


def _is_being_cut(kube: MemoryKube) -> bool:
    return label_of(kube, NODES, "n0", label="nvidia.com/mig.config", namespace="") == "all-1g.10gb"


PARTITIONS = Scenario("partitions", _fill_partitions, _partitions, _is_being_cut, ())


def _fill_sharing(kube: MemoryKube) -> None:
    """An empty node whose plugin offers nothing, as the daemon of MPS is away."""
    labels = {"nvidia.com/gpu.count": "4", "nvidia.com/device-plugin.config": "mps-2"}
    kube.put(NODES, node("n0", gpus=0, **labels))
    settings = {"mps-2": ReplicaSetting(SharingMode.MPS, 2), "turns-2": ReplicaSetting(SharingMode.TIME_SLICING, 2)}
    data = {name: configuration_text(setting, None) for name, setting in settings.items()}
    kube.put(CONFIG_MAPS, {"metadata": {"name": "device-plugin-config", "namespace": "gpu-operator"}, "data": data})


def _sharing(kube: Any) -> LedReplica:
    steps = StepSettings(settle_s=0.0)
    watched = SharingSettings(Mode.ENFORCE, mps_lost_s=0.0, steps=steps)
    return partitions.Replica(kube, partitions.ProcessSettings(lease=LEASE, sharing=watched, port=0))


def _takes_turns(kube: MemoryKube) -> bool:
    return label_of(kube, NODES, "n0", label="nvidia.com/device-plugin.config", namespace="") == "turns-2"


SHARING = Scenario("sharing", _fill_sharing, _sharing, _takes_turns, ())


def _fill_health(kube: MemoryKube) -> None:
    """Another system has seen an error of a node's GPU, and a link of it is worse than it was."""
    ill = node("ill")
    ill["status"]["conditions"].append({"type": "GpuXidError", "status": "True", "message": "XID 79"})
    kube.put(NODES, ill)
    kube.put(NODES, node("well"))
    degraded = [{"part": "nic mlx5_0", "was": 400, "now": 100, "since": stamp(now()), "falls": 1}]
    kube.put(NODE_TOPOLOGIES, {"metadata": {"name": "ill"}, "spec": {}, "status": {"degraded": degraded}})


def _health(kube: Any) -> LedReplica:
    settings = HealthSettings(Mode.ENFORCE, most_share=0.5)
    return health.Replica(kube, health.ProcessSettings(lease=LEASE, health=settings, port=0))


HEALTH = Scenario(
    "health",
    _fill_health,
    _health,
    lambda kube: label_of(kube, NODES, "ill", label="kaiwo.ai/gpu-unhealthy", namespace="") == "true",
    (),
)


def _fill_trainer(kube: MemoryKube) -> None:
    """A pod of eight CPUs uses one; how far it is, it says itself."""
    space(kube, "team")
    kube.put(NODES, node("n0"))
    kube.put(JOBS, job("trains", uid="job-trains"))
    document = pod("trains", on="n0", job_name="trains")
    document["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "8"}
    document["metadata"]["annotations"] = {"kaiwo.ai/progress": "100/1000", "kaiwo.ai/step-seconds": "1"}
    document["metadata"]["annotations"]["kaiwo.ai/progress-at"] = stamp(now())
    kube.put(PODS, document)


def _rightsizing(kube: Any) -> LedReplica:
    async def use() -> Any:
        return {("team", "trains", "a"): ContainerUse(1000, 1500, GIB, 86_400)}

    # What it looks at here is the switch, not the steps: none are needed before a change.
    settings = RightsizingSettings(Mode.ENFORCE, interval_s=0.05, poll_s=0.05, watch=WatchSettings(least_samples=0))
    return rightsizing.Replica(kube, rightsizing.ProcessSettings(lease=LEASE, controller=settings, port=0), use)


def requested_cpu(kube: MemoryKube) -> str:
    document = kube.find(PODS, "trains", "team")
    assert document is not None
    return str(document["spec"]["containers"][0]["resources"]["requests"]["cpu"])


RIGHTSIZING = Scenario("rightsizing", _fill_trainer, _rightsizing, lambda kube: requested_cpu(kube) == "4", ())
