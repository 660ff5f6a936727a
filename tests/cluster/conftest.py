"""A client of the real control plane, and a namespace for each test."""

import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from controlplane.plane import ControlPlane

from kopt.cluster.client.api import Kube, connect
from kopt.cluster.client.resources import NAMESPACES


@pytest.fixture
async def kube(control_plane: Any) -> AsyncIterator[Kube]:
    async with connect(control_plane.kubeconfig) as client:
        yield client


@pytest.fixture
async def namespace(kube: Kube) -> AsyncIterator[str]:
    """An empty namespace of the test's own; deleted without waiting."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    await kube.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    await kube.delete(NAMESPACES, name)


@pytest.fixture(scope="session")
def hurt_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that tests may restart and compact; it runs when a test begins."""
    plane = ControlPlane(tmp_path_factory.mktemp("hurt-plane"))
    yield plane
    plane.stop()
