"""The whole loop for tests: a real control plane and Kueue, a node whose pods run, the real endpoint with the shipped
models over a real feature store, a real Prometheus, and our components as the chart installs them."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chart import Helm
from controlplane.kubelet import Kubelet
from controlplane.kueue import Kueue
from controlplane.plane import ControlPlane
from replicas import KOPT

from tests.story.cluster import BATCH, GPU, KAIWO, SERVICE, Cluster
from tests.story.service import Service, two_replicas
from tests.story.traffic import BUCKET_S, Clients, Demand, prometheus

IMAGES = ("kopt-controllers", "kopt-agents")
Story = Callable[[float], contextlib.AbstractContextManager[Cluster]]


@pytest.fixture
def endpoint(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Service]:
    """Two replicas of the real application, with the shipped models of demand and checkpoints."""
    with two_replicas(control_plane, tmp_path / "endpoint") as service:
        yield service


@pytest.fixture
def story(
    control_plane: ControlPlane,
    kueue: Kueue,
    helm: Path,
    endpoint: Service,
    tmp_path: Path,
    trainer_python: Callable[[str], str],
    request: pytest.FixtureRequest,
) -> Story:
    """``with story(ahead_s) as cluster``: everything runs, and the service's daily rush comes in ``ahead_s`` seconds,
    at the next full five minutes."""
    api, python = control_plane.api, trainer_python("newest")
    for name, value in (("story-low", -100), ("story-high", 1000)):
        api.priority_class(name, value)

    @contextlib.contextmanager
    def told(ahead_s: float) -> Iterator[Cluster]:
        space = api.space("story", {"kaiwo.ai/managed": "true"})
        installer = Helm(helm, tmp_path / "helm")
        demand = Demand(-(-(time.time() + ahead_s) // BUCKET_S) * BUCKET_S)
        with (
            Kubelet(control_plane, resources={GPU: "4"}, entrypoints=dict.fromkeys(IMAGES, KOPT)) as node,
            kueue.queue(space, {GPU: 0, "cpu": 100}, node_labels=node.selector) as queue,
            prometheus(tmp_path / "prometheus", demand, space, SERVICE) as prometheus_url,
        ):
            cluster = Cluster(control_plane, node, installer, endpoint, tmp_path, queue, python, space)
            try:
                cluster.serve()
                cluster.install(prometheus_url)
                with Clients(demand, cluster.servers):
                    yield cluster
            finally:
                if request.config.getoption("capture") != "no":
                    with contextlib.suppress(Exception):
                        sys.stdout.write(cluster.account())
                with contextlib.suppress(Exception):
                    (cluster.output / "enough").touch()
                cluster.kill()
                api.delete(KAIWO, "LendingPool", space, "")
                api.delete(BATCH, "Job", "llama", space, propagationPolicy="Background")
                cluster.stop_serving()
                for eviction in cluster.evictions():
                    api.delete(KAIWO, "Eviction", eviction["metadata"]["name"], space)
                installer.uninstall(control_plane)

    return told
