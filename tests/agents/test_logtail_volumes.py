"""What trainers write into the volumes of their pods, found where the kubelet keeps these, without waiting for any."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from controlplane.processes import until
from logtail_endpoint import Endpoint

from kopt.agents.logtail import checkpoints, volumes
from kopt.agents.logtail.checkpoints import Allowance, entries_of, item_of
from kopt.agents.logtail.folder_watch import Threads, VolumeWatch, WatchSettings
from kopt.agents.logtail.jobs import Jobs, JobSettings
from kopt.agents.logtail.offset_store import OffsetStore
from kopt.agents.logtail.pods import FollowedPod, followed_pod
from kopt.agents.logtail.sender import SenderSettings
from kopt.agents.logtail.volumes import PodVolumes, is_checkpoint
from kopt.serving.contract.checkpoint_schemas import CHECKPOINT_REQUEST

UID, JOB = "5e3a-01", "research/llama"
SETTINGS = JobSettings(sender=SenderSettings(linger_s=0.0, ask_s=600.0))
QUICK = WatchSettings(observe_s=0.01, confirm_s=0.05, patience_s=0.05)


class Node:
    """The kubelet's folder, and one pod's volumes as they are looked at."""

    def __init__(self, root: Path) -> None:
        self.root, self.now_s = root, 0.0
        self.volumes = PodVolumes(root, UID, clock=lambda: self.now_s)

    def volume(self, name: str = "work", plugin: str = "empty-dir", below: str = "volumes", uid: str = UID) -> Path:
        folder = self.root / uid / below / f"kubernetes.io~{plugin}" / name
        folder = folder / "mount" if plugin == "csi" else folder
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def observe(self, after_s: float = 60.0) -> list[dict[str, Any]]:
        """The files that are listed, each as the endpoint takes it."""
        self.now_s += after_s
        items = self.volumes.observe(time.time())
        listing = {"by": UID, "files": items, "at": time.time()}
        CHECKPOINT_REQUEST.validate_json(json.dumps({"job": JOB, "listings": [listing]}))
        return [item for item in items if not item["is_folder"]]

    def paths(self, after_s: float = 60.0) -> set[tuple[str, str]]:
        return {(item["folder"], item["path"]) for item in self.observe(after_s)}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def save(folder: Path, name: str = "checkpoint-10/model.safetensors", age_s: float = 0.0) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("weights")
    for each in (path, path.parent):
        os.utime(each, (time.time() - age_s,) * 2)
    return path


@pytest.mark.parametrize(
    ("plugin", "ephemeral"),
    [("empty-dir", True), ("csi", False), ("nfs", False), ("local-volume", False), ("cephfs", False)],
)
def test_a_checkpoint_is_found_in_a_volume_of_any_kind(node: Node, plugin: str, ephemeral: bool) -> None:
    save(node.volume("pvc-1", plugin) / "runs" / "a")
    (item,) = node.observe()
    assert item | {"modified_at": 0} == {
        "folder": "pvc-1/runs/a",
        "path": "checkpoint-10/model.safetensors",
        "bytes": 7,
        "modified_at": 0,
        "is_folder": False,
        "ephemeral": ephemeral,
    }
    assert abs(item["modified_at"] - time.time()) < 60


CLAIM = {"name": "work", "persistentVolumeClaim": {"claimName": "runs"}}
SCRATCH = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}


@pytest.mark.parametrize(
    ("volumes", "folder", "plugin", "ephemeral"),
    [
        ([CLAIM], "pvc-1", "csi", False),
        ([CLAIM, {"name": "fast", "csi": {"driver": "local.example"}}], "fast", "csi", True),
        ([CLAIM, {"name": "fast", "csi": {"driver": "local.example"}}], "pvc-1", "csi", False),
        ([SCRATCH], "pvc-1", "csi", True),
        ([CLAIM, SCRATCH], "pvc-1", "csi", True),
        ([SCRATCH, {"name": "data", "nfs": {"server": "nas"}}], "data", "nfs", False),
        ([SCRATCH, {"name": "data", "nfs": {"server": "nas"}}], "pvc-1", "local-volume", True),
        (["no volume", None], "pvc-1", "csi", False),
    ],
)
def test_what_is_gone_with_its_pod_is_no_checkpoint_that_lasts(
    tmp_path: Path, volumes: list[Any], folder: str, plugin: str, ephemeral: bool
) -> None:
    node = Node(tmp_path)
    node.volumes = PodVolumes(tmp_path, UID, lambda: node.now_s, pod(volumes=volumes).ephemeral)
    save(node.volume(folder, plugin))
    (item,) = node.observe()
    assert item["ephemeral"] is ephemeral


@pytest.mark.parametrize("plugin", ["configmap", "secret", "projected", "downward-api", "git-repo"])
def test_what_the_kubelet_writes_itself_is_not_looked_at(
    node: Node, plugin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(node.volume("a", plugin))
    opened: list[Any] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *args, **more: (opened.append(path), real(path, *args, **more))[1])
    assert node.paths() == set()
    assert "a" not in opened
    assert f"kubernetes.io~{plugin}" not in opened


CHECKPOINTS = """checkpoint-100 ckpt_5 global_step100 step_100 step=100 iter_0000100 epoch_3 epoch=3-step=10 snapshot-3
    checkpoint_100.orbax-checkpoint-tmp-123 tmp-checkpoint-100 .tmp_checkpoint_100 checkpoint100 checkpoint-last
    last-checkpoint best_model epoch=3.ckpt model_step_100 checkpoint-5.tmp snapshot_iter_100 iter100 iteration_10"""
OTHER_FOLDERS = """checkpoints checkpoints-2024 data run-3 timestep3 steps epochs train imagenet sft-step2 stepwise
    models snapshots logs iterators"""
FILES = """model.pt model.pt.tmp model.pth a.ckpt x.safetensors __0_0.distcp .metadata m.h5 m.keras f.msgpack a.t7
    model.ckpt-100.index model.ckpt-100.data-00000-of-00001 pytorch_model.bin pytorch_model-00001-of-00002.bin
    optimizer.bin adapter_model.bin checkpoint_100 ckpt.npz checkpoint.pkl model.safetensors.index.json model.pt.a8f3kd
    model.pt~ model.pt.part epoch=3-step=10.ckpt model.pt.md5 model.pt_tmp"""
OTHER_FILES = """train.log data.bin tokens.npy messages.pt_BR.po x.html foo.json a.parquet metrics_12.jsonl step_100.png
    config.json events.out.tfevents.1 main.py checkpoint.py index.html ckpt.txt"""


@pytest.mark.parametrize(
    ("names", "is_folder", "expected"),
    [(CHECKPOINTS, True, True), (OTHER_FOLDERS, True, False), (FILES, False, True), (OTHER_FILES, False, False)],
)
def test_checkpoints_are_known_by_their_names(names: str, is_folder: bool, expected: bool) -> None:
    assert [name for name in names.split() if is_checkpoint(name, is_folder=is_folder) is not expected] == []


def test_a_number_is_a_checkpoint_among_checkpoints_alone() -> None:
    assert is_checkpoint("100", is_folder=True, folder="checkpoints")
    assert not is_checkpoint("100", is_folder=True, folder="images")


def test_folders_inside_a_checkpoint_are_parts_of_it_and_files_beside_it_are_not_its(node: Node) -> None:
    work = node.volume()
    save(work, "checkpoint-10/global_step10/rank0.pt")
    save(work, "checkpoint-10/trainer_state.json")
    save(work, "checkpoint-10/a/b/c.pt")
    save(work, "train_12.log")
    save(work, "out/last.pt")
    assert node.paths() == {
        ("work", "checkpoint-10/global_step10/rank0.pt"),
        ("work", "checkpoint-10/trainer_state.json"),
        ("work/out", "last.pt"),
    }


def test_links_are_not_followed_even_where_a_folder_becomes_one(node: Node, tmp_path: Path) -> None:
    secret = node.volume("token", "secret", uid="other")
    save(secret)
    work = node.volume()
    (work / "link").symlink_to(secret)
    (work / "checkpoint-20").symlink_to(secret / "checkpoint-10")
    (work / "model.pt").symlink_to(secret / "checkpoint-10" / "model.safetensors")
    save(work / "mine")
    assert node.paths() == {("work/mine", "checkpoint-10/model.safetensors")}
    (work / "mine").rename(work / "away")
    (work / "mine").symlink_to(secret)
    assert node.paths(after_s=0) == set()
    assert list(entries_of(work, ("link",), Allowance())) == []


def test_where_a_pod_sees_a_part_of_a_volume_the_rest_is_of_others(node: Node) -> None:
    shared = node.volume("pvc-1", "nfs")
    save(shared / "others")
    part = node.root / UID / "volume-subpaths" / "pvc-1" / "trainer" / "0"
    save(part, "checkpoint-3/model.pt")
    assert node.paths() == {("pvc-1/trainer/0", "checkpoint-3/model.pt")}


def test_folders_far_below_and_more_entries_than_are_looked_at_stay_unknown(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = node.volume()
    deep = "/".join("abcdef")
    save(work / deep)
    save(work / deep / "g")
    assert {folder for folder, _ in node.paths()} == {f"work/{deep}"}
    for number in range(200):
        (work / f"text-{number}").touch()
    monkeypatch.setattr(volumes, "_MOST_OF_FOLDER", 50)
    monkeypatch.setattr(volumes, "MOST_LOOKED_AT", 120)
    looked_at: list[str] = []
    real = checkpoints.entries_of

    def counting(folder: Path, parts: Any, allowance: Allowance) -> Any:
        for entry in real(folder, parts, allowance):
            looked_at.append(entry.path)
            yield entry

    monkeypatch.setattr(volumes, "entries_of", counting)
    node.paths()
    assert len(looked_at) <= 2 * 120 + 2


def test_of_too_many_files_those_of_the_newest_checkpoints_are_sent_and_each_is_whole(node: Node) -> None:
    work = node.volume()
    for number in range(1, 5):
        for part in range(600):
            save(work, f"checkpoint-{number}/{part}.pt", age_s=1000 - 100 * number)
    sent = node.observe()
    counts = {n: sum(item["path"].startswith(f"checkpoint-{n}/") for item in sent) for n in range(1, 5)}
    assert counts == {1: 0, 2: 600, 3: 600, 4: 600}
    for part in range(2500):
        save(work, f"checkpoint-9/{part}.pt")
    assert len(node.volumes.observe(time.time())) == 2000


def test_where_there_is_too_much_to_look_at_newer_folders_come_first_and_nothing_looks_torn(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = node.volume()
    monkeypatch.setattr(volumes, "MOST_LOOKED_AT", 60)
    for run in range(3):
        for number in range(1, 5):
            for part in range(6):
                save(work / f"run-{run}", f"checkpoint-{number}/{part}.pt")
        os.utime(work / f"run-{run}", (time.time() - 100 * run,) * 2)
    found = node.paths()
    assert {folder for folder, _ in found} == {"work/run-0", "work/run-1"}
    units = Counter((folder, path.split("/")[0]) for folder, path in found)
    assert set(units.values()) == {6}
    assert sum(folder == "work/run-0" for folder, _ in units) == 4


def test_what_vanishes_or_may_not_be_read_costs_nothing_else(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    work = node.volume()
    save(work / "mine")
    save(work / "locked")
    gone = save(work, "gone.pt")
    (entry,) = [each for each in entries_of(work, (), Allowance()) if each.name == "gone.pt"]
    gone.unlink()
    assert item_of(entry) is None
    real = os.open

    def refusing(path: Any, *args: Any, **more: Any) -> int:
        if path == "locked":
            raise PermissionError(13, "no")
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", refusing)
    assert node.paths() == {("work/mine", "checkpoint-10/model.safetensors")}


def test_names_that_are_no_text_and_times_that_cannot_be_are_sent_as_the_endpoint_takes_them(node: Node) -> None:
    work = os.fsencode(node.volume())
    for name in (b"a\nb", b"\xff\xfe", "späte".encode()):
        save(Path(os.fsdecode(work + b"/" + name)), os.fsdecode(b"checkpoint-1\xff/model-\xff\n.pt"))
    assert {folder for folder, _ in node.paths()} == {"work/a\nb", "work/??", "work/späte"}
    status = SimpleNamespace(st_size=1 << 63, st_mtime=1e300, st_mode=0o100644)
    entry: Any = SimpleNamespace(name="model.pt", stat=lambda **_: status)
    item = item_of(entry)
    assert item is not None
    CHECKPOINT_REQUEST.validate_python({"job": JOB, "files": [item]})


@pytest.mark.parametrize("uid", ["", "..", "a/b", "."])
def test_a_uid_is_never_a_path(tmp_path: Path, uid: str) -> None:
    save(tmp_path / "volumes" / "kubernetes.io~empty-dir" / "work")
    save(tmp_path / "kubelet" / "volumes" / "kubernetes.io~empty-dir" / "work")
    assert PodVolumes(tmp_path / "kubelet", uid).observe(time.time()) == []


def test_new_folders_are_found_soon_after_the_start_and_new_files_at_each_look(node: Node) -> None:
    work = node.volume()
    assert node.paths(0) == set()
    save(work / "a", "one.pt")
    assert node.paths(1) == set()
    assert node.paths(4) == {("work/a", "one.pt")}
    save(work / "a", "two.pt")
    save(work / "b", "three.pt")
    assert node.paths(5) == {("work/a", "one.pt"), ("work/a", "two.pt")}
    assert len(node.paths(60)) == 3


def test_old_checkpoints_are_walked_through_by_searches_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    work = node.volume()
    save(work, "checkpoint-1/model.pt", age_s=5000)
    save(work, "checkpoint-2/model.pt")
    walked: list[Any] = []
    real = volumes.below

    def counting(folder: Path, parts: Any, *rest: Any) -> Any:
        walked.append(parts)
        return real(folder, parts, *rest)

    monkeypatch.setattr(volumes, "below", counting)
    assert node.paths(60) == node.paths(1) == {("work", f"checkpoint-{n}/model.pt") for n in (1, 2)}
    assert sorted(walked) == [("checkpoint-1",), ("checkpoint-2",), ("checkpoint-2",)]
    save(work, "checkpoint-1/optimizer.pt")
    assert len(node.paths(1)) == 3
    (work / "checkpoint-1" / "optimizer.pt").unlink()
    (work / "checkpoint-1" / "model.pt").unlink()
    (work / "checkpoint-1").rmdir()
    assert len(node.paths(1)) == 1


# --- watching


def pod(phase: str = "Running", uid: str = UID, volumes: Any = (), **annotations: str) -> FollowedPod:
    container = {"name": "train", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    spec = {"containers": [container], "volumes": list(volumes)}
    metadata = {"namespace": "research", "name": "llama-0", "uid": uid, "annotations": annotations}
    metadata["labels"] = {"job-name": "llama"}
    view = followed_pod({"metadata": metadata, "spec": spec, "status": {"phase": phase}})
    assert view is not None
    return view


@pytest.fixture
async def jobs() -> AsyncIterator[tuple[Jobs, Endpoint]]:
    endpoint = Endpoint()
    async with endpoint.client() as client:
        running = Jobs(client.checkpoint, OffsetStore(None), SETTINGS)
        task = asyncio.create_task(running.run())
        await running.started()
        yield running, endpoint
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def listings(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [listing for request in endpoint.requests for listing in request.get("listings", ())]


async def test_a_pods_files_are_sent_when_they_change_and_confirmed_while_they_do_not(
    jobs: tuple[Jobs, Endpoint], node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, endpoint = jobs
    monkeypatch.setattr(volumes, "_FIRST_SEARCH_S", 0.05)
    work = node.volume()
    watch = VolumeWatch(running, node.root, QUICK)
    running.watch(JOB, UID, partial(watch.watch, pod()))
    await asyncio.sleep(0.2)
    assert listings(endpoint) == [], "nothing is said of a pod that saves nothing"
    save(work, "model.pt")
    await until(lambda: len(listings(endpoint)) >= 3)
    first, *others = listings(endpoint)
    assert (first["by"], [file["path"] for file in first["files"]]) == (UID, ["model.pt"])
    assert all("files" not in listing and listing["at"] > first["at"] for listing in others)
    (work / "model.pt").unlink()
    await until(lambda: listings(endpoint)[-1].get("files") == [])
    running.stop_watching(JOB, UID)
    await until(lambda: not running.jobs[JOB].sender._requested)
    count = len(endpoint.requests)
    save(work, "model.pt")
    await asyncio.sleep(0.2)
    assert len(endpoint.requests) == count


async def test_everything_is_sent_again_now_and_then_as_the_endpoint_may_have_lost_it(
    jobs: tuple[Jobs, Endpoint], node: Node
) -> None:
    running, endpoint = jobs
    save(node.volume(), "model.pt")
    settings = WatchSettings(observe_s=0.01, confirm_s=60.0, repeat_s=0.1)
    running.watch(JOB, UID, lambda: VolumeWatch(running, node.root, settings).watch(pod()))
    await until(lambda: sum("files" in listing for listing in listings(endpoint)) >= 3)


async def test_a_file_system_that_stalls_holds_up_nobody_else_and_is_asked_once(
    jobs: tuple[Jobs, Endpoint], node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running, endpoint = jobs
    answers, asked = threading.Event(), list[str]()
    real = PodVolumes.observe

    def stalling(self: PodVolumes, now_s: float, exclusive: Any = ()) -> Any:
        name = str(self._pod)
        if "stalled" in name:
            asked.append(name)
            answers.wait(60)
        return real(self, now_s, exclusive)

    monkeypatch.setattr(PodVolumes, "observe", stalling)
    watch = VolumeWatch(running, node.root, QUICK)
    stalled = [f"stalled-{number}" for number in range(9)]
    try:
        for uid in (*stalled, UID):
            save(node.volume(uid=uid), "model.pt")
            running.watch(JOB, uid, partial(watch.watch, pod(uid=uid)))
        await until(lambda: {listing["by"] for listing in listings(endpoint)} == {UID})
        assert len(asked) == len(set(asked)) == 9
        await until(lambda: caplog.text.count("does not answer") == 9)
    finally:
        answers.set()
    await until(lambda: {listing["by"] for listing in listings(endpoint)} == {UID, *stalled})


async def test_what_a_look_raises_ends_that_watch_alone(
    jobs: tuple[Jobs, Endpoint], node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running, endpoint = jobs
    real = PodVolumes.observe

    def broken(self: PodVolumes, now_s: float, exclusive: Any = ()) -> Any:
        return 1 / 0 if "broken" in str(self._pod) else real(self, now_s, exclusive)

    monkeypatch.setattr(PodVolumes, "observe", broken)
    watch = VolumeWatch(running, node.root, QUICK)
    for uid in ("broken", UID):
        save(node.volume(uid=uid), "model.pt")
        running.watch(JOB, uid, partial(watch.watch, pod(uid=uid)))
    await until(lambda: "what pod broken writes is followed no longer" in caplog.text)
    await until(lambda: {listing["by"] for listing in listings(endpoint)} == {UID})


async def test_a_kubelet_that_keeps_its_pods_elsewhere_is_named_once(
    jobs: tuple[Jobs, Endpoint], node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running, _ = jobs
    monkeypatch.setattr(volumes, "_FIRST_SEARCH_S", 0.0)
    watch = VolumeWatch(running, node.root, QUICK)
    for uid in ("a", "b"):
        running.watch(JOB, uid, partial(watch.watch, pod(uid=uid)))
    await until(lambda: "keeps its pods elsewhere" in caplog.text)
    await asyncio.sleep(0.1)
    assert caplog.text.count("keeps its pods elsewhere") == 1


def test_a_process_ends_though_a_look_hangs() -> None:
    code = (
        "import asyncio, time; from kopt.agents.logtail.folder_watch import Threads\n"
        "async def main():\n"
        "    hanging = asyncio.create_task(Threads(0.01).call(lambda: time.sleep(600), 'x'))\n"
        "    await asyncio.sleep(0.1)\n"
        "asyncio.run(main())"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=120)


async def test_threads_that_hang_are_never_more_than_a_few() -> None:
    answers, threads = threading.Event(), Threads(patience_s=0.0)

    def hangs() -> list[Any]:
        answers.wait(60)
        return []

    before = threading.active_count()
    waiting = [asyncio.create_task(threads.call(hangs, "x")) for _ in range(60)]
    await asyncio.sleep(0.2)
    for task in waiting[:10]:
        task.cancel()
    await asyncio.sleep(0.2)
    assert 10 < threading.active_count() - before <= 24
    answers.set()
    await asyncio.gather(*waiting[10:])
