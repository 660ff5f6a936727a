"""Workloads, queues and pods as the API server would give them."""

import json
from typing import Any

from kopt.cluster.client.api import Conflict
from kopt.cluster.workloads.kueue.objects import ClusterQueue, GpuPod, KueueWorkload
from kopt.cluster.workloads.kueue.queues import read_cluster_queue
from kopt.cluster.workloads.kueue.reading import read_gpu_pod, read_kueue_workload
from kopt.controllers.preemption.patches import stamp
from kopt.core.scheduling.quota import QuotaNode

GPU, QUEUE, NOW_S = "nvidia.com/gpu", "research", 1_900_000_000.0
Object = dict[str, Any]


def workload(
    name: str,
    gpus: int,
    priority: int | None = 100,
    *,
    runs: bool = True,
    held: bool = False,
    started_s: float = NOW_S - 3600,
    **metadata: Any,
) -> Object:
    """A Workload of one pod; it runs, or waits."""
    limits = {"limits": {GPU: str(gpus)}, "requests": {"cpu": "1"}}
    template = {"spec": {"containers": [{"name": "a", "resources": limits}]}}
    owner = {"kind": "Job", "name": name, "uid": f"job-{name}", "controller": True}
    made: Object = {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": stamp(started_s),
            "ownerReferences": [owner],
            **metadata,
        },
        "spec": {"queueName": "gpus", "podSets": [{"name": "main", "count": 1, "template": template}]},
        "status": {},
    }
    if priority is not None:
        made["spec"]["priority"] = priority
    if held:
        made["spec"]["active"] = False
        made["metadata"]["labels"] = {"kaiwo.ai/held": "preemption"}
        made["metadata"]["annotations"] = {"kaiwo.ai/held-undo": json.dumps({"active": True})}
    elif runs:
        made["status"] = reserved(gpus, started_s)
    return made


def reserved(gpus: int, at_s: float) -> Object:
    usage = {
        "name": "main",
        "count": 1,
        "flavors": {GPU: "h100", "cpu": "h100"},
        "resourceUsage": {GPU: str(gpus), "cpu": "1"},
    }
    condition = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": stamp(at_s)}
    return {"admission": {"clusterQueue": QUEUE, "podSetAssignments": [usage]}, "conditions": [condition]}


def queue(gpus: int, cpus: int = 100, preempts: str = "LowerPriority", **spec: Any) -> ClusterQueue:
    resources = [{"name": GPU, "nominalQuota": str(gpus)}, {"name": "cpu", "nominalQuota": str(cpus)}]
    group = {"coveredResources": [GPU, "cpu"], "flavors": [{"name": "h100", "resources": resources}]}
    found = read_cluster_queue(
        {
            "metadata": {"name": QUEUE},
            "status": {"conditions": [{"type": "Active", "status": "True"}]},
            "spec": {"resourceGroups": [group], "preemption": {"withinClusterQueue": preempts}, **spec},
        }
    )
    return found


def notes(
    state: str = "TRAIN",
    safe: bool = True,
    lost: float = 100.0,
    age_s: float = 5.0,
    known: bool = True,
    now_s: float = NOW_S,
) -> dict[str, str]:
    """What a log agent writes."""
    found = {
        "kaiwo.ai/checkpoint-state": state,
        "kaiwo.ai/checkpoint-safe": str(safe).lower(),
        "kaiwo.ai/checkpoint-observed-at": stamp(now_s - age_s),
        "kaiwo.ai/work-at-risk": f"{lost:.0f}",
        "kaiwo.ai/work-at-risk-interval": f"{lost / 2:.0f}-{lost * 2:.0f}",
        "kaiwo.ai/checkpoint-model": "logs/7",
    }
    return found | ({"kaiwo.ai/last-checkpoint-time": stamp(now_s - age_s - 30)} if known else {})


def pod(job: str, gpus: int, annotations: dict[str, str] | None = None, number: int = 0) -> GpuPod:
    owner = {"kind": "Job", "name": job, "uid": f"job-{job}", "controller": True}
    found = read_gpu_pod(
        {
            "metadata": {
                "name": f"{job}-{number}",
                "namespace": "team",
                "uid": f"pod-{job}-{number}",
                "ownerReferences": [owner],
                "annotations": annotations or {},
            },
            "spec": {"containers": [{"resources": {"limits": {GPU: str(gpus)}}}]},
            "status": {"phase": "Running"},
        }
    )
    assert found is not None
    return found


class Books:
    """A cluster in memory that is also its own writer, with Kueue's rule to take victims."""

    def __init__(self, quota: int, *documents: Object) -> None:
        self.documents = {one["metadata"]["name"]: one for one in documents}
        self.queue, self.now_s = queue(quota), NOW_S
        self.annotations: dict[str, dict[str, str]] = {}
        self.told: list[tuple[str, str]] = []
        self.writes = 0
        self.dies_after: int | None = None
        self.taken: list[str] = []
        self.asked: list[str] = []
        self._aside: set[str] = set()

    def workloads(self) -> list[KueueWorkload]:
        return [read_kueue_workload(json.loads(json.dumps(one))) for one in self.documents.values()]

    def workload(self, key: tuple[str, str]) -> KueueWorkload | None:
        return next((one for one in self.workloads() if one.key == key), None)

    def queue_of(self, _: KueueWorkload) -> ClusterQueue:
        return self.queue

    def queues(self) -> list[ClusterQueue]:
        return [self.queue]

    def cohorts(self) -> list[QuotaNode]:
        return []

    def flavors(self) -> None:
        """They are not told apart."""

    def pods_of(self, view: KueueWorkload) -> list[GpuPod]:
        gpus = view.uses.get(("h100", GPU), 0) // 1000
        return [pod(view.key[1], gpus, self.annotations.get(view.key[1]))] if gpus else []

    def preemptions(self, _: float) -> dict[str, int]:
        return {}

    def mode(self, _: KueueWorkload) -> str:
        return "enforce"

    def noted(self, document: Object) -> None:
        """Written already."""

    def tell(self, view: KueueWorkload, reason: str, _: str) -> None:
        self.told.append((view.key[1], reason))

    async def patch(self, view: KueueWorkload, changes: Object) -> None:
        """A merge patch under the condition that the object is as it was seen; then Kueue has its turn."""
        if self.dies_after is not None and self.writes >= self.dies_after:
            raise KilledError
        document = self.documents[view.key[1]]
        if document["metadata"]["resourceVersion"] != view.version:
            raise Conflict(409, "Conflict", "it has changed")
        self.writes += 1
        _merge(document, json.loads(json.dumps(changes)))
        document["metadata"]["resourceVersion"] = str(int(view.version) + 1)
        self.kueue()

    async def patch_all(self, changes: list[tuple[KueueWorkload, Object]]) -> None:
        for view, change in changes:
            await self.patch(view, change)

    async def ask(self, view: GpuPod, changes: Object) -> None:
        """As ``patch``, on a pod."""
        if self.dies_after is not None and self.writes >= self.dies_after:
            raise KilledError
        self.writes += 1
        self.asked.append(view.key[1].rpartition("-")[0])
        self.annotations.setdefault(self.asked[-1], {}).update(changes["metadata"]["annotations"])

    async def read_pod(self, view: GpuPod) -> GpuPod | None:
        """The pod as it is now."""
        there = {one.uid: one for own in self.workloads() for one in self.pods_of(own)}
        return there.get(view.uid)

    def kueue(self) -> None:
        """Admit what fits, else pre-empt: the lowest priority first, then the newest, as Kueue 0.15 does.

        For whom that is not possible is put aside until it leaves the queue and comes back, or quota is freed.
        """
        self._aside &= {one.uid for one in self.workloads() if one.active}
        waiting = [one for one in self.workloads() if one.pending and one.active and one.uid not in self._aside]
        for one in sorted(waiting, key=lambda one: -one.document["spec"].get("priority", 0)):
            place, own = ("h100", GPU), one.document["spec"].get("priority", 0)
            running = [two for two in self.workloads() if two.running]
            written = {two.uid: int(two.document["spec"].get("priority", 0)) for two in running}
            order = sorted(
                (two for two in running if written[two.uid] < own),
                key=lambda two: (written[two.uid], -(two.reserved_s or 0)),
            )
            free = self.queue.quota[place] - sum(two.uses[place] for two in running)
            victims: list[KueueWorkload] = []
            for two in order:
                if free >= one.requests[GPU]:
                    break
                victims.append(two)
                free += two.uses[place]
            if free < one.requests[GPU]:
                self._aside.add(one.uid)
                continue
            self._aside.clear()
            for two in tuple(victims[:-1]):
                if free - two.uses[place] >= one.requests[GPU]:
                    victims.remove(two)
                    free -= two.uses[place]
            for two in victims:
                self.taken.append(two.key[1])
                self._touch(
                    two.key[1],
                    {"conditions": [{"type": "Evicted", "status": "True", "lastTransitionTime": stamp(self.now_s)}]},
                )
            self._touch(one.key[1], reserved(one.requests[GPU] // 1000, self.now_s))

    def _touch(self, name: str, status: Object) -> None:
        document = self.documents[name]
        document["status"] = status
        document["metadata"]["resourceVersion"] = str(int(document["metadata"]["resourceVersion"]) + 1)


class KilledError(BaseException):
    """The process ends here."""


def _merge(document: Object, changes: Object) -> None:
    for name, value in changes.items():
        if value is None:
            document.pop(name, None)
        elif isinstance(value, dict):
            _merge(document.setdefault(name, {}), value)
        else:
            document[name] = value
