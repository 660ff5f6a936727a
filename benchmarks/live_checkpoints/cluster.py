"""The trainers as pods of a node whose GPUs they all hold, the product around them, and work that needs their GPUs.

Two endpoints hear of every trainer: one from an agent that reads logs alone, one from an agent that looks into the
volumes, too; the second writes the annotations that the controller goes by. Needs ``tests`` among the modules.
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import NotReady, free_port, wait_for
from local_claims import claim_folder
from replicas import KOPT
from shipped_models import shipped_endpoint

from benchmarks.checkpoint_corpus.recording import build_slow_storage
from benchmarks.live_checkpoints.moments import Moment, Status
from benchmarks.live_checkpoints.ways import PROGRAMS, Way

GPU, BATCH = "nvidia.com/gpu", "batch/v1"
STEP_S, SAVE_EVERY = 0.25, 240
BYTES_PER_S, LATENCY_MS = 1.2e6, 15
LOW, HIGH = "live-low", "live-high"
SAFE, REASON = "kaiwo.ai/checkpoint-safe", "kaiwo.ai/checkpoint-reason"
DECISION = "kaiwo.ai/preemption"
Object = dict[str, Any]


@dataclass(frozen=True)
class Eviction:
    """``way`` went after work had waited ``wait_s`` for its GPU; no trainer went where it is empty."""

    way: str
    wait_s: float


@dataclass
class Cluster:
    """The namespace of the trainers."""

    plane: ControlPlane
    node: Kubelet
    folder: Path
    python: str
    text_url: str
    files_url: str
    space: str
    storage: Path

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def record(self, way: Way) -> Path:
        """What it notes about itself."""
        return self.folder / "records" / f"{way.name}.jsonl"

    def start(self, way: Way) -> None:
        """A Job that goes on with the checkpoints of the one before it."""
        checkpoints = self.folder / "volumes" / way.name
        if not checkpoints.exists():
            claim_folder(self.plane, self.space, way.name, checkpoints, self.node)
        elsewhere = Path("/dev/shm") / self.space / way.name
        elsewhere.mkdir(parents=True, exist_ok=True)
        variables = {
            "KOPT_RECORD": str(self.record(way)),
            "LD_PRELOAD": str(self.storage),
            "KOPT_SLOW_FOLDER": str(checkpoints),
            "KOPT_SLOW_BYTES_PER_S": str(BYTES_PER_S),
            "KOPT_SLOW_LATENCY_MS": str(LATENCY_MS),
            # What is made elsewhere and moved has to be copied, as it has to from a container's own disk.
            "TMPDIR": str(elsewhere),
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        fields = {"POD_UID": "metadata.uid", "POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
        env: list[Object] = [{"name": name, "value": value} for name, value in variables.items()]
        env += [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
        command = way.command(self.python, "/checkpoints", STEP_S, SAVE_EVERY)
        container = {
            "name": "trainer",
            "image": "train",
            "command": [sys.executable, str(PROGRAMS / "runtime.py"), str(self.logs), *command],
            "env": env,
            "resources": {"limits": {GPU: "1"}},
            "volumeMounts": [{"name": "out", "mountPath": "/checkpoints"}],
        }
        volume = {"name": "out", "persistentVolumeClaim": {"claimName": way.name}}
        self._create(way.name, container, LOW, {"kaiwo.ai/job": way.name}, [volume])

    def _create(
        self, name: str, container: Object, priority: str, annotations: Object, volumes: list[Object] | None = None
    ) -> None:
        spec = {
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": volumes or [],
            "nodeSelector": self.node.selector,
            "priorityClassName": priority,
            "terminationGracePeriodSeconds": 1,
        }
        job = {
            "backoffLimit": 100,
            "podReplacementPolicy": "Failed",
            "template": {"metadata": {"annotations": annotations}, "spec": spec},
        }
        metadata = {"name": name, "namespace": self.space}
        self.plane.api.create({"apiVersion": BATCH, "kind": "Job", "metadata": metadata, "spec": job})

    def pods(self, job: str = "") -> list[Object]:
        return self.plane.api.list("v1", "Pod", self.space, f"batch.kubernetes.io/job-name={job}" if job else "")

    def runs(self, job: str) -> bool:
        return any(pod["status"].get("phase") == "Running" for pod in self.pods(job))

    def end(self, job: str) -> None:
        """It and its pods are gone."""
        self.plane.api.delete(BATCH, "Job", job, self.space, propagationPolicy="Background")
        jobs = lambda: {item["metadata"]["name"] for item in self.plane.api.list(BATCH, "Job", self.space)}  # noqa: E731
        wait_for(lambda: not self.pods(job) and job not in jobs(), what=f"{job} is gone")

    def evict(self, number: int, budget_s: float) -> Eviction:
        """Urgent work needs a GPU; who had to go for it starts again when it is done."""
        name, began_s = f"urgent-{number}", time.monotonic()
        container = {"name": "urgent", "image": "work", "command": ["sleep", "0.5"]}
        self._create(name, container | {"resources": {"limits": {GPU: "1"}}}, HIGH, {})
        try:
            pod = wait_for(lambda: self._served(name), budget_s, what=f"{name} has its GPU", every_s=0.2)
        except NotReady:
            self.end(name)
            return Eviction("", time.monotonic() - began_s)
        wait_s = time.monotonic() - began_s
        victims = json.loads(pod["metadata"].get("annotations", {}).get(DECISION, "{}")).get("victims", [])
        jobs = [victim.partition("/")[2] for victim in victims]
        for job in (*jobs, name):
            self.end(job)
        return Eviction("".join(jobs), wait_s)

    def _served(self, name: str) -> Object | None:
        started = (pod for pod in self.pods(name) if pod["status"].get("phase") in ("Running", "Succeeded"))
        return next(started, None)

    def moments(self) -> dict[str, Moment]:
        """By view: what the endpoint says by text alone, what it says with files, and what stands on the pods."""
        views = {"text": self.text_url, "files": self.files_url}
        return {view: self._statuses(url) for view, url in views.items()} | {"pods": self._annotations()}

    def _statuses(self, url: str) -> Moment:
        began_s = time.monotonic()
        answer = httpx.get(f"{url}/v1/checkpoint", trust_env=False, timeout=60.0).json()
        ended_s = time.monotonic()
        jobs = {job["job"].partition("/")[2]: Status(job["safe"], job["reason"]) for job in answer["jobs"]}
        return Moment(began_s, ended_s, jobs)

    def _annotations(self) -> Moment:
        began_s = time.monotonic()
        annotations = [pod["metadata"].get("annotations", {}) for pod in self.pods()]
        ended_s = time.monotonic()
        statuses = {
            notes["kaiwo.ai/job"]: Status(notes.get(SAFE) == "true", notes.get(REASON, ""))
            for notes in annotations
            if "kaiwo.ai/job" in notes
        }
        return Moment(began_s, ended_s, statuses)


@contextlib.contextmanager
def running(plane: ControlPlane, folder: Path, python: str, gpus: int) -> Iterator[Cluster]:
    """A node with so many GPUs, endpoints and agents; ``python`` runs the trainers."""
    for name, value, policy in ((LOW, 10, "PreemptLowerPriority"), (HIGH, 1000, "Never")):
        plane.api.priority_class(name, value, policy)
    space = plane.api.space("live", {"kaiwo.ai/managed": "true"})
    for name in ("logs", "records", "home-text", "home-files"):
        (folder / name).mkdir(parents=True)
    with contextlib.ExitStack() as parts:
        text_url = parts.enter_context(shipped_endpoint(folder / "home-text"))
        files_url = parts.enter_context(shipped_endpoint(folder / "home-files"))
        node = parts.enter_context(Kubelet(plane, resources={GPU: str(gpus)}))
        storage = build_slow_storage(folder)
        cluster = Cluster(plane, node, folder, python, text_url, files_url, space, storage)
        views = (("text", text_url, "", "observe"), ("files", files_url, str(node.pods), "annotate"))
        for view, url, volumes, mode in views:
            command = [*KOPT, "agent", "logtail", "node", "--node", node.name, "--root", str(cluster.logs)]
            command += ["--predictions", url, "--volumes", volumes, "--mode", mode]
            agent = plane.start_server(f"logtail-{view}", command, {"KUBECONFIG": str(plane.kubeconfig)})
            parts.callback(agent.kill)
        yield cluster


@contextlib.contextmanager
def controller(plane: ControlPlane, budget_s: float) -> Iterator[None]:
    """The pre-emption controller, which evicts."""
    plane.api.namespace("kopt-system")
    program, port = Path(__file__).parent / "controller.py", free_port()
    command = [sys.executable, "-P", str(program), str(plane.kubeconfig), str(port), str(budget_s)]
    server = plane.start_server("preemption-live", command)
    try:
        metrics = f"http://127.0.0.1:{port}/metrics"
        leads = "kopt_preemption_leading 1.0"
        server.wait_until(lambda: leads in httpx.get(metrics, trust_env=False).text, what="it leads")
        yield
    finally:
        server.kill()
