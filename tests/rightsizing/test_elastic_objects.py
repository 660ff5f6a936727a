"""Which jobs may change their width, and what is written on them: never over what others have set."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from controlplane.plane import ControlPlane
from hypothesis import given
from hypothesis import strategies as st

from kopt.cli.errors import Refused
from kopt.cli.rightsize.history import history_answer, taken_back
from kopt.cluster.client.api import Conflict, Kube, NotFound, connect
from kopt.cluster.client.resources import JOBS, PODS, Object, Resource
from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.resize_history import RESIZES, RESIZING, widths_of, written
from kopt.cluster.teardown.widths import undo_widths
from kopt.cluster.workloads.kinds import BY_KEY, PYTORCH_JOBS
from kopt.cluster.workloads.resizing.elastic import (
    ELASTIC_BATCH,
    ELASTIC_WIDTH,
    KUEUE_ELASTIC,
    BoundsError,
    ElasticJob,
    NotElasticError,
    admits_slices,
    elastic_of,
    width_of_object,
)
from kopt.cluster.workloads.resizing.width import FIELD_MANAGER, ResizedWidth
from kopt.cluster.workloads.workload import read_workload
from kopt.controllers.overview.job import JobSnapshot, Thing
from kopt.controllers.overview.why import why
from kopt.core.workload.rightsizing import Batch, ChangeRecord, Outcome, WidthChange

CONTAINER = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
WIDER = WidthChange(2, 3, Batch.FIXED)
NOW_S = 1_800_000_000.0


def _job(notes: dict[str, Any] | None = None, **spec: Any) -> Object:
    notes = {ELASTIC_WIDTH: "1-4", ELASTIC_BATCH: "fixed"} if notes is None else notes
    template = {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}
    own = {"completionMode": "Indexed", "parallelism": 2, "completions": 2, "template": template} | spec
    metadata = {"name": "train", "namespace": "team", "uid": "u", "annotations": notes}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": own}


def _pytorch_job(policy: Any, replicas: Any = 2, **roles: Any) -> Object:
    worker = {"replicas": replicas, "template": {"spec": {"containers": [CONTAINER]}}}
    spec = {"pytorchReplicaSpecs": {"Worker": worker, **roles}, "elasticPolicy": policy}
    metadata = {"name": "train", "namespace": "team", "uid": "u", "annotations": {}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": spec}


def _elastic(document: Object, resource: Resource = JOBS) -> ElasticJob:
    workload = read_workload(document, resource.group, resource.kind, "team", "train")
    assert workload is not None
    return elastic_of(resource, workload)


def test_a_job_says_by_annotation_and_a_pytorch_job_by_its_policy_how_wide_it_may_be() -> None:
    job = _elastic(_job())
    assert (job.width, job.least, job.most, job.gpus, job.batch) == (2, 1, 4, 8, Batch.FIXED)
    torch = _elastic(_pytorch_job({"minReplicas": 1, "maxReplicas": 3}), PYTORCH_JOBS)
    assert (torch.width, torch.least, torch.most, torch.batch) == (2, 1, 3, None)


@pytest.mark.parametrize(
    ("document", "why_not"),
    [
        (_job({}), "does not say that it may"),
        (_job(completionMode="NonIndexed"), "no Indexed Job"),
        (_job(completions=4), "parallelism and completions differ"),
        (_job(suspend=True), "suspended"),
        (_job(parallelism=True), "no Indexed Job"),
        (_job(template={"spec": {"containers": [{"name": "main"}]}}), "no whole GPUs"),
        (
            _job() | {"metadata": _job()["metadata"] | {"labels": {"kueue.x-k8s.io/queue-name": "q"}}},
            "Kueue would stop",
        ),
        (
            _job()
            | {
                "metadata": _job()["metadata"]
                | {
                    "ownerReferences": [
                        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "controller": True}
                    ]
                }
            },
            "A JobSet made it",
        ),
        (_pytorch_job(None), "no elasticPolicy"),
        (_pytorch_job({"minReplicas": 1, "maxReplicas": 2, "metrics": [{"type": "Resource"}]}), "Autoscaler"),
        (_pytorch_job({"minReplicas": 1, "maxReplicas": 2}, Master={"replicas": 1}), "other roles"),
        (_pytorch_job({"minReplicas": 1, "maxReplicas": 2}, replicas="2"), "other roles, or no number"),
    ],
)
def test_others_are_not_elastic_and_say_why(document: Object, why_not: str) -> None:
    resource = JOBS if document["kind"] == "Job" else PYTORCH_JOBS
    with pytest.raises(NotElasticError, match=why_not):
        _elastic(document, resource)


def test_other_kinds_have_one_width() -> None:
    kind = BY_KEY["jobset.x-k8s.io", "JobSet"]
    workload = read_workload(_job(), *kind.key, "team", "train")
    assert workload is not None
    with pytest.raises(NotElasticError, match="Of a JobSet"):
        elastic_of(kind.resource, workload)


@pytest.mark.parametrize(
    "bounds", ["4-2", "0-3", "1-999999", "1-9999999999", "many", "", "-1-3", "1.5-3", "2", "²-3", 3]
)
def test_bounds_that_are_nonsense_are_named(bounds: Any) -> None:
    with pytest.raises(BoundsError, match=r"elastic-width"):
        _elastic(_job({ELASTIC_WIDTH: bounds}))


@pytest.mark.parametrize(
    "policy",
    [
        {"minReplicas": 3, "maxReplicas": 2},
        {"minReplicas": 1},
        {"minReplicas": True, "maxReplicas": 2},
        {},
        {"maxReplicas": 1e9},
    ],
)
def test_policies_that_are_nonsense_are_named(policy: Any) -> None:
    with pytest.raises(BoundsError, match="elasticPolicy"):
        _elastic(_pytorch_job(policy), PYTORCH_JOBS)


def test_a_batch_that_is_nonsense_is_named() -> None:
    with pytest.raises(BoundsError, match="write fixed or per-worker"):
        _elastic(_job({ELASTIC_WIDTH: "1-4", ELASTIC_BATCH: "64"}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(JSON, JSON, JSON)
def test_whatever_stands_in_a_job_is_read_or_refused(notes: Any, spec: Any, policy: Any) -> None:
    for document, resource in ((_job(), JOBS), (_pytorch_job(policy), PYTORCH_JOBS)):
        document["metadata"]["annotations"] = notes
        document["spec"] = document["spec"] | spec if isinstance(spec, dict) else spec
        try:
            job = _elastic(document, resource)
        except (NotElasticError, BoundsError):
            continue
        assert 1 <= job.least <= job.most


def test_kueues_gate_is_on_where_it_has_marked_the_workload() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "q"}
    document = _job({ELASTIC_WIDTH: "1-4", KUEUE_ELASTIC: "true"})
    document["metadata"]["labels"] = labels
    job = _elastic(document)
    assert job.in_kueue
    of_it = {"metadata": {"ownerReferences": [{"uid": "u"}], "annotations": {KUEUE_ELASTIC: "true"}}}
    unmarked = {"metadata": {"ownerReferences": [{"uid": "u"}]}}
    of_another = {"metadata": {"ownerReferences": [{"uid": "x"}], "annotations": {KUEUE_ELASTIC: "true"}}}
    assert admits_slices(job, [unmarked, of_it])
    assert not admits_slices(job, [unmarked, of_another, {"metadata": {}}])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"workers":2', '"workers":9'),
        ('"workers":2', '"workers":-1'),
        ('"fixed"', '"other"'),
        ("[0.5,0.4]", "[0.5,-1]"),
        ("[0.5,0.4]", "[1e308,1e308]"),
    ],
)
def test_a_history_that_no_change_of_ours_wrote_is_not_read(old: str, new: str) -> None:
    record = ChangeRecord(WIDER, NOW_S, Outcome.KEPT, NOW_S + 60, "Fine.", (0.5, 0.4))
    text = written([record])
    assert widths_of(_job({RESIZES: text})) == [record]
    assert old in text
    with pytest.raises(AnnotationError):
        widths_of(_job({RESIZES: text.replace(old, new)}))


def test_why_tells_of_the_width_beside_the_pods_changes() -> None:
    document = _job({RESIZES: written([ChangeRecord(WIDER, NOW_S - 600, Outcome.UNDONE, NOW_S, "Steps are slower.")])})
    thing = Thing(JOBS, document)
    messages = {each.code: each.message for each in why(JobSnapshot(NOW_S, thing, thing)).findings}
    assert messages["RESIZED"] == "Its width: 2 to 3 workers, 10 min ago; it was taken back. Steps are slower."


# --- Before a real API server and its Job controller


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    async with connect(control_plane.kubeconfig) as client:
        yield client


@pytest.fixture
def train(control_plane: ControlPlane) -> Object:
    document = _job()
    document["metadata"] = {
        "name": "train",
        "namespace": control_plane.api.space("widths"),
        "annotations": document["metadata"]["annotations"],
    }
    return control_plane.api.create(document)


def _resized(kube: Kube, job: Object, change: WidthChange = WIDER) -> ResizedWidth:
    return ResizedWidth(kube, width_of_object(JOBS, job), change, lambda: NOW_S + 60)


async def _now(kube: Kube, job: Object) -> Object:
    return await kube.get(JOBS, "train", job["metadata"]["namespace"])


async def _set(kube: Kube, job: Object, width: int) -> None:
    changes = {"spec": {"parallelism": width, "completions": width}}
    await kube.patch(JOBS, "train", changes, job["metadata"]["namespace"])


@pytest.mark.cluster
async def test_a_width_is_recorded_made_and_taken_back(kube: Kube, train: Object) -> None:
    resized, space = _resized(kube, train), train["metadata"]["namespace"]
    await resized.check()
    await resized.open(NOW_S)
    opened = await _now(kube, train)
    assert (opened["spec"]["parallelism"], opened["metadata"]["labels"][RESIZING]) == (2, "open")
    assert widths_of(opened)[0].outcome is Outcome.OPEN
    with pytest.raises(Conflict, match="another change of train is open"):
        await _resized(kube, train).open(NOW_S + 1)
    await resized.apply()
    made = await _now(kube, train)
    assert (made["spec"]["parallelism"], made["spec"]["completions"]) == (3, 3)
    managers = {each["manager"] for each in made["metadata"]["managedFields"]}
    assert FIELD_MANAGER in managers
    assert "0 pods run" in await resized.refusal(0.0)
    assert (
        await taken_back(kube, space, "Job/train", lambda _: None) == "taken back: width: 2 to 3 workers, of Job/train"
    )
    back = await _now(kube, train)
    assert (back["spec"]["parallelism"], back["spec"]["completions"]) == (2, 2)
    assert RESIZING not in back["metadata"].get("labels", {})
    assert [each.outcome for each in widths_of(back)] == [Outcome.UNDONE]
    rows = (await history_answer(kube, space)).rows
    assert [(row.pod, row.outcome) for row in rows] == [("train", "undone")]  # type: ignore[attr-defined]
    with pytest.raises(Refused):
        await taken_back(kube, space, "job/train", lambda _: None)


@pytest.mark.cluster
async def test_what_others_set_stays_before_and_after(kube: Kube, train: Object) -> None:
    resized = _resized(kube, train)
    await _set(kube, train, 4)
    with pytest.raises(Conflict, match="others have changed its width"):
        await resized.open(NOW_S)
    await _set(kube, train, 2)
    await resized.open(NOW_S)
    await _set(kube, train, 4)
    with pytest.raises(Conflict, match="has 4 workers by now"):
        await resized.apply()
    assert [each.why for each in await resized.restore("Interrupted.")] == ["others have set its width to 4 since"]
    now = await _now(kube, train)
    assert (now["spec"]["parallelism"], widths_of(now)[0].outcome) == (4, Outcome.UNDONE)


@pytest.mark.cluster
async def test_a_job_that_is_deleted_and_made_again_is_another_one(kube: Kube, train: Object) -> None:
    resized, space = _resized(kube, train), train["metadata"]["namespace"]
    await resized.open(NOW_S)
    await resized.apply()
    await kube.delete(JOBS, "train", space, grace_s=0)
    async for page in kube.pages(PODS, space):
        for pod in page.items:
            # The garbage collector may be sooner.
            with contextlib.suppress(NotFound):
                await kube.delete(PODS, pod["metadata"]["name"], space, grace_s=0)
    again = _job()
    again["metadata"] = {"name": "train", "namespace": space, "annotations": {}}
    again["spec"] |= {"parallelism": 3, "completions": 3}
    await kube.create(JOBS, again, space)
    assert await resized.document() is None
    assert await resized.restore("Gone.") == []
    await resized.finish(Outcome.KEPT, "Gone.")
    now = await kube.get(JOBS, "train", space)
    assert now["spec"]["parallelism"] == 3
    assert RESIZES not in now["metadata"].get("annotations", {})


@pytest.mark.cluster
async def test_switching_off_puts_back_what_nobody_watches(kube: Kube, train: Object) -> None:
    resized, space = _resized(kube, train), train["metadata"]["namespace"]
    await resized.open(NOW_S)
    await resized.apply()
    for dry_run, width in ((True, 3), (False, 2)):
        outcomes = [each async for each in undo_widths(kube, dry_run, 60.0) if each.step.namespace == space]
        assert [(each.step.name, each.step.detail, each.error) for each in outcomes] == [("train", "its width", "")]
        assert (await _now(kube, train))["spec"]["parallelism"] == width
