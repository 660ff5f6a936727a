"""A pod that trains is resized through a real API server, watched by its log, and kept or put back."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from typer.testing import CliRunner

from kopt.cli.errors import Refused
from kopt.cli.main import app
from kopt.cli.rightsize.apply import ApplySettings, apply
from kopt.cli.rightsize.history import taken_back
from kopt.cli.rightsize.reading import read_candidates
from kopt.cluster.client.api import Conflict, Kube, connect
from kopt.cluster.client.resources import EVENTS, PODS, Object
from kopt.cluster.workloads.resizing.pods import ResizedPods
from kopt.controllers.rightsizing.candidates import Candidate
from kopt.core.units import GIB, MIB
from kopt.core.workload.rightsizing import ContainerUse, Lever
from kopt.policies.rightsizing.watch import Action, Decision, WatchSettings
from tests.prometheus_server import RunningPrometheus

pytestmark = [pytest.mark.cluster, pytest.mark.services]
TRAINING = """
import datetime, pathlib, sys, time
slow = pathlib.Path(sys.argv[1])
for step in range(1, 100000):
    time.sleep(.2 if slow.exists() else .02)
    print(f"{datetime.datetime.now(datetime.UTC).isoformat()} step {step}/100000", flush=True)
"""
SETTINGS = ApplySettings(
    # Of a machine that is busy with other things, and so is its noise.
    WatchSettings(tolerance=0.6, window_s=2, least_s=2, deadline_s=10, sample_s=0.2, baseline_s=20),
    accept_s=5,
    poll_s=0.2,
    undo_s=5,
)
USE = ContainerUse(300, 400, 600 * MIB, 10_800)
REQUESTS = {"cpu": "2", "memory": "4Gi"}


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    async with connect(control_plane.kubeconfig) as client:
        yield client


@pytest.fixture
async def trainer(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Object]:
    with Kubelet(control_plane, resources={"cpu": "8", "nvidia.com/gpu": "1"}) as kubelet:
        container = {
            "name": "main",
            "image": "none",
            "command": ["python", "-u", "-c", TRAINING, str(tmp_path / "slow")],
            "resources": {"requests": REQUESTS | {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
        }
        spec = {"nodeSelector": kubelet.selector, "restartPolicy": "Never", "containers": [container]}
        space = control_plane.api.space("rightsizing")
        metadata = {"name": "trainer", "namespace": space}
        control_plane.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        yield await asyncio.to_thread(
            control_plane.api.wait, "v1", "Pod", "trainer", lambda pod: pod["status"]["phase"] == "Running", space
        )


async def _candidate(kube: Kube, pod: Object, lever: Lever) -> Candidate:
    space = pod["metadata"]["namespace"]
    candidates = await read_candidates(kube, {(space, "trainer", "main"): USE}, time.time(), space, "pod/trainer")
    return next(each for each in candidates if each.lever is lever)


async def _applied(kube: Kube, pod: Object, lever: Lever, lines: list[str]) -> Decision:
    return await apply(kube, await _candidate(kube, pod, lever), SETTINGS, lines.append)


async def _requests(kube: Kube, pod: Object) -> dict[str, str]:
    now = await kube.get(PODS, "trainer", pod["metadata"]["namespace"])
    return {name: now["spec"]["containers"][0]["resources"]["requests"][name] for name in REQUESTS}


@pytest.mark.long
async def test_a_change_is_kept_the_next_one_undone_and_an_interrupted_one_too(
    kube: Kube, trainer: Object, tmp_path: Path, control_plane: ControlPlane
) -> None:
    lines: list[str] = []
    kept = await _applied(kube, trainer, Lever.CPU, lines)
    assert kept.action is Action.KEEP, (kept, lines)
    assert await _requests(kube, trainer) == REQUESTS | {"cpu": "1"}

    resting = await _candidate(kube, trainer, Lever.MEMORY)
    assert resting.result.code == "COOLING_DOWN"  # type: ignore[union-attr]
    await _forget(kube, trainer)
    slowed = asyncio.create_task(_slow_down(kube, trainer, tmp_path / "slow"))
    undone = await _applied(kube, trainer, Lever.MEMORY, lines)
    await slowed
    assert (undone.action, undone.reason.code) == (Action.UNDO, "STEPS_SLOWER"), lines
    assert await _requests(kube, trainer) == REQUESTS | {"cpu": "1"}

    await _forget(kube, trainer)
    (tmp_path / "slow").unlink()
    watch = asyncio.create_task(_applied(kube, trainer, Lever.MEMORY, lines))
    await _until(kube, trainer, lambda requests: requests["memory"] == "2Gi")
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
    assert await _requests(kube, trainer) == REQUESTS | {"cpu": "1"}

    space = trainer["metadata"]["namespace"]
    await _killed_after_its_change(kube, trainer)
    assert await _requests(kube, trainer) == REQUESTS | {"cpu": "1", "memory": "2Gi"}
    assert (await _candidate(kube, trainer, Lever.MEMORY)).result.code == "CHANGE_IS_OPEN"  # type: ignore[union-attr]
    await taken_back(kube, space, "pod/trainer", lines.append)
    assert await _requests(kube, trainer) == REQUESTS | {"cpu": "1"}
    with pytest.raises(Refused, match="no change of pod/trainer"):
        await taken_back(kube, space, "pod/trainer", lines.append)

    reasons = [event["reason"] for event in (await kube.list(EVENTS, space)).items]
    assert [reasons.count(reason) for reason in ("ResizeKept", "ResizeUndone")] == [1, 2]
    assert reasons.count("ResizeApplied") >= 2, "the third may be interrupted before it is said"
    command = ["rightsize", "history", "-n", space, "--kubeconfig", str(control_plane.kubeconfig), "-o", "json"]
    shown = await asyncio.to_thread(CliRunner().invoke, app, command)
    history = json.loads(shown.stdout)["resizes"]
    assert [(row["pod"], row["outcome"]) for row in history] == [("trainer", "undone")]
    assert history[0]["change"] == "memory of main: request 4096Mi to 2048Mi"


async def test_the_plan_is_made_of_what_prometheus_measured(
    trainer: Object,
    control_plane: ControlPlane,
    prometheus_server: Callable[[str], RunningPrometheus],
) -> None:
    space = trainer["metadata"]["namespace"]
    server = prometheus_server(_measured(space, cores=0.3, memory=600 * MIB))
    command = ["rightsize", "plan", "--prometheus", server.url, "--since", "3h", "-n", space]
    options = ["--kubeconfig", str(control_plane.kubeconfig), "-o", "json"]
    result = await asyncio.to_thread(CliRunner().invoke, app, [*command, *options])
    assert result.exit_code == 0, result.stderr
    rows = {row["resource"]: row for row in json.loads(result.stdout)["changes"]}
    assert {name: row["accepted"] for name, row in rows.items()} == {"cpu": True, "memory": True}
    assert (rows["cpu"]["request_after"], rows["memory"]["request_after"]) == (1000, 2 * GIB)
    assert rows["cpu"]["used"] == "0.30, at most 0.30"


async def _forget(kube: Kube, pod: Object) -> None:
    """As if the rest after the last change were over."""
    metadata = {"annotations": {"kaiwo.ai/resizes": None}}
    await kube.patch(PODS, "trainer", {"metadata": metadata}, pod["metadata"]["namespace"])


async def _killed_after_its_change(kube: Kube, pod: Object) -> None:
    """What SIGKILL leaves of a watch."""
    await _forget(kube, pod)
    candidate = await _candidate(kube, pod, Lever.MEMORY)
    assert candidate.resize is not None
    pods = ResizedPods(kube, candidate.pods, candidate.resize, time.time)
    await pods.open(float(int(time.time())))
    await pods.apply()
    with pytest.raises(Conflict, match="another change of trainer is open"):
        await ResizedPods(kube, candidate.pods, candidate.resize, time.time).open(0.0)


async def _slow_down(kube: Kube, pod: Object, slow: Path) -> None:
    """What too little memory does: no process here feels its limits."""
    await _until(kube, pod, lambda requests: requests["memory"] == "2Gi")
    slow.touch()


async def _until(kube: Kube, pod: Object, holds: Callable[[dict[str, str]], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds(await _requests(kube, pod)):
            await asyncio.sleep(0.05)


def _measured(namespace: str, cores: float, memory: float) -> str:
    """Three hours of cAdvisor's metrics, a sample a minute."""
    now_s = int(time.time())
    labels = f'namespace="{namespace}",pod="trainer",container="main"'
    times = range(now_s - 3 * 3600, now_s + 1, 60)
    lines: list[Any] = ["# TYPE container_cpu_usage_seconds counter"]
    lines += [f"container_cpu_usage_seconds_total{{{labels}}} {cores * (at - times[0])} {at}" for at in times]
    lines += ["# TYPE container_memory_working_set_bytes gauge"]
    lines += [f"container_memory_working_set_bytes{{{labels}}} {memory} {at}" for at in times]
    return "\n".join([*lines, "# EOF", ""])
