"""Trace contexts: valid, sampled as asked, carried on from the API server, and sent to a real collector's wire."""

import asyncio
import copy
from typing import Any

import orjson
import pytest
from admission.collecting import collector
from admission.patching import patched
from admission.workloads import Object, deployment, every_kind, job, pod, review
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.admission.review import parse_review
from kopt.cluster.runtime.tracing import (
    Span,
    SpanExport,
    TraceContext,
    is_sampled,
    name_attributes,
    new_context,
    parse_traceparent,
)
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.policy import parse_policy

ANNOTATION, OF_JOB = "kaiwo.ai/traceparent", "kaiwo.ai/job-traceparent"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def admit(per_mille: int, traceparent: str = "", mode: str = "annotate", **fields: Any) -> Object:
    spec = {"mode": mode, "queues": {"default": "main"}, "tracing": {"samplesPerThousand": per_mille}}
    view = FixedState(parse_policy({"metadata": {"name": "default"}, "spec": spec}))
    one = parse_review(orjson.dumps(review(pod("p"), **fields)))
    done = await Admissions(view).mutate(one, traceparent)
    return patched(pod("p"), done.answer.patch)["metadata"].get("annotations", {})


async def test_a_sampled_pod_carries_a_valid_context_and_others_none() -> None:
    context = parse_traceparent((await admit(1000))[ANNOTATION])
    assert context is not None
    assert context.sampled
    assert ANNOTATION not in await admit(0)
    assert await admit(1000, mode="observe") == {}


async def test_one_in_a_hundred_is_sampled_by_default() -> None:
    assert 50 < sum(is_sampled(f"uid-{number}", 10) for number in range(10_000)) < 200


async def test_a_trace_of_the_api_server_is_carried_on() -> None:
    context = parse_traceparent((await admit(0, PARENT))[ANNOTATION])
    assert context is not None
    assert context.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert context.span_id != "b7ad6b7169203331"
    assert ANNOTATION not in await admit(0, PARENT[:-1] + "0")


async def submit(document: Object, per_mille: int = 1000, uid: str = "") -> Object:
    """A workload as the webhook leaves it."""
    spec = {"mode": "annotate", "queues": {"default": "main"}, "tracing": {"samplesPerThousand": per_mille}}
    view = FixedState(parse_policy({"metadata": {"name": "default"}, "spec": spec}))
    fields: dict[str, Any] = {"uid": uid} if uid else {}
    body = review(copy.deepcopy(document), **fields)
    done = await Admissions(view).mutate(parse_review(orjson.dumps(body)))
    return patched(copy.deepcopy(document), done.answer.patch)


def of_job(document: Object) -> Object:
    """A pod that a Job makes of its template."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job", "controller": True}
    made = pod("train-0")
    made["metadata"] |= {"ownerReferences": [owner]} | document["spec"]["template"].get("metadata", {})
    return made


async def test_all_pods_of_a_traced_job_carry_on_its_trace() -> None:
    traced = await submit(job("train"))
    context = parse_traceparent(traced["metadata"]["annotations"][ANNOTATION])
    assert context is not None
    assert traced["spec"]["template"]["metadata"]["annotations"][OF_JOB] == str(context)
    # A pod is not sampled for itself then; and who is asked twice about it begins no second span.
    made = await submit(of_job(traced), per_mille=0)
    of_pod = parse_traceparent(made["metadata"]["annotations"][ANNOTATION])
    assert of_pod is not None
    assert (of_pod.trace_id, of_pod.span_id != context.span_id) == (context.trace_id, True)
    assert await submit(made, per_mille=0) == made


def made_by(kind: str, api_version: str, document: Object) -> Object:
    """An object that another, which controls it, has made."""
    owner = {"apiVersion": api_version, "kind": kind, "name": "maker", "uid": "maker", "controller": True}
    made = copy.deepcopy(document)
    made["metadata"]["ownerReferences"] = [owner]
    return made


async def test_a_job_that_is_submitted_again_or_made_of_a_traced_one_keeps_its_trace() -> None:
    traced = await submit(job("train"))
    assert await submit(traced) == traced
    made = made_by("JobSet", "jobset.x-k8s.io/v1alpha2", traced)
    del made["metadata"]["annotations"][ANNOTATION]
    assert await submit(made) == made


MAKERS = {
    "Job": ("batch/v1", False),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", False),
    "RayCluster": ("ray.io/v1", False),
    "CronJob": ("batch/v1", True),
    "ReplicaSet": ("apps/v1", True),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", True),
    "KaiwoJob": ("kaiwo.silogen.ai/v1alpha1", True),
}


@pytest.mark.parametrize("kind", MAKERS)
async def test_what_a_job_makes_is_traced_with_it_or_not_at_all(kind: str) -> None:
    version, by_itself = MAKERS[kind]
    for document in (job("train"), pod("p")):
        made = await submit(made_by(kind, version, document))
        assert (ANNOTATION in made["metadata"].get("annotations", {})) is by_itself


async def test_kinds_without_templates_are_not_traced_but_what_they_make() -> None:
    trained = [document for document in every_kind("train") if document["kind"] in ("KaiwoJob", "TrainJob")]
    assert len(trained) == 2
    for document in trained:
        assert ANNOTATION not in (await submit(document))["metadata"].get("annotations", {})


@pytest.mark.parametrize("flags", ["00", "01"])
@pytest.mark.parametrize("per_mille", [0, 1000])
async def test_what_users_write_into_templates_is_not_believed(flags: str, per_mille: int) -> None:
    of_others = PARENT[:-2] + flags
    written = job("train")
    written["spec"]["template"]["metadata"] = {"annotations": {OF_JOB: of_others}}
    admitted = await submit(written, per_mille)
    ours = admitted["metadata"].get("annotations", {}).get(ANNOTATION)
    assert (ours is not None) is (per_mille == 1000)
    assert admitted["spec"]["template"]["metadata"]["annotations"].get(OF_JOB) == ours
    assert ours is None or PARENT[:36] not in ours
    for document in (pod("p"), deployment("serve")):
        metadata = document["metadata"] if document["kind"] == "Pod" else document["spec"]["template"]["metadata"]
        metadata["annotations"] = {OF_JOB: of_others}
        assert PARENT[3:35] not in str(await submit(document, per_mille))


async def test_pods_of_a_job_that_is_not_traced_are_not_traced_either() -> None:
    plain = await submit(job("train"), per_mille=0)
    assert ANNOTATION not in plain["metadata"].get("annotations", {})
    assert "annotations" not in plain["spec"]["template"].get("metadata", {})
    assert ANNOTATION not in (await submit(of_job(plain)))["metadata"].get("annotations", {})


async def test_a_trace_that_a_job_was_submitted_with_goes_on_in_its_pods() -> None:
    brought = job("train")
    brought["metadata"]["annotations"] = {ANNOTATION: PARENT}
    traced = await submit(brought, per_mille=0)
    assert traced["metadata"]["annotations"][ANNOTATION] == PARENT
    assert traced["spec"]["template"]["metadata"]["annotations"][OF_JOB] == PARENT


async def test_templates_that_change_carry_no_trace() -> None:
    served = await submit(deployment("serve"))
    assert ANNOTATION not in served["metadata"].get("annotations", {})
    assert OF_JOB not in served["spec"]["template"]["metadata"].get("annotations", {})


async def test_pods_of_one_group_are_traced_together() -> None:
    def grouped(number: int) -> Object:
        member = pod("p")
        member["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": f"group-{number}"}
        return member

    shares = []
    for number in range(100):
        found = [await submit(grouped(number), per_mille=500, uid=f"uid-{number}-{member}") for member in range(3)]
        shares.append({ANNOTATION in one["metadata"].get("annotations", {}) for one in found})
    assert all(len(one) == 1 for one in shares)
    assert 20 < sum({True} == one for one in shares) < 80


@given(st.one_of(st.text(max_size=60), st.from_regex(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True)))
def test_what_is_read_is_written_back_the_same(text: str) -> None:
    context = parse_traceparent(text)
    if context is not None:
        assert str(context)[:52] == text[:52]
        assert parse_traceparent(str(context)) == context


def test_kinds_are_named_by_conventions_where_there_are_any() -> None:
    names = {}
    volcano = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "w"}}
    for document in (*every_kind("w"), volcano):
        group, _, _ = document["apiVersion"].rpartition("/")
        named = name_attributes(group, document["kind"], "w")
        names[tuple(sorted(named.items()))] = document["kind"]
    assert len(names) == len(every_kind("w")) + 1, "no two kinds are named alike"
    assert (("k8s.pod.name", "w"),) in names
    assert (("k8s.job.name", "w"),) in names
    assert (("kaiwo.workload.kind", "Job.batch.volcano.sh"), ("kaiwo.workload.name", "w")) in names
    assert sum("k8s." in key[0][0] for key in names) == 2


async def test_a_span_arrives_at_the_collector_under_the_ids_that_were_given_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with collector() as (url, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        export = SpanExport("kopt-webhook")
        context = new_context(TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"))
        export.record(Span("admit pod", context, 1_000, 2_000, {"k8s.pod.name": "p"}))
        await asyncio.to_thread(export.close)
        spans = [
            span
            for one in received
            for resource in one.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        assert [(span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()) for span in spans] == [
            ("admit pod", context.trace_id, context.span_id, "b7ad6b7169203331")
        ]


def test_without_a_collector_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    export = SpanExport("kopt-webhook")
    assert not export.wanted
    export.record(Span("admit pod", new_context(), 1, 2))
    export.close()
