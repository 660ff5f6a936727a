"""Teams with jobs in queues, or without one, and the controller that chooses among them."""

import json
import time
from pathlib import Path
from typing import Any

from agent_notes import checkpoint_notes
from controlplane.api import Refused
from controlplane.kai import QUEUE_LABEL, SCHEDULER
from controlplane.kueue import admitted, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import free_port, run_kopt, wait_for
from replicas import ControllerProcess

SYSTEM, GPU = "kopt-system", "nvidia.com/gpu"
WORKLOAD = ("kueue.x-k8s.io/v1beta1", "Workload")
WEBHOOKS = ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration")
CONFIGURATION = "00-kaiwo-optimizer-preemption"
LOW, HIGH = 100, 1000
GATE = "kaiwo.ai/preemption"
SAVE_REQUESTED = "kaiwo.ai/save-requested"
Object = dict[str, Any]


class Team:
    """A namespace with a queue of its own, and jobs in it."""

    def __init__(self, plane: ControlPlane, space: str, selector: dict[str, str]) -> None:
        self.plane, self.api, self.space, self._selector = plane, plane.api, space, selector
        self.jobs: dict[str, Object] = {}

    def submit(
        self,
        name: str,
        gpus: int,
        priority: str = "low",
        pods: int = 1,
        metadata: Object | None = None,
        **more: object,
    ) -> Object:
        """A Job of ``pods`` times ``gpus``, with ``metadata`` that somebody else has written, and ``more`` in its
        container; its Workload."""
        limits = {"limits": {GPU: str(gpus)}}
        container = {"name": "train", "image": "team/train:1", "resources": limits | {"requests": {"cpu": "1"}}, **more}
        template = {"spec": {"restartPolicy": "Never", "containers": [container], "nodeSelector": self._selector}}
        given = metadata or {}
        labels = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/priority-class": priority}
        spec = {"parallelism": pods, "completions": pods, "suspend": True, "template": template}
        about = given | {"name": name, "namespace": self.space, "labels": labels | given.get("labels", {})}
        wanted = {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}
        self.jobs[name] = self.api.create(wanted)
        return workload_of(self.plane, self.jobs[name])

    def run(self, name: str, gpus: int, pods: int = 1, **more: object) -> None:
        """A job of low priority that runs; one after the other, a second apart: Kueue counts in seconds."""
        started = time.time()
        self.submit(name, gpus, pods=pods, **more)
        wait_for(lambda: len(self.pods(name)) == pods, what=f"{name} runs")
        wait_for(lambda: time.time() - started > 1.1)

    def workload(self, name: str) -> Object:
        return workload_of(self.plane, self.jobs[name])

    def admitted(self, name: str) -> bool:
        return admitted(self.workload(name))

    def runs(self) -> set[str]:
        return {name for name in self.jobs if self.admitted(name)}

    def evicted(self) -> set[str]:
        """Who was ever pre-empted by Kueue: the condition stays when a Workload runs again."""
        conditions = {name: self.workload(name).get("status", {}).get("conditions", []) for name in self.jobs}
        return {name for name, found in conditions.items() if any(one["type"] == "Preempted" for one in found)}

    def pods(self, name: str) -> list[Object]:
        found = self.api.list("v1", "Pod", self.space, f"batch.kubernetes.io/job-name={name}")
        return [one for one in found if one["status"].get("phase") == "Running"]

    def note(
        self,
        name: str,
        state: str = "TRAIN",
        safe: bool = True,
        lost: int = 100,
        known: bool = True,
        ago_s: float = 30.0,
        **more: str,
    ) -> None:
        """What a log agent writes onto the pods of a job; its last checkpoint is of ``ago_s`` ago."""
        annotations = checkpoint_notes(state, safe, lost, -ago_s if known else None)
        annotations |= {f"kaiwo.ai/{key.replace('_', '-')}": value for key, value in more.items()}
        for pod in self.pods(name):
            self.api.patch("v1", "Pod", pod["metadata"]["name"], {"metadata": {"annotations": annotations}}, self.space)

    def requests(self, name: str) -> set[str]:
        """What the pods of a job are asked, as it stands on them but for the proof, which is of each pod alone."""
        annotations = [one["metadata"].get("annotations", {}) for one in self.pods(name)]
        requests = [json.loads(one[SAVE_REQUESTED]) for one in annotations if SAVE_REQUESTED in one]
        return {json.dumps({**request, "proof": ""}) for request in requests}

    def events(self, name: str) -> dict[str, str]:
        """Reasons and sentences on a job's Workload."""
        uid = self.workload(name)["metadata"]["uid"]
        found = self.api.list("events.k8s.io/v1", "Event", self.space)
        return {one["reason"]: one["note"] for one in found if one["regarding"].get("uid") == uid}

    def left_over(self) -> list[str]:
        """Workloads that carry a mark or a priority of ours."""
        found = self.api.list(*WORKLOAD, self.space)
        return [
            one["metadata"]["name"]
            for one in found
            if one["spec"]["priority"] not in (LOW, HIGH)
            or "kaiwo.ai/held" in one["metadata"].get("labels", {})
            or "kaiwo.ai/held-undo" in one["metadata"].get("annotations", {})
        ]

    def decision(self, name: str) -> Object:
        text = self.workload(name)["metadata"].get("annotations", {}).get("kaiwo.ai/preemption", "{}")
        return dict(json.loads(text))


class Pods(Team):
    """A namespace with Jobs that are in no queue."""

    def submit(self, name: str, gpus: int, priority: str = "plain-low", pods: int = 1, failures: int = 100) -> Object:
        container = {"name": "train", "image": "team/train:1", "resources": {"limits": {GPU: str(gpus)}}}
        spec = {
            "restartPolicy": "Never",
            "containers": [container],
            "nodeSelector": self._selector,
            "priorityClassName": priority,
            "terminationGracePeriodSeconds": 1,
        }
        self.jobs[name] = self.api.create(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name, "namespace": self.space},
                "spec": {
                    "parallelism": pods,
                    "completions": pods,
                    "template": {"spec": spec},
                    "backoffLimit": failures,
                },
            }
        )
        return self.jobs[name]

    def run(self, name: str, gpus: int, pods: int = 1) -> None:
        self.submit(name, gpus, pods=pods)
        wait_for(lambda: len(self.pods(name)) == pods, what=f"{name} runs")

    def all_pods(self, name: str) -> list[Object]:
        return self.api.list("v1", "Pod", self.space, f"batch.kubernetes.io/job-name={name}")

    def uids(self, name: str) -> set[str]:
        return {one["metadata"]["uid"] for one in self.pods(name)}

    def told(self, name: str) -> list[Object]:
        notes = [one["metadata"].get("annotations", {}).get("kaiwo.ai/evicting") for one in self.all_pods(name)]
        return [json.loads(one) for one in notes if one]

    def reasons(self) -> dict[str, str]:
        """What was said, all of it, by reason."""
        said: dict[str, str] = {}
        for one in self.api.list("events.k8s.io/v1", "Event", self.space):
            said[one["reason"]] = f"{said.get(one['reason'], '')} {one['note']}"
        return said


class KaiPods(Pods):
    """A namespace with Jobs in a queue of KAI's."""

    queue = ""

    @property
    def selector(self) -> dict[str, str]:
        return self._selector

    def submit(self, name: str, gpus: int, priority: str = "train", pods: int = 1, **notes: str) -> Object:
        container = {"name": "train", "image": "team/train:1", "resources": {"limits": {GPU: str(gpus)}}}
        spec = {
            "restartPolicy": "Never",
            "containers": [container],
            "nodeSelector": self._selector,
            "priorityClassName": priority,
            "terminationGracePeriodSeconds": 1,
            "schedulerName": SCHEDULER,
        }
        template = {"metadata": {"labels": {QUEUE_LABEL: self.queue}, "annotations": notes}, "spec": spec}
        metadata = {"name": name, "namespace": self.space, "labels": {QUEUE_LABEL: self.queue}}
        self.jobs[name] = self.api.create(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": metadata,
                "spec": {"parallelism": pods, "completions": pods, "template": template, "backoffLimit": 100},
            }
        )
        return self.jobs[name]

    def held(self, name: str) -> int:
        """Pods with our gate, each with its mark."""
        found = [one for one in self.all_pods(name) if {"name": GATE} in one["spec"].get("schedulingGates", [])]
        assert all(one["metadata"]["labels"]["kaiwo.ai/held"] == "preemption" for one in found)
        return len(found)

    def evicted_pods(self) -> list[str]:
        """The job of each pod that the eviction API took: KAI deletes its own victims. Trials have the same pods."""
        done = [
            one["objectRef"] for one in self.plane.audit_entries("/eviction") if one["responseStatus"]["code"] == 201
        ]
        ours = [one for one in done if (one.get("namespace"), one.get("subresource")) == (self.space, "eviction")]
        return sorted(name.rpartition("-")[0] for name in {one["name"] for one in ours})


class Controller(ControllerProcess):
    """One replica as a process."""

    def __init__(self, plane: ControlPlane, *options: str, kubeconfig: Path | None = None, review: int = 0) -> None:
        self.review = review or free_port()
        super().__init__(
            plane,
            "preemption",
            f"--review-port={self.review}",
            f"--url=https://127.0.0.1:{self.review}",
            *options,
            kubeconfig=kubeconfig,
        )
        self._plane = plane

    def wait_leading(self) -> None:
        super().wait_leading()
        self.wait_reviewing()

    def wait_reviewing(self) -> None:
        """The API server knows where, and trusts it."""

        def reviewed() -> bool:
            try:
                found = self._plane.api.get(*WEBHOOKS, CONFIGURATION)
            except Refused:
                return False
            # Made by the chart, and not filled yet.
            config = found["webhooks"][0]["clientConfig"] if found.get("webhooks") else {"url": ""}
            return bool(config.get("caBundle")) and config["url"].endswith(f":{self.review}/hold")

        self.server.wait_until(reviewed)


def switch_off(plane: ControlPlane) -> None:
    """``kopt off``."""
    done = run_kopt("off", "--kubeconfig", plane.kubeconfig)
    assert done.returncode == 0, done.stderr
