"""A hold is handed over in one write, and ``release`` ends all of it."""

import json
from typing import Any

import pytest

from kopt.cluster.client.resources import JOBS, Object
from kopt.cluster.holds.hold import (
    PARKED,
    HoldError,
    hold,
    holder_of,
    is_parked,
    next_holders,
    pass_on,
    queue_of,
    release,
    wait_turn,
)

LABEL = "kueue.x-k8s.io/queue-name"


def job(queue: str = "gpus") -> Object:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {
            "name": "train",
            "namespace": "team",
            "resourceVersion": "1",
            "labels": {LABEL: queue} if queue else {},
        },
        "spec": {"suspend": bool(queue), "template": {"spec": {"containers": [container]}}},
    }


def merged(before: Any, changes: Any) -> Any:
    """What a merge patch (RFC 7386) makes of a document."""
    if not isinstance(changes, dict):
        return changes
    found = dict(before) if isinstance(before, dict) else {}
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


@pytest.mark.parametrize("queue", ["gpus", ""])
def test_the_next_one_holds_it_with_no_moment_in_between(queue: str) -> None:
    held = merged(job(queue), hold(JOBS, job(queue), "staging"))
    both = merged(held, wait_turn(held, "profiling"))
    assert (holder_of(both), next_holders(both)) == ("staging", ("profiling",))
    assert merged(both, wait_turn(both, "profiling")) == both
    passed = merged(both, pass_on(JOBS, both))
    assert (holder_of(passed), next_holders(passed)) == ("profiling", ())
    assert is_parked(passed) == bool(queue)
    assert passed["spec"] == both["spec"]
    assert queue_of(passed) == queue
    free = merged(passed, pass_on(JOBS, passed))
    assert merged(free, {"metadata": {"annotations": None}}) == job(queue)


def test_release_is_for_good_whoever_waits() -> None:
    held = merged(job(), hold(JOBS, job(), "staging"))
    both = merged(held, wait_turn(held, "profiling"))
    free = merged(both, release(JOBS, both))
    assert (holder_of(free), free["metadata"]["labels"][LABEL]) == ("", "gpus")


def test_holding_again_keeps_who_waits_and_passing_on_gives_a_jobs_own_request_back() -> None:
    held = merged(job(), hold(JOBS, job(), "profiling"))
    both = merged(held, wait_turn(held, "staging"))
    asked = {"resources": {"main": {"limits": {"nvidia.com/gpu": "4"}}}, "fraction": None, "backoff_limit": 6}
    again = merged(both, hold(JOBS, both, "profiling", asked))
    assert next_holders(again) == ("staging",)
    passed = merged(again, pass_on(JOBS, again))
    limits = passed["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert (holder_of(passed), limits) == ("staging", {"nvidia.com/gpu": "4"})
    undo = json.loads(passed["metadata"]["annotations"]["kaiwo.ai/held-undo"])
    assert undo == {"queue": "gpus"}
    assert passed["metadata"]["labels"][LABEL] == PARKED


def test_nobody_waits_for_what_nobody_holds() -> None:
    with pytest.raises(HoldError):
        wait_turn(job(), "staging")


def test_nobody_holds_what_another_cluster_decides_about() -> None:
    """MultiKueue deletes a Job that is not what its own cluster has written, and its pods with it."""
    copied = job()
    copied["metadata"]["labels"]["kueue.x-k8s.io/multikueue-origin"] = "hub"
    with pytest.raises(HoldError, match="another cluster's"):
        hold(JOBS, copied, "staging")


def test_nobody_waits_for_themselves() -> None:
    held = merged(job(), hold(JOBS, job(), "profiling"))
    with pytest.raises(HoldError):
        wait_turn(held, "profiling")
