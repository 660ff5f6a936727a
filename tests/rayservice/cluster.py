"""Predictions in a cluster as docs/production.md has them: the chart, KubeRay's operator, Ray in pods with a network of
their own, MLflow, PostgreSQL and Redis; and clients that ask through the Service."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
from chart import NAMESPACE, Helm, Object
from controlplane.api import has_condition
from controlplane.kubelet import PodNetwork
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.serving.client.blocking import PredictionClient

NAME, SERVICE, PORT = "kopt-predictions", "kopt-predictions-serve-svc", 8000
AUDIENCE, CALLER = "kopt-predictions", "caller"
RAY = "ray.io/v1"
#: Ray's processes import all of Python's packages, each for itself, on a machine that may have two cores for all pods.
STARTS_WITHIN_S = 900.0


@dataclass(frozen=True)
class Answer:
    """What a client got: HTTP's status, 0 for none, the version of the model, and whether it is the fallback."""

    at_s: float
    status: int
    version: str = ""
    fallback: bool = False
    problem: str = ""

    @property
    def good(self) -> bool:
        return self.status == 200 and not self.fallback


@dataclass
class Predictions:
    """The installed release, seen by whoever runs it and by whoever asks it."""

    plane: ControlPlane
    network: PodNetwork
    helm: Helm
    values: Object
    question: Object
    token: str = ""
    _installed: Object = field(default_factory=dict)

    def install(self, **predictions: Any) -> None:
        """``helm upgrade --install`` with further values of ``predictions``."""
        self.helm.install(self.plane, {**self.values, "predictions": {**self.values["predictions"], **predictions}})

    def let_in(self) -> None:
        """An account that may ask, with its token."""
        api = self.plane.api
        subject = {"kind": "ServiceAccount", "name": CALLER, "namespace": NAMESPACE}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kopt-predictions-caller"}
        meta = {"name": CALLER, "namespace": NAMESPACE}
        api.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "test-caller"},
                "roleRef": role,
                "subjects": [subject],
            },
        )
        self.token = api.token(CALLER, NAMESPACE, 6 * 3600, [AUDIENCE])

    def service(self) -> Object:
        """The RayService's status."""
        return dict(self.plane.api.get(RAY, "RayService", NAME, NAMESPACE).get("status") or {})

    def wait_running(self, cluster_other_than: str = "") -> str:
        """Waits until the operator says that all is well, with another Ray cluster than that; returns its name."""

        def running() -> str:
            status = self.service()
            active = status.get("activeServiceStatus") or {}
            applications = active.get("applicationStatuses") or {}
            good = (
                has_condition({"status": status}, "Ready")
                and not has_condition({"status": status}, "UpgradeInProgress")
                and [one["status"] for one in applications.values()] == ["RUNNING"]
            )
            name = str(active.get("rayClusterName", ""))
            return name if good and name != cluster_other_than and self.heads_ready() else ""

        return wait_for(running, STARTS_WITHIN_S, "the operator reports the service as running", 0.5)

    def pods(self, kind: str, cluster: str = "") -> list[Object]:
        """Pods of ``head`` or ``worker`` nodes that are not being deleted."""
        labels = f"ray.io/node-type={kind}" + (f",ray.io/cluster={cluster}" if cluster else "")
        pods = self.plane.api.list("v1", "Pod", NAMESPACE, labels)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def heads_ready(self) -> bool:
        heads = self.pods("head")
        return bool(heads) and all(has_condition(pod, "Ready") for pod in heads)

    def addresses(self) -> Sequence[str]:
        """Where the Service leads now."""
        return self.network.names.addresses(f"{SERVICE}.{NAMESPACE}.svc") or ()

    def ask(self, path: str = "/v1/demand", body: Object | None = None, token: str | None = None) -> httpx.Response:
        """One request through the Service, over a connection of its own; raises httpx.TransportError."""
        addresses = self.addresses()
        if not addresses:
            raise httpx.ConnectError(f"{SERVICE} has no endpoint")
        url = f"http://{random.SystemRandom().choice(addresses)}:{PORT}{path}"
        token = self.token if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.post(url, json=body or self.question, headers=headers, timeout=15, trust_env=False)

    def controller(self) -> PredictionClient:
        """The client of our controllers, through the Service, with the right to push demand as well."""
        name = {"kind": "ClusterRole", "name": "kopt-predictions-demand-writer"}
        self.plane.api.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "test-demand-writer"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", **name},
                "subjects": [{"kind": "ServiceAccount", "name": CALLER, "namespace": NAMESPACE}],
            }
        )
        url, through = f"http://{SERVICE}.{NAMESPACE}.svc:{PORT}", _Through(self.addresses)
        return PredictionClient(url, token=lambda: self.token, transport=through)

    def answer(self) -> Answer:
        """One question about demand, as a client sees it."""
        at_s = time.monotonic()
        try:
            reply = self.ask()
            document = reply.json()
        except (httpx.TransportError, ValueError) as problem:
            return Answer(at_s, 0, problem=f"{type(problem).__name__}: {problem}")
        if reply.status_code != 200:
            return Answer(at_s, reply.status_code, problem=reply.text[:200])
        reasons = document["series"][0]["horizons"][0]["demand"]["reasons"] if document["fallback"] else ""
        return Answer(at_s, 200, str(document["model"].get("version")), document["fallback"], str(reasons)[:300])

    def wait_answer(self, version: str, timeout_s: float = STARTS_WITHIN_S) -> None:
        """Waits until that version of the model answers."""
        last: list[Answer] = []

        def answered() -> bool:
            last[:] = [self.answer()]
            return last[0].good and last[0].version == version

        wait_for(answered, timeout_s, f"version {version} answers", 0.2)

    @contextmanager
    def asked_all_the_time(self) -> Iterator[list[Answer]]:
        """A client that asks again and again, meanwhile; what it got is in the list."""
        answers: list[Answer] = []
        enough = threading.Event()

        def keep_asking() -> None:
            while not enough.wait(0.1):
                answers.append(self.answer())

        client = threading.Thread(target=keep_asking, name="client", daemon=True)
        client.start()
        try:
            yield answers
        finally:
            enough.set()
            client.join()

    @staticmethod
    def replicas() -> set[int]:
        """The processes of the endpoint's replicas, in whichever pod."""
        family = psutil.Process().children(recursive=True)
        return {one.pid for one in family if _name(one).startswith("ray::ServeRepl")}

    def account(self) -> str:
        """For whoever reads a failed test."""
        api, parts = self.plane.api, [f"RayService: {self.service()}"]
        for pod in api.list("v1", "Pod", NAMESPACE):
            name = pod["metadata"]["name"]
            states = [(one["name"], one["state"]) for one in pod["status"].get("containerStatuses") or ()]
            log = api.http.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/log", params={"container": "ray"}).text
            parts.append(f"{name}: {states}\n{log[-2000:]}")
        events = [(one["reason"], one["message"][:200]) for one in api.list("v1", "Event", NAMESPACE)]
        return "\n\n".join([*parts, f"events: {events[-40:]}"])


def _name(process: psutil.Process) -> str:
    """Empty for one that has just ended."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


class _Through(httpx.AsyncHTTPTransport):
    """Leads to one of the addresses, as a Service does; connections that are open are used again."""

    def __init__(self, addresses: Callable[[], Sequence[str]]) -> None:
        super().__init__()
        self._addresses = addresses

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        addresses = self._addresses()
        if not addresses:
            raise httpx.ConnectError(f"{SERVICE} has no endpoint")
        request.url = request.url.copy_with(host=random.SystemRandom().choice(addresses))
        return await super().handle_async_request(request)


def bad(answers: Sequence[Answer]) -> Counter[str]:
    """What went wrong, counted."""
    return Counter(f"{one.status} {one.problem}" for one in answers if not one.good)
