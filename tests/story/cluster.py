"""The cluster of the story: Kueue, a node with four GPUs whose pods run, and ours as ``helm install`` brings it."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
from chart import Helm
from controlplane.api import has_condition
from controlplane.kubelet import Kubelet
from controlplane.kueue import workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from metrics_api import lead_metrics_to
from replicas import KOPT

from tests.story.service import Service

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
READER, STRANGER = "reader", "stranger"
"""Accounts of the namespace: one may look at it, the other may not."""
SYSTEM, GPU, SERVICE, PORT = "kopt-system", "nvidia.com/gpu", "chat", 8000
APPS, BATCH, KAIWO = "apps/v1", "batch/v1", "kaiwo.ai/v1alpha1"
REQUESTS_PER_GPU = 1_000
"""That a GPU answers in five minutes."""
HEAD_START_S = 45
"""That lending has before the autoscaler."""
Object = dict[str, Any]
T = TypeVar("T")


def lending_pool(name: str, namespace: str, service: str, queue: str) -> Object:
    """Four GPUs of a service that Prometheus measures, lent to a ClusterQueue of Kueue."""
    lender = {
        "name": service,
        "namespace": namespace,
        "selector": {"matchLabels": {"app": service}},
        "demandSource": {"engine": "vLLM"},
        "capacityPerGpu": REQUESTS_PER_GPU,
        "minimumGpus": 1,
    }
    spec = {
        "gpus": 4,
        "services": [lender],
        "leadTime": "5m",
        "hold": "5s",
        "mode": "enforce",
        "borrowers": [{"system": "Kueue", "queue": queue}],
    }
    return {"apiVersion": KAIWO, "kind": "LendingPool", "metadata": {"name": name}, "spec": spec}


@dataclass
class Cluster:
    """The namespace of the service and of the training, and our components in theirs."""

    plane: ControlPlane
    node: Kubelet
    helm: Helm
    endpoint: Service
    folder: Path
    queue: str
    python: str
    space: str
    began_s: float = field(default_factory=time.monotonic)

    def until(self, check: Callable[[], T], what: str, timeout_s: float = 90.0) -> T:
        """The first true answer; what happened is told, for those who watch (``make story``)."""
        answer = wait_for(check, timeout_s, what=what)
        self.tell(what)
        return answer

    def tell(self, what: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self.began_s:6.1f} s  {what}\n")
        sys.stdout.flush()

    def show(self, *words: str) -> None:
        """What a user of ``kopt`` would see now."""
        self.tell(f"$ kopt {' '.join(words)}\n\n{self.kopt(*words)}")

    @property
    def output(self) -> Path:
        return self.folder / "checkpoints"

    def install(self, prometheus: str) -> None:
        """``helm install``, and somebody who may look at the namespace."""
        own = {"enabled": True, "replicas": 1}
        values = {
            "mode": "annotate",
            "webhook": {"enabled": False},
            "extender": {"enabled": False},
            "sizing": {"enabled": False},
            # All pods share this machine: each listens on its own address.
            "pods": {"listen": "$(POD_IP)"},
            "predictions": {"url": self.endpoint.url, "auth": "none"},
            "ingest": {**own, "prometheus": {"url": prometheus}},
            "evictions": own,
            "lending": own,
            "autoscaling": own,
            "logtail": {"enabled": True, "form": "cluster"},
            "pages": own,
        }
        self.tell(
            f"$ helm install kopt deploy/chart, with {', '.join(name for name in values if values[name] is own)}…"
        )
        self.helm.install(self.plane, values, "--wait", "--timeout=100s")
        self._lead_to_metrics()
        for name in (READER, STRANGER):
            self.plane.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": self._meta(name)})
        subject = {"kind": "ServiceAccount", "name": READER, "namespace": self.space}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
        binding = {"metadata": self._meta(READER), "roleRef": role, "subjects": [subject]}
        self.plane.api.apply({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", **binding})

    def _meta(self, name: str) -> Object:
        return {"name": name, "namespace": self.space}

    def _lead_to_metrics(self) -> None:
        lead_metrics_to(self.plane.api, self._address("autoscaling"), 9458)

    def _address(self, component: str) -> str:
        """Of a component's pod, once it is ready."""

        def address() -> str:
            pods = self.plane.api.list("v1", "Pod", SYSTEM, f"app.kubernetes.io/component={component}")
            return next((pod["status"]["podIP"] for pod in pods if has_condition(pod, "Ready")), "")

        return wait_for(address, what=f"{component} is ready")

    def kill(self) -> None:
        """All of ours at once, without a word, and none comes back."""
        self._replicas(0)
        for pod in self.plane.api.list("v1", "Pod", SYSTEM):
            self.plane.api.delete("v1", "Pod", pod["metadata"]["name"], SYSTEM, gracePeriodSeconds=0)

    def revive(self) -> None:
        self._replicas(1)
        self._lead_to_metrics()

    def _replicas(self, count: int) -> None:
        for deployment in self.plane.api.list(APPS, "Deployment", SYSTEM):
            self.plane.api.patch(
                APPS, "Deployment", deployment["metadata"]["name"], {"spec": {"replicas": count}}, SYSTEM
            )

    def serve(self) -> None:
        """The service, and an autoscaler that goes by our forecast: a GPU for each pod."""
        labels = {"app": SERVICE}
        address = f"$(POD_IP):{PORT}"
        container = {
            "name": "serve",
            "image": "serve",
            "command": [
                sys.executable,
                "-P",
                str(HERE / "serve.py"),
                address,
                str(self.folder / "prometheus" / "targets"),
                self.space,
                SERVICE,
            ],
            "env": [
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ],
            "resources": {"limits": {GPU: "1"}, "requests": {"cpu": "10m"}},
        }
        pod = {
            "containers": [container],
            "nodeSelector": self.node.selector,
            "priorityClassName": "story-high",
            "terminationGracePeriodSeconds": 1,
        }
        meta = {"name": SERVICE, "namespace": self.space}
        deployment = {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        selector = {"matchLabels": {"service": SERVICE, "lead": "5m"}}
        metric = {"name": "kopt_requests_per_second", "selector": selector}
        target = {"type": "AverageValue", "averageValue": f"{REQUESTS_PER_GPU / 300:.2f}"}
        autoscaler = {
            "scaleTargetRef": {"apiVersion": APPS, "kind": "Deployment", "name": SERVICE},
            "minReplicas": 1,
            "maxReplicas": 4,
            # Borrowers save first: where the pods come at once, kube-scheduler preempts whoever is in their way.
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": HEAD_START_S},
                "scaleDown": {"stabilizationWindowSeconds": 0},
            },
            "metrics": [{"type": "External", "external": {"metric": metric, "target": target}}],
        }
        self.plane.api.apply(
            {"apiVersion": APPS, "kind": "Deployment", "metadata": meta, "spec": deployment},
            {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": meta, "spec": autoscaler},
        )

    def stop_serving(self) -> None:
        self.plane.api.delete("autoscaling/v2", "HorizontalPodAutoscaler", SERVICE, self.space)
        self.plane.api.delete(APPS, "Deployment", SERVICE, self.space, propagationPolicy="Background")

    def scale(self, pods: int) -> None:
        """As a person would, where the autoscaler has no forecast."""
        self.plane.api.patch(APPS, "Deployment", SERVICE, {"spec": {"replicas": pods}}, self.space)

    def servers(self) -> Sequence[str]:
        """Where the service answers."""
        return [f"{pod['status']['podIP']}:{PORT}" for pod in self._running(f"app={SERVICE}")]

    def lend(self) -> None:
        self.plane.api.apply(lending_pool(self.space, self.space, SERVICE, self.queue))

    def pool(self) -> Object:
        return self.plane.api.get(KAIWO, "LendingPool", self.space, "").get("status", {})

    def lent(self) -> int:
        return int(self.pool().get("lentGpus", 0))

    def submit(self) -> Object:
        """The training, as a Job in the queue: two of the four GPUs."""
        self.output.mkdir(exist_ok=True)
        mounts = [{"name": "podinfo", "mountPath": "/etc/podinfo"}, {"name": "output", "mountPath": "/checkpoints"}]
        notes = {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}
        volumes = [
            {"name": "podinfo", "downwardAPI": {"items": [notes]}},
            {"name": "output", "hostPath": {"path": str(self.output)}},
        ]
        variables = {
            "PYTHONPATH": str(ROOT / "src"),
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.folder),
        }
        container = {
            "name": "train",
            "image": "train",
            "command": [self.python, str(HERE / "train.py"), "/checkpoints", "/etc/podinfo/annotations"],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "volumeMounts": mounts,
            "resources": {"limits": {GPU: "2"}, "requests": {"cpu": "10m"}},
        }
        pod = {
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": volumes,
            "priorityClassName": "story-low",
            "terminationGracePeriodSeconds": 5,
        }
        annotations = {"kaiwo.ai/saves-on-request": "true", "kaiwo.ai/job": "llama"}
        spec = {
            "suspend": True,
            "backoffLimit": 20,
            "podReplacementPolicy": "Failed",
            "template": {"metadata": {"annotations": annotations}, "spec": pod},
        }
        labels = {"kueue.x-k8s.io/queue-name": "gpus"}
        metadata = {"name": "llama", "namespace": self.space, "labels": labels}
        return self.plane.api.create({"apiVersion": BATCH, "kind": "Job", "metadata": metadata, "spec": spec})

    def trainers(self) -> list[Object]:
        """Pods of the training that run and are not being deleted."""
        return self._running("batch.kubernetes.io/job-name=llama")

    def _running(self, labels: str) -> list[Object]:
        return [
            pod
            for pod in self.plane.api.list("v1", "Pod", self.space, labels)
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]

    def workload(self) -> Object:
        return workload_of(self.plane, self.plane.api.get(BATCH, "Job", "llama", self.space))

    def notes(self) -> dict[str, str]:
        """What the log agent wrote on the pod that trains."""
        return next((pod["metadata"].get("annotations", {}) for pod in self.trainers()), {})

    def log(self, pod: Object) -> str:
        path = f"/api/v1/namespaces/{self.space}/pods/{pod['metadata']['name']}/log"
        return self.plane.api.request("GET", path).text

    def saved_steps(self) -> list[int]:
        """Of the checkpoints that are whole: a Trainer writes its state last."""
        return sorted(int(one.parent.name.split("-")[1]) for one in self.output.glob("checkpoint-*/trainer_state.json"))

    def evictions(self) -> list[Object]:
        return self.plane.api.list(KAIWO, "Eviction", self.space)

    def page(self, account: str) -> str:
        """The page of the cluster, as the browser of somebody who logs in gets it."""
        path = f"{self.plane.api.path('v1', 'ServiceAccount', self.space, account)}/token"
        spec = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["kopt-pages"]}}
        token = self.plane.api.request("POST", path, json=spec).json()["status"]["token"]
        address = f"http://{self._address('pages')}:8701"
        with httpx.Client(base_url=address, timeout=30, trust_env=False, follow_redirects=True) as browser:
            answer = browser.post("/login", data={"token": token, "next": "/cluster"})
        return answer.text if answer.status_code == 200 and "Log out" in answer.text else ""

    def kopt(self, *words: str) -> str:
        """What a command prints."""
        name = f"story-command-{time.monotonic_ns()}"
        command = self.plane.start_server(name, [*KOPT, *words], {"KUBECONFIG": str(self.plane.kubeconfig)})
        wait_for(lambda: not command.alive, what=f"kopt {' '.join(words)} ends")
        return command.log.read_text()

    def account(self) -> str:
        """For whoever reads a failed test."""
        api, parts = self.plane.api, {}
        for space in (SYSTEM, self.space):
            for pod in api.list("v1", "Pod", space):
                name = pod["metadata"]["name"]
                text = api.request("GET", f"/api/v1/namespaces/{space}/pods/{name}/log").text
                parts[f"log of {name}"] = text[-4000:]
        scaled = api.list("autoscaling/v2", "HorizontalPodAutoscaler", self.space)
        pods = [pod["metadata"] | {"phase": pod["status"].get("phase")} for pod in api.list("v1", "Pod", self.space)]
        parts["objects"] = json.dumps(
            [self.pool(), self.evictions(), [one["status"] for one in scaled], pods], indent=1
        )
        return json.dumps(parts, indent=1).replace("\\n", "\n")
