"""Which pods are followed, as what, and what is written on them."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from controlplane.processes import until
from logtail_endpoint import Endpoint

from kopt.agents.logtail.annotator import (
    AnnotationSettings,
    Annotator,
    annotations_of,
    progress_annotations,
    unknown,
)
from kopt.agents.logtail.file_events import Notices
from kopt.agents.logtail.following import FileSource
from kopt.agents.logtail.jobs import Jobs, JobSettings
from kopt.agents.logtail.log_paths import Pods, PodSettings
from kopt.agents.logtail.offset_store import OffsetStore
from kopt.agents.logtail.pods import Container, FollowedPod, followed_pod, mode_of
from kopt.cluster.client.api import ApiError, Conflict, Forbidden, NotFound, Unreachable
from kopt.cluster.objects.namespace import NamespaceSettings, read_namespace
from kopt.cluster.objects.progress import progress_of
from kopt.cluster.runtime.informer import Change, ChangeKind
from kopt.core.decision import Mode
from kopt.core.times import stamp
from kopt.core.workload.run_time import StepProgress

Object = dict[str, Any]


def pod(**changes: Any) -> Object:
    metadata = {"namespace": "research", "name": "llama-0", "uid": "0123456789ab", "annotations": {}, "labels": {}}
    owner = {"kind": changes.pop("kind", "Job"), "name": "llama", "controller": True}
    limits = changes.pop("limits", {"nvidia.com/gpu": "8"})
    spec = {"containers": [{"name": "proxy"}, {"name": "trainer", "resources": {"limits": limits}}]}
    states = [{"name": "trainer", "restartCount": 2, "state": {"running": {}}}]
    status = {"phase": changes.pop("phase", "Running"), "containerStatuses": states}
    spec |= changes.pop("spec", {})
    return {"metadata": metadata | {"ownerReferences": [owner]} | changes, "spec": spec, "status": status}


def test_a_training_pod_is_followed_through_the_container_with_the_gpus() -> None:
    assert followed_pod(pod()) == FollowedPod(
        ("research", "llama-0"),
        "0123456789ab",
        "research/llama",
        "llama-0@01234567",
        8.0,
        "",
        (Container("trainer", 2, True),),
        False,
        False,
    )


@pytest.mark.parametrize(
    ("changes", "followed"),
    [
        ({}, True),
        ({"limits": {"amd.com/cpx_nps4": 2}}, True),
        ({"limits": {"nvidia.com/mig-1g.10gb": "1"}}, True),
        ({"limits": {"cpu": "4"}}, False),
        ({"kind": "ReplicaSet"}, False),
        ({"kind": "StatefulSet"}, True),
        ({"annotations": {"kaiwo.ai/checkpoint-logs": "false"}}, False),
        ({"kind": "ReplicaSet", "labels": {"kaiwo.ai/checkpoint-logs": "true"}}, True),
        ({"limits": {}, "annotations": {"kaiwo.ai/gpu-fraction": "0.5"}}, True),
        ({"limits": {}, "annotations": {"gpu-memory": "8192"}}, True),
    ],
)
def test_services_and_pods_without_gpus_are_left_alone_unless_they_ask(changes: Object, followed: bool) -> None:
    assert (followed_pod(pod(**changes)) is not None) is followed


def test_a_share_of_two_gpus_counts_as_two() -> None:
    found = followed_pod(pod(limits={}, annotations={"kaiwo.ai/gpu-fraction": "0.5", "kaiwo.ai/gpu-count": "2"}))
    assert found is not None
    assert found.gpus == 2


@pytest.mark.parametrize(
    ("labels", "job"),
    [
        ({}, "research/llama"),
        ({"job-name": "a", "jobset.sigs.k8s.io/jobset-name": "gang"}, "research/gang"),
        ({"training.kubeflow.org/job-name": "torch"}, "research/torch"),
        ({"ray.io/cluster": "ray"}, "research/ray"),
    ],
)
def test_the_pods_of_a_gang_are_one_job(labels: Object, job: str) -> None:
    found = followed_pod(pod(labels=labels))
    assert found is not None
    assert found.job == job


def test_a_name_that_comes_once_needs_no_uid_and_torchrun_says_how_many_nodes() -> None:
    env = [{"name": "PET_NNODES", "value": "4"}]
    containers = [{"name": "trainer", "env": env, "resources": {"limits": {"amd.com/gpu": 8}}}]
    found = followed_pod(pod(generateName="llama-", spec={"containers": containers}))
    assert found is not None
    assert (found.label, found.gpus) == ("llama-0", 32.0)


@pytest.mark.parametrize("value", ["²", "4-8", "9" * 5000, "", None])
def test_a_number_of_nodes_that_is_none_ends_no_agent(value: Any) -> None:
    containers = [
        {"name": "a", "env": [{"name": "PET_NNODES", "value": value}], "resources": {"limits": {"amd.com/gpu": "²"}}}
    ]
    assert followed_pod(
        pod(spec={"containers": [*containers, {"name": "b", "resources": {"limits": {"amd.com/gpu": 8}}}]})
    )


def test_what_others_say_of_checkpoints_is_passed_on_until_we_say_it_ourselves() -> None:
    said = {"kaiwo.ai/last-checkpoint-step": "400"}
    first, later = (
        followed_pod(pod(annotations=said)),
        followed_pod(pod(annotations={**said, "kaiwo.ai/checkpoint-model": "m/1"})),
    )
    assert first is not None
    assert later is not None
    assert (dict(first.recorded), later.recorded) == (said, ())


@pytest.mark.parametrize(
    ("own", "namespace", "default", "mode"),
    [
        ("", "", Mode.OBSERVE, Mode.OBSERVE),
        ("annotate", "", Mode.OBSERVE, Mode.ANNOTATE),
        ("observe", "annotate", Mode.ANNOTATE, Mode.OBSERVE),
        ("observe", "enforce", Mode.ANNOTATE, Mode.ENFORCE),
        ("", "observe", Mode.ENFORCE, Mode.OBSERVE),
        ("nonsense", "annotate", Mode.OBSERVE, Mode.ANNOTATE),
    ],
)
def test_the_nearest_mode_wins(own: str, namespace: str, default: Mode, mode: Mode) -> None:
    found = followed_pod(pod(annotations={"kaiwo.ai/mode": own}))
    view = read_namespace({"metadata": {"name": "research", "annotations": {"kaiwo.ai/mode": namespace}}})
    assert found is not None
    assert mode_of(found, view, default) is mode


ANSWER = {
    "state": "TRAIN",
    "safe": True,
    "last_durable_at": 1_772_359_200.4,
    "last_durable_step": 400,
    "reason": "why",
    "work_at_risk_gpu_seconds": 812.4,
    "work_at_risk_low": 700.0,
    "work_at_risk_high": 1000.0,
    "model": {"name": "checkpoint", "version": "3"},
}


def test_an_answer_as_annotations() -> None:
    assert annotations_of(ANSWER, 1_772_359_260.0) == {
        "kaiwo.ai/checkpoint-state": "TRAIN",
        "kaiwo.ai/checkpoint-safe": "true",
        "kaiwo.ai/checkpoint-observed-at": "2026-03-01T10:01:00Z",
        "kaiwo.ai/last-checkpoint-time": "2026-03-01T10:00:00Z",
        "kaiwo.ai/last-checkpoint-step": "400",
        "kaiwo.ai/work-at-risk": "812",
        "kaiwo.ai/work-at-risk-interval": "700-1000",
        "kaiwo.ai/checkpoint-reason": "why",
        "kaiwo.ai/checkpoint-model": "checkpoint/3",
    }


NOTHING: list[Object] = [
    {},
    {"safe": "true"},
    {"last_durable_at": 1e300},
    {"work_at_risk_gpu_seconds": "much"},
    {"work_at_risk_gpu_seconds": float("nan"), "model": "x"},
]


@pytest.mark.parametrize("answer", NOTHING)
def test_an_answer_that_says_nothing_is_not_safe(answer: Object) -> None:
    found = annotations_of(answer, 0.0)
    assert found["kaiwo.ai/checkpoint-safe"] == "false"
    assert found["kaiwo.ai/work-at-risk"] is None
    assert found["kaiwo.ai/last-checkpoint-time"] is None


class FakeKube:
    """Takes patches; ``errors`` come first."""

    def __init__(self) -> None:
        self.patches: list[Object] = []
        self.errors: list[ApiError] = []
        self.tried = 0

    async def patch(self, resource: Any, name: str, changes: Object, namespace: str) -> Object:
        self.tried += 1
        if self.errors:
            raise self.errors.pop()
        self.patches.append(changes["metadata"])
        return {}


def annotator(kube: FakeKube, clock: list[float], settings: AnnotationSettings | None = None) -> Annotator:
    return Annotator(kube, ("research", "llama-0"), "uid", settings or AnnotationSettings(), lambda: clock[0])  # type: ignore[arg-type]


def said(safe: bool, state: str = "TRAIN", risk: float = 0.0) -> Mapping[str, str | None]:
    return annotations_of({"state": state, "safe": safe, "work_at_risk_gpu_seconds": risk}, 0.0)


async def quiet(seconds: float = 0.05) -> None:
    await asyncio.sleep(seconds)


async def test_it_is_written_once_and_for_this_very_pod() -> None:
    kube, clock = FakeKube(), [0.0]
    notes = annotator(kube, clock)
    task = asyncio.create_task(notes.run())
    notes.update(said(True))
    await until(lambda: kube.patches)
    for risk in range(50):
        notes.update(said(True, risk=float(risk)))
        await asyncio.sleep(0)
    await quiet()
    assert len(kube.patches) == 1
    assert kube.patches[0]["uid"] == "uid"
    task.cancel()


async def test_what_stops_being_safe_is_said_at_once_and_other_changes_wait() -> None:
    kube, clock = FakeKube(), [0.0]
    notes = annotator(kube, clock, AnnotationSettings(between_s=30.0, urgent_between_s=0.01))
    task = asyncio.create_task(notes.run())
    notes.update(said(True))
    await until(lambda: kube.patches)
    notes.update(said(True, "EVAL"))
    await quiet()
    assert len(kube.patches) == 1
    clock[0] = 0.02
    notes.update(said(False, "CKPT_WRITING"))
    await until(lambda: len(kube.patches) == 2)
    assert kube.patches[1]["annotations"]["kaiwo.ai/checkpoint-safe"] == "false"
    notes.update(said(True, "CKPT_DONE"))
    await quiet()
    assert len(kube.patches) == 2, "to be safe again is no hurry"
    task.cancel()


async def test_the_first_step_of_a_pod_is_where_the_job_goes_on_not_where_it_was_before() -> None:
    kube, clock = FakeKube(), [0.0]
    notes = annotator(kube, clock)
    for step in (1500, 1500, None, 1201, 1230):
        notes.update_step(step)
    task = asyncio.create_task(notes.run())
    await until(lambda: kube.patches)
    assert kube.patches[0]["annotations"] == {"kaiwo.ai/first-step": "1201"}
    task.cancel()


async def test_what_has_not_changed_is_said_again_so_that_silence_means_something() -> None:
    kube, clock = FakeKube(), [0.0]
    notes = annotator(kube, clock)
    task = asyncio.create_task(notes.run())
    notes.update(said(True))
    await until(lambda: kube.patches)
    clock[0] = 61.0
    notes.update(said(True) | {"kaiwo.ai/checkpoint-observed-at": stamp(61.0)})
    await until(lambda: len(kube.patches) == 2)
    assert kube.patches[1]["annotations"]["kaiwo.ai/checkpoint-observed-at"] == "1970-01-01T00:01:01Z"
    task.cancel()


@pytest.mark.parametrize(
    "error",
    [NotFound(404, "NotFound", "gone"), Conflict(409, "Conflict", "another uid"), Forbidden(403, "Forbidden", "no")],
)
async def test_a_pod_that_is_gone_or_forbidden_is_left_alone(error: ApiError) -> None:
    kube = FakeKube()
    kube.errors = [error]
    notes = annotator(kube, [0.0])
    notes.update(said(True))
    async with asyncio.timeout(10):
        await notes.run()
    assert (kube.tried, kube.patches) == (1, [])


async def test_a_server_that_does_not_answer_is_asked_again() -> None:
    kube = FakeKube()
    kube.errors = [Unreachable("down")]
    notes = annotator(kube, [0.0])
    task = asyncio.create_task(notes.run())
    notes.update(unknown(0.0, "nobody answers"))
    await until(lambda: kube.patches)
    assert kube.patches[0]["annotations"]["kaiwo.ai/checkpoint-state"] == "UNKNOWN"
    task.cancel()


def test_namespaces_opt_in() -> None:
    labels = {"kaiwo.ai/managed": "true"}
    assert read_namespace({"metadata": {"name": "a", "labels": labels}}) == NamespaceSettings(True, "")


def view_of(**changes: Any) -> FollowedPod:
    view = followed_pod(pod(**changes))
    assert view is not None
    return view


class Watched:
    """A pod's watch as it is started and stopped."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.starts = 0

    async def __call__(self, pod: FollowedPod) -> None:
        self.starts += 1
        self.running.append(pod.uid)
        try:
            await asyncio.Event().wait()
        finally:
            self.running.remove(pod.uid)


def deleted(pods: Pods, view: FollowedPod) -> None:
    pods.pod_changed(Change(ChangeKind.DELETED, view.key, view, None))


def ended(pods: Pods, view: FollowedPod) -> None:
    pods.pod_changed(Change(ChangeKind.UPDATED, view.key, view, view_of(phase="Succeeded")))


def moved(pods: Pods, view: FollowedPod) -> None:
    pods.pod_changed(Change(ChangeKind.UPDATED, view.key, view, view_of(annotations={"kaiwo.ai/job": "other"})))
    deleted(pods, view_of(annotations={"kaiwo.ai/job": "other"}))


def opted_out(pods: Pods, view: FollowedPod) -> None:
    pods._namespaces = lambda _: NamespaceSettings(False)
    change: Any = SimpleNamespace(key=("", "research"))
    pods.namespace_changed(change)


@pytest.mark.parametrize("leave", [deleted, ended, moved, opted_out])
async def test_a_followed_pod_is_watched_until_it_is_left(
    tmp_path: Path, leave: Callable[[Pods, FollowedPod], None]
) -> None:
    running = Jobs(Endpoint().client().checkpoint, OffsetStore(None), JobSettings())
    task = asyncio.create_task(running.run())
    await running.started()
    watched, nothing = Watched(), cast("Any", None)
    pods = Pods(
        running,
        lambda *_: FileSource(tmp_path, "a", Notices(inotify=False), plain=True),
        nothing,
        PodSettings(),
        nothing,
        lambda _: NamespaceSettings(True),
        watched,
    )
    view = view_of()
    pods.pod_changed(Change(ChangeKind.ADDED, view.key, None, view))
    pods.pod_changed(Change(ChangeKind.UPDATED, view.key, view, view))
    await until(lambda: watched.running == [view.uid])
    leave(pods, view)
    await until(lambda: not watched.running)
    assert watched.starts == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_progress_is_written_as_readers_of_it_expect() -> None:
    progress = StepProgress(1200, 5000, 1_790_000_000.0, tuple(float(value) for value in range(1, 41)))
    written = progress_annotations(progress)
    read = progress_of([{"metadata": {"annotations": written}}])
    assert read is not None
    assert (read.step, read.steps, read.at_s) == (1200, 5000, 1_790_000_000.0)
    assert len(read.step_seconds) == 8
    assert sum(read.step_seconds) / 8 == pytest.approx(20.5)
    few = progress_of([{"metadata": {"annotations": progress_annotations(StepProgress(1, 2, 0.0, (0.5,)))}}])
    assert few is not None
    assert few.step_seconds == (0.5,)
