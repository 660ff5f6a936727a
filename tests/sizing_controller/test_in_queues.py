"""Jobs in a real Kueue's queues: admitted only with a known size, counted by their quota, and retried through it."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from controlplane.kubelet import Kubelet
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import Server, wait_for
from replicas import KOPT

from .conftest import GPU, job, recording

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
Object = dict[str, Any]
BATCH = ("batch/v1", "Job")
QUEUE = "kueue.x-k8s.io/queue-name"
QUOTA = {GPU: 2, "nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-2g.20gb": 3, "nvidia.com/mig-3g.40gb": 2, "cpu": 8}


@pytest.fixture
def queue(kueue: Kueue, space: str) -> Iterator[str]:
    with kueue.queue(space, QUOTA) as found:
        yield found


def queued(name: str, space: str, script: str, node: Kubelet, log: Path | None, **spec: Any) -> Object:
    found = job(name, space, script, log=log, selector=node.selector, **spec)
    found["metadata"]["labels"] = {QUEUE: "gpus"}
    return found


def phase(found: Object) -> str:
    return str(json.loads(found["metadata"].get("annotations", {}).get("kaiwo.ai/sizing-state", "{}")).get("phase", ""))


def gpus(found: Object) -> list[str]:
    limits = found["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    return [name for name in limits if name.startswith("nvidia.com/")]


def test_a_queued_job_is_admitted_only_with_its_size(
    plane: ControlPlane,
    gpu_node: Kubelet,
    space: str,
    queue: str,
    webhook: Server,
    start_controller: Callable[..., Server],
    tmp_path: Path,
) -> None:
    start_controller()
    out = tmp_path / "out"
    script = f'echo ${{WANDB_MODE:-real}} >> {out}; [ "$WANDB_MODE" ] && exec sleep 60; sleep 4'
    wanted = queued("train", space, script, gpu_node, recording(tmp_path / "log.csv", 7000))
    wait_for(lambda: plane.api.create(wanted, dryRun="All")["metadata"]["labels"].get("kaiwo.ai/held"))
    made = plane.api.create(wanted)
    assert (made["metadata"]["labels"][QUEUE], made["spec"]["suspend"]) == ("kaiwo-held", True)
    # Kueue's webhook changes the Job after ours, which is asked again then: it does not wait for its own turn.
    assert json.loads(made["metadata"]["annotations"]["kaiwo.ai/held-undo"]) == {"queue": "gpus"}
    parked = workload_of(plane, made)
    plane.api.wait(*BATCH, "train", lambda one: phase(one) == "profile", space)
    (dry_run,) = wait_for(lambda: plane.api.list(*BATCH, space, labels="kaiwo.ai/profiling"))
    wait_for(lambda: admitted(workload_of(plane, dry_run)), what="the dry run is admitted by its quota")
    assert not admitted(workload_of(plane, made))
    sized = plane.api.wait(*BATCH, "train", lambda one: phase(one) == "sized", space)
    assert sized["metadata"]["labels"][QUEUE] == "gpus"
    # While it runs: Kueue forgets the admission of what has finished.
    admission = wait_for(lambda: workload_of(plane, made)["status"].get("admission"), what="it is admitted")
    done = plane.api.wait(*BATCH, "train", lambda one: one["status"].get("succeeded"), space)
    assert gpus(done) == ["nvidia.com/mig-1g.10gb"]
    after = workload_of(plane, made)
    assert after["metadata"]["uid"] == parked["metadata"]["uid"], "it has kept its place in the queue"
    (assigned,) = admission["podSetAssignments"]
    assert assigned["resourceUsage"]["nvidia.com/mig-1g.10gb"] == "1", "the quota has counted what it asks for now"
    assert out.read_text().split() == ["offline", "real"]


@pytest.mark.long
def test_a_queued_job_that_runs_out_of_memory_is_stopped_by_its_workload_and_gets_more(
    plane: ControlPlane,
    gpu_node: Kubelet,
    space: str,
    queue: str,
    start_controller: Callable[..., Server],
    tmp_path: Path,
) -> None:
    runs, wants = tmp_path / "runs", queued("hungry", space, "", gpu_node, recording(tmp_path / "log.csv", 7000))
    script = (
        f'[ "$WANDB_MODE" ] && exec sleep 60; sleep 1; echo run >> {runs}; [ $(wc -l < {runs}) -ge 4 ] && exit 0;'
        " echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB' >&2; exit 1"
    )
    wants["spec"]["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", script]
    wants["spec"]["backoffLimit"] = 1
    # Suspended as Kueue would, in a queue that admits nothing, so that the controller alone comes in time.
    plane.api.patch("kueue.x-k8s.io/v1beta1", "ClusterQueue", queue, {"spec": {"stopPolicy": "Hold"}}, "")
    start_controller()
    made = plane.api.create(wants)
    plane.api.wait(*BATCH, "hungry", lambda one: phase(one) == "profile", space)
    # Only once Kueue has taken it out of its queue: before, opening the queue would admit it as it was written.
    wait_for(lambda: workload_of(plane, made)["spec"]["queueName"] == "kaiwo-held", what="Kueue has parked it")
    plane.api.patch("kueue.x-k8s.io/v1beta1", "ClusterQueue", queue, {"spec": {"stopPolicy": "None"}}, "")
    asked: list[tuple[int, str]] = []

    def own(found: Object) -> bool:
        state = json.loads(found["metadata"].get("annotations", {}).get("kaiwo.ai/sizing-state", "{}"))
        if state.get("phase") in ("sized", "own") and (state["tries"], gpus(found)[0]) not in asked:
            asked.append((state["tries"], gpus(found)[0]))
        return state.get("phase") == "own"

    plane.api.wait(*BATCH, "hungry", own, space, timeout_s=150)
    slices = ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb"]
    assert asked == list(enumerate([*slices, GPU]))
    done = plane.api.wait(*BATCH, "hungry", lambda one: one["status"].get("succeeded"), space)
    assert done["metadata"]["labels"][QUEUE] == "gpus"
    assert "kaiwo.ai/held" not in workload_of(plane, done)["metadata"].get("labels", {})
    assert runs.read_text().split() == ["run"] * 4


@pytest.mark.long
def test_without_the_webhook_an_admitted_job_whose_pods_wait_is_stopped_and_sized(
    plane: ControlPlane,
    gpu_node: Kubelet,
    space: str,
    queue: str,
    start_controller: Callable[..., Server],
    tmp_path: Path,
) -> None:
    """Kueue is quicker than the controller; an image that is being pulled is stood for by a missing ConfigMap."""
    out = tmp_path / "out"
    script = f'echo ${{WANDB_MODE:-real}} >> {out}; [ "$WANDB_MODE" ] && exec sleep 60; sleep 1'
    wanted = queued("early", space, script, gpu_node, recording(tmp_path / "log.csv", 7000))
    pod = wanted["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "settings", "configMap": {"name": "late"}}]
    made = plane.api.create(wanted)
    before = wait_for(lambda: admitted(workload_of(plane, made)) and workload_of(plane, made), what="Kueue admits it")
    plane.api.wait(*BATCH, "early", lambda one: one["status"].get("active"), space)
    start_controller()
    plane.api.wait(*BATCH, "early", lambda one: phase(one) == "profile", space)
    parked = plane.api.get(*BATCH, "early", space)
    assert (parked["metadata"]["labels"][QUEUE], parked["spec"]["suspend"]) == ("kaiwo-held", True)
    assert not out.exists(), "nothing of it has begun"
    wait_for(lambda: not admitted(workload_of(plane, made)), what="its quota is free for the dry run")
    late = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late", "namespace": space}}
    plane.api.apply(late)
    done = plane.api.wait(*BATCH, "early", lambda one: one["status"].get("succeeded"), space, timeout_s=150)
    told = str(done["metadata"]["annotations"])
    assert (gpus(done), done["metadata"]["labels"][QUEUE]) == (["nvidia.com/mig-1g.10gb"], "gpus"), told
    assert out.read_text().split() == ["offline", "real"], "its own container ran once, with its size"
    after = workload_of(plane, done)
    assert before["metadata"]["uid"], after["metadata"]["uid"]
    assert "kaiwo.ai/held" not in after["metadata"].get("labels", {})
    assert after["spec"].get("active", True)


def test_without_the_webhook_an_admitted_job_that_has_begun_goes_on_as_written(
    plane: ControlPlane,
    gpu_node: Kubelet,
    space: str,
    queue: str,
    start_controller: Callable[..., Server],
    tmp_path: Path,
) -> None:
    out, goes_on = tmp_path / "out", tmp_path / "goes-on"
    script = f"echo began >> {out}; until [ -e {goes_on} ]; do sleep .1; done"
    made = plane.api.create(queued("begun", space, script, gpu_node, None))
    wait_for(out.exists, what="its container runs")
    plane.api.wait(*BATCH, "begun", lambda one: one["status"].get("ready"), space)
    server = start_controller()
    # A Job that is made later has been looked at, so the first has been, too.
    plane.api.create(job("later", space, "sleep 1", selector=gpu_node.selector))
    plane.api.wait(*BATCH, "later", lambda one: phase(one) == "profile", space)
    goes_on.touch()
    done = plane.api.wait(*BATCH, "begun", lambda one: one["status"].get("succeeded"), space)
    assert (gpus(done), phase(done), out.read_text().split()) == ([GPU], "", ["began"])
    assert workload_of(plane, made)["spec"].get("active", True)
    server.kill()


def test_off_gives_parked_jobs_their_queue_back(
    plane: ControlPlane, gpu_node: Kubelet, space: str, queue: str, start_controller: Callable[..., Server]
) -> None:
    plane.api.patch("kueue.x-k8s.io/v1beta1", "ClusterQueue", queue, {"spec": {"stopPolicy": "Hold"}}, "")
    server = start_controller()
    plane.api.create(queued("waiting", space, "sleep 1", gpu_node, None))
    plane.api.wait(*BATCH, "waiting", lambda one: one["metadata"]["labels"][QUEUE] == "kaiwo-held", space)
    server.kill()
    subprocess.run([*KOPT, "off", "--kubeconfig", str(plane.kubeconfig), "-n", "kopt-system"], check=True, timeout=120)
    found = plane.api.get(*BATCH, "waiting", space)
    assert (found["metadata"]["labels"], found["spec"]["suspend"]) == ({QUEUE: "gpus"}, True)
    plane.api.patch("kueue.x-k8s.io/v1beta1", "ClusterQueue", queue, {"spec": {"stopPolicy": "None"}}, "")
    done = plane.api.wait(*BATCH, "waiting", lambda one: one["status"].get("succeeded"), space)
    assert gpus(done) == [GPU]
