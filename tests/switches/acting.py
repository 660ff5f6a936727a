"""Each feature's own process over an API server in memory, with something to act on; and what it has written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attacks.api_in_memory import MemoryKube
from attacks.scenarios import SCENARIOS
from attacks.scenarios.objects import Scenario, label_of

from kopt.cluster.client.resources import (
    EVENTS,
    FEATURE_ROLLOUTS,
    JOBS,
    KAIWO_BUDGETS,
    KAIWO_QUEUES,
    KAIWO_RESERVATIONS,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    LEASES,
    LENDING_POOLS,
    MIG_STRATEGIES,
    NODE_BANDWIDTHS,
    NODE_HEALTHS,
    NODES,
    PAIRWISE_BENCHMARKS,
    PODS,
    SECRETS,
    SELF_REVIEWS,
    Object,
    Resource,
)
from kopt.controllers.gangs.reconciler import Reconciler as Gangs
from kopt.controllers.health.reconciler import Reconciler as Health
from kopt.controllers.lending.reconciler import Reconciler as Lending
from kopt.controllers.meter.budgets import BudgetKeeper
from kopt.controllers.pairwise.reconciler import Reconciler as Pairwise
from kopt.controllers.partitions.reconciler import Reconciler as Partitions
from kopt.controllers.partitions.sharing.reconciler import Reconciler as Sharing
from kopt.controllers.preemption.kai.preemptor import KaiPreemption
from kopt.controllers.preemption.kube_scheduler.preemptor import PlainPreemption
from kopt.controllers.preemption.reconciler import Reconciler as Preemption
from kopt.controllers.queues.ordering import Ordering
from kopt.controllers.queues.reconciler import Reconciler as Queues
from kopt.controllers.reservations.reconciler import Reconciler as Reservations
from kopt.controllers.rightsizing.reconciler import Reconciler as Rightsizing
from kopt.controllers.sizing.reconciler import Reconciler as Sizing
from kopt.controllers.staging.reconciler import Reconciler as Staging

from .scenarios import (
    BUDGETS,
    DECLARED_QUEUES,
    GANGS,
    HEALTH,
    PARTITIONS,
    QUEUE_ORDER,
    RESERVATIONS,
    RIGHTSIZING,
    SHARING,
    requested_cpu,
)

OWN = (EVENTS, LEASES, SECRETS, FEATURE_ROLLOUTS)
USER = "system:serviceaccount:kopt-system:kopt-test"
REPORTS = (
    *(KAIWO_BUDGETS, KAIWO_QUEUES, KAIWO_RESERVATIONS, LENDING_POOLS),
    *(MIG_STRATEGIES, PAIRWISE_BENCHMARKS, NODE_BANDWIDTHS, NODE_HEALTHS),
)
"""Kinds of ours in whose status a controller that only observes says what it would do."""


@dataclass(frozen=True)
class Acting:
    """A scenario of one feature; ``looks`` is called once for each look at the cluster."""

    feature: str
    scenario: Scenario
    looks: tuple[type, str]
    held: str = ""
    """What is held from the beginning, and is released when the feature is off."""
    undone: Callable[[MemoryKube], bool] = lambda _: True
    """Whether nothing is held, lent or run any more."""


def _scenario(name: str) -> Scenario:
    (result,) = (scenario for scenario in SCENARIOS if scenario.name == name)
    return result


def _is_free(kube: MemoryKube) -> bool:
    return not label_of(kube, JOBS, "ordinary")


def _runs(kube: MemoryKube) -> bool:
    return not any(one["spec"]["suspend"] or label_of(kube, JOBS, one["metadata"]["name"]) for one in kube.all(JOBS))


def _is_returned(kube: MemoryKube) -> bool:
    lent = kube.find(KUEUE_CLUSTER_QUEUES, "lent")
    assert lent is not None
    quota = lent["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"]
    return quota == "0" and not label_of(kube, KUEUE_CLUSTER_QUEUES, "lent", namespace="")


def _is_open(kube: MemoryKube) -> bool:
    queue = kube.find(KUEUE_LOCAL_QUEUES, "gpus", "team")
    assert queue is not None
    return queue["spec"].get("stopPolicy") == "None" and not label_of(kube, KUEUE_LOCAL_QUEUES, "gpus")


def _takes_pods(kube: MemoryKube) -> bool:
    ill = kube.find(NODES, "ill")
    assert ill is not None
    kinds = {item["type"] for item in ill["status"]["conditions"]}
    return (
        not ill["spec"].get("taints")
        and kinds == {"Ready", "GpuXidError"}
        and not ill["metadata"].get("labels", {}).get("kaiwo.ai/gpu-unhealthy")
    )


def _is_untested(kube: MemoryKube) -> bool:
    return not kube.all(JOBS)


def _is_left(kube: MemoryKube) -> bool:
    return not kube.all(JOBS) and not label_of(kube, KUEUE_WORKLOADS, "saves")


def _is_given_back(kube: MemoryKube) -> bool:
    return requested_cpu(kube) == "8" and not label_of(kube, PODS, "trains", "kaiwo.ai/resizing")


def _is_unordered(kube: MemoryKube) -> bool:
    waits = kube.find(KUEUE_WORKLOADS, "waits", "team")
    assert waits is not None
    return waits["spec"]["priority"] == 100 and not label_of(kube, KUEUE_WORKLOADS, "waits", "kaiwo.ai/queue-order")


def _is_as_before(kube: MemoryKube) -> bool:
    node = kube.find(NODES, "n0")
    assert node is not None
    labels = node["metadata"]["labels"]
    return not {"nvidia.com/mig.config", "kaiwo.ai/held"} & labels.keys() and not node["spec"].get("unschedulable")


def _is_shared_as_before(kube: MemoryKube) -> bool:
    node = kube.find(NODES, "n0")
    assert node is not None
    labels = node["metadata"]["labels"]
    is_own = labels["nvidia.com/device-plugin.config"] == "mps-2"
    return is_own and "kaiwo.ai/held" not in labels and not node["spec"].get("unschedulable")


ACTING = (
    Acting("profiling", _scenario("sizing"), (Sizing, "reconcile"), undone=_is_free),
    Acting("staging", _scenario("staging"), (Staging, "step"), undone=_is_free),
    Acting("preemption", _scenario("preemption (Kueue)"), (Preemption, "step"), "workloads urgent"),
    Acting("preemption", _scenario("preemption (plain pods)"), (PlainPreemption, "step")),
    Acting("preemption", _scenario("preemption (KAI)"), (KaiPreemption, "step"), "pods urgent-0"),
    Acting("lending", _scenario("reallocation"), (Lending, "step"), undone=_is_returned),
    Acting("pairwise", _scenario("pairs"), (Pairwise, "step"), undone=_is_untested),
    Acting("gangs", GANGS, (Gangs, "step"), undone=_runs),
    Acting("budgets", BUDGETS, (BudgetKeeper, "step"), undone=_is_open),
    Acting("partitions", PARTITIONS, (Partitions, "step"), undone=_is_as_before),
    Acting("sharing", SHARING, (Sharing, "step"), undone=_is_shared_as_before),
    Acting("health", HEALTH, (Health, "step"), undone=_takes_pods),
    Acting("reservations", RESERVATIONS, (Reservations, "step"), undone=_is_left),
    Acting("rightsizing", RIGHTSIZING, (Rightsizing, "step"), undone=_is_given_back),
    Acting("declared-queues", DECLARED_QUEUES, (Queues, "step")),
    Acting("queue-order", QUEUE_ORDER, (Ordering, "step"), undone=_is_unordered),
)


class Watched(MemoryKube):
    """Counts the writes on what is not ours."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []
        self._filled = False

    def filled(self) -> None:
        """From now on writes are those of the process."""
        self._filled = True

    async def create(self, resource: Resource, body: Object, namespace: str = "", *, dry_run: bool = False) -> Object:
        if resource == SELF_REVIEWS:
            return {"status": {"userInfo": {"username": USER}}}
        return await super().create(resource, body, namespace, dry_run=dry_run)

    def put(self, resource: Resource, document: Object) -> Object:
        self._count("put", resource, document["metadata"]["name"])
        return super().put(resource, document)

    async def delete(self, resource: Resource, name: str, *args: Any, **options: Any) -> Object:
        self._count("delete", resource, name)
        return await super().delete(resource, name, *args, **options)

    async def create_at(self, resource: Resource, namespace: str, name: str, subresource: str, body: Object) -> Object:
        self._count(subresource, resource, name)
        return await super().create_at(resource, namespace, name, subresource, body)

    def _count(self, verb: str, resource: Resource, name: str) -> None:
        if self._filled and resource not in (*OWN, *REPORTS):
            self.written.append(f"{verb} {resource.plural} {name}")


def rollout(**percents: int) -> Object:
    return {"metadata": {"name": "default"}, "spec": {"defaults": percents}}
