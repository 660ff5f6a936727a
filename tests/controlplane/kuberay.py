"""A real KubeRay operator beside the control plane, with the rights that its own manifests give it.

It runs as a process of this machine, with the names that pods of the tests know: it asks the head of a Ray cluster by
the name of its Service.
"""

from controlplane import build
from controlplane.api import load_all
from controlplane.kubelet import PodNetwork
from controlplane.plane import Cluster
from controlplane.processes import NotReady, Server, free_port

NAMESPACE, ACCOUNT = "kuberay-system", "kuberay-operator"
_RIGHTS = ("service_account", "role", "role_binding", "leader_election_role", "leader_election_role_binding")


class KubeRay:
    """A running operator, ready when the constructor returns."""

    def __init__(self, cluster: Cluster, network: PodNetwork) -> None:
        cluster.install_crds("kuberay")
        cluster.api.namespace(NAMESPACE)
        folder = build.manifests("kuberay") / "config" / "rbac"
        for manifest in (one for name in _RIGHTS for one in load_all(folder / f"{name}.yaml")):
            if manifest["kind"] in {"ServiceAccount", "Role", "RoleBinding"}:
                manifest["metadata"]["namespace"] = NAMESPACE
            for subject in manifest.get("subjects") or ():
                subject["namespace"] = NAMESPACE
            cluster.api.apply(manifest)
        health, metrics = free_port(), free_port()
        command = [
            build.binaries("kuberay") / "ray-operator",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            f"--metrics-addr=127.0.0.1:{metrics}",
            f"--leader-election-namespace={NAMESPACE}",
        ]
        env = {"KUBECONFIG": str(cluster.kubeconfig_for(ACCOUNT, NAMESPACE))}
        url = f"http://127.0.0.1:{health}"
        self.server = Server("kuberay", network.with_names(NAMESPACE, command), cluster.folder, env, url=url)
        try:
            self.server.wait_until(lambda: cluster.api.http.get(f"{url}/readyz").is_success)
        except NotReady:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the operator; what it made stays."""
        self.server.kill()
