"""The audit follows kinds that a cluster is given, and leaves those that are taken from it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from admission.workloads import template
from controlplane.plane import CRDS, ControlPlane
from controlplane.processes import until

from kopt.cluster.client.api import Kube, connect
from kopt.controllers.admission.audit import AuditWatch
from kopt.controllers.admission.evaluation import FixedState

pytestmark = pytest.mark.cluster
JOBS = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "jobs.batch.volcano.sh")


@pytest.fixture
async def kube(webhook_plane: ControlPlane) -> AsyncIterator[Kube]:
    async with connect(webhook_plane.kubeconfig) as client:
        yield client


@contextlib.asynccontextmanager
async def watching(kube: Kube) -> AsyncIterator[AuditWatch]:
    watch = AuditWatch(kube, FixedState(), rescan_s=0.3)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_kind_is_seen_when_it_is_installed_and_when_it_is_gone(webhook_plane: ControlPlane, kube: Kube) -> None:
    api = webhook_plane.api
    space = api.space("volcano")

    async with watching(kube) as watch:

        def names() -> list[str]:
            return [one.name for one in watch.findings() if one.namespace == space]

        api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "lone", "namespace": space},
                "spec": template(1)["spec"],
            }
        )
        await until(lambda: names() == ["lone"])
        await asyncio.to_thread(webhook_plane.apply_crds, [CRDS / "volcano.yaml"])
        api.create(
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "metadata": {"name": "later", "namespace": space},
                "spec": {"tasks": [{"replicas": 2, "template": template(1)}]},
            }
        )
        await until(lambda: sorted(names()) == ["later", "lone"])
        api.delete(*JOBS)
        await until(lambda: names() == ["lone"])


async def test_an_api_server_that_does_not_answer_is_asked_again(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    from kopt.cluster.client.api import Unreachable

    asked = 0
    real = kube.group_versions

    async def once_refused() -> set[tuple[str, str]]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise Unreachable("no route")
        return await real()

    monkeypatch.setattr(kube, "group_versions", once_refused)
    async with watching(kube):
        await until(lambda: asked > 1)
