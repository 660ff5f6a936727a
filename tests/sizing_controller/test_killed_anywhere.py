"""The controller is killed before and after each of its calls, once each, from the hold to the last try; the job still
comes out right, whether a queue decides about it or not."""

import asyncio
import contextlib
import itertools
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.kubelet import Kubelet
from controlplane.kueue import Kueue
from controlplane.plane import ControlPlane
from replicas import KOPT

from .conftest import GPU, job, recording
from .mortal import Fate, live

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
Object = dict[str, Any]
BATCH = ("batch/v1", "Job")
QUEUE = "kueue.x-k8s.io/queue-name"
SLICES = ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb"]
QUOTA = {GPU: 2, "nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-2g.20gb": 3, "nvidia.com/mig-3g.40gb": 2, "cpu": 8}
CALLS = {
    "PATCH train profile 0": "hold",
    "POST jobs": "dry run",
    "POST sizingprofiles": "profile",
    "PATCH train sized 0": "release",
    "PATCH train retry 0": "out of memory",
    "PATCH train sized 1": "second try",
    "PATCH train retry 1": "out of memory again",
    "PATCH train sized 2": "third try",
    "PATCH train retry 2": "out of memory once more",
    "PATCH train own 3": "its own request",
}


class History:
    """Every version of a Job that the API server has told of, gathered in the background."""

    def __init__(self, plane: ControlPlane, namespace: str, name: str) -> None:
        self.versions: list[Object] = []
        self._path = f"/apis/batch/v1/namespaces/{namespace}/jobs?watch=true&fieldSelector=metadata.name%3D{name}"
        self._plane = plane
        threading.Thread(target=self._gather, daemon=True).start()

    def _gather(self) -> None:
        # The API server ends with the tests, and the stream with it.
        with (
            contextlib.suppress(httpx.HTTPError),
            self._plane.api.http.stream("GET", self._path, timeout=600) as response,
        ):
            for line in response.iter_lines():
                self.versions.append(json.loads(line)["object"])

    @property
    def requests(self) -> list[str]:
        """What it asked for whenever it was nobody's to hold, without repetitions."""
        free = [one for one in self.versions if "kaiwo.ai/held" not in one["metadata"].get("labels", {})]
        return [name for name, _ in itertools.groupby(gpu_of(one) for one in free)]

    @property
    def states(self) -> list[Object]:
        return [state for one in self.versions if (state := state_of(one))]


def gpu_of(found: Object) -> str:
    limits = found["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    (name,) = [one for one in limits if one.startswith("nvidia.com/")]
    return str(name)


def state_of(found: Object) -> Object:
    return dict(json.loads(found["metadata"].get("annotations", {}).get("kaiwo.ai/sizing-state", "{}")))


def hungry(space: str, node: Kubelet, log: Path, enough: Path) -> Object:
    """It runs out of memory until ``enough`` is there."""
    script = (
        f'[ "$WANDB_MODE" ] && exec sleep 60; sleep 1; [ -e {enough} ] && exit 0;'
        " echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB' >&2; exit 1"
    )
    return job("train", space, script, log=log, selector=node.selector)


@pytest.fixture(params=["alone", "queued"])
def labels(request: pytest.FixtureRequest, space: str) -> Iterator[dict[str, str]]:
    """With and without Kueue's queue."""
    if request.param == "alone":
        yield {}
        return
    kueue: Kueue = request.getfixturevalue("kueue")
    with kueue.queue(space, QUOTA):
        yield {QUEUE: "gpus"}


@pytest.mark.timeout(900)
@pytest.mark.long
async def test_it_survives_being_killed_at_every_call(
    plane: ControlPlane, gpu_node: Kubelet, space: str, labels: dict[str, str], tmp_path: Path
) -> None:
    enough, fate, over = tmp_path / "enough", Fate(), asyncio.Event()
    wanted = hungry(space, gpu_node, recording(tmp_path / "log.csv", 7000), enough)
    wanted["metadata"]["labels"] = labels
    # Its pods wait until it is held: a job whose pods run already would be left alone, and one that is admitted.
    closed = _Closed(plane, gpu_node, space if labels else "")
    await asyncio.to_thread(plane.api.create, wanted)
    seen = History(plane, space, "train")
    follow = asyncio.create_task(_follow(plane, space, closed, enough, over))
    for number in range(100):
        await live(plane.kubeconfig, fate, f"mortal-{number}", over)
        if over.is_set():
            break
    await asyncio.wait_for(follow, 60)
    assert seen.requests == [GPU, *SLICES, GPU], "each hold is followed by one release, with more than before"
    granted = [one["granted_bytes"] for one in seen.states if one["phase"] == "sized"]
    assert granted == sorted(granted)
    assert all(one["granted_bytes"] >= one["need_bytes"] for one in seen.states if one["phase"] == "sized")
    found = plane.api.get(*BATCH, "train", space)
    assert (found["status"]["succeeded"], found["spec"]["suspend"]) == (1, False)
    assert found["metadata"]["labels"].get(QUEUE) == labels.get(QUEUE)
    assert "kaiwo.ai/held" not in found["metadata"]["labels"]
    assert found["spec"]["backoffLimit"] == 6 + 3, "its own retries, and those that were ours"
    assert len(plane.api.list("kaiwo.ai/v1alpha1", "SizingProfile", space)) == 1
    missing = {(when, call) for when in ("before", "after") for call in CALLS} - set(fate.met)
    assert not missing, fate.met
    assert any("log" in call for _, call in fate.met)
    # Where a queue is known to the cluster its Workloads are looked for; one is changed only if the job has one.
    assert any("workloads" in call for _, call in fate.met) or not labels, fate.met
    assert bool(labels) == any("job-train" in call for _, call in fate.met), fate.met


async def test_off_during_a_retry_gives_the_own_request_back(
    plane: ControlPlane, gpu_node: Kubelet, space: str, tmp_path: Path
) -> None:
    enough, over = tmp_path / "enough", asyncio.Event()
    closed = _Closed(plane, gpu_node, "")
    await asyncio.to_thread(plane.api.create, hungry(space, gpu_node, recording(tmp_path / "log.csv", 7000), enough))
    opened = asyncio.create_task(_open_when_held(plane, space, closed))
    fate = Fate("train retry")
    fate.met.append(("before", "PATCH train retry 0"))
    await live(plane.kubeconfig, fate, "mortal", over)
    await opened
    held = plane.api.get(*BATCH, "train", space)
    assert (state_of(held)["phase"], gpu_of(held)) == ("retry", SLICES[0])
    enough.touch()
    off = [*KOPT, "off", "--kubeconfig", str(plane.kubeconfig), "-n", "kopt-system"]
    await asyncio.to_thread(subprocess.run, off, check=True, timeout=120)
    found = plane.api.get(*BATCH, "train", space)
    assert (gpu_of(found), found["spec"]["suspend"], found["spec"]["backoffLimit"]) == (GPU, False, 6)
    await asyncio.to_thread(
        plane.api.wait, *BATCH, "train", lambda one: one["status"].get("succeeded"), space, timeout_s=90
    )


class _Closed:
    """Nothing starts until it is opened: the node takes no pods, and the queue, if there is one, admits nothing."""

    def __init__(self, plane: ControlPlane, node: Kubelet, queued_in: str) -> None:
        self._plane, self._node, self._space = plane, node, queued_in
        self.opened = False
        self._set({"unschedulable": True}, "Hold")

    def open(self) -> None:
        if not self.opened:
            self._set({"unschedulable": None}, "None")
            self.opened = True

    def _set(self, node: Object, policy: str) -> None:
        self._plane.api.patch("v1", "Node", self._node.name, {"spec": node}, "")
        if self._space:
            queue = ("kueue.x-k8s.io/v1beta1", "LocalQueue", "gpus")
            self._plane.api.patch(*queue, {"spec": {"stopPolicy": policy}}, self._space)


async def _open_when_held(plane: ControlPlane, space: str, closed: _Closed) -> None:
    def is_held(found: Object) -> bool:
        return "kaiwo.ai/held" in found["metadata"].get("labels", {})

    await asyncio.to_thread(plane.api.wait, *BATCH, "train", is_held, space, timeout_s=120)
    await asyncio.to_thread(closed.open)


async def _follow(plane: ControlPlane, space: str, closed: _Closed, enough: Path, over: asyncio.Event) -> None:
    """Open what is closed once the job is held; give it enough memory once it has its own request; wait for its end."""
    try:
        await _open_when_held(plane, space, closed)
        await asyncio.to_thread(
            plane.api.wait, *BATCH, "train", lambda one: state_of(one).get("phase") == "own", space, timeout_s=400
        )
        enough.touch()
        await asyncio.to_thread(
            plane.api.wait, *BATCH, "train", lambda one: one["status"].get("succeeded"), space, timeout_s=200
        )
        while len(await asyncio.to_thread(plane.api.list, *BATCH, space)) > 1:
            await asyncio.sleep(0.2)
    finally:
        over.set()
