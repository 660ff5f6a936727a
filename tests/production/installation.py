"""The chart with ``deploy/values/production.yaml`` on a control plane with three nodes, and what its parts do."""

import os
import signal
import ssl
import tempfile
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from chart import NAMESPACE, ROOT
from controlplane.api import Refused, has_condition
from controlplane.kubelet import Kubelet
from controlplane.kubelet.network import child_of
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.serving.contract.demand_answers import DemandQuery, History
from tests.rayservice.cluster import AUDIENCE, PORT, Predictions

Object = dict[str, Any]
VALUES = ROOT / "deploy" / "values" / "production.yaml"
AGENTS, GPU = "kopt-agents", "nvidia.com/gpu"
POOL, EVICTION, JOB = ("kaiwo.ai/v1alpha1", "LendingPool"), ("kaiwo.ai/v1alpha1", "Eviction"), ("batch/v1", "Job")
#: Many processes start on a machine that may have two cores.
READY_WITHIN_S = 600.0
WORKS_WITHIN_S = 180.0
SERVICES = ("before", "after")
"""Services that Prometheus knows: one for each time that the ingester has to show that it works."""


@dataclass(frozen=True)
class Component:
    """What the chart runs as pods of one label, and what shows that it does its work.

    ``works`` is called with a word that is new each time; it raises NotReady.
    """

    name: str
    works: Callable[["Installation", str], None]
    namespace: str = NAMESPACE
    pods: int = 2
    #: Whether one of its pods leads, and the others wait.
    leads: bool = True


class Installation:
    """The release and its three nodes."""

    def __init__(self, predictions: Predictions, nodes: list[Kubelet]) -> None:
        self.predictions, self.nodes = predictions, nodes
        self.plane: ControlPlane = predictions.plane
        self.api = self.plane.api
        predictions.let_in()
        self.client = predictions.controller()

    def pods(self, component: Component) -> list[Object]:
        """Those that are not being deleted."""
        found = self.api.list("v1", "Pod", component.namespace, f"app.kubernetes.io/component={component.name}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def ready(self, component: Component) -> bool:
        pods = self.pods(component)
        return len(pods) == component.pods and all(has_condition(pod, "Ready") for pod in pods)

    def wait_ready(self, component: Component) -> None:
        wait_for(lambda: self.ready(component), READY_WITHIN_S, f"{component.name} is ready", 0.5)

    def leader(self, component: Component) -> Object:
        """The pod that leads, where one does; else the first, which is as good as any."""
        if not component.leads:
            return self.pods(component)[0]

        def leading() -> list[Object]:
            return [pod for pod in self.pods(component) if "_leading 1.0" in self.metrics(pod)]

        return wait_for(leading, WORKS_WITHIN_S, f"a replica of {component.name} leads")[0]

    def metrics(self, pod: Object) -> str:
        ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
        port = ports.get("probes") or ports["metrics"]
        return httpx.get(f"http://{pod['status']['podIP']}:{port}/metrics", trust_env=False, timeout=10).text

    def kill(self, pod: Object) -> None:
        """The first process of its container, which its node then starts again."""
        meta = pod["metadata"]
        (status,) = pod["status"]["containerStatuses"]
        os.kill(child_of(int(status["containerID"].removeprefix("process://"))), signal.SIGKILL)

        def restarted() -> bool:
            now = self.api.find("v1", "Pod", meta["name"], meta["namespace"])
            return now is None or now["status"]["containerStatuses"][0]["restartCount"] > status["restartCount"]

        wait_for(restarted, WORKS_WITHIN_S, f"{meta['name']} is started again")

    def asked_as(self, account: str, namespace: str, path: str) -> Any:
        """What the endpoint answers a component that asks for what it has sent."""
        token = self.api.token(account, namespace, 3600, [AUDIENCE])
        (address, *_) = self.predictions.addresses()
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"http://{address}:{PORT}{path}", headers=headers, trust_env=False, timeout=15).json()

    def job(self, name: str, namespace: str, *command: str) -> Object:
        """A Job with a GPU."""
        container = {"name": "main", "image": "any", "command": list(command), "resources": {"limits": {GPU: "1"}}}
        spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
        meta = {"name": name, "namespace": namespace}
        return {"apiVersion": JOB[0], "kind": JOB[1], "metadata": meta, "spec": {"template": {"spec": spec}}}

    def account(self) -> str:
        """For whoever reads a failed test."""
        parts = []
        for namespace in (NAMESPACE, AGENTS):
            for pod in self.api.list("v1", "Pod", namespace):
                name = pod["metadata"]["name"]
                states = [(one["restartCount"], one["state"]) for one in pod["status"].get("containerStatuses") or ()]
                log = self.api.http.get(f"/api/v1/namespaces/{namespace}/pods/{name}/log").text
                parts.append(f"{name}: {states}\n{log[-1500:]}")
        return "\n\n".join([*parts, f"RayService: {self.predictions.service()}"])


def reviews(on: Installation, word: str) -> None:
    """In mode enforce it refuses what no queue rule matches."""
    space = f"reviewed-{word}"
    on.api.namespace(space, {"kaiwo.ai/managed": "true"})
    on.api.patch("v1", "Namespace", space, {"metadata": {"annotations": {"kaiwo.ai/mode": "enforce"}}}, "")

    def refused() -> bool:
        try:
            on.api.create(on.job("any", space, "true"), dryRun="All")
        except Refused as refusal:
            return "rule" in refusal.message
        return False

    wait_for(refused, WORKS_WITHIN_S, "the webhook refuses a Job without a queue")


def places(on: Installation, word: str) -> None:
    """It answers a scheduler that has the certificate of the chart, where the Service leads."""
    secret = on.api.get("v1", "Secret", "kopt-extender-caller", NAMESPACE)["data"]
    with tempfile.TemporaryDirectory() as folder:
        for name, value in secret.items():
            (Path(folder) / name).write_bytes(b64decode(value))
        context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    host = f"kopt-extender.{NAMESPACE}.svc"
    names = [node.name for node in on.nodes]
    pod = {"metadata": {"name": word, "namespace": "any", "uid": word}, "spec": on.job(word, "any", "true")["spec"]}
    pod["spec"] = pod["spec"]["template"]["spec"]

    def answered() -> bool:
        addresses = on.predictions.network.names.addresses(host) or ()
        with httpx.Client(verify=context, trust_env=False, timeout=5) as scheduler:
            for address in addresses:
                offer = {"Pod": pod, "Nodes": None, "NodeNames": names}
                answer = scheduler.post(
                    f"https://{address}:9445/filter",
                    json=offer,
                    headers={"Host": host},
                    extensions={"sni_hostname": host},
                )
                if answer.status_code == 200 and answer.json()["NodeNames"] == names:
                    return True
        return False

    wait_for(answered, WORKS_WITHIN_S, "the extender answers a scheduler")


def leads(on: Installation, word: str) -> None:
    """In mode observe it holds nothing; it keeps its Lease."""
    component = next(one for one in COMPONENTS if one.works is leads)
    on.leader(component)


def feeds(on: Installation, word: str) -> None:
    """A service of Prometheus can be forecast by its name."""
    source = {"query": f'sum(increase(requests_total{{service="{word}"}}[$step]))'}
    _lend(on, word, demandSource=source)

    def known() -> bool:
        (series,) = on.client.demand(DemandQuery([History(f"ml/{word}")]), deadline_s=10.0).series
        return not series.horizons[0].demand.refused

    wait_for(known, WORKS_WITHIN_S, f"demand of {word} by its name")


def lends(on: Installation, word: str) -> None:
    """A pool says how it is."""
    name = f"lent-{word}"
    _lend(on, name, demand=f"ml/{word}")
    wait_for(lambda: on.api.get(*POOL, name, "").get("status"), WORKS_WITHIN_S, "the pool has a status")


def _lend(on: Installation, name: str, **demand: Any) -> None:
    service = {
        "name": name,
        "namespace": "ml",
        "selector": {"matchLabels": {"app": name}},
        "capacityPerGpu": 600,
        **demand,
    }
    spec = {"gpus": 4, "services": [service], "borrowers": [{"system": "Kueue", "queue": "research"}]}
    on.api.apply({"apiVersion": POOL[0], "kind": POOL[1], "metadata": {"name": name}, "spec": spec})


def times(on: Installation, word: str) -> None:
    """The endpoint hears of a Job that has run."""
    space = f"timed-{word}"
    on.api.namespace(space)
    on.api.create(on.job("sleeper", space, "sleep", "2"))

    def heard() -> bool:
        queues = on.asked_as("kopt-runs", NAMESPACE, "/v1/runtime/queues")["queues"]
        return any(queue["queue"] == space for queue in queues)

    wait_for(heard, WORKS_WITHIN_S, f"the endpoint knows of {space}")


def records(on: Installation, word: str) -> None:
    """A Job that is suspended while it runs has a line in the ledger."""
    space = f"recorded-{word}"
    on.api.namespace(space)
    on.api.create(on.job("one", space, "sleep", "600"))
    on.api.wait(*JOB, "one", lambda job: job["status"].get("ready"), space)
    on.api.patch(*JOB, "one", {"spec": {"suspend": True}}, space)
    wait_for(lambda: on.api.list(*EVICTION, space), WORKS_WITHIN_S, "the eviction is recorded")


def follows(on: Installation, word: str) -> None:
    """The endpoint follows a Job by what its pod prints, on the node whose agent was killed."""
    space, name = f"trained-{word}", "llama"
    on.api.namespace(space, {"kaiwo.ai/managed": "true"})
    lines = "; ".join(f"echo 'step {step}/500 loss 1.1 2.00s/it'" for step in range(1, 9))
    job = on.job(name, space, "sh", "-c", f"{lines}; sleep 60")
    node = on.leader(_of("logtail"))["spec"]["nodeName"]
    job["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    on.api.create(job)

    def followed() -> bool:
        jobs = on.asked_as("kopt-logtail", AGENTS, "/v1/checkpoint")["jobs"]
        return any(job["job"].startswith(f"{space}/") for job in jobs)

    wait_for(followed, WORKS_WITHIN_S, f"the endpoint follows {space}/{name}")


def answers(on: Installation, word: str) -> None:
    """The champion of the shared registry answers."""
    on.predictions.wait_answer("1")


COMPONENTS = (
    Component("webhook", reviews, leads=False),
    Component("extender", places),
    Component("sizing", leads),
    Component("ingest", feeds),
    Component("reallocation", lends),
    Component("runs", times),
    Component("ledger", records),
    Component("logtail", follows, AGENTS, pods=3, leads=False),
)
"""All but the endpoint, whose pods KubeRay makes."""


def _of(name: str) -> Component:
    return next(one for one in COMPONENTS if one.name == name)
