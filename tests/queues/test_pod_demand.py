"""What queues of KAI and Volcano use and wait for, by their pods and PodGroups."""

from collections import Counter
from typing import Any

import pytest

from kopt.cluster.client.resources import Key, key_of
from kopt.controllers.queues.demand import QueueDemand
from kopt.controllers.queues.pod_demand import (
    QueuedGroup,
    QueuedPod,
    gpus_of_pods,
    queue_names,
    queued_group,
    queued_pod,
)
from kopt.core.scheduling.queue_tree import Engine
from kopt.policies.queues import QueueTree

Object = dict[str, Any]
GPU = "nvidia.com/gpu"


def pod(name: str, gpus: int, *, node: str = "", group: str = "", phase: str = "Pending", **metadata: Object) -> Object:
    notes = metadata.pop("annotations", {}) | ({"pod-group-name": group} if group else {})
    container = {"name": "main", "resources": {"limits": {GPU: str(gpus)} if gpus else {}}}
    spec = {"containers": [container]} | ({"nodeName": node} if node else {})
    identity = {"name": name, "namespace": "team", "annotations": notes}
    return {"metadata": identity | metadata, "spec": spec, "status": {"phase": phase}}


def group(name: str, queue: str, gpus: int = 0, phase: str = "Inqueue") -> Object:
    spec: Object = {"queue": queue} | ({"minResources": {GPU: str(gpus), "cpu": "4"}} if gpus else {})
    return {"metadata": {"name": name, "namespace": "team"}, "spec": spec, "status": {"phase": phase}}


def declared(name: str, *pools: str) -> Object:
    rows = [{"name": pool, "resources": {"gpu": {"quota": 4}}} for pool in pools]
    return {"metadata": {"name": name}, "spec": {"parentQueue": "ai", "pools": rows}}


def reported(
    engine: Engine, pods: list[Object], groups: list[Object], *queues: Object
) -> dict[tuple[str, str, str], float]:
    read = queued_pod(engine)
    kept: list[QueuedPod] = [each for each in map(read, pods) if each is not None]
    by_key: dict[Key, QueuedGroup] = {key_of(each): queued_group(each) for each in groups}

    def gpus(tree: QueueTree) -> Any:
        return gpus_of_pods(kept, by_key, queue_names(tree, engine))

    demand = QueueDemand(lambda: queues, list, gpus, lambda: True, single_pool=engine is Engine.VOLCANO)
    (family,) = demand.collect()
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}  # type: ignore[misc]


def test_kai_queues_are_counted_by_pool_with_fractions_and_what_has_no_group_yet() -> None:
    label = {"kai.scheduler/queue": "research-h100"}
    pods = [
        pod("runs", 2, node="n1", group="g1"),
        pod("waits", 3, group="g1"),
        pod("new", 1, labels=label),
        pod("half", 0, node="n1", group="g2", annotations={"gpu-fraction": "0.5"}),
        pod("ended", 8, node="n1", group="g1", phase="Succeeded"),
        pod("other", 8, group="g3"),
        pod("cpu", 0, group="g1"),
    ]
    groups = [group("g1", "research-h100"), group("g2", "research-a100"), group("g3", "elsewhere")]
    values = reported(Engine.KAI, pods, groups, declared("research", "h100", "a100"), declared("idle", "h100"))
    assert values == {
        ("research", "h100", "used"): 2.0,
        ("research", "h100", "pending"): 4.0,
        ("research", "a100", "used"): 0.5,
        ("research", "a100", "pending"): 0.0,
        ("idle", "h100", "used"): 0.0,
        ("idle", "h100", "pending"): 0.0,
    }


@pytest.mark.parametrize("engine", [Engine.KAI, Engine.VOLCANO])
def test_a_group_whose_pods_are_not_there_yet_waits_for_its_minimum_and_nothing_twice(engine: Engine) -> None:
    groups = [group("held", "train", 6, "Pending"), group("started", "train", 4), group("runs", "train", 8, "Running")]
    pods = [pod("a", 2, node="n1", group="started"), pod("b", 2, group="started")]
    values = Counter(reported(engine, pods, groups, declared("train", "h100")))
    assert (values["train", "h100", "used"], values["train", "h100", "pending"]) == (2.0, 8.0)


def test_volcano_does_not_say_the_pool_so_queues_of_several_are_left_out() -> None:
    notes = {"scheduling.volcano.sh/queue-name": "research"}
    pods = [pod("a", 2, node="n1", annotations=notes), pod("b", 1, annotations={**notes}, group="g")]
    one = reported(Engine.VOLCANO, pods, [group("g", "research", 1)], declared("research", "h100"))
    assert one == {("research", "h100", "used"): 2.0, ("research", "h100", "pending"): 1.0}
    assert reported(Engine.VOLCANO, pods, [], declared("research", "h100", "a100")) == {}
