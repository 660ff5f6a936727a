"""With the webhook in front, a Job is held before it has a pod, and known types get their size as they are created."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import Server, wait_for

from .conftest import job, recording

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
BATCH = ("batch/v1", "Job")


@pytest.mark.long
def test_no_pod_starts_before_the_dry_run(
    plane: ControlPlane,
    gpu_node: Kubelet,
    space: str,
    webhook: Server,
    start_controller: Callable[..., Server],
    tmp_path: Path,
) -> None:
    start_controller()
    out = tmp_path / "out"
    log = recording(tmp_path / "log.csv", 7000)

    def submitted(name: str, **params: str) -> dict[str, Any]:
        script = f'echo ${{WANDB_MODE:-real}} >> {out}; [ "$WANDB_MODE" ] && exec sleep 60; sleep 2'
        return plane.api.create(job(name, space, script, log=log, selector=gpu_node.selector), **params)

    # Until the API server sends reviews, and the webhook sees that the controller lives.
    wait_for(lambda: submitted("probe", dryRun="All")["spec"].get("suspend"), what="a Job is held as it is created")
    stored = submitted("train")
    assert (stored["spec"]["suspend"], stored["metadata"]["labels"]["kaiwo.ai/held"]) == (True, "profiling")
    done = plane.api.wait(*BATCH, "train", lambda one: one["status"].get("succeeded"), space)
    assert json.loads(done["metadata"]["annotations"]["kaiwo.ai/sizing-state"])["phase"] == "sized"
    assert out.read_text().split() == ["offline", "real"], "its own container ran once, after the dry run"
    again = wait_for(lambda: _advised(submitted("again", dryRun="All")), what="the webhook knows the size")
    assert again["kaiwo.ai/recommended-model"] == "dry-run:1"
    assert 7000 < int(again["kaiwo.ai/recommended-memory"]) < 9000


def _advised(found: dict[str, Any]) -> dict[str, Any] | None:
    notes = found["metadata"].get("annotations", {})
    return notes if "kaiwo.ai/recommended-memory" in notes else None
