"""The pairwise benchmark controller as a process, before a real control plane whose pods truly run."""

import contextlib
import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import Server, free_port, wait_for
from replicas import KOPT

CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "crds"
SYSTEM, SPACE = "kopt-system", "kopt-benchmarks"
GPU, GPUS = "amd.com/gpu", 4
BENCHMARK, BANDWIDTH = ("kaiwo.ai/v1alpha1", "PairwiseBenchmark"), ("kaiwo.ai/v1alpha1", "NodeBandwidth")
Object = dict[str, Any]
_NUMBERS = itertools.count(1)


def benchmark(name: str, shares: Path, **spec: Any) -> Object:
    """A PairwiseBenchmark whose pods print what ``tests/pairwise/rendered.py`` makes of ``shares``."""
    script = Path(__file__).with_name("rendered.py")
    container = {"name": "test", "image": "team/rccl-tests:1", "command": [sys.executable, str(script), str(shares)]}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}
    own = {
        "gpuResource": GPU,
        "gpusPerNode": GPUS,
        "template": template,
        "nodeSelector": {"pool": name},
        "maxPairsAtOnce": 3,
        "gpuSecondsPerDay": 0,
        "timeout": "2m",
    }
    return {"apiVersion": BENCHMARK[0], "kind": BENCHMARK[1], "metadata": {"name": name}, "spec": own | spec}


@pytest.fixture(scope="session")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The shared control plane with the custom resources and the namespaces."""
    control_plane.apply_crds([CRDS / "pairwisebenchmarks.yaml", CRDS / "nodebandwidths.yaml"])
    control_plane.api.namespace(SYSTEM)
    control_plane.api.namespace(SPACE)
    return control_plane


class Pool:
    """Nodes of one test, their benchmark, and what its tests are to show."""

    def __init__(self, plane: ControlPlane, name: str, folder: Path, nodes: int) -> None:
        self.plane, self.name, self.shares = plane, name, folder / "shares"
        self.shares.write_text("")
        self._uids: set[str] = set()
        threading.Thread(target=self._gather, daemon=True).start()
        self._nodes = ExitStack()
        labels = {"pool": name, "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}
        self.kubelets = [
            self._nodes.enter_context(Kubelet(plane, f"{name}-{n}", {GPU: str(GPUS)}, labels)) for n in range(nodes)
        ]
        self.nodes = [one.name for one in self.kubelets]

    def stop(self) -> None:
        self.plane.api.delete(*BENCHMARK, self.name)
        self._nodes.close()

    def start(self, **spec: Any) -> None:
        self.plane.api.create(benchmark(self.name, self.shares, **spec))

    @property
    def status(self) -> Object:
        return dict(self.plane.api.get(*BENCHMARK, self.name).get("status") or {})

    def wait(self, until: Callable[[Object], object], timeout_s: float = 90) -> Object:
        """The status once ``until`` is true of it."""
        found = self.plane.api.wait(
            *BENCHMARK, self.name, lambda one: until(one.get("status") or {}), timeout_s=timeout_s
        )
        return dict(found["status"])

    def jobs(self) -> list[Object]:
        label = f"kaiwo.ai/pairwise-benchmark={self.name}"
        return self.plane.api.list("batch/v1", "Job", SPACE, label)

    def running(self) -> list[Object]:
        """Pods of rank 0 that run."""
        label = f"kaiwo.ai/pairwise-benchmark={self.name},batch.kubernetes.io/job-completion-index=0"
        pods = self.plane.api.list("v1", "Pod", SPACE, label)
        return [one for one in pods if one["status"].get("phase") == "Running"]

    def bandwidths(self) -> dict[str, Object]:
        found = self.plane.api.list(*BANDWIDTH)
        return {one["metadata"]["name"]: one["status"] for one in found if one["metadata"]["name"] in self.nodes}

    def measured(self) -> dict[tuple[str, str], Object]:
        return {(name, peer["node"]): peer for name, one in self.bandwidths().items() for peer in one.get("peers", ())}

    def started(self) -> int:
        """How many Jobs there ever were."""
        return len(self._uids)

    def _gather(self) -> None:
        label = f"kaiwo.ai%2Fpairwise-benchmark%3D{self.name}"
        path = f"/apis/batch/v1/namespaces/{SPACE}/jobs?watch=true&labelSelector={label}"
        # The API server ends with the tests, and the stream with it.
        with (
            contextlib.suppress(httpx.HTTPError, RuntimeError),
            self.plane.api.http.stream("GET", path, timeout=600) as response,
        ):
            for line in response.iter_lines():
                self._uids.add(json.loads(line)["object"]["metadata"]["uid"])


@pytest.fixture
def pool(plane: ControlPlane, tmp_path: Path) -> Iterator[Callable[[int], Pool]]:
    """``pool(6)`` makes nodes with four GPUs each."""
    made: list[Pool] = []

    def make(nodes: int) -> Pool:
        made.append(Pool(plane, f"pool-{next(_NUMBERS)}", tmp_path, nodes))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def start_controller(plane: ControlPlane) -> Iterator[Callable[..., Server]]:
    """``start_controller("--pause=1s")`` starts a replica; all are killed in the end."""
    with ExitStack() as running:
        numbers = itertools.count()

        def start(*options: str, kubeconfig: Path | None = None) -> Server:
            port = free_port()
            command = [
                *KOPT,
                "controller",
                "pairwise",
                "--kubeconfig",
                str(kubeconfig or plane.kubeconfig),
                f"--port={port}",
                "--pause=1s",
                f"--identity=replica-{next(numbers)}",
                *options,
            ]
            server = plane.start_server(f"pairs-{next(numbers)}", command)
            running.callback(server.kill)
            metrics = f"http://127.0.0.1:{port}/metrics"
            wait_for(lambda: "\nkopt_pairs_leading 1.0" in _read(metrics), what="it leads")
            return server

        yield start


def _read(url: str) -> str:
    try:
        return httpx.get(url, trust_env=False).text
    except httpx.HTTPError:
        return ""
