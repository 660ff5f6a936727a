"""A prediction by the steps of a real log comes true: a training that runs as a process of the tests' kubelet."""

import json
import os
import time
from pathlib import Path

import pytest
from controlplane.api import Object
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from typer.testing import CliRunner

from kopt.cli.main import app

pytestmark = pytest.mark.cluster
STEPS, STEP_S, ASKED_AT = 80, 0.4, 20
SCRIPT = f"""
import datetime, time
for step in range(1, {STEPS} + 1):
    time.sleep({STEP_S})
    print(f"{{datetime.datetime.now().isoformat(' ')}} step {{step}}/{STEPS} loss {{5 / step:.3f}}", flush=True)
"""
TABLE = Path(__file__).parents[2] / "docs/examples/jobs.csv"


@pytest.mark.long
def test_the_time_that_remains_by_the_steps_of_its_log_is_what_it_takes(
    control_plane: ControlPlane, kubelet: Kubelet, tmp_path: Path
) -> None:
    api, space = control_plane.api, control_plane.api.space("comes-true")
    name = f"train-{os.getpid()}"
    container = {"name": "main", "image": "none", "command": ["python", "-u", "-c", SCRIPT]}
    spec = {"nodeSelector": kubelet.selector, "restartPolicy": "Never", "containers": [container]}
    metadata = {"name": name, "namespace": space}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    path = api.path("v1", "Pod", space, name) + "/log"

    def log() -> str | None:
        pod = api.get("v1", "Pod", name, space)
        if pod["status"].get("phase") not in ("Running", "Succeeded"):
            return None
        text = api.request("GET", path).text
        return text if text.count("\n") >= ASKED_AT else None

    text = wait_for(log, what=f"step {ASKED_AT}")
    asked_s = time.time()
    file = tmp_path / "train.log"
    file.write_text(text or "", encoding="utf-8")
    words = ["runtime", "estimate", "--runs", str(TABLE), "--queue", "research", "--gpus", "8", "--log", str(file)]
    done = CliRunner().invoke(app, [*words, "--running", f"{ASKED_AT * STEP_S:.0f}s", "-o", "json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["by_steps"]
    remaining: Object = answer["remaining_seconds"]
    pod = api.wait("v1", "Pod", name, lambda one: one["status"]["phase"] in ("Succeeded", "Failed"), space)
    took_s = time.time() - asked_s
    assert pod["status"]["phase"] == "Succeeded"
    # By history such jobs take hours.
    assert remaining["p05"] <= took_s <= remaining["p95"]
    assert remaining["p50"] == pytest.approx(took_s, rel=0.15)
