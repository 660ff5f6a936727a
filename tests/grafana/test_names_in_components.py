"""Names of our metrics in dashboards are those that running components show to Prometheus.

Each is started as a process of its own, before a cluster that does not answer: it serves metrics meanwhile. Figures of
costs need metering and are looked at in ``tests/cost/test_control_plane.py``; those of GPUs need some, are named by one
table, and are scraped in ``tests/telemetry``.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml
from controlplane.processes import Server, free_port
from controlplane.warm import KOPT
from fastapi.testclient import TestClient

from kopt.core.dashboards.catalogue import dashboards
from kopt.core.hardware.gpu_telemetry import BY_NAME, HELD, PREFIX, SHARE, UP
from kopt.core.settings import Settings
from kopt.serving.endpoint.app import create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from tests.metric_names import named_in, shown_in
from tests.serving.conftest import MemorySource, StandInModel

CONTROLLERS = ("meter", "queues", "gangs", "reservations", "evictions", "pairwise")
METERED = "kopt_cost_"
OF_GPUS = frozenset({*(PREFIX + name for name in BY_NAME), UP, HELD, SHARE})


@pytest.fixture(scope="module")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kubeconfig of a server that is not there."""
    path = tmp_path_factory.mktemp("nowhere") / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "none", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}],
        "users": [{"name": "none", "user": {"token": "none"}}],
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
        "current-context": "none",
    }
    path.write_text(yaml.safe_dump(document))
    return path


def commands(kubeconfig: Path) -> Iterator[tuple[str, int, list[str]]]:
    """Name, port of metrics and command line of each component that is a process."""
    cluster = f"--kubeconfig={kubeconfig}"
    for name in CONTROLLERS:
        yield name, (port := free_port()), ["controller", name, cluster, f"--port={port}"]
    probes = free_port()
    yield "extender", probes, ["extender", cluster, f"--port={free_port()}", f"--probe-port={probes}"]
    probes, listen = free_port(), f"127.0.0.1:{free_port()}"
    yield "webhook", probes, ["webhook", cluster, f"--listen={listen}", f"--probes={probes}", f"--url=https://{listen}"]
    port = free_port()
    yield "agent", port, ["agent", "topology", "--node=gpu-0", "--only=pci", cluster, f"--port={port}"]


@pytest.fixture(scope="module")
def shown(nowhere: Path, tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """All names that components show."""
    folder, names = tmp_path_factory.mktemp("components"), set[str]()
    with ExitStack() as stack:
        started = []
        for name, port, words in commands(nowhere):
            server = Server(name, [*KOPT, *words], folder)
            stack.callback(server.kill)
            started.append((server, f"http://127.0.0.1:{port}/metrics"))
        for server, url in started:
            server.wait_until(lambda url=url: httpx.get(url, trust_env=False).is_success)  # type: ignore[misc]
            names |= shown_in(httpx.get(url, trust_env=False).text)
    return frozenset(names | endpoints_names(folder))


def endpoints_names(home: Path) -> set[str]:
    """Of the prediction endpoint."""
    source = MemorySource()
    source.add(StandInModel())
    endpoint = assemble(Settings(home=home), Parts(source=source, refresh_s=3600))
    with TestClient(create_app(endpoint)) as client:
        return shown_in(client.get("/metrics").text)


@pytest.mark.services
def test_components_show_what_dashboards_read(shown: frozenset[str]) -> None:
    for dashboard in dashboards():
        for panel in dashboard.panels:
            for query in panel.queries:
                ours = {name for name in named_in(query.expr) if name.startswith("kopt_")}
                assert {name for name in ours if not name.startswith(METERED)} <= shown | OF_GPUS, (
                    dashboard.name,
                    panel.title,
                )


def test_names_are_read_out_of_expressions_and_expositions() -> None:
    expr = (
        'histogram_quantile(0.9, sum by (le, route) (rate(kopt_a_bucket{route="kopt_no"}[5m]))) / on (x) kopt:b:c and d'
    )
    assert named_in(expr) == {"kopt_a_bucket", "kopt:b:c", "d"}
    text = "# TYPE kopt_calls_total counter\n# TYPE kopt_s histogram\n# TYPE kopt_g gauge\nkopt_g 1\n"
    assert shown_in(text) == {"kopt_calls_total", "kopt_s_bucket", "kopt_s_sum", "kopt_s_count", "kopt_g"}
