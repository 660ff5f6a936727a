"""The width of a real elastic training: torchrun's workers in pods, the log agent, the endpoint and an API server."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from agents.test_logtail_cluster import real_endpoint
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import free_port
from replicas import KOPT
from typer.testing import CliRunner

from kopt.cli.errors import Refused
from kopt.cli.main import app
from kopt.cli.rightsize.apply import ApplySettings
from kopt.cli.rightsize.history import taken_back
from kopt.cli.rightsize.width_watch import WidthApplySettings, apply_width
from kopt.cli.rightsize.widths import WidthCandidate, read_widths
from kopt.cluster.client.api import Kube, connect
from kopt.cluster.client.resources import EVENTS, JOBS, PODS, Object
from kopt.cluster.objects.progress import progress_of
from kopt.cluster.objects.resize_history import RESIZES, widths_of
from kopt.cluster.workloads.resizing.elastic import ELASTIC_BATCH, ELASTIC_WIDTH
from kopt.core.workload.rightsizing import Batch, Outcome, WidthChange
from kopt.policies.rightsizing.watch import Action, WatchSettings
from kopt.policies.rightsizing.width import WidthProposal

pytestmark = [pytest.mark.cluster, pytest.mark.services, pytest.mark.long, pytest.mark.timeout(1200)]
GPU, AGAIN_S = "nvidia.com/gpu", 30.0
TRAINER = Path(__file__).parent / "elastic_trainer.py"
SETTINGS = WidthApplySettings(
    # Of a machine that is busy with other things, and so is its noise.
    ApplySettings(
        WatchSettings(window_s=8, least_s=10, deadline_s=60, sample_s=1.0, baseline_s=240, pauses=0.5),
        accept_s=60,
        poll_s=0.5,
        undo_s=20,
    ),
    least_back_s=200,
    settle_s=60,
)
# Agents of one machine have one address, so that rank 0 goes to the first by process id: see docs/rightsizing.md.
LAUNCH = """
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
exec {python} -m torch.distributed.run --nnodes 1:4 --nproc-per-node 1 --max-restarts 50 --rdzv-id elastic \
  --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} \
  --rdzv-conf is_host=$([ $JOB_COMPLETION_INDEX = 0 ] && echo true || echo false),last_call_timeout=2,timeout=120 \
  {trainer} {folder}
"""


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    async with connect(control_plane.kubeconfig) as client:
        yield client


@pytest.fixture
async def job(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Object]:
    """Two workers of up to three, on a node of three GPUs, followed by the log agent."""
    api = control_plane.api
    space = api.space("elastic", {"kaiwo.ai/managed": "true"})
    command = LAUNCH.format(python=sys.executable, port=free_port(), trainer=TRAINER, folder=tmp_path)
    with (
        real_endpoint(tmp_path / "home") as url,
        Kubelet(control_plane, resources={"cpu": "64", GPU: "3"}) as kubelet,
    ):
        arguments = ["agent", "logtail", "cluster", "--namespace", space, "--mode", "annotate", "--predictions", url]
        agent = control_plane.start_server(
            "logtail-elastic",
            [*KOPT, *arguments, "--state", str(tmp_path / "state.json")],
            {"KUBECONFIG": str(control_plane.kubeconfig)},
        )
        container = {
            "name": "main",
            "image": "none",
            "command": ["sh", "-c", command],
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            "resources": {"limits": {GPU: "1"}},
        }
        template = {"nodeSelector": kubelet.selector, "restartPolicy": "OnFailure", "containers": [container]}
        notes = {ELASTIC_WIDTH: "1-3", ELASTIC_BATCH: "per-worker"}
        spec = {
            "completionMode": "Indexed",
            "parallelism": 2,
            "completions": 2,
            "backoffLimit": 100,
            "template": {"spec": template},
        }
        metadata = {"name": "train", "namespace": space, "annotations": notes}
        try:
            yield api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
        finally:
            agent.stop()


async def _candidate(kube: Kube, job: Object, target: int) -> WidthCandidate:
    """Once the log agent calls a moment safe, and tells what is left; of a machine that is busy."""
    space = job["metadata"]["namespace"]
    for _ in range(120):
        candidates = await read_widths(kube, time.time(), space, "job/train", target=target)
        if candidates and isinstance(proposal := candidates[0].result, WidthProposal):
            return replace(candidates[0], result=replace(proposal, allowed=0.8))
        await asyncio.sleep(2)
    raise AssertionError([each.result for each in candidates])


async def _width(kube: Kube, job: Object) -> tuple[int, int]:
    spec = (await kube.get(JOBS, "train", job["metadata"]["namespace"]))["spec"]
    return spec["parallelism"], spec["completions"]


async def _goes_on(kube: Kube, job: Object, since_s: float) -> None:
    """Until its workers do steps again: on a busy machine they need minutes to find each other."""
    until_s = time.monotonic() + 400
    while True:
        pods = (await kube.list(PODS, job["metadata"]["namespace"])).items
        if (progress := progress_of(pods)) is not None and progress.at_s > since_s + AGAIN_S:
            return
        if time.monotonic() > until_s:
            raise AssertionError(["no steps any more", *(pod["status"].get("containerStatuses") for pod in pods)])
        await asyncio.sleep(2)


async def _forget(kube: Kube, job: Object) -> None:
    """As if the change were long ago."""
    await kube.patch(JOBS, "train", {"metadata": {"annotations": {RESIZES: None}}}, job["metadata"]["namespace"])


async def test_a_job_gets_a_worker_that_stays_loses_one_that_slows_it_and_is_put_back(
    kube: Kube, job: Object, tmp_path: Path, control_plane: ControlPlane
) -> None:
    space, lines = job["metadata"]["namespace"], list[str]()
    candidate = await _candidate(kube, job, 3)
    kept = await apply_width(kube, candidate, SETTINGS, lines.append)
    assert kept.action is Action.KEEP, (kept, lines)
    assert await _width(kube, job) == (3, 3)
    record = widths_of(await kube.get(JOBS, "train", space))[0]
    assert (record.resize, record.outcome) == (WidthChange(2, 3, Batch.PER_WORKER), Outcome.KEPT)
    assert record.step_seconds is not None

    resting = (await read_widths(kube, time.time(), space, "job/train", target=2))[0].result
    assert resting.code == "COOLING_DOWN"  # type: ignore[union-attr]

    assert (await taken_back(kube, space, "job/train", lines.append, at_once=True)).startswith(
        "taken back: width: 2 to 3"
    )
    assert await _width(kube, job) == (2, 2)
    await _goes_on(kube, job, time.time())
    await _forget(kube, job)
    (tmp_path / "slow").touch()
    undone = await apply_width(kube, await _candidate(kube, job, 3), SETTINGS, lines.append)
    assert (undone.action, undone.reason.code) == (Action.UNDO, "SAMPLES_COST_MORE"), lines
    assert await _width(kube, job) == (2, 2)
    with pytest.raises(Refused, match="no change of job/train"):
        await taken_back(kube, space, "job/train", lines.append)

    reasons = [event["reason"] for event in (await kube.list(EVENTS, space)).items]
    assert [reasons.count(each) for each in ("ResizeKept", "ResizeUndone")] == [1, 1]
    command = ["rightsize", "history", "-n", space, "--kubeconfig", str(control_plane.kubeconfig), "-o", "json"]
    shown = await asyncio.to_thread(CliRunner().invoke, app, command)
    history = json.loads(shown.stdout)["resizes"]
    assert [(row["pod"], row["change"], row["outcome"]) for row in history] == [
        ("train", "width: 2 to 3 workers", "undone")
    ]
