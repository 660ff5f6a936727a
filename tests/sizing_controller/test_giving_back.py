"""Releasing reads annotations that users may have written: it gives back what they say, and never fails by them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.client.resources import JOBS, Object
from kopt.cluster.holds.hold import PARKED, QUEUE_LABEL, UNDO_ANNOTATION, hold, parked, queue_of, release
from kopt.cluster.holds.original_request import request_of, with_request

from .conftest import GPU
from .test_steps import a_job, merged

SLICE = {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
QUEUED = {"metadata": {"labels": {QUEUE_LABEL: "gpus"}}, "spec": {"suspend": True}}


def asks_for_a_slice() -> Object:
    found = a_job(spec={"backoffLimit": 3})
    found["spec"]["template"]["spec"]["containers"][0]["resources"] = SLICE
    found["spec"]["template"]["metadata"] = {"annotations": {"kaiwo.ai/gpu-fraction": "0.5", "other": "stays"}}
    return found


def test_a_held_job_gets_its_own_request_back() -> None:
    asked = request_of(a_job())
    held = merged(asks_for_a_slice(), hold(JOBS, asks_for_a_slice(), "profiling", asked))
    back = merged(held, release(JOBS, held))
    template = back["spec"]["template"]
    assert template["spec"]["containers"][0]["resources"] == {"limits": {GPU: "1", "cpu": "100m"}}
    assert template["metadata"]["annotations"] == {"other": "stays"}
    assert (back["spec"]["backoffLimit"], back["spec"]["suspend"]) == (1, False)


def test_a_parked_job_goes_back_into_its_queue_which_starts_it() -> None:
    held = merged(a_job(**QUEUED), hold(JOBS, a_job(**QUEUED), "profiling"))
    assert (held["metadata"]["labels"][QUEUE_LABEL], queue_of(held)) == (PARKED, "gpus")
    assert merged(held, hold(JOBS, held, "profiling")) == held, "again, as after a restart"
    back = merged(held, release(JOBS, held))
    assert (back["metadata"]["labels"], back["spec"]["suspend"]) == ({QUEUE_LABEL: "gpus"}, True)


@pytest.mark.parametrize("undo", ["", "{}", '{"queue": 7}', '{"queue": "../x"}', '{"queue": "a b"}'])
def test_a_parked_job_whose_queue_is_not_known_any_more_runs_without_one(undo: str) -> None:
    held = merged(a_job(**QUEUED), {"metadata": parked("profiling", "gpus")})
    held["metadata"]["annotations"][UNDO_ANNOTATION] = undo
    back = merged(held, release(JOBS, held))
    assert (back["metadata"]["labels"], back["spec"]["suspend"]) == ({}, False)


names = st.sampled_from(["resources", "fraction", "train", "limits"]) | st.text()
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(names, inner),
    max_leaves=8,
)
undos = st.fixed_dictionaries({}, optional=dict.fromkeys(("suspend", "queue", "asked", "gates"), anything))


@given(undos, st.booleans())
def test_whatever_the_annotation_says_a_job_can_be_released(undo: dict[str, Any], is_parked: bool) -> None:
    held = merged(a_job(**QUEUED), {"metadata": parked("profiling", "gpus")} if is_parked else {})
    held["metadata"].setdefault("annotations", {})[UNDO_ANNOTATION] = json.dumps(undo)
    back = merged(held, release(JOBS, held))
    assert UNDO_ANNOTATION not in back["metadata"]["annotations"]
    assert [one["name"] for one in back["spec"]["template"]["spec"]["containers"]] == ["train"]
    assert back["spec"]["template"]["spec"]["containers"][0]["command"] == ["sh", "-c", "run"]


@given(anything)
def test_a_request_that_cannot_be_read_changes_nothing_but_what_it_says(asked: Any) -> None:
    found = a_job()
    changed = merged(found, {"spec": with_request(found, asked if isinstance(asked, dict) else {})})
    assert isinstance(changed["spec"]["backoffLimit"], int)
    assert changed["spec"]["backoffLimit"] >= 0
