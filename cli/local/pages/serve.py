"""``python -m kopt.cli.local.pages``: the web pages as a process of their own, until SIGTERM.

With ``KUBECONFIG``, or in a pod, the pages show the nodes of the cluster and what controllers say there;
``~/.kube/config`` alone is not taken, as pages ask for as long as they run. ``KOPT_PAGES_EXAMPLE=true`` says on every
page that what it shows is an example. With ``KOPT_PAGES_LOGIN`` everybody logs in (``login``). What the meter
has recorded is read where ``costs`` and ``utilisation`` say, what GPU-hours were used for where
``efficiency`` does, and which alerts fired where ``alerts`` does.
``KOPT_PAGES_PROMETHEUS`` is the address of a Prometheus that scrapes GPU exporters,
``KOPT_PAGES_PROMETHEUS_TOKEN_FILE`` a file with a bearer token for it, ``KOPT_PAGES_PROMETHEUS_CA_FILE`` one with the
authority of its certificate. With ``KOPT_PAGES_DIAGNOSES=true`` why a workload waits is written as an Event on it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from kopt.cli.local.pages.alerts import alerts_of
from kopt.cli.local.pages.cluster import ClusterWatch
from kopt.cli.local.pages.costs import PriceBookError, costs_of
from kopt.cli.local.pages.efficiency import gpu_hours_of
from kopt.cli.local.pages.gpus import activity_of
from kopt.cli.local.pages.login import LoginSettingsError, login_of
from kopt.cli.local.pages.utilisation import utilisation_of
from kopt.cluster.client.api import Kube, KubeSettings
from kopt.cluster.client.credentials import SERVICE_ACCOUNT, Access, KubeconfigAccess, ServiceAccountAccess
from kopt.controllers.overview.devices.gpu_map import Activity
from kopt.controllers.overview.diagnosis.endpoint import EndpointPredictions
from kopt.controllers.overview.diagnosis.questions import Predictions
from kopt.core.hardware.pools import ClusterPools
from kopt.core.scheduling.gpu_map import GpuMap
from kopt.core.scheduling.overview import Overview
from kopt.core.scheduling.queue_standing import QueueTreeState
from kopt.core.scheduling.queued import QueueState
from kopt.dashboard.app import serve
from kopt.dashboard.data.records import Records
from kopt.dashboard.data.sources import Nodes
from kopt.serving.base.environment import load_settings


class ClusterNodes:
    """Watches the nodes that agents publish, and what controllers say; ``predictions`` knows run times, ``activity``
    how busy GPUs are."""

    def __init__(
        self,
        access: Access,
        predictions: Predictions | None = None,
        activity: Callable[[], Activity] | None = None,
        *,
        diagnoses: bool = False,
    ) -> None:
        self.kube = Kube(access, KubeSettings(user_agent="kopt-pages"))
        self._watch = ClusterWatch(self.kube, predictions=predictions, activity=activity, diagnoses=diagnoses)

    def overview(self) -> Overview:
        return self._watch.overview()

    async def queue(self) -> QueueState:
        return await self._watch.queue()

    async def changed(self) -> None:
        await self._watch.changed()

    async def queue_tree(self) -> QueueTreeState:
        return await self._watch.queue_tree()

    async def queue_tree_changed(self) -> None:
        await self._watch.queue_tree_changed()

    async def pools(self) -> ClusterPools:
        return await self._watch.pools()

    def gpus(self) -> GpuMap:
        return self._watch.gpus()

    async def gpus_changed(self) -> None:
        await self._watch.gpus_changed()

    async def run(self) -> None:
        await self._watch.run()

    async def nodes(self) -> Nodes:
        """A cluster that does not answer is a sentence in the answer."""
        return await self._watch.nodes()

    async def close(self) -> None:
        await self.kube.close()


def cluster_of(
    environ: Mapping[str, str], account: Path = SERVICE_ACCOUNT, predictions: Predictions | None = None
) -> ClusterNodes | None:
    """None without a cluster."""
    activity, diagnoses = activity_of(environ), environ.get("KOPT_PAGES_DIAGNOSES", "") == "true"
    if environ.get("KUBECONFIG"):
        return ClusterNodes(KubeconfigAccess(environ["KUBECONFIG"]), predictions, activity, diagnoses=diagnoses)
    if environ.get("KUBERNETES_SERVICE_HOST") and (account / "token").is_file():
        return ClusterNodes(ServiceAccountAccess(environ, account), predictions, activity, diagnoses=diagnoses)
    return None


def main(environ: Mapping[str, str]) -> None:
    """Ends with a sentence where what the environment asks for cannot be."""
    more = [name.strip() for name in environ.get("KOPT_PAGES_HOSTS", "").split(",")]
    settings = load_settings()
    cluster = cluster_of(environ, predictions=EndpointPredictions(settings.endpoint, settings.cluster))
    try:
        login = login_of(environ, None if cluster is None else cluster.kube)
        costs = costs_of(environ, settings)
    except (LoginSettingsError, PriceBookError) as error:
        raise SystemExit(f"kopt pages: {error}") from error
    serve(
        settings,
        hosts=[name for name in more if name],
        cluster=cluster,
        example=environ.get("KOPT_PAGES_EXAMPLE", "") == "true",
        login=login,
        records=Records(costs, gpu_hours_of(environ), utilisation_of(environ, settings), alerts_of(environ, settings)),
    )
