"""Kueue and KAI as a replay needs them: jobs in, and their states by watches on a real API server."""

import json
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from benchmarks.shares.day import TraceJob, queue_name
from benchmarks.shares.replay import JobState

_RESOURCE, _KUEUE = "nvidia.com/gpu", "kueue.x-k8s.io/v1beta2"
Object = dict[str, Any]


class Watched:
    """All events of a kind in one namespace, from its beginning, in a thread that ends with the process."""

    def __init__(self, api: Any, api_version: str, kind: str, space: str) -> None:
        self._api, self._path = api, api.path(api_version, kind, space)
        self._events: queue.SimpleQueue[tuple[str, Object]] = queue.SimpleQueue()
        self._error = ""
        threading.Thread(target=self._follow, daemon=True).start()

    def drained(self) -> list[tuple[str, Object]]:
        """Types and objects since the last call. Raises RuntimeError where the watch broke."""
        if self._error:
            raise RuntimeError(f"the watch of {self._path} broke: {self._error}")
        return [self._events.get() for _ in range(self._events.qsize())]

    def _follow(self) -> None:
        version = "0"
        while True:
            params = {"watch": "true", "resourceVersion": version}
            try:
                with self._api.http.stream("GET", self._path, params=params, timeout=None) as answer:
                    for line in answer.iter_lines():
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            self._error = str(event["object"].get("message", event["object"]))
                            return
                        version = event["object"]["metadata"]["resourceVersion"]
                        self._events.put((event["type"], event["object"]))
            except (httpx.TransportError, RuntimeError):
                # The control plane has ended.
                return


class KueueJobs:
    """Jobs of Kubernetes under Kueue. No pod is started: quota is what is shared."""

    def __init__(self, plane: Any, space: str) -> None:
        self._api, self._space = plane.api, space
        self._watched = Watched(plane.api, _KUEUE, "Workload", space)
        self._by_uid: dict[str, str] = {}
        self._workloads: dict[str, str] = {}

    def submit(self, job: TraceJob) -> None:
        labels = {"kueue.x-k8s.io/queue-name": queue_name(job.queue)}
        template = {"spec": {"containers": [_container(job)], "restartPolicy": "Never"}}
        metadata = {"name": job.name, "namespace": self._space, "labels": labels}
        document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
        created = self._api.create({**document, "spec": {"suspend": True, "template": template}})
        self._by_uid[created["metadata"]["uid"]] = job.name

    def end(self, name: str) -> None:
        self._api.delete("batch/v1", "Job", name, self._space, propagationPolicy="Background")
        # The garbage collector hears of Kueue's kinds late.
        self._api.delete(_KUEUE, "Workload", self._workloads[name], self._space)

    def states(self) -> Sequence[JobState]:
        return [state for event in self._watched.drained() if (state := self._state(*event)) is not None]

    def _state(self, kind: str, document: Object) -> JobState | None:
        owners = document["metadata"].get("ownerReferences") or ()
        name = next((self._by_uid[item["uid"]] for item in owners if item["uid"] in self._by_uid), "")
        if not name:
            return None
        self._workloads[name] = document["metadata"]["name"]
        conditions = {item["type"]: item for item in document.get("status", {}).get("conditions") or ()}
        holds, evicted = (conditions.get(each, {}).get("status") == "True" for each in ("QuotaReserved", "Evicted"))
        return JobState(name, holds, holds and not evicted, kind == "DELETED", _cause(conditions) if evicted else "")


def _cause(conditions: Mapping[str, Object]) -> str:
    reason = str(conditions["Evicted"].get("reason", ""))
    return str(conditions.get("Preempted", {}).get("reason", reason)) if reason == "Preempted" else reason


class KaiPods:
    """Pods under KAI on one simulated node; one that is evicted is made anew, as controllers of jobs do."""

    def __init__(self, plane: Any, space: str, selector: Mapping[str, str]) -> None:
        self._api, self._space, self._selector = plane.api, space, dict(selector)
        self._watched = Watched(plane.api, "v1", "Pod", space)
        self._jobs: dict[str, TraceJob] = {}
        self._pods: dict[str, str] = {}
        self._ended: set[str] = set()
        self._tries = 0

    def submit(self, job: TraceJob) -> None:
        self._jobs[job.name] = job
        self._tries += 1
        self._pods[job.name] = f"{job.name}-{self._tries}"
        labels = {"kai.scheduler/queue": queue_name(job.queue), "job": job.name}
        metadata = {"name": self._pods[job.name], "namespace": self._space, "labels": labels}
        spec = {
            "schedulerName": "kai-scheduler",
            "nodeSelector": self._selector,
            "containers": [_container(job)],
            "terminationGracePeriodSeconds": 0,
        }
        self._api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def end(self, name: str) -> None:
        self._ended.add(name)
        self._api.delete("v1", "Pod", self._pods[name], self._space, gracePeriodSeconds=0)

    def states(self) -> Sequence[JobState]:
        return [state for event in self._watched.drained() if (state := self._state(*event)) is not None]

    def _state(self, kind: str, document: Object) -> JobState | None:
        name, is_gone = document["metadata"].get("labels", {}).get("job", ""), kind == "DELETED"
        if name not in self._jobs or document["metadata"]["name"] != self._pods[name]:
            return None
        if is_gone and name not in self._ended:
            self.submit(self._jobs[name])
            return JobState(name, cause="evicted")
        holds = bool(document["spec"].get("nodeName"))
        leaves = "deletionTimestamp" in document["metadata"]
        return JobState(name, holds, holds and not leaves, is_gone, "evicted" if leaves else "")


def _container(job: TraceJob) -> Object:
    return {"name": "main", "image": "any", "resources": {"limits": {_RESOURCE: str(job.gpus)}}}
