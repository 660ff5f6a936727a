"""Workloads of a real control plane, an endpoint that is asked about them, and ``kopt`` that finds both."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kopt.cli.main import app
from kopt.cluster.client.api import Kube, connect
from kopt.cluster.client.resources import NAMESPACES, NODES, Object
from kopt.core.units import GIB, Bytes
from kopt.core.workload.sizing import MemoryBreakdown, Method, TraceCoverage
from kopt.models.sizing.code import CodeEstimate
from kopt.models.sizing.trace_summary import summary
from kopt.serving.client.blocking import PredictionClient
from tests.cli.endpoints import shipped_endpoint

CODE = CodeEstimate(
    Method.ABSTRACT,
    TraceCoverage.FULL,
    Bytes(8 * GIB),
    Bytes(9 * GIB),
    MemoryBreakdown(Bytes(GIB), Bytes(GIB), Bytes(2 * GIB), Bytes(4 * GIB)),
    steps=3,
)
CRD = Path(__file__).parents[2] / "deploy" / "chart" / "crds" / "conformancepolicies.yaml"
IMAGE = "registry.example.com/train:1"


@dataclass(frozen=True)
class Known:
    """A namespace of a cluster, and the endpoint's address."""

    kube: Kube
    namespace: str
    url: str


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An endpoint with the shipped model."""
    with shipped_endpoint(tmp_path_factory.mktemp("home")) as address:
        yield address


@pytest.fixture
async def known(control_plane: Any, url: str, monkeypatch: pytest.MonkeyPatch, kopt_home: Path) -> AsyncIterator[Known]:
    """An empty namespace; ``kopt`` finds the cluster and the endpoint by its environment."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    monkeypatch.setenv("KOPT_URL", url)
    name = f"t-{uuid.uuid4().hex[:10]}"
    control_plane.apply_crds([CRD])
    async with connect(control_plane.kubeconfig) as kube:
        await kube.create(NAMESPACES, {"metadata": {"name": name}})
        yield Known(kube, name, url)
        await kube.delete(NAMESPACES, name)


@pytest.fixture
async def hami(known: Known) -> AsyncIterator[None]:
    """A node whose device plugin is HAMi's."""
    notes = {"hami.io/node-nvidia-register": '[{"id":"GPU-1","count":10,"devmem":81920}]'}
    name = f"hami-{known.namespace}"
    await known.kube.create(NODES, {"metadata": {"name": name, "annotations": notes}})
    yield
    await known.kube.delete(NODES, name)


Kopt = Callable[..., Any]


@pytest.fixture
def kopt(known: Known) -> Kopt:
    async def run(*words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, [*words, "-n", known.namespace])

    return run


def template(*command: str, gpus: int = 1, **more: Any) -> Object:
    container = {
        "name": "main",
        "image": IMAGE,
        "command": list(command),
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }
    return {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "log", "image": "log"}, container]} | more,
    }


def deployment(name: str, pods: Object, replicas: int = 2) -> Object:
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "x"}}, "template": pods},
    }


async def remembered(known: Known, pods: Object, gpu: str | None = None) -> None:
    """Tell the endpoint what the program of these pods said on a fake device."""

    def tell() -> None:
        with PredictionClient(known.url, deadline_s=30.0) as client:
            assert not client.sizing({"workload": pods, "gpu": gpu, "trace": summary(CODE)})["fallback"]

    await asyncio.to_thread(tell)
