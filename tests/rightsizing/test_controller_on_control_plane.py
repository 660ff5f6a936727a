"""The controller before a real API server, on a pod whose process trains: kept, taken back by an heir, switched off."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane

from kopt.agents.logtail.streams import Instance, StreamSource
from kopt.cluster.client.api import Kube, connect
from kopt.cluster.client.resources import EVENTS, NAMESPACES, PODS, Object
from kopt.cluster.objects.progress import PROGRESS, PROGRESS_AT, STEP_SECONDS
from kopt.cluster.objects.resize_history import RESIZES, RESIZING, resizes_of
from kopt.cluster.teardown.resizes import undo_resizes
from kopt.controllers.rightsizing.main import ProcessSettings, Replica
from kopt.controllers.rightsizing.reconciler import RightsizingSettings
from kopt.core.decision import Mode
from kopt.core.units import MIB
from kopt.core.workload.rightsizing import ContainerUse, Outcome
from kopt.formats.joblog.progress import ProgressReader
from kopt.policies.rightsizing.watch import WatchSettings

pytestmark = [pytest.mark.cluster, pytest.mark.long]
TRAINING = """
import datetime, time
for step in range(1, 100000):
    time.sleep(.02)
    print(f"{datetime.datetime.now(datetime.UTC).isoformat()} step {step}/100000", flush=True)
"""
SETTINGS = RightsizingSettings(
    Mode.ENFORCE,
    interval_s=0.5,
    poll_s=0.2,
    accept_s=10.0,
    # Of a machine that is busy with other things, and so is its noise.
    watch=WatchSettings(tolerance=0.6, window_s=4, least_s=4, deadline_s=20, sample_s=0.4, baseline_s=30),
)
USE = ContainerUse(300, 400, 600 * MIB, 10_800)
BEFORE = {"cpu": "2", "memory": "1Gi"}


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    async with connect(control_plane.kubeconfig) as client:
        yield client


@pytest.fixture
async def trainer(control_plane: ControlPlane, kube: Kube) -> AsyncIterator[Object]:
    with Kubelet(control_plane, resources={"cpu": "8", "nvidia.com/gpu": "1"}) as kubelet:
        container = {
            "name": "main",
            "image": "none",
            "command": ["python", "-u", "-c", TRAINING],
            "resources": {"requests": BEFORE | {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
        }
        spec = {"nodeSelector": kubelet.selector, "restartPolicy": "Never", "containers": [container]}
        space = control_plane.api.space("rightsizing")
        metadata = {"name": "trainer", "namespace": space}
        control_plane.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        pod = await asyncio.to_thread(
            control_plane.api.wait, "v1", "Pod", "trainer", lambda pod: pod["status"]["phase"] == "Running", space
        )
        reporting = asyncio.create_task(_report(kube, pod))
        yield pod
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)


async def _report(kube: Kube, pod: Object) -> None:
    """Writes how far the log is onto the pod, more often than the log agent and to the millisecond."""
    metadata, reader, written_s = pod["metadata"], ProgressReader(), 0.0
    instance = Instance(metadata["namespace"], metadata["name"], "main")
    source = StreamSource(kube, instance, "log", metadata["uid"], time.time)

    async def at_once() -> None: ...

    async for reading in source.readings(at_once):
        for line in reading.lines:
            reader.read(line.text, line.at_s)
        progress = reader.progress()
        if progress is None or time.time() - written_s < 0.2:
            continue
        written_s = time.time()
        notes = {
            PROGRESS: f"{progress.step}/{progress.steps}",
            PROGRESS_AT: datetime.fromtimestamp(progress.at_s, UTC).isoformat(),
            STEP_SECONDS: "0.02",
        }
        await kube.patch(PODS, metadata["name"], {"metadata": {"annotations": notes}}, metadata["namespace"])


@asynccontextmanager
async def _leading(kube: Kube, pod: Object, mode: Mode = Mode.ENFORCE) -> AsyncIterator[Replica]:
    """A replica whose Lease is of this test, until the block ends as by SIGKILL."""
    space = pod["metadata"]["namespace"]

    async def use() -> Any:
        return {(space, "trainer", "main"): USE}

    settings = ProcessSettings(controller=replace(SETTINGS, mode=mode), namespace=space, port=0)
    replica = Replica(kube, settings, use)
    task = asyncio.create_task(replica.run())
    try:
        yield replica
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await replica.stop()


async def _opt_in(kube: Kube, pod: Object, managed: str = "true") -> None:
    changes = {"metadata": {"labels": {"kaiwo.ai/managed": managed}}}
    await kube.patch(NAMESPACES, pod["metadata"]["namespace"], changes)


async def _until(kube: Kube, pod: Object, holds: Callable[[Object], Any], within_s: float = 100.0) -> Object:
    until_s = time.time() + within_s
    while True:
        now = await kube.get(PODS, "trainer", pod["metadata"]["namespace"])
        if holds(now):
            return now
        assert time.time() < until_s, (now["metadata"], await _reasons(kube, pod))
        await asyncio.sleep(0.1)


def _cpu(pod: Object) -> str:
    return str(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def _is_open(pod: Object) -> bool:
    return RESIZING in pod["metadata"].get("labels", {})


async def _reasons(kube: Kube, pod: Object) -> list[str]:
    return [event["reason"] for event in (await kube.list(EVENTS, pod["metadata"]["namespace"])).items]


async def test_it_proposes_changes_keeps_and_takes_back(kube: Kube, trainer: Object) -> None:
    async with _leading(kube, trainer) as replica:
        async with asyncio.timeout(60):
            while "ResizeProposed" not in await _reasons(kube, trainer):
                await asyncio.sleep(0.2)
        assert _cpu(await _until(kube, trainer, lambda _: True)) == "2", "its namespace has not opted in"
        await _opt_in(kube, trainer)
        await _until(kube, trainer, lambda pod: _is_open(pod) and _cpu(pod) == "1")
        kept = await _until(kube, trainer, lambda pod: not _is_open(pod))
        assert [record.outcome for record in resizes_of(kept)] == [Outcome.KEPT], kept["metadata"]["annotations"]
        assert (_cpu(kept), replica.errors) == ("1", 0)
        status = kept["status"]["containerStatuses"][0]
        assert (status["resources"]["requests"]["cpu"], status["restartCount"]) == ("1", 0)
    reasons = await _reasons(kube, trainer)
    assert {"ResizeApplied", "ResizeKept"} <= set(reasons)


async def test_what_a_leader_leaves_open_its_heir_takes_back(kube: Kube, trainer: Object) -> None:
    await _opt_in(kube, trainer)
    async with _leading(kube, trainer):
        await _until(kube, trainer, lambda pod: _is_open(pod) and _cpu(pod) == "1")
    left = await _until(kube, trainer, lambda _: True)
    assert (_is_open(left), _cpu(left)) == (True, "1"), "nothing is written any more"
    async with _leading(kube, trainer):
        back = await _until(kube, trainer, lambda pod: not _is_open(pod))
        assert _cpu(back) == "2"
        assert [record.outcome for record in resizes_of(back)] == [Outcome.UNDONE]


async def test_off_takes_back_what_is_open(kube: Kube, trainer: Object) -> None:
    await _opt_in(kube, trainer)
    async with _leading(kube, trainer):
        await _until(kube, trainer, lambda pod: _is_open(pod) and _cpu(pod) == "1")
    steps = [outcome async for outcome in undo_resizes(kube, True)]
    assert [(each.step.name, each.error) for each in steps] == [("trainer", "")]
    assert _cpu(await _until(kube, trainer, lambda _: True)) == "1", "a dry run"
    assert not [outcome.error async for outcome in undo_resizes(kube, False) if outcome.error]
    back = await _until(kube, trainer, lambda pod: not _is_open(pod))
    assert _cpu(back) == "2"
    assert not [outcome async for outcome in undo_resizes(kube, False)]


async def test_off_gives_nobody_more_than_a_change_of_ours_took(kube: Kube, trainer: Object) -> None:
    """Whoever may write a pod may write its history."""
    await _opt_in(kube, trainer)
    async with _leading(kube, trainer):
        await _until(kube, trainer, lambda pod: _is_open(pod) and _cpu(pod) == "1")
    pod = await _until(kube, trainer, lambda _: True)
    forged = pod["metadata"]["annotations"][RESIZES].replace('"request":2000', '"request":64000')
    assert forged != pod["metadata"]["annotations"][RESIZES]
    changes = {"metadata": {"annotations": {RESIZES: forged}}}
    await kube.patch(PODS, "trainer", changes, pod["metadata"]["namespace"])
    (outcome,) = [outcome async for outcome in undo_resizes(kube, False)]
    assert "64" in outcome.error
    assert _cpu(await _until(kube, trainer, lambda _: True)) == "1"
