"""A Job in a real KAI's queue: KAI sees no pod of it before its size is known, and binds the dry run from its queue."""

from collections.abc import Callable
from pathlib import Path

import pytest
from controlplane.kai import QUEUE_LABEL, SCHEDULER, Kai
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import Server, wait_for

from .conftest import GPU, job, recording
from .test_in_queues import BATCH, gpus, phase

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_a_job_of_kais_is_held_dry_run_in_its_queue_and_bound_with_its_size(
    plane: ControlPlane,
    gpu_node: Kubelet,
    space: str,
    kai: Kai,
    start_controller: Callable[..., Server],
    tmp_path: Path,
) -> None:
    start_controller()
    out = tmp_path / "out"
    script = (
        f'[ "$WANDB_MODE" ] || sleep 3; echo ${{WANDB_MODE:-real}} >> {out};'
        ' [ "$WANDB_MODE" ] && exec sleep 60; sleep 1'
    )
    with kai.queue() as queue:
        wanted = job("train", space, script, log=recording(tmp_path / "log.csv", 7000), selector=gpu_node.selector)
        wanted["metadata"]["labels"] = {QUEUE_LABEL: queue}
        wanted["spec"]["template"]["spec"]["schedulerName"] = SCHEDULER
        plane.api.create(wanted)
        plane.api.wait(*BATCH, "train", lambda one: phase(one) == "profile", space)
        (dry_run,) = wait_for(lambda: plane.api.list("v1", "Pod", space, labels="kaiwo.ai/profiling"))
        assert (dry_run["spec"]["schedulerName"], dry_run["metadata"]["labels"][QUEUE_LABEL]) == (SCHEDULER, queue)
        groups = wait_for(lambda: plane.api.list("scheduling.run.ai/v2alpha2", "PodGroup", space))
        assert {one["spec"]["queue"] for one in groups} == {queue}
        sized = plane.api.wait(*BATCH, "train", lambda one: phase(one) in ("sized", "own"), space)
        assert gpus(sized) == ["nvidia.com/mig-1g.10gb"] != [GPU]
        plane.api.wait(*BATCH, "train", lambda one: one["status"].get("succeeded"), space)
    assert out.read_text().split() == ["offline", "real"]
