"""Reservations under KAI and Volcano: all of one is claimed when its lead begins, and its owner's jobs go first."""

from dataclasses import replace
from typing import Any

import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.objects.namespace import read_namespace
from kopt.controllers.reservations.hold_jobs import HoldSettings, changes
from kopt.controllers.reservations.observed import Observed
from kopt.controllers.reservations.pod_engines import flavors_of, read_queue
from kopt.controllers.reservations.snapshot import pools_of, read_reservations
from kopt.controllers.reservations.views import read_node, read_pod, read_reserved
from kopt.core.decision import Mode
from kopt.core.scheduling.queue_tree import Engine
from kopt.core.times import stamp
from kopt.policies.reservations import Claim, Pending, PoolSnapshot, Running, plan_placeholders

Object = dict[str, Any]
GPU, NOW_S, START_S, LEAD_S = "nvidia.com/gpu", 1_900_000_000.0, 1_900_003_600.0, 600.0
REFERENCES = {
    Engine.KAI: ("labels", "kai.scheduler/queue"),
    Engine.VOLCANO: ("annotations", "scheduling.volcano.sh/queue-name"),
}


def queue(engine: Engine, quota: int, name: str = "evaluation", pool: str = "", parent: str = "all") -> Object:
    labels = {"kai.scheduler/node-pool": pool} if pool else {}
    spec: Object = {"deserved": {GPU: str(quota)}, "capability": {GPU: "64"}}
    if engine is Engine.KAI:
        spec = {"parentQueue": parent, "resources": {"gpu": {"quota": quota, "limit": -1}}}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def node(name: str, pool: str = "") -> Object:
    labels = {"kai.scheduler/node-pool": pool} if pool else {}
    status = {"allocatable": {GPU: "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


def pod(
    engine: Engine, name: str, gpus: int, node_name: str = "", of: str = "evaluation", space: str = "vision"
) -> Object:
    section, key = REFERENCES[engine]
    container = {"name": "main", "resources": {"limits": {GPU: str(gpus)}, "requests": {GPU: str(gpus)}}}
    spec: Object = {"containers": [container]} | ({"nodeName": node_name} if node_name else {})
    metadata = {"name": name, "namespace": space, "uid": name, "resourceVersion": "1", section: {key: of}}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running" if node_name else "Pending"}}


def reservation(nodes: int = 2, **spec: Any) -> Object:
    fields = {
        "queueName": "evaluation",
        "nodes": nodes,
        "gpusPerNode": 8,
        "start": stamp(START_S),
        "until": stamp(START_S + 7200),
        "lead": f"{LEAD_S:.0f}s",
    }
    metadata = {"name": "weekly", "namespace": "vision", "uid": "r-1", "resourceVersion": "1", "generation": 1}
    return {"metadata": metadata, "spec": fields | spec}


def observed(engine: Engine, now_s: float, pods: list[Object], *queues: Object, **spec: Any) -> Observed:
    kept = [each for each in (read_queue(item, engine, GPU) for item in queues) if each is not None]
    nodes = [node("n1"), node("n2"), node("n3", "h100")]
    space = read_namespace({"metadata": {"name": "vision", "labels": {"kaiwo.ai/managed": "true"}}})
    return Observed(
        now_s,
        [read_reserved(reservation(**spec))],
        [],
        [each for each in map(read_pod, pods) if each is not None],
        [each for each in map(read_node, nodes) if each is not None],
        [],
        {},
        {each.queue.name: each.queue for each in kept},
        flavors_of(kept),
        {"vision": space},
        {},
        lambda _: Mode.ENFORCE,
        lambda _: Mode.ENFORCE,
        engine,
    )


def held(seen: Observed) -> list[Object]:
    """The manifests of the Jobs that hold GPUs."""
    reading = read_reservations(seen)
    assert not reading.refused
    (accepted,) = reading.accepted
    result: list[Object] = []
    for pool in pools_of(seen, reading.accepted, 86_400.0):
        gpus = plan_placeholders(pool.snapshot).holds.get("vision/weekly", 0) // 1000
        result += changes(accepted, gpus, frozenset(), seen.now_s, HoldSettings(engine=seen.engine)).create
    return result


@pytest.mark.parametrize("engine", REFERENCES)
def test_nothing_is_held_before_the_lead_and_all_of_it_from_then_whoever_has_the_gpus(engine: Engine) -> None:
    pods = [pod(engine, "other", 8, "n1", of="research", space="nlp")]
    assert held(observed(engine, START_S - LEAD_S - 1, pods, queue(engine, 16))) == []
    jobs = held(observed(engine, START_S - LEAD_S, pods, queue(engine, 16)))
    assert len(jobs) == 2
    section, key = REFERENCES[engine]
    for job in jobs:
        template = job["spec"]["template"]
        assert template["spec"]["schedulerName"] == {"kai": "kai-scheduler", "volcano": "volcano"}[engine.value]
        assert template["metadata"][section][key] == job["metadata"][section][key] == "evaluation"
        assert template["metadata"]["labels"]["kaiwo.ai/reservation"] == "weekly"
        assert template["spec"]["containers"][0]["resources"]["limits"] == {GPU: "8"}
        assert job["spec"]["suspend"] is False
        assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"]


@pytest.mark.parametrize("engine", REFERENCES)
def test_once_it_has_started_its_owners_jobs_go_before_placeholders(engine: Engine) -> None:
    pods = [pod(engine, "runs", 8, "n1"), pod(engine, "waits", 4), pod(engine, "others", 8, of="research")]
    jobs = held(observed(engine, START_S, pods, queue(engine, 16)))
    (job,) = jobs
    assert job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {GPU: "4"}
    assert len(held(observed(engine, START_S - 1, pods, queue(engine, 16)))) == 2, "before, they are jobs like others"


def test_a_queue_of_a_node_pool_reserves_nodes_of_it() -> None:
    (job,) = held(observed(Engine.KAI, START_S, [], queue(Engine.KAI, 8, pool="h100"), nodes=1))
    assert job["spec"]["template"]["metadata"]["labels"]["kai.scheduler/node-pool"] == "h100"


@pytest.mark.parametrize(
    ("engine", "document", "reason", "words"),
    [
        (Engine.KAI, queue(Engine.KAI, 8), "QuotaTooSmall", "may use 8 of default"),
        (Engine.VOLCANO, queue(Engine.VOLCANO, 8), "QuotaTooSmall", "may use 8 of default"),
        (Engine.KAI, queue(Engine.KAI, 64, pool="h100"), "TooLarge", "room for 1"),
        (Engine.KAI, queue(Engine.KAI, 64), "TooLarge", "room for 2"),
        (Engine.KAI, queue(Engine.KAI, 64, parent=""), "UnknownQueue", "with a parent"),
        (Engine.VOLCANO, queue(Engine.VOLCANO, 64, name="other"), "UnknownQueue", "no Queue evaluation of volcano's"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(
    engine: Engine, document: Object, reason: str, words: str
) -> None:
    seen = observed(engine, NOW_S, [], document, nodes=3 if reason == "TooLarge" else 2)
    ((found, text),) = read_reservations(seen).refused.values()
    assert found == reason
    assert words in text


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 16), st.booleans()), max_size=6),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 16), st.floats(-900.0, 900.0)), max_size=4),
)
@settings(max_examples=examples(200))
def test_placeholders_and_what_their_owners_have_are_never_more_than_is_reserved(
    jobs: list[tuple[str, int, float]], claims: list[tuple[str, int, float]]
) -> None:
    running = tuple(Running(f"r{i}", owner, gpus, 0.0) for i, (owner, gpus, has) in enumerate(jobs) if has)
    pending = tuple(Pending(f"p{i}", owner, gpus) for i, (owner, gpus, has) in enumerate(jobs) if not has)
    reserved = tuple(
        Claim(f"c{i}", owner, gpus, at_s, at_s + 600.0, 300.0) for i, (owner, gpus, at_s) in enumerate(claims)
    )
    snapshot = PoolSnapshot(0.0, 64, 64, reserved, running, pending)
    plan = plan_placeholders(snapshot)
    assert set(plan.admitted) == {job.name for job in pending}
    for owner in "ab":
        owned = sum(job.gpus for job in (*running, *pending) if job.owner == owner)
        started = [claim for claim in reserved if claim.owner == owner and claim.start_s <= 0 < claim.until_s]
        held_gpus = sum(plan.holds[claim.name] for claim in started)
        assert held_gpus == max(0, sum(claim.gpus for claim in started) - owned)
    for claim in reserved:
        if not claim.start_s - claim.lead_s <= 0 < claim.until_s:
            assert plan.holds[claim.name] == 0
    without = plan_placeholders(replace(snapshot, running=(), pending=()))
    assert all(plan.holds[name] <= amount for name, amount in without.holds.items())
