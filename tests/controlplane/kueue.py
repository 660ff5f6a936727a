"""A real Kueue beside the control plane: its custom resources, its webhooks with its own certificates, its scheduler.

It runs as a process, so one thing stands in for its pod: the webhooks' Service leads to loopback, and the Secret with
the certificates that Kueue makes is written to the folder where a pod would mount it.
"""

import base64
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from controlplane import build
from controlplane.api import Object, has_condition, load_all
from controlplane.plane import Cluster
from controlplane.processes import NotReady, Server, free_port, wait_for

NAMESPACE = "kueue-system"
_SERVICE = "kueue-webhook-service"
_SECRET = "kueue-webhook-server-cert"
#: Those with a conversion webhook; on the others one would break them.
_CONVERTED = ("localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters")
#: Their webhooks see every pod, deployment or stateful set: not the system's own.
_BROAD = ("pod.kb.io", "deployment.kb.io", "statefulset.kb.io")
_FRAMEWORKS = (
    "batch/job",
    "jobset.x-k8s.io/jobset",
    "ray.io/rayjob",
    "ray.io/raycluster",
    "kubeflow.org/mpijob",
    "kubeflow.org/pytorchjob",
    "kubeflow.org/tfjob",
    "kubeflow.org/xgboostjob",
    "trainer.kubeflow.org/trainjob",
    "pod",
    "deployment",
    "statefulset",
    "leaderworkerset.x-k8s.io/leaderworkerset",
)


class Kueue:
    """A running Kueue, ready when the constructor returns."""

    def __init__(self, cluster: Cluster, strategies: Sequence[str] = ()) -> None:
        """``strategies``: of fair sharing, which is off without any: weights of queues do not count then."""
        self._cluster = cluster
        self._api = cluster.api
        self._strategies = list(strategies)
        self._numbers = itertools.count(1)
        self._port = free_port()
        self._certificates = cluster.folder / "kueue-certificates"
        self._certificates.mkdir(exist_ok=True)
        self._install()
        self.server = self._started()

    @contextmanager
    def shares_fairly(self, *strategies: str) -> Iterator[None]:
        """Started anew with fair sharing, and without it afterwards."""
        before = self._strategies
        self._restart(strategies)
        try:
            yield
        finally:
            self._restart(before)

    def _restart(self, strategies: Sequence[str]) -> None:
        self.server.kill()
        self._strategies = list(strategies)
        self.server = self._started()

    def _started(self) -> Server:
        cluster, config = self._cluster, self._cluster.folder / "kueue.yaml"
        health = free_port()
        text = yaml.safe_dump(self._configuration(health))
        config.write_text(text)
        # Where its manifests have it from.
        meta = {"name": "kueue-manager-config", "namespace": NAMESPACE}
        data = {"controller_manager_config.yaml": text}
        self._api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
        command: list[str | Path] = [
            build.binaries("kueue") / "kueue",
            f"--config={config}",
            "--feature-gates=VisibilityOnDemand=false",
            "--zap-log-level=2",
        ]
        url = f"http://127.0.0.1:{health}"
        env = {"KUBECONFIG": str(cluster.kubeconfig)}
        self.server = server = Server("kueue", command, cluster.folder, env, url=url)
        try:
            server.wait_until(self._mount_certificates, what="Kueue has made its certificates")
            server.wait_until(lambda: cluster.api.http.get(f"{url}/readyz").is_success)
            server.wait_until(self._answers, what="Kueue's webhooks answer")
        except NotReady:
            self.stop()
            raise
        return server

    def stop(self) -> None:
        """Ends Kueue and takes its webhooks away, which would refuse every pod without it."""
        self.server.kill()
        for kind in ("Mutating", "Validating"):
            name = f"kueue-{kind.lower()}-webhook-configuration"
            self._api.delete("admissionregistration.k8s.io/v1", f"{kind}WebhookConfiguration", name)

    @contextmanager
    def queue(
        self,
        namespace: str,
        quota: Mapping[str, str | int],
        name: str = "gpus",
        node_labels: Mapping[str, str] | None = None,
        preemption: Object | None = None,
        cohort: str = "",
    ) -> Iterator[str]:
        """A LocalQueue of the namespace with a ClusterQueue and flavour of its own; yields the ClusterQueue's name.

        ``quota`` names every resource that the jobs ask for, e.g. ``{"nvidia.com/gpu": 8, "cpu": 100}``.
        """
        cluster_queue = f"{namespace}-{name}-{next(self._numbers)}"
        version = {"apiVersion": "kueue.x-k8s.io/v1beta1"}
        flavor = {**version, "kind": "ResourceFlavor", "metadata": {"name": cluster_queue}}
        limits = [{"name": key, "nominalQuota": str(value)} for key, value in quota.items()]
        group = {"coveredResources": [*quota], "flavors": [{"name": cluster_queue, "resources": limits}]}
        spec: Object = {"namespaceSelector": {}, "resourceGroups": [group], "preemption": preemption or {}}
        if cohort:
            spec["cohort"] = cohort
        owner = {**version, "kind": "ClusterQueue", "metadata": {"name": cluster_queue}, "spec": spec}
        meta = {"name": name, "namespace": namespace}
        local = {**version, "kind": "LocalQueue", "metadata": meta, "spec": {"clusterQueue": cluster_queue}}
        self._api.apply({**flavor, "spec": {"nodeLabels": dict(node_labels or {})}}, owner, local)
        self._api.wait("kueue.x-k8s.io/v1beta1", "LocalQueue", name, _active, namespace)
        try:
            yield cluster_queue
        finally:
            for kind in ("LocalQueue", "ClusterQueue", "ResourceFlavor"):
                one = name if kind == "LocalQueue" else cluster_queue
                self._api.delete("kueue.x-k8s.io/v1beta1", kind, one, namespace)

    def _install(self) -> None:
        files = build.manifests("kueue") / "config" / "components"
        definitions = [one for path in sorted((files / "crd" / "bases").glob("*.yaml")) for one in load_all(path)]
        for definition in definitions:
            if definition["spec"]["names"]["plural"] in _CONVERTED:
                client = {"service": {**self._service(), "path": "/convert"}}
                webhook = {"clientConfig": client, "conversionReviewVersions": ["v1"]}
                definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        self._cluster.apply_crd(*definitions)
        self._api.namespace(NAMESPACE)
        meta = {"name": _SERVICE, "namespace": NAMESPACE}
        to_loopback = {"type": "ExternalName", "externalName": "localhost"}
        self._api.apply(
            {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": to_loopback},
            {"apiVersion": "v1", "kind": "Secret", "metadata": {**meta, "name": _SECRET}},
        )
        for manifest in load_all(files / "webhook" / "manifests.yaml"):
            self._api.replace(self._webhooks(manifest))

    def _webhooks(self, manifest: Object) -> Object:
        """What Kueue's kustomization makes of its generated webhook configuration."""
        manifest["metadata"]["name"] = f"kueue-{manifest['metadata']['name']}"
        away = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]}
        for webhook in manifest["webhooks"]:
            webhook["clientConfig"]["service"].update(self._service())
            if webhook["name"][1:] in _BROAD:
                webhook["namespaceSelector"] = {"matchExpressions": [away]}
        return manifest

    def _service(self) -> Object:
        return {"name": _SERVICE, "namespace": NAMESPACE, "port": self._port}

    def _configuration(self, health: int) -> Object:
        return {
            **({"fairSharing": {"preemptionStrategies": self._strategies}} if self._strategies else {}),
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self._port, "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"qps": 1000, "burst": 2000},
            "integrations": {"frameworks": list(_FRAMEWORKS)},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": _SERVICE,
                "webhookSecretName": _SECRET,
            },
        }

    def _mount_certificates(self) -> bool:
        """What a kubelet does with the Secret; False while it is empty."""
        data = self._api.get("v1", "Secret", _SECRET, NAMESPACE).get("data") or {}
        for name, content in data.items():
            path = self._certificates / name
            path.touch(mode=0o600)
            path.write_bytes(base64.b64decode(content))
        return bool(data)

    def _answers(self) -> bool:
        meta = {"name": "probe", "namespace": "default"}
        flavor: Object = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": meta}
        job: Object = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": meta,
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a"}]}}},
        }
        for manifest in (flavor, job):
            path = self._api.path(manifest["apiVersion"], manifest["kind"], "default")
            if self._api.http.post(path, params={"dryRun": "All"}, json=manifest).is_error:
                return False
        return True


def _active(queue: Object) -> bool:
    return has_condition(queue, "Active")


def admitted(workload: Object) -> bool:
    """Whether a Workload has the condition Admitted."""
    return has_condition(workload, "Admitted")


def workload_of(cluster: Cluster, owner: Object) -> Object:
    """The Workload that Kueue made for a job, waited for."""
    namespace, uid = owner["metadata"]["namespace"], owner["metadata"]["uid"]

    def found() -> Object | None:
        for one in cluster.api.list("kueue.x-k8s.io/v1beta2", "Workload", namespace):
            if any(reference["uid"] == uid for reference in one["metadata"].get("ownerReferences") or ()):
                return one
        return None

    return wait_for(found, what=f"a Workload of {owner['metadata']['name']}") or {}
