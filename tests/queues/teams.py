"""A namespace with conservative queues under the real Kueue, and what is seen of its jobs."""

import json
import time
from datetime import UTC, datetime
from typing import Any

from controlplane.kueue import admitted, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

GPU, V = "nvidia.com/gpu", "kueue.x-k8s.io/v1beta2"
QUEUE = ("kaiwo.ai/v1alpha2", "KaiwoQueue")
Object = dict[str, Any]


class Team:
    """A namespace with two queues of two GPUs each below one parent."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.api, self.space = plane, plane.api, plane.api.space("conservative")
        self.owner, self.borrower = f"{self.space}-owner", f"{self.space}-borrower"

    def declare(self, name: str, *, quota: int = 2, **fairness: str) -> None:
        gpu = {"quota": quota}
        spec = {"parentQueue": f"{self.space}-all", "resources": {"gpu": gpu}, "namespaces": [self.space]}
        self.api.apply(
            {
                "apiVersion": QUEUE[0],
                "kind": QUEUE[1],
                "metadata": {"name": name},
                "spec": {**spec, "fairness": fairness},
            }
        )

    def job(self, name: str, queue: str, gpus: int) -> Object:
        container = {"name": "main", "image": "any", "resources": {"limits": {GPU: str(gpus)}}}
        metadata = {"name": name, "namespace": self.space, "labels": {"kueue.x-k8s.io/queue-name": queue}}
        spec = {"suspend": True, "template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
        return self.api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})

    def pod(self, job: Object) -> Object:
        """The job's one pod."""

        def found() -> Object | None:
            pods = self.api.list("v1", "Pod", self.space)
            owned = (pod for pod in pods if pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"])
            return next(owned, None)

        return wait_for(found, what=f"{job['metadata']['name']} has a pod") or {}

    def reports(self, job: Object, last_s: float, **more: str) -> None:
        """What the log agent writes on a pod that trains and has a checkpoint of ``last_s``."""
        status = {
            "checkpoint-state": "TRAIN",
            "checkpoint-safe": "true",
            "checkpoint-observed-at": stamp(time.time()),
            "last-checkpoint-time": stamp(last_s),
            "work-at-risk": "60",
            "work-at-risk-interval": "30-90",
            "checkpoint-model": "tests",
        }
        annotations = {f"kaiwo.ai/{key}": value for key, value in (status | more).items()}
        self.api.patch(
            "v1", "Pod", self.pod(job)["metadata"]["name"], {"metadata": {"annotations": annotations}}, self.space
        )

    def requested_s(self, job: Object) -> float | None:
        text = (self.pod(job)["metadata"].get("annotations") or {}).get("kaiwo.ai/save-requested")
        return None if text is None else datetime.fromisoformat(json.loads(text)["at"]).timestamp()

    def evictions(self, job: Object) -> int:
        """As Kueue counts them."""
        stats = workload_of(self.plane, job).get("status", {}).get("schedulingStats") or {}
        return sum(item["count"] for item in stats.get("evictions") or ())

    def end(self, job: Object) -> None:
        self.api.delete("batch/v1", "Job", job["metadata"]["name"], self.space, propagationPolicy="Background")
        name = workload_of(self.plane, job)["metadata"]["name"]
        self.api.delete(V, "Workload", name, self.space)

    def runs(self, job: Object) -> bool:
        return admitted(workload_of(self.plane, job))

    def clear(self) -> None:
        """Jobs and declarations away; whose controller runs also deletes the engine's queues."""
        for job in self.api.list("batch/v1", "Job", self.space):
            self.api.delete("batch/v1", "Job", job["metadata"]["name"], self.space, propagationPolicy="Background")
        self.api.delete_all(V, "Workload", self.space)
        for item in self.api.list(*QUEUE, ""):
            if item["metadata"]["name"].startswith(self.space):
                self.api.delete(*QUEUE, item["metadata"]["name"], "")

    def wait_gone(self) -> None:
        kinds = ("LocalQueue", "ClusterQueue", "Cohort")
        wait_for(lambda: not any(map(self.has, kinds)), what="the queues are gone")

    def has(self, kind: str) -> bool:
        """Whether the engine has queues of ours."""
        return any(item["metadata"]["name"].startswith(self.space) for item in self.api.list(V, kind, ""))

    def condition(self, kind: str, queue: str = "") -> str:
        status = self.api.get(*QUEUE, queue or self.owner, "").get("status") or {}
        return next((item["reason"] for item in status.get("conditions") or () if item["type"] == kind), "")

    def reclaims(self) -> str:
        found = self.api.get(V, "ClusterQueue", self.owner, "")
        return str(found["spec"]["preemption"]["reclaimWithinCohort"])


def stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
