"""What schedulers write, read as causes; and text that nobody of them wrote."""

import asyncio
import random
from typing import Any

import pytest
from benchmarked import benchmark_module
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.workloads.scheduler_messages import causes_in
from kopt.controllers.overview.diagnosis.pod_shapes import templates_of
from kopt.controllers.overview.diagnosis.words import sentences


@pytest.mark.parametrize(
    ("message", "codes"),
    [
        (
            "0/5 nodes are available: 3 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {team: a}. "
            "preemption: 0/5 nodes are available: 2 Preemption is not helpful for scheduling, 3 No preemption victims.",
            ["GPUS_IN_USE", "TAINT"],
        ),
        ("0/9 nodes are available: 1 Too many pods, 8 Insufficient cpu.", ["CPU_IN_USE", "PODS_PER_NODE"]),
        ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", ["NODE_AFFINITY"]),
        ("0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.", ["POD_ANTI_AFFINITY"]),
        ("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.", ["VOLUME"]),
        (
            "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h100, "
            "4 more needed",
            ["QUOTA_IN_USE"],
        ),
        (
            "no nodes with enough resources were found: 2 node(s) had untolerated taint(s). "
            "5 node(s) didn't have enough resources: GPUs.",
            ["GPUS_IN_USE", "TAINT"],
        ),
        (
            "research quota has reached the allowable limit of GPUs. Limit is 8 GPUs, currently 6 GPUs allocated and "
            "workload requested 4 GPUs",
            ["QUEUE_LIMIT"],
        ),
        ("2/2 tasks in gang unschedulable: pod group is not ready, 4 minAvailable", ["GANG_INCOMPLETE"]),
        ("queue resource quota insufficient: insufficient nvidia.com/gpu", ["QUEUE_LIMIT"]),
        ("binding rejected: the weather", []),
    ],
)
def test_messages(message: str, codes: list[str]) -> None:
    assert [str(cause.code) for cause in causes_in(message)] == codes


def test_amounts_in_messages() -> None:
    (cause,) = causes_in(
        "Non-preemptible workload is over quota. Workload requested 4 GPUs, but research quota is 8 GPUs, while 6 GPUs "
        "are already allocated for non-preemptible pods. Use a preemptible workload to go over quota."
    )
    assert (cause.code, cause.wanted, cause.free, cause.about) == ("QUEUE_QUOTA", 4, 2, "research")


@given(st.text(max_size=2000) | st.from_regex(r"(\d{1,30} (Insufficient|node\(s\)) .{0,40}, ){0,20}"))
@settings(max_examples=examples(60), deadline=None)
def test_any_text_is_read(text: str) -> None:
    causes_in(text)


def test_long_messages_are_read_in_linear_time() -> None:
    causes_in("1 node(s) had untolerated taint {" * 50_000)
    causes_in("untolerated taint " * 50_000)
    causes_in("9" * 500_000)


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _mutilated(document: Any, rng: random.Random, value: Any) -> Any:
    """A copy in which something somewhere, but no name of an object, is another value."""
    if isinstance(document, dict) and document:
        key = rng.choice(list(document))
        if key in ("metadata", "name", "namespace", "uid"):
            return document
        return {**document, key: value if rng.random() < 0.4 else _mutilated(document[key], rng, value)}
    if isinstance(document, list) and document:
        index = rng.randrange(len(document))
        return [*document[:index], _mutilated(document[index], rng, value), *document[index + 1 :]]
    return value


@given(st.integers(0, 2**32), anything)
@settings(max_examples=examples(150), deadline=None)
def test_objects_that_anyone_may_have_written_do_not_raise(seed: int, value: Any) -> None:
    evaluation = benchmark_module("why_situations.evaluation")
    reading = benchmark_module("why_situations.reading")
    rng = random.Random(seed)
    situation = rng.choice(evaluation.MAKERS)(rng)
    for name, several in vars(situation.cluster).items():
        setattr(situation.cluster, name, [_mutilated(item, rng, value) for item in several])
    diagnosis = asyncio.run(reading.diagnosis_of(situation))
    if diagnosis is not None:
        assert all(isinstance(line, str) for line in sentences(diagnosis, 0.0))


def test_numbers_beyond_what_an_api_server_takes_are_told_apart() -> None:
    pods = [{"metadata": {"name": name}, "spec": {"tolerations": 2**70 + at}} for at, name in enumerate("ab")]
    assert len(templates_of(pods, 1)) == 2
    assert len(templates_of([*pods, pods[0]], 1)) == 2
