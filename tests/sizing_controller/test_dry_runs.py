"""From a Job of unknown size to a bound pod with the request that a dry run has shown, on the real control plane."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import Server, wait_for

from kopt.core.units import MIB

from .conftest import GPU, job, recording

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
Object = dict[str, Any]
BATCH = ("batch/v1", "Job")
PROFILE = ("kaiwo.ai/v1alpha1", "SizingProfile")


def limits(found: Object) -> Object:
    return dict(found["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"])


def phase(found: Object) -> str:
    state = found["metadata"].get("annotations", {}).get("kaiwo.ai/sizing-state")
    return str(json.loads(state)["phase"]) if state else ""


def test_a_job_is_held_profiled_given_a_slice_released_and_bound(
    plane: ControlPlane, gpu_node: Kubelet, space: str, start_controller: Callable[..., Server], tmp_path: Path
) -> None:
    start_controller()
    out = tmp_path / "out"
    # A container that starts before the hold reaches it is stopped again; nothing is written in its first seconds.
    script = f'[ "$WANDB_MODE" ] || sleep 3; echo ${{WANDB_MODE:-real}} >> {out}; sleep 5'
    plane.api.create(job("first", space, script, log=recording(tmp_path / "log.csv", 7000), selector=gpu_node.selector))
    held = plane.api.wait(*BATCH, "first", lambda one: phase(one) == "profile", space)
    assert held["spec"]["suspend"] is True
    assert held["metadata"]["labels"]["kaiwo.ai/held"] == "profiling"
    sized = plane.api.wait(*BATCH, "first", lambda one: phase(one) == "sized", space)
    assert sized["spec"]["suspend"] is False
    assert "kaiwo.ai/held" not in sized["metadata"].get("labels", {})
    assert limits(sized) == {"nvidia.com/mig-1g.10gb": "1", "cpu": "100m"}
    (pod,) = wait_for(lambda: plane.api.list("v1", "Pod", space, labels="job-name=first"))
    pod = plane.api.wait("v1", "Pod", pod["metadata"]["name"], lambda one: one["spec"].get("nodeName"), space)
    assert pod["spec"]["nodeName"] == gpu_node.name
    (profile,) = plane.api.list(*PROFILE, space)
    found = profile["spec"]["profile"]
    assert (found["peak_bytes"], found["steady"], found["gpu"]) == (7000 * MIB, True, "H100-SXM5-80GB")
    plane.api.wait(*BATCH, "first", lambda one: one["status"].get("succeeded"), space)
    assert out.read_text().split() == ["offline", "real"], "once in the dry run, once for good"
    wait_for(lambda: len(plane.api.list(*BATCH, space)) == 1, what="the profiling Job is gone")

    # The next of its type needs no dry run, and one that opts out is left alone.
    log = tmp_path / "log.csv"
    plane.api.create(job("second", space, script, log=log, selector=gpu_node.selector))
    plane.api.create(
        job("other", space, "true", log=log, selector=gpu_node.selector, annotations={"kaiwo.ai/profiling": "false"})
    )
    again = plane.api.wait(*BATCH, "second", lambda one: phase(one) == "sized", space)
    assert limits(again) == limits(sized)
    plane.api.wait(*BATCH, "other", lambda one: one["status"].get("succeeded"), space)
    assert len(plane.api.list(*PROFILE, space)) == 1


@pytest.mark.long
def test_a_job_that_runs_out_of_memory_gets_more_twice_and_then_its_own_request(
    plane: ControlPlane, gpu_node: Kubelet, space: str, start_controller: Callable[..., Server], tmp_path: Path
) -> None:
    start_controller()
    runs = tmp_path / "runs"
    # The dry run goes well; the first three true runs fail, the fourth ends.
    script = (
        f'[ "$WANDB_MODE" ] && exec sleep 60; sleep 2; echo run >> {runs}; [ $(wc -l < {runs}) -ge 4 ] && exit 0;'
        " echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB' >&2; exit 1"
    )
    plane.api.create(
        job(
            "hungry",
            space,
            script,
            log=recording(tmp_path / "log.csv", 7000),
            selector=gpu_node.selector,
            backoffLimit=1,
        )
    )
    asked: list[tuple[int, str]] = []

    def own(found: Object) -> bool:
        state = json.loads(found["metadata"].get("annotations", {}).get("kaiwo.ai/sizing-state", "{}"))
        (gpu,) = [name for name in limits(found) if name.startswith("nvidia.com/")]
        if state.get("phase") in ("sized", "own") and (state["tries"], gpu) not in asked:
            asked.append((state["tries"], gpu))
        return state.get("phase") == "own"

    last = plane.api.wait(*BATCH, "hungry", own, space, timeout_s=150)
    assert asked == [
        (0, "nvidia.com/mig-1g.10gb"),
        (1, "nvidia.com/mig-2g.20gb"),
        (2, "nvidia.com/mig-3g.40gb"),
        (3, GPU),
    ], last["metadata"]["annotations"]["kaiwo.ai/recommended-reason"]
    done = plane.api.wait(*BATCH, "hungry", lambda one: one["status"].get("succeeded"), space, timeout_s=150)
    assert done["spec"]["backoffLimit"] == 4, "the user's own retries, and those that were ours"


@pytest.mark.long
def test_a_dry_run_that_shows_nothing_leaves_the_request_and_off_gives_everything_back(
    plane: ControlPlane, gpu_node: Kubelet, space: str, start_controller: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_controller()
    # Nothing can be observed without a recording: the node has no GPU.
    plane.api.create(job("blind", space, "sleep 1", selector=gpu_node.selector))
    blind = plane.api.wait(*BATCH, "blind", lambda one: phase(one) == "own", space)
    assert (blind["spec"]["suspend"], limits(blind)[GPU]) == (False, "1")
    # One whose dry run cannot start waits, until everything is switched off.
    plane.api.create(job("waiting", space, "sleep 2", selector={"no": "node"}))
    plane.api.wait(*BATCH, "waiting", lambda one: phase(one) == "profile", space)
    server.kill()
    import subprocess

    from replicas import KOPT

    subprocess.run([*KOPT, "off", "--kubeconfig", str(plane.kubeconfig), "-n", "kopt-system"], check=True, timeout=120)
    found = plane.api.get(*BATCH, "waiting", space)
    assert (found["spec"]["suspend"], limits(found)[GPU]) == (False, "1")
    assert "kaiwo.ai/held" not in found["metadata"].get("labels", {})


def test_no_job_is_held_for_longer_than_the_budget(
    plane: ControlPlane, gpu_node: Kubelet, space: str, start_controller: Callable[..., Server], tmp_path: Path
) -> None:
    start_controller("--duration=2s", "--budget=4s")
    plane.api.create(job("late", space, "true", selector={"no": "node"}))
    plane.api.wait(*BATCH, "late", lambda one: phase(one) == "profile", space)
    late = plane.api.wait(*BATCH, "late", lambda one: phase(one) == "own", space)
    assert late["spec"]["suspend"] is False
    assert "within 4 s" in late["metadata"]["annotations"]["kaiwo.ai/recommended-reason"]
