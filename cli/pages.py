"""``python -m kopt.cli.pages``: the web pages as a process of their own, until SIGTERM.

With ``KUBECONFIG``, or in a pod, the page of topologies shows the nodes of the cluster; ``~/.kube/config`` alone is not
taken, as pages ask for as long as they run.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from kopt.cluster.access import SERVICE_ACCOUNT, Access, KubeconfigAccess, ServiceAccountAccess
from kopt.cluster.api import ApiError, Kube, NotFound
from kopt.cluster.node_topologies import degraded_of, topology_of
from kopt.cluster.resources import NODE_TOPOLOGIES, Object
from kopt.dashboard.app import serve
from kopt.dashboard.sources import ClusterNode, Nodes
from kopt.serving.environment import load_settings


class ClusterNodes:
    """Reads the nodes that agents publish."""

    def __init__(self, access: Access) -> None:
        self._kube = Kube(access)

    async def nodes(self) -> Nodes:
        """A cluster that does not answer is a sentence in the answer."""
        try:
            documents = (await self._kube.list(NODE_TOPOLOGIES)).items
        except NotFound:
            # The kind is not installed: no agent publishes.
            documents = []
        except ApiError as error:
            return Nodes(cluster=True, problem=f"Nodes are from the last time the cluster told them: {error}")
        return nodes_of(documents)

    async def close(self) -> None:
        await self._kube.close()


def nodes_of(documents: Sequence[Object]) -> Nodes:
    """By name; what cannot be read is named."""
    found, left_out = [], []
    for one in sorted(documents, key=lambda one: str(one["metadata"]["name"])):
        try:
            found.append(ClusterNode(topology_of(one), degraded_of(one)))
        except (ValueError, KeyError, TypeError):
            left_out.append(str(one["metadata"]["name"]))
    more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
    problem = f"Left out, as their objects contradict themselves: {', '.join(left_out[:3])}{more}." if left_out else ""
    return Nodes(tuple(found), True, problem)


def cluster_of(environ: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> ClusterNodes | None:
    """None without a cluster."""
    if environ.get("KUBECONFIG"):
        return ClusterNodes(KubeconfigAccess(environ["KUBECONFIG"]))
    if environ.get("KUBERNETES_SERVICE_HOST") and (account / "token").is_file():
        return ClusterNodes(ServiceAccountAccess(environ, account))
    return None


if __name__ == "__main__":
    more = [name.strip() for name in os.environ.get("KOPT_PAGES_HOSTS", "").split(",")]
    serve(load_settings(), hosts=[name for name in more if name], cluster=cluster_of(os.environ))
