"""Whatever arrives as an AdmissionReview: the process lives on, and nothing is denied."""

import base64
import copy
import json
from typing import Any

import orjson
from admission.patching import patched
from admission.workloads import every_kind, job, pod, review
from hypothesis import example, given
from hypothesis import strategies as st

from kopt.cluster.admission.review import MalformedReview, encode_answer, parse_review
from kopt.cluster.workloads.kinds import BY_KEY
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.policy import parse_policy

ENFORCE = parse_policy(
    {
        "metadata": {"name": "default"},
        "spec": {
            "mode": "enforce",
            "queues": {"default": "main"},
            "tracing": {"samplesPerThousand": 1000},
            "schedulers": {
                "packing": {"scheduler": "packer", "nodeSelector": {"pool": "a"}},
                "spread": {},
                "gang": {"scheduler": "kai-scheduler", "queue": "gang"},
            },
        },
    }
)
VIEW = FixedState(ENFORCE, schedulers={"packer", "kai-scheduler"})

numbers = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False))
scalars = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8))
keys = st.text(max_size=8)
anything = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3))
)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """A true review of some kind in which a few values are replaced by anything."""
    workload = draw(st.sampled_from(every_kind("w")))
    document: Any = copy.deepcopy(review(workload, operation=draw(st.sampled_from(["CREATE", "UPDATE", "CONNECT"]))))
    for _ in range(draw(st.integers(1, 4))):
        node, key = document, ""
        while isinstance(node, dict | list) and node:
            parent = node
            key = draw(st.sampled_from(sorted(node))) if isinstance(node, dict) else draw(st.integers(0, len(node) - 1))
            node = parent[key]
            if draw(st.integers(0, 4)) == 0:
                break
        if key != "":
            parent[key] = draw(anything)
    return document


async def answers(body: bytes) -> list[dict[str, Any]]:
    """What both paths answer, as the server does it; empty when the body is refused as a whole."""
    admissions = Admissions(VIEW)
    found = []
    for path in (admissions.mutate, admissions.validate):
        try:
            one = parse_review(body)
        except MalformedReview:
            continue
        found.append(json.loads(encode_answer(one.uid, (await path(one)).answer))["response"])
    return found


@given(st.binary(max_size=200))
@example(b"[" * 100_000)
@example(b'{"request":' * 5000)
@example(b"null")
async def test_bytes_that_are_no_review_are_told_so(body: bytes) -> None:
    for answer in await answers(body):
        assert answer["allowed"]


@given(damaged())
async def test_damaged_reviews_are_never_denied(document: Any) -> None:
    for answer in await answers(orjson.dumps(document, option=orjson.OPT_PASSTHROUGH_SUBCLASS)):
        assert answer["allowed"], answer
        if "patch" in answer:
            assert isinstance(json.loads(base64.b64decode(answer["patch"])), list)


@given(damaged())
async def test_a_patch_applies_and_a_second_round_changes_nothing(document: Any) -> None:
    try:
        one = parse_review(orjson.dumps(document))
    except MalformedReview:
        return
    before = copy.deepcopy(one.object)
    first = (await Admissions(VIEW).mutate(one)).answer
    after = patched(before, first.patch)
    document["request"]["object"] = after
    again = (await Admissions(VIEW).mutate(parse_review(orjson.dumps(document)))).answer
    assert not again.patch, (first.patch, again.patch)


@given(damaged())
async def test_an_answer_at_once_is_the_answer_after_waiting(document: Any) -> None:
    body = orjson.dumps(document)
    try:
        waited = await Admissions(VIEW).mutate(parse_review(body))
    except MalformedReview:
        return
    at_once = Admissions(VIEW).mutate_at_once(parse_review(body))
    # A trace context is drawn anew each time.
    written = [one["path"] for one in waited.answer.patch]
    assert at_once is None or ([one["path"] for one in at_once.answer.patch], at_once.records) == (
        written,
        waited.records,
    )


async def test_every_kind_is_known_and_labelled_where_its_queue_looks() -> None:
    seen = set()
    for workload in every_kind("w"):
        one = parse_review(orjson.dumps(review(workload)))
        answer = (await Admissions(VIEW).mutate(one)).answer
        after = patched(workload, answer.patch)
        owner = after["spec"]["jobTemplate"] if workload["kind"] == "CronJob" else after
        assert owner["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "main", workload["kind"]
        seen.add((one.group, one.kind))
    assert seen | {("batch.volcano.sh", "Job")} == set(BY_KEY)


async def test_workloads_without_gpus_are_left_alone() -> None:
    for workload in (pod("p", 0), job("j", 0)):
        assert not (await Admissions(VIEW).mutate(parse_review(orjson.dumps(review(workload))))).answer.patch


async def test_a_pod_of_a_traced_job_gets_a_trace_and_no_label() -> None:
    one = pod("p")
    of_job = {"kaiwo.ai/job-traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    one["metadata"]["annotations"] = of_job
    one["metadata"]["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": True}]
    answer = (await Admissions(VIEW).mutate(parse_review(orjson.dumps(review(one))))).answer
    after = patched(one, answer.patch)
    assert "labels" not in after["metadata"]
    assert after["metadata"]["annotations"].keys() == {"kaiwo.ai/traceparent", *of_job}
