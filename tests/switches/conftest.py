"""A control plane with the chart's switches and their guard, and nothing else of ours."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chart import Helm
from controlplane.plane import ControlPlane
from controlplane.processes import run_kopt

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Not the plane that other tests share: its switches would be theirs."""
    if os.environ.get("KOPT_TEST_KUBECONFIG"):
        pytest.skip("these tests switch features of the whole cluster: unset KOPT_TEST_KUBECONFIG")
    plane = ControlPlane(tmp_path_factory.mktemp("switches-control-plane"))
    yield plane
    plane.stop()


@pytest.fixture
def kopt(control_plane: ControlPlane) -> Run:
    """``kopt("features", …)`` as the administrator, or with another kubeconfig."""

    def run(*words: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"KUBECONFIG": str(kubeconfig or control_plane.kubeconfig)}
        return run_kopt(*words, env=environment)

    return run


@pytest.fixture(scope="session")
def charts(helm: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """The real helm."""
    return Helm(helm, tmp_path_factory.mktemp("helm"))
