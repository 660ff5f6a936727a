"""Jobs that Kueue has not admitted."""

import random
from collections.abc import Callable
from typing import Any

from benchmarks.why_situations.objects import (
    GPU,
    SPACE,
    Cluster,
    Constructed,
    Object,
    job,
    meta,
    node,
    owner,
    pod,
    pod_spec,
    stamp,
    taint,
)
from kopt.core.workload.gpu_share import CHARGE_RESOURCE

LABEL = "team.example/gpu"
FLAVORS = ("a100", "h100")


class Queues:
    """ClusterQueues over two flavours whose nodes have room for all quota; ``quota`` in GPUs by flavour."""

    def __init__(self, rng: random.Random, *, tainted: str = "") -> None:
        self.rng, self.cluster = rng, Cluster()
        for name in FLAVORS:
            taints = [taint("dedicated", name)] if name == tainted else []
            self.cluster.flavors.append(
                {"metadata": meta(name, ""), "spec": {"nodeLabels": {LABEL: name}, "nodeTaints": taints}}
            )
            for number in range(6):
                self.cluster.nodes.append(node(f"{name}-{number}", 8, labels={LABEL: name}, taints=taints))
        self._free = {item["metadata"]["name"]: 8 for item in self.cluster.nodes}
        self.count = 0

    def queue(
        self,
        name: str,
        quota: dict[str, int],
        *,
        cohort: str = "",
        borrowing: int | None = None,
        cpu: int = 10_000,
        local: str = "",
        **spec: Any,
    ) -> None:
        """With a LocalQueue in the team's namespace where ``local`` names it."""
        flavors = []
        for flavor, gpus in quota.items():
            item: Object = {"name": GPU, "nominalQuota": str(gpus)}
            item |= {"borrowingLimit": str(borrowing)} if borrowing is not None else {}
            others = [{"name": "cpu", "nominalQuota": str(cpu)}, {"name": "memory", "nominalQuota": "100Ti"}]
            flavors.append({"name": flavor, "resources": [item, *others]})
        groups = [{"coveredResources": [GPU, "cpu", "memory"], "flavors": flavors}]
        body = {"resourceGroups": groups, "namespaceSelector": {}} | ({"cohort": cohort} if cohort else {}) | spec
        active = {"type": "Active", "status": "True", "lastTransitionTime": stamp(9000)}
        self.cluster.cluster_queues.append(
            {"metadata": meta(name, ""), "spec": body, "status": {"conditions": [active]}}
        )
        if local:
            self.cluster.local_queues.append({"metadata": meta(local), "spec": {"clusterQueue": name}, "status": {}})

    def run(self, queue: str, flavor: str, gpus: int, priority: int = 0, cpu: int = 4) -> None:
        """A workload of another team with quota, and its pod on a node."""
        self.count += 1
        name, space = f"other-{self.count}", "others"
        spec = pod_spec(gpus, cpu=cpu, nodeSelector={LABEL: flavor})
        usage = {GPU: str(gpus), "cpu": str(cpu), "memory": "16Gi"}
        assignment = {"name": "main", "count": 1, "flavors": dict.fromkeys(usage, flavor), "resourceUsage": usage}
        document = self._workload(name, space, spec, 1, "gpus", priority, age_s=5000)
        document["status"] = {
            "admission": {"clusterQueue": queue, "podSetAssignments": [assignment]},
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": stamp(4000)}
                for kind in ("QuotaReserved", "Admitted")
            ],
        }
        self.cluster.workloads.append(document)
        nodes = [where for where, free in self._free.items() if where.startswith(flavor) and free >= gpus]
        if nodes:
            where = min(nodes, key=lambda item: (self._free[item], item))
            self._free[where] -= gpus
            marks = {"kueue.x-k8s.io/workload": f"job-{name}"}
            tolerations = [{"operator": "Exists"}]
            self.cluster.pods.append(
                pod(
                    f"{name}-x",
                    spec | {"tolerations": tolerations},
                    on=where,
                    owned_by=owner("Job", name, space),
                    space=space,
                    annotations=marks,
                )
            )

    def fill(self, queue: str, flavor: str, gpus: int) -> None:
        while gpus > 0:
            size = min(8, self.rng.randint(1, gpus))
            self.run(queue, flavor, size)
            gpus -= size

    def waits(
        self,
        gpus: int,
        message: str = "",
        *,
        pods: int = 1,
        priority: int = 0,
        queue: str = "gpus",
        name: str = "train",
        age_s: float = 1000,
        selector: dict[str, str] | None = None,
        cpu: int = 4,
    ) -> Object:
        """The Job and its Workload; the Workload."""
        spec = pod_spec(gpus, cpu=cpu, **({"nodeSelector": selector} if selector else {}))
        self.cluster.jobs.append(job(name, spec, pods=pods, queue=queue, suspended=True))
        document = self._workload(name, SPACE, spec, pods, queue, priority, age_s)
        waits = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message}
        document["status"] = {"conditions": [waits | {"lastTransitionTime": stamp(age_s - 5)}]}
        self.cluster.workloads.append(document)
        return document

    def _workload(
        self, name: str, space: str, spec: Object, pods: int, queue: str, priority: int, age_s: float
    ) -> Object:
        metadata = meta(f"job-{name}", space, ownerReferences=[owner("Job", name, space)])
        metadata["creationTimestamp"] = stamp(age_s)
        pod_sets = [{"name": "main", "count": pods, "template": {"spec": spec, "metadata": {}}}]
        return {
            "metadata": metadata,
            "spec": {"queueName": queue, "priority": priority, "podSets": pod_sets, "active": True},
            "status": {},
        }


def _short(flavor: str, more: int, resource: str = GPU) -> str:
    why = f"insufficient unused quota for {resource} in flavor {flavor}, {more} more needed"
    return f"couldn't assign flavors to pod set main: {why}"


def quota_in_use(rng: random.Random) -> Constructed:
    made, flavor = Queues(rng), rng.choice(FLAVORS)
    quota, wanted = rng.randint(4, 24), rng.randint(1, 8)
    wanted = min(wanted, quota)
    made.queue("research", {flavor: quota}, local="gpus")
    used = rng.randint(quota - wanted + 1, quota)
    made.fill("research", flavor, used)
    if rng.random() < 0.5:
        made.queue("production", {flavor: 16}, local="production")
        made.fill("production", flavor, rng.choice((0, 16)))
    made.waits(wanted, _short(flavor, wanted - (quota - used)))
    return Constructed("Kueue", "QUOTA_IN_USE", made.cluster)


def gang_quota_in_use(rng: random.Random) -> Constructed:
    made, flavor = Queues(rng), rng.choice(FLAVORS)
    pods, each = rng.randint(2, 4), rng.randint(1, 4)
    quota = pods * each + rng.randint(0, 8)
    made.queue("research", {flavor: quota}, local="gpus")
    made.fill("research", flavor, rng.randint(quota - pods * each + 1, quota))
    made.waits(each, "", pods=pods)
    return Constructed("Kueue", "QUOTA_IN_USE", made.cluster)


def cpu_quota_in_use(rng: random.Random) -> Constructed:
    made, flavor = Queues(rng), rng.choice(FLAVORS)
    made.queue("research", {flavor: 16}, cpu=64, local="gpus")
    for _ in range(3):
        made.run("research", flavor, 1, cpu=20)
    made.waits(1, _short(flavor, 4, "cpu"), cpu=rng.randint(5, 40))
    return Constructed("Kueue", "QUOTA_IN_USE", made.cluster)


def cohort_in_use(rng: random.Random) -> Constructed:
    """Others of the cohort use its quota, some of it borrowed; nothing may be reclaimed."""
    made, flavor = Queues(rng), rng.choice(FLAVORS)
    own, other = rng.randint(2, 8), rng.randint(4, 12)
    wanted = rng.randint(1, min(8, own + other))
    made.queue("research", {flavor: own}, cohort="all", local="gpus")
    made.queue("production", {flavor: other}, cohort="all")
    made.fill("production", flavor, own + other - rng.randint(0, wanted - 1))
    made.waits(wanted, _short(flavor, 1))
    return Constructed("Kueue", "COHORT_IN_USE", made.cluster)


def borrowing_limit(rng: random.Random) -> Constructed:
    """The cohort has room, and the queue has borrowed as much as it may."""
    made, flavor = Queues(rng), rng.choice(FLAVORS)
    own, limit = rng.randint(2, 8), rng.randint(1, 4)
    wanted = rng.randint(1, min(8, own + limit))
    made.queue("research", {flavor: own}, cohort="all", borrowing=limit, local="gpus")
    made.queue("production", {flavor: 24}, cohort="all")
    made.fill("research", flavor, own + limit - rng.randint(0, wanted - 1))
    made.waits(wanted, _short(flavor, 1))
    return Constructed("Kueue", "BORROWING_LIMIT", made.cluster)


def may_not_borrow(rng: random.Random) -> Constructed:
    """The cohort has room, and the queue may borrow none of it: its own quota is what binds."""
    made, flavor = Queues(rng), rng.choice(FLAVORS)
    own = rng.randint(2, 8)
    wanted = rng.randint(1, own)
    made.queue("research", {flavor: own}, cohort="all", borrowing=0, local="gpus")
    made.queue("production", {flavor: 24}, cohort="all")
    made.fill("research", flavor, own - rng.randint(0, wanted - 1))
    made.waits(wanted, _short(flavor, 1))
    return Constructed("Kueue", "QUOTA_IN_USE", made.cluster)


def quota_too_small(rng: random.Random) -> Constructed:
    made, flavor = Queues(rng), rng.choice(FLAVORS)
    quota = rng.randint(1, 6)
    wanted = rng.randint(quota + 1, 8)
    made.queue("research", {flavor: quota}, local="gpus")
    made.fill("research", flavor, rng.randint(0, quota))
    why = f"insufficient quota for {GPU} in flavor {flavor}, request > maximum capacity"
    text = f"couldn't assign flavors to pod set main: {why}"
    made.waits(wanted, text)
    return Constructed("Kueue", "QUOTA_TOO_SMALL", made.cluster)


def quota_absent(rng: random.Random) -> Constructed:
    """A share of a GPU by a claim in a queue that has quota for whole GPUs alone."""
    made, flavor, milli = Queues(rng), rng.choice(FLAVORS), rng.randint(100, 1000)
    made.queue("research", {flavor: 16}, local="gpus")
    made.fill("research", flavor, rng.randint(0, 16))
    why = f"resource {CHARGE_RESOURCE} unavailable in ClusterQueue"
    workload = made.waits(0, f"couldn't assign flavors to pod set main: {why}")
    annotations = {"kaiwo.ai/gpu-fraction": str(milli / 1000)}
    made.cluster.jobs[-1]["spec"]["template"]["metadata"] = {"annotations": annotations}
    template = workload["spec"]["podSets"][0]["template"]
    template["metadata"] = {"annotations": annotations}
    template["spec"] = template["spec"] | {"overhead": {CHARGE_RESOURCE: str(milli)}}
    return Constructed("Kueue", "QUOTA_ABSENT", made.cluster)


def flavor_excluded(rng: random.Random) -> Constructed:
    """The only flavour of the queue has other nodes than the pods select, or a taint that they do not tolerate."""
    has_taint = rng.random() < 0.5
    made = Queues(rng, tainted="h100" if has_taint else "")
    made.queue("research", {"h100": 16}, local="gpus")
    made.fill("research", "h100", rng.randint(0, 8))
    text = "couldn't assign flavors to pod set main: flavor h100 doesn't match node affinity"
    made.waits(rng.randint(1, 8), text, selector=None if has_taint else {LABEL: "a100"})
    return Constructed("Kueue", "FLAVOR_EXCLUDED", made.cluster)


def behind_the_first(rng: random.Random) -> Constructed:
    """StrictFIFO: it would fit, and what is ahead does not."""
    made, flavor = Queues(rng), rng.choice(FLAVORS)
    made.queue("research", {flavor: 16}, local="gpus", queueingStrategy="StrictFIFO")
    made.fill("research", flavor, 10)
    made.waits(8, _short(flavor, 2), name="first", age_s=2000)
    for number in range(rng.randrange(3)):
        made.waits(1, "", name=f"between-{number}", age_s=1500 - number)
    made.waits(rng.randint(1, 6))
    return Constructed("Kueue", "QUEUE_ORDER", made.cluster)


def selected_flavor_in_use(rng: random.Random) -> Constructed:
    """Its selector leaves a flavour that is used up, the other has room."""
    made, flavor = Queues(rng), rng.choice(FLAVORS)
    other = next(name for name in FLAVORS if name != flavor)
    made.queue("research", {flavor: 8, other: 16}, local="gpus")
    wanted = rng.randint(1, 8)
    made.fill("research", flavor, 8 - rng.randint(0, wanted - 1))
    made.waits(wanted, _short(flavor, 1), selector={LABEL: flavor})
    return Constructed("Kueue", "QUOTA_IN_USE", made.cluster)


def stopped(rng: random.Random) -> Constructed:
    made = Queues(rng)
    made.queue("research", {"h100": 16}, local="gpus", stopPolicy=rng.choice(("Hold", "HoldAndDrain")))
    made.waits(rng.randint(1, 8), "ClusterQueue research is inactive")
    return Constructed("Kueue", "QUEUE_STOPPED", made.cluster)


def inactive(rng: random.Random) -> Constructed:
    made = Queues(rng)
    made.queue("research", {"h100": 16}, local="gpus")
    made.cluster.cluster_queues[0]["status"]["conditions"] = [
        {"type": "Active", "status": "False", "reason": "FlavorNotFound", "message": "flavor h100 is missing"}
    ]
    made.waits(rng.randint(1, 8), "ClusterQueue research is inactive")
    return Constructed("Kueue", "QUEUE_INACTIVE", made.cluster)


def no_queue(rng: random.Random) -> Constructed:
    made = Queues(rng)
    made.queue("research", {"h100": 16}, local="gpus")
    made.waits(rng.randint(1, 8), "LocalQueue other doesn't exist", queue="other")
    return Constructed("Kueue", "QUEUE_UNKNOWN", made.cluster)


def checks(rng: random.Random) -> Constructed:
    made = Queues(rng)
    made.queue("research", {"h100": 16}, local="gpus")
    wanted = rng.randint(1, 8)
    document = made.waits(wanted)
    usage = {GPU: str(wanted), "cpu": "4", "memory": "16Gi"}
    assignment = {"name": "main", "count": 1, "flavors": dict.fromkeys(usage, "h100"), "resourceUsage": usage}
    document["status"] = {
        "admission": {"clusterQueue": "research", "podSetAssignments": [assignment]},
        "admissionChecks": [{"name": "provisioning", "state": "Pending", "message": ""}],
        "conditions": [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": stamp(50)}],
    }
    return Constructed("Kueue", "ADMISSION_CHECKS", made.cluster)


def deactivated(rng: random.Random) -> Constructed:
    made = Queues(rng)
    made.queue("research", {"h100": 16}, local="gpus")
    made.waits(rng.randint(1, 8), "The workload is deactivated")["spec"]["active"] = False
    return Constructed("Kueue", "DEACTIVATED", made.cluster)


MAKERS: list[Callable[[random.Random], Constructed]] = [
    quota_in_use, gang_quota_in_use, cpu_quota_in_use, cohort_in_use, borrowing_limit, may_not_borrow, quota_too_small,
    quota_absent, flavor_excluded, behind_the_first, selected_flavor_in_use, stopped, inactive, no_queue, checks,
    deactivated,
]  # fmt: skip
