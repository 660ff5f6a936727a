"""A real Kubernetes control plane of processes on loopback: etcd, API server, controller-manager, scheduler.

TLS, RBAC, the Node authorizer, audit and the admission plugins of a usual cluster are on. Nodes are simulated by
``kwok.py`` or served by ``kubelet.py``; there is no network between pods and no kube-proxy.
"""

import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from controlplane import build
from controlplane.api import Api, Object, has_condition, kubeconfig, load_all
from controlplane.certificates import Authority, KeyPair, signing_keys
from controlplane.processes import Server, free_port, wait_for

#: The commands of a control plane by the group that builds them.
BINARIES = {"etcd": ("etcd",), "kubernetes": ("kube-apiserver", "kube-controller-manager", "kube-scheduler")}
CRDS = Path(__file__).with_name("crds")

# Who wrote what is kept; reads and leases of the system's own parts would only fill the disk.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/version", "/openapi*"]},
        {
            "level": "None",
            "userGroups": ["system:masters", "system:nodes", "system:serviceaccounts:kube-system"],
            "verbs": ["get", "list", "watch"],
        },
        {
            "level": "None",
            "users": ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"],
            "verbs": ["get", "list", "watch"],
        },
        {"level": "Metadata"},
    ],
}


_GATES = "--feature-gates=DRADeviceTaintRules=true"
"""Off in Kubernetes 1.36 unless an administrator wants it, as is the version of the API that it needs."""


@dataclass(frozen=True)
class Settings:
    """What a test may want different about a control plane of its own."""

    #: Seconds without a sign of life after which a node counts as gone; long, as kwok's nodes give none.
    node_monitor_grace_period_s: int = 3600
    #: Of every component.
    gates: tuple[str, ...] = (_GATES,)
    #: Further flags, e.g. ``("--feature-gates=…",)``.
    api_server_flags: tuple[str, ...] = ()
    controller_manager_flags: tuple[str, ...] = ()


class Cluster:
    """A cluster that a kubeconfig names: what tests need of any, their own or a borrowed one."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.kubeconfig = kubeconfig
        self.folder = folder
        self.api = Api(kubeconfig)
        self.url = self.api.url
        self.ca = self.api.authority
        self._numbers = itertools.count(1)
        self._installed: set[str] = set()

    def kubeconfig_for(self, service_account: str, namespace: str, seconds: int = 12 * 3600) -> Path:
        """A kubeconfig with a token of an existing service account: its RBAC and nothing more."""
        token = self.api.token(service_account, namespace, seconds)
        name = f"{namespace}-{service_account}-{next(self._numbers)}.kubeconfig"
        return kubeconfig(self.folder / name, self.url, self.ca, {"token": token})

    def install_crds(self, *names: str) -> None:
        """Installs custom resources: jobset, lws, kuberay, training-operator, trainer, appwrapper, kserve, kaiwo.

        Returns when the server serves them; a second time at once. Schemas as large as KubeRay's take seconds.
        """
        for name in [name for name in names if name not in self._installed]:
            own = CRDS / f"{name}.yaml"
            self.apply_crds([own] if own.exists() else build.custom_resources(name))
            self._installed.add(name)

    def apply_crds(self, paths: Sequence[Path]) -> None:
        """Installs the definitions in the files and waits until the server serves them."""
        documents = [one for path in paths for one in load_all(path)]
        self.apply_crd(*(one for one in documents if one.get("kind") == "CustomResourceDefinition"))

    def apply_crd(self, *definitions: Object) -> None:
        """Installs definitions (again) and waits until the server serves them."""
        for definition in definitions:
            self.api.replace(_without_descriptions(definition))
        for definition in definitions:
            spec = definition["spec"]
            self.api.wait(definition["apiVersion"], definition["kind"], definition["metadata"]["name"], _established)
            version = next(one["name"] for one in spec["versions"] if one["served"])
            self._wait_until_served(f"/apis/{spec['group']}/{version}/{spec['names']['plural']}")

    def _wait_until_served(self, path: str) -> None:
        wait_for(lambda: self.api.http.get(path, params={"limit": "1"}).is_success, what=path)


class ControlPlane(Cluster):
    """A running control plane; everything of it lies in ``folder`` and is gone after ``stop()``."""

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.audit_log = folder / "audit.log"
        self._others: list[Server] = []
        self._authority = Authority(folder)
        port = free_port()
        self.url, self.ca, self.folder = f"https://127.0.0.1:{port}", self._authority.certificate, folder
        admin = self._authority.issue("admin", "kopt-tests", ["system:masters"])
        super().__init__(self._kubeconfig("admin", admin), folder)
        try:
            self._start(port)
        except BaseException:
            self.stop()
            raise

    def _start(self, port: int) -> None:
        self._etcd_url = f"http://127.0.0.1:{free_port()}"
        self.serving = self.issue("serving", "kube-apiserver", hosts=["kubernetes.default.svc", "kubernetes"])
        self._tokens = signing_keys(self.folder)
        self.etcd = Server("etcd", _etcd_command(self.folder, self._etcd_url), self.folder)
        self.etcd.wait_until(lambda: httpx.get(f"{self._etcd_url}/health", trust_env=False).json()["health"] == "true")
        self.api_server = Server("kube-apiserver", self._api_server_command(port), self.folder)
        self._wait_for_api_server()
        self.controller_manager = Server("kube-controller-manager", self._controller_manager_command(), self.folder)
        self.scheduler = self.start_scheduler({}, wait=False)
        self._wait_for_scheduler(self.scheduler)
        self.controller_manager.wait_until(lambda: self.api.find("v1", "ServiceAccount", "default"))

    def issue(self, name: str, common_name: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> KeyPair:
        """A certificate of the cluster's authority; valid for loopback and ``hosts``, as a client for its groups."""
        return self._authority.issue(name, common_name, groups, ["127.0.0.1", "localhost", *hosts])

    def kubeconfig_as(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig with a client certificate of a person, e.g. to see what RBAC or a webhook makes of them."""
        return self._kubeconfig(f"user-{next(self._numbers)}", self._authority.issue(f"user-{user}", user, groups))

    def restart_api_server(self, compact: bool = False, gentle: bool = False) -> None:
        """Kills the API server (``gentle``: SIGTERM) and starts it again; watches resume or, compacted, get 410."""
        self.api_server.stop() if gentle else self.api_server.kill()
        if compact:
            self.compact()
        self.api_server.start()
        self._wait_for_api_server()

    def compact(self) -> None:
        """Makes etcd forget all but the newest revision of everything."""
        key = {"key": "AA=="}
        header = self._etcd_call("range", {**key, "limit": 1, "keys_only": True})["header"]
        self._etcd_call("compaction", {"revision": header["revision"], "physical": True})

    def start_scheduler(self, config: Object, wait: bool = True, name: str = "") -> Server:
        """A kube-scheduler with the given KubeSchedulerConfiguration, ready unless ``wait`` is False.

        Connection, leader election and kind are filled in. The control plane's own scheduler goes on: give the
        profile another ``schedulerName``, or use ``replaced_scheduler``.
        """
        number = next(self._numbers)
        name = name or ("kube-scheduler" if not hasattr(self, "scheduler") else f"kube-scheduler-{number}")
        user = self._authority.issue(name, "system:kube-scheduler")
        connection = {"kubeconfig": str(self._kubeconfig(name, user)), "qps": 5000, "burst": 10000}
        document: Object = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            **config,
            "clientConnection": {**connection, **config.get("clientConnection", {})},
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document))
        port = free_port()
        command: list[str | Path] = [
            binary("kube-scheduler"),
            f"--config={path}",
            *self._serving_flags(port),
            *self.settings.gates,
        ]
        server = Server(name, command, self.folder, url=f"https://127.0.0.1:{port}")
        self._others.append(server)
        if wait:
            self._wait_for_scheduler(server)
        return server

    @contextmanager
    def replaced_scheduler(self, config: Object) -> Iterator[Server]:
        """The control plane's scheduler with another configuration for a while, e.g. with an extender."""
        self.scheduler.kill()
        replacement = self.start_scheduler(config)
        try:
            yield replacement
        finally:
            replacement.kill()
            self.scheduler.start()
            self._wait_for_scheduler(self.scheduler)

    def start_server(self, name: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Server:
        """Any other process that belongs to this control plane; stopped with it, before it."""
        server = Server(name, command, self.folder, env)
        self._others.append(server)
        return server

    def stop(self) -> None:
        """Ends every process, in the order in which they need each other."""
        own = (getattr(self, name, None) for name in ("controller_manager", "api_server", "etcd"))
        for server in [*reversed(self._others), *own]:
            if server is not None:
                server.kill()
        self.api.close()
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def _wait_for_api_server(self) -> None:
        self.api_server.wait_until(lambda: require_ready(self.api.http.get("/readyz?verbose")))

    def _wait_for_scheduler(self, scheduler: Server) -> None:
        trust = self.api.http
        scheduler.wait_until(lambda: require_ready(trust.get(f"{scheduler.url}/readyz?verbose")))

    def _kubeconfig(self, name: str, pair: KeyPair) -> Path:
        user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        return kubeconfig(self.folder / f"{name}.kubeconfig", self.url, self.ca, user)

    def _etcd_call(self, verb: str, body: Object) -> Object:
        answer = httpx.post(f"{self._etcd_url}/v3/kv/{verb}", json=body, trust_env=False)
        answer.raise_for_status()
        return dict(answer.json())

    def _serving_flags(self, port: int) -> list[str]:
        return [
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={self.serving.certificate}",
            f"--tls-private-key-file={self.serving.key}",
        ]

    def _api_server_command(self, port: int) -> list[str | Path]:
        policy = self.folder / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
        front = Authority(self.folder, "front-proxy")
        proxy = front.issue("front-proxy-client", "front-proxy-client")
        kubelet = self._authority.issue("kubelet-client", "kube-apiserver-kubelet-client")
        return [
            binary("kube-apiserver"),
            *self._serving_flags(port),
            f"--etcd-servers={self._etcd_url}",
            f"--cert-dir={self.folder}",
            f"--client-ca-file={self.ca}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--service-cluster-ip-range=10.0.0.0/16",
            # An endpoint on loopback is refused by validation, and nothing here uses it.
            "--endpoint-reconciler-type=none",
            "--advertise-address=127.0.0.1",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._tokens.certificate}",
            f"--service-account-signing-key-file={self._tokens.key}",
            f"--requestheader-client-ca-file={front.certificate}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={proxy.certificate}",
            f"--proxy-client-key-file={proxy.key}",
            f"--kubelet-certificate-authority={self.ca}",
            f"--kubelet-client-certificate={kubelet.certificate}",
            f"--kubelet-client-key={kubelet.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-mode=batch",
            "--runtime-config=resource.k8s.io/v1beta2=true",
            *self.settings.gates,
            *self.settings.api_server_flags,
        ]

    def audit_entries(self, word: str) -> list[dict[str, Any]]:
        """What the audit log says in lines with ``word``; the last line may still be on its way and is left out."""
        lines = self.audit_log.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines if word in line]

    def _controller_manager_command(self) -> list[str | Path]:
        user = self._authority.issue("controller-manager", "system:kube-controller-manager")
        config = self._kubeconfig("controller-manager", user)
        return [
            binary("kube-controller-manager"),
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--secure-port=0",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._tokens.key}",
            f"--root-ca-file={self.ca}",
            f"--cluster-signing-cert-file={self.ca}",
            f"--cluster-signing-key-file={self._authority.key}",
            f"--node-monitor-grace-period={self.settings.node_monitor_grace_period_s}s",
            "--kube-api-qps=2000",
            "--kube-api-burst=4000",
            # Usually 15 s.
            "--horizontal-pod-autoscaler-sync-period=2s",
            *self.settings.gates,
            *self.settings.controller_manager_flags,
        ]


def require_ready(answer: httpx.Response) -> bool:
    """True for a ``/readyz?verbose`` that succeeded; else raises ValueError with the checks that failed.

    Each check is a line ``[+]name ok`` or ``[-]name failed: reason withheld`` (k8s.io/apiserver, server/healthz).
    """
    if answer.is_success:
        return True
    failed = [line[3:].partition(" ")[0] for line in answer.text.splitlines() if line.startswith("[-]")]
    raise ValueError(f"failing checks: {', '.join(failed) or answer.text[:200]} (HTTP {answer.status_code})")


def binary(name: str) -> Path:
    """A component's command: from the folder KUBEBUILDER_ASSETS where it is there, else built when first needed."""
    group = next(group for group, names in BINARIES.items() if name in names)
    return asset(name) or build.binaries(group) / name


def asset(name: str) -> Path | None:
    """A component's command in the folder that KUBEBUILDER_ASSETS names, where it is there."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    found = Path(folder) / name if folder else None
    return found if found is not None and found.exists() else None


def _etcd_command(folder: Path, url: str) -> list[str | Path]:
    peer = f"http://127.0.0.1:{free_port()}"
    return [
        binary("etcd"),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        f"--quota-backend-bytes={8 << 30}",
        "--log-level=warn",
        "--unsafe-no-fsync",
    ]


def _without_descriptions(value: Any) -> Any:
    """A schema without its prose: half the size, and the server is quicker to serve it."""
    if isinstance(value, list):
        return [_without_descriptions(one) for one in value]
    if not isinstance(value, dict):
        return value
    # A property may itself be called "description"; its value is a schema then, not text.
    kept = {key: one for key, one in value.items() if key != "description" or not isinstance(one, str)}
    return {key: _without_descriptions(one) for key, one in kept.items()}


def _established(definition: Object) -> bool:
    return has_condition(definition, "Established")
