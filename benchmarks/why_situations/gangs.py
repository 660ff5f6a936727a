"""Gangs that KAI Scheduler and Volcano have not started."""

import random
from collections.abc import Callable
from typing import Any

from benchmarks.why_situations.nodes import POOL, Fleet
from benchmarks.why_situations.objects import (
    GPU,
    SPACE,
    Constructed,
    Object,
    event,
    job,
    meta,
    owner,
    pod,
    pod_spec,
    stamp,
    taint,
)

KAI, VOLCANO = "KAI", "Volcano"
_ANNOTATION = {KAI: "pod-group-name", VOLCANO: "scheduling.k8s.io/group-name"}
_SCHEDULER = {KAI: "kai-scheduler", VOLCANO: "volcano"}


class Gangs(Fleet):
    """A cluster of one of both schedulers, with queues and gangs."""

    def __init__(self, rng: random.Random, engine: str) -> None:
        super().__init__(rng)
        self.engine = engine

    def queue(self, name: str, limit: int = -1, quota: int = -1, parent: str = "") -> None:
        if self.engine == KAI:
            spec: Object = {"resources": {"gpu": {"quota": quota, "limit": limit, "overQuotaWeight": 1}}}
            spec |= {"parentQueue": parent} if parent else {}
            self.cluster.kai_queues.append({"metadata": meta(name, ""), "spec": spec, "status": {}})
        else:
            spec = {"weight": 1} | ({"capability": {GPU: str(limit)}} if limit >= 0 else {})
            spec |= {"parent": parent} if parent else {}
            self.cluster.volcano_queues.append({"metadata": meta(name, ""), "spec": spec, "status": {"state": "Open"}})

    def group(self, name: str, space: str, least: int, queue: str, message: str = "") -> Object:
        metadata = meta(name, space, ownerReferences=[owner("Job", name, space)])
        status: Object = {}
        if message and self.engine == KAI:
            condition = {"type": "UnschedulableOnNodePool", "nodePool": "default", "status": "True"}
            status = {"schedulingConditions": [condition | {"reasons": [{"reason": "x", "message": message}]}]}
        elif message:
            condition = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources"}
            status = {"conditions": [condition | {"message": message, "lastTransitionTime": stamp(250)}]}
        document = {"metadata": metadata, "spec": {"minMember": least, "queue": queue}, "status": status}
        (self.cluster.kai_groups if self.engine == KAI else self.cluster.volcano_groups).append(document)
        return document

    def run_gang(self, queue: str, gpus: int, priority: int = 50) -> None:
        """A gang of single GPUs on the fullest nodes with room."""
        self.count += 1
        name, space = f"gang-{self.count}", "others"
        self.group(name, space, gpus, queue)
        free = {node["metadata"]["name"]: int(node["status"]["allocatable"].get(GPU, 0)) for node in self.cluster.nodes}
        for item in self.cluster.pods:
            if where := item["spec"].get("nodeName"):
                free[where] -= int(item["spec"]["containers"][0]["resources"]["limits"].get(GPU, 0))
        for number in range(gpus):
            where = min((key for key in free if free[key] > 0), key=lambda key: (free[key], key))
            free[where] -= 1
            self.cluster.pods.append(
                pod(
                    f"{name}-{number}",
                    pod_spec(1, cpu=1, memory_gib=2, schedulerName=_SCHEDULER[self.engine], priority=priority),
                    on=where,
                    owned_by=owner("Job", name, space),
                    space=space,
                    annotations={_ANNOTATION[self.engine]: name},
                )
            )

    def waits_gang(
        self, pods: int, gpus: int, queue: str, message: str, *, least: int = 0, priority: int = 50, **spec: Any
    ) -> None:
        body = pod_spec(gpus, schedulerName=_SCHEDULER[self.engine], priority=priority, **spec)
        self.cluster.jobs.append(job("train", body, pods=pods))
        group = self.group("train", SPACE, least or pods, queue, message)
        for number in range(pods):
            self.cluster.pods.append(
                pod(
                    f"train-{number}",
                    body,
                    owned_by=owner("Job", "train"),
                    annotations={_ANNOTATION[self.engine]: "train"},
                )
            )
        if self.engine == VOLCANO and self.rng.random() < 0.5:
            self.cluster.events.append(event(group, message, "Unschedulable"))

    def gang_message(self, pods: int, reason: str) -> str:
        if self.engine == VOLCANO:
            return (
                f"{pods}/{pods} tasks in gang unschedulable: pod group is not ready, {pods} Pending, "
                f"{pods} minAvailable; Pending: {pods} Unschedulable"
            )
        return f"no nodes with enough resources were found: {reason}."


def gang_in_use(rng: random.Random, engine: str) -> Constructed:
    made = Gangs(rng, engine)
    made.queue("research")
    nodes, pods = rng.randint(1, 4), rng.randint(2, 4)
    for _ in range(nodes):
        made.add(8)
    free = rng.randint(0, pods - 1)
    made.run_gang("research", 8 * nodes - free)
    made.waits_gang(pods, 1, "research", made.gang_message(pods, f"{nodes} node(s) didn't have enough resources: GPUs"))
    return Constructed(engine, "GPUS_IN_USE", made.cluster)


def gang_fragmented(rng: random.Random, engine: str) -> Constructed:
    """Each node has some GPUs free, none as many as a pod needs, all together enough for the gang."""
    made = Gangs(rng, engine)
    made.queue("research")
    size, pods = rng.choice((4, 8)), rng.randint(2, 3)
    nodes = 2 * pods + 4
    for _ in range(nodes):
        made.add(8, 8 - (size - 1))
    made.waits_gang(
        pods, size, "research", made.gang_message(pods, f"{nodes} node(s) didn't have enough resources: GPUs")
    )
    return Constructed(engine, "GPUS_FRAGMENTED", made.cluster)


def gang_too_large(rng: random.Random, engine: str) -> Constructed:
    made = Gangs(rng, engine)
    made.queue("research")
    nodes = rng.randint(1, 3)
    for _ in range(nodes):
        made.add(8)
    pods = nodes * 2 + rng.randint(1, 3)
    made.waits_gang(pods, 4, "research", made.gang_message(pods, f"{nodes} node(s) didn't have enough resources: GPUs"))
    return Constructed(engine, "GPUS_TOO_MANY", made.cluster)


def over_limit(rng: random.Random, engine: str) -> Constructed:
    """Nodes have room; the queue, or its parent, may not use it."""
    made = Gangs(rng, engine)
    limit, used = rng.randint(4, 12), rng.randint(1, 4)
    above = rng.random() < 0.5
    made.queue("department", limit if above else -1)
    made.queue("research", -1 if above else limit, parent="department")
    made.queue("production", parent="department")
    for _ in range(4):
        made.add(8)
    made.run_gang("research" if not above else rng.choice(("research", "production")), used)
    wanted = rng.randint(limit - used + 1, limit - used + 3)
    name = "department" if above else "research"
    text = (
        f"{name} quota has reached the allowable limit of GPUs. Limit is {limit} GPUs, currently {used} GPUs allocated "
        f"and workload requested {wanted} GPUs"
        if engine == KAI
        else f"queue resource quota insufficient: insufficient {GPU}"
    )
    made.waits_gang(wanted, 1, "research", text)
    return Constructed(engine, "QUEUE_LIMIT", made.cluster)


def over_quota(rng: random.Random) -> Constructed:
    """What cannot be preempted goes over the quota of its queue."""
    made = Gangs(rng, KAI)
    quota, used = rng.randint(4, 8), rng.randint(1, 4)
    made.queue("research", quota=quota)
    for _ in range(4):
        made.add(8)
    made.run_gang("research", used, priority=100)
    wanted = rng.randint(quota - used + 1, quota - used + 3)
    text = (
        f"Non-preemptible workload is over quota. Workload requested {wanted} GPUs, but research quota is {quota} "
        f"GPUs, while {used} GPUs are already allocated for non-preemptible pods."
    )
    made.waits_gang(wanted, 1, "research", text, priority=100)
    return Constructed(KAI, "QUEUE_QUOTA", made.cluster)


def incomplete(rng: random.Random, engine: str) -> Constructed:
    """Pods of the gang are missing; those there are would fit."""
    made = Gangs(rng, engine)
    made.queue("research")
    for _ in range(2):
        made.add(8)
    pods = rng.randint(1, 3)
    least = pods + rng.randint(1, 4)
    text = f"{pods}/{pods} tasks in gang unschedulable: pod group is not ready, {least} minAvailable"
    made.waits_gang(pods, 1, "research", text if engine == VOLCANO else "", least=least)
    return Constructed(engine, "GANG_INCOMPLETE", made.cluster)


def gang_tainted(rng: random.Random, engine: str) -> Constructed:
    made = Gangs(rng, engine)
    made.queue("research")
    nodes = rng.randint(1, 3)
    for _ in range(nodes):
        made.add(8, rng.randrange(4), taints=[taint("dedicated", "serving")])
    pods = rng.randint(2, 4)
    made.waits_gang(pods, 1, "research", made.gang_message(pods, f"{nodes} node(s) had untolerated taint(s)"))
    return Constructed(engine, "TAINT", made.cluster)


def gang_selected(rng: random.Random, engine: str) -> Constructed:
    made = Gangs(rng, engine)
    made.queue("research")
    nodes = rng.randint(1, 3)
    for _ in range(nodes):
        made.add(8, rng.randrange(4), labels={POOL: "a"})
    pods = rng.randint(2, 4)
    text = made.gang_message(pods, f"{nodes} node(s) didn't match Pod's node affinity/selector")
    made.waits_gang(pods, 1, "research", text, nodeSelector={POOL: "b"})
    return Constructed(engine, "NODE_SELECTOR", made.cluster)


def gang_cordoned(rng: random.Random, engine: str) -> Constructed:
    made = Gangs(rng, engine)
    made.queue("research")
    nodes = rng.randint(1, 3)
    for _ in range(nodes):
        made.add(8, rng.randrange(4), cordoned=True)
    pods = rng.randint(2, 4)
    made.waits_gang(pods, 1, "research", made.gang_message(pods, f"{nodes} node(s) were unschedulable"))
    return Constructed(engine, "CORDONED", made.cluster)


def _of(make: Callable[[random.Random, str], Constructed], engine: str) -> Callable[[random.Random], Constructed]:
    def made(rng: random.Random) -> Constructed:
        return make(rng, engine)

    made.__name__ = f"{make.__name__}_{engine.lower()}"
    return made


MAKERS: list[Callable[[random.Random], Constructed]] = [
    _of(make, engine)
    for engine in (KAI, VOLCANO)
    for make in (
        gang_in_use,
        gang_fragmented,
        gang_too_large,
        over_limit,
        incomplete,
        gang_tainted,
        gang_selected,
        gang_cordoned,
    )
] + [over_quota]
