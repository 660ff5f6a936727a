"""The health controller as a process before a real control plane, with a real Prometheus that scrapes an exporter."""

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from controlplane.api import Api
from controlplane.kwok import Kwok, Nodes
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from prometheus_server import RunningPrometheus
from replicas import ControllerProcess, replicas

Object = dict[str, Any]
Start = Callable[..., ControllerProcess]
CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "crds"
KIND = ("kaiwo.ai/v1alpha1", "NodeHealth")
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}


class Exporter:
    """Series as dcgm-exporter serves them; ``set`` changes one."""

    def __init__(self) -> None:
        self.series: dict[str, float] = {}
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = "".join(f"{name} {value}\n" for name, value in exporter.series.items()).encode()
                self.send_response(200)
                self.send_header("content-type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def set(self, name: str, node: str, gpu: int, value: float, **labels: str) -> None:
        own: Mapping[str, str] = {"Hostname": node, "gpu": str(gpu), "UUID": f"GPU-{node}-{gpu}", **labels}
        text = ",".join(f'{key}="{content}"' for key, content in own.items())
        self.series[f"{name}{{{text}}}"] = value

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    running = Exporter()
    yield running
    running.stop()


@pytest.fixture
def prometheus(exporter: Exporter, tmp_path: Path) -> Iterator[str]:
    configuration = (
        "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: dcgm\n  static_configs:\n"
        f"  - {{targets: ['{exporter.address}'], labels: {{namespace: gpu-operator, pod: dcgm-exporter-x}}}}\n"
    )
    running = RunningPrometheus(tmp_path, configuration=configuration)
    yield running.url
    running.stop()


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    control_plane.apply_crds([CRDS / "nodehealths.yaml"])
    control_plane.api.namespace("kopt-system")
    yield control_plane
    definition = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "nodehealths.kaiwo.ai")
    control_plane.api.delete(*definition)
    wait_for(lambda: control_plane.api.find(*definition) is None)


@pytest.fixture
def nodes(plane: ControlPlane, kwok: Kwok) -> Iterator[Nodes]:
    """Four nodes with eight H100 each."""
    with kwok.nodes(4, gpus=8, labels=H100) as made:
        yield made


@pytest.fixture
def health(plane: ControlPlane) -> Iterator[Start]:
    """``health("--mode=enforce")`` starts a replica that leads, with a Lease of the test's own."""
    space = plane.api.space("health")
    with replicas(partial(ControllerProcess, plane, "health", f"--namespace={space}", "--look=1s")) as start:
        yield start


def status(api: Api, node: str) -> Object:
    document = api.find(*KIND, node)
    return dict(document["status"]) if document is not None else {}


def taints(api: Api, node: str) -> list[str]:
    return [item["key"] for item in api.get("v1", "Node", node)["spec"].get("taints") or ()]


def condition(api: Api, node: str) -> Object:
    conditions = api.get("v1", "Node", node)["status"]["conditions"]
    return next((dict(item) for item in conditions if item["type"] == "GPUHealthy"), {})
