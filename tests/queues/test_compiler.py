"""Whatever the tree, nothing of it is lost, and what Kueue counts is what was declared."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.objects.custom.kaiwo_queue import queue_document, queue_of
from kopt.cluster.workloads.kueue.queues import read_cluster_queue, read_cohort
from kopt.core.scheduling.queue_tree import (
    GPU,
    UNLIMITED,
    Compiled,
    Engine,
    KaiwoPool,
    KaiwoQueue,
    OtherResources,
    Reclaim,
    Share,
)
from kopt.core.scheduling.quota import QuotaNode, cohort_key
from kopt.policies.queues import QueueTree, TreeError, compile_tree
from kopt.policies.quota import QuotaTree

from .trees import UNITS, fitting, trees

ENGINES = st.sampled_from(Engine)
SEED = """
apiVersion: kaiwo.ai/v1alpha2
kind: KaiwoQueue
metadata: {name: research-queue}
spec:
  displayName: "Research Queue"
  parentQueue: "ai-department"
  priority: 100
  resources: {gpu: {quota: 10, overQuotaWeight: 50, limit: 20}}
  fairness: {policy: "DRF", reclaimStrategy: "aggressive"}
"""


def seed() -> KaiwoQueue:
    return queue_of(yaml.safe_load(SEED))


def compiled(queues: list[KaiwoQueue], engine: Engine) -> Compiled:
    return compile_tree(QueueTree.of(queues), engine)


def changes(queue: KaiwoQueue) -> Iterator[KaiwoQueue]:
    """The queue with each of its fields changed in turn."""
    yield replace(queue, display_name=f"{queue.display_name}!")
    yield replace(queue, priority=(queue.priority or 0) + 1)
    yield replace(queue, namespaces=(*queue.namespaces, "another"))
    yield replace(queue, reclaim=Reclaim.AGGRESSIVE if queue.reclaim is Reclaim.CONSERVATIVE else Reclaim.CONSERVATIVE)
    yield replace(queue, grace_s=(queue.grace_s or 0) + 60)
    yield replace(queue, min_runtime_s=(queue.min_runtime_s or 0) + 60)
    yield replace(queue, kueue={"queueingStrategy": "StrictFIFO"})
    yield replace(queue, kai={"preemptMinRuntime": "1h0m0s"})
    for pool, shares in queue.pools.items():
        for resource, share in shares.items():
            for other in _others(share, UNITS[resource]):
                yield replace(queue, pools={**queue.pools, pool: {**shares, resource: other}})


def _others(share: Share, unit: int) -> Iterator[Share]:
    more = None if share.limit is None else share.limit + unit
    # A weight of 1 is that of who says none.
    yield replace(share, weight=(share.weight or 1000) + 1000)
    if share.quota != UNLIMITED:
        yield replace(share, quota=(share.quota or 0) + unit, limit=more)
        yield replace(share, limit=(share.quota or 0) + 100 * unit)
        yield replace(share, guarantee=0 if share.guarantee else share.quota)
        yield replace(share, quota=UNLIMITED, limit=None)


@given(trees(), ENGINES, st.data())
def test_every_field_stands_in_an_object_or_is_said_to_be_lost(
    queues: list[KaiwoQueue], engine: Engine, data: st.DataObject
) -> None:
    before = compiled(queues, engine)
    position = data.draw(st.integers(0, len(queues) - 1))
    for changed in changes(queues[position]):
        if changed == queues[position]:
            continue
        try:
            after = compiled(fitting([*queues[:position], changed, *queues[position + 1 :]]), engine)
        except TreeError:
            continue
        assert (after.objects, after.not_expressible) != (before.objects, before.not_expressible), changed


@given(trees(), ENGINES)
def test_paths_lead_to_queues_and_texts_say_something(queues: list[KaiwoQueue], engine: Engine) -> None:
    names = {queue.name for queue in queues}
    for found in compiled(queues, engine).not_expressible:
        name, _, field_name = found.path.partition("/")
        assert name in names
        assert field_name.startswith("spec.")
        assert found.text.endswith(".")


@given(trees())
def test_a_manifest_reads_back_as_the_same_queue(queues: list[KaiwoQueue]) -> None:
    for queue in queues:
        written = yaml.safe_dump(queue_document(queue))
        assert queue_of(yaml.safe_load(written)) == queue


@given(trees(unlimited=False))
def test_kueue_counts_what_was_declared(queues: list[KaiwoQueue]) -> None:
    """By Kueue's own arithmetic: quotas are whole, limits hold, and guarantees stay when everybody else takes all."""
    tree, quota_tree = QueueTree.of(queues), _quota_tree(compiled(queues, Engine.KUEUE).objects)
    for name, queue in tree.queues.items():
        key = name if tree.is_leaf(name) else cohort_key(name)
        for pool, shares in queue.pools.items():
            for resource, share in shares.items():
                place = (pool, "nvidia.com/gpu" if resource == GPU else resource)
                assert share.quota is not None
                local = sum(quota_tree.local(child, place) for child in _all_below(quota_tree, key))
                assert quota_tree.subtree(key, place) + local == share.quota
                if queue.parent and share.guarantee is not None:
                    assert quota_tree.local(key, place) + local == max(share.guarantee, local)
                if tree.is_leaf(name):
                    most = quota_tree.capacity(key, place)
                    assert most >= share.quota
                    assert share.limit is None or most <= share.limit


def _all_below(tree: QuotaTree, key: str) -> Iterator[str]:
    for child in tree.children(key):
        yield child
        yield from _all_below(tree, child)


def _quota_tree(objects: tuple[dict[str, Any], ...]) -> QuotaTree:
    nodes = [read_cohort(item) for item in objects if item["kind"] == "Cohort"]
    for item in objects:
        if item["kind"] == "ClusterQueue":
            queue = read_cluster_queue(item)
            nodes.append(QuotaNode(queue.name, cohort_key(queue.cohort), queue.quotas))
    return QuotaTree.of(nodes)


@given(trees())
def test_no_job_has_to_sit_in_a_top_level_queue_of_kai(queues: list[KaiwoQueue]) -> None:
    objects = compiled(queues, Engine.KAI).objects
    parents = {item["metadata"]["name"]: item["spec"].get("parentQueue", "") for item in objects}
    assert len(parents) == len(objects)
    assert {parent for parent in parents.values() if parent} <= parents.keys()
    leaves = parents.keys() - set(parents.values())
    assert all(parents[leaf] for leaf in leaves)


def test_the_manifest_of_the_interfaces_is_compiled_for_each_engine() -> None:
    by_engine = {engine: compiled([seed()], engine) for engine in Engine}
    cluster_queue = next(item for item in by_engine[Engine.KUEUE].objects if item["kind"] == "ClusterQueue")["spec"]
    gpus = cluster_queue["resourceGroups"][0]["flavors"][0]["resources"][0]
    assert gpus == {"name": "nvidia.com/gpu", "nominalQuota": "10", "borrowingLimit": "10"}
    assert cluster_queue["cohortName"] == "ai-department"
    assert cluster_queue["fairSharing"] == {"weight": "50"}
    assert cluster_queue["preemption"]["reclaimWithinCohort"] == "Any"
    assert [found.code for found in by_engine[Engine.KUEUE].not_expressible] == ["QUEUE_PRIORITY"]
    parent, kai = by_engine[Engine.KAI].objects
    assert (parent["metadata"]["name"], kai["spec"]["parentQueue"]) == ("ai-department", "ai-department")
    assert kai["spec"]["resources"]["gpu"] == {"quota": 10, "limit": 20, "overQuotaWeight": 50}
    assert (kai["spec"]["displayName"], kai["spec"]["priority"]) == ("Research Queue", 100)
    assert not by_engine[Engine.KAI].not_expressible
    volcano = by_engine[Engine.VOLCANO].objects[1]["spec"]
    assert (volcano["deserved"], volcano["capability"]) == ({"nvidia.com/gpu": "10"}, {"nvidia.com/gpu": "20"})
    assert (volcano["parent"], volcano["priority"], volcano["weight"]) == ("ai-department", 100, 50)


def test_a_third_of_a_gpu_three_times_is_not_a_gpu() -> None:
    thirds = [KaiwoQueue(f"q{n}", "all", pools={"default": {GPU: Share(333)}}) for n in range(3)]
    department = KaiwoQueue("all", pools={"default": {GPU: Share(1000)}})
    cohort = next(item for item in compiled([department, *thirds], Engine.KUEUE).objects if item["kind"] == "Cohort")
    assert cohort["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] == "1m"


@pytest.mark.parametrize(
    ("queues", "pools", "said"),
    [
        ([KaiwoQueue("a", "b"), KaiwoQueue("b", "a")], (), "queues are their own ancestors: a → b → a"),
        ([KaiwoQueue("a", "b"), KaiwoQueue("a", "c")], (), "with the parents b and c: a queue has one"),
        ([KaiwoQueue("a", pools={"h10": {}})], (KaiwoPool("h100"),), "there is no pool h10; did you mean h100?"),
        (
            [KaiwoQueue("a", pools={"h100": {GPU: Share(9000)}})],
            (KaiwoPool("h100", capacity={GPU: 8000}),),
            "pool h100 has 8 gpu, and its queues a quota of 9",
        ),
        ([KaiwoQueue("a", pools={"default": {GPU: Share(9000, 8000)}})], (), "the limit 8 is below the quota 9"),
        (
            [KaiwoQueue("a", pools={"default": {GPU: Share(2000, guarantee=3000)}})],
            (),
            "the guarantee 3 is more than the quota 2",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(queues: list[KaiwoQueue], pools: tuple[KaiwoPool, ...], said: str) -> None:
    with pytest.raises(TreeError) as refused:
        QueueTree.of(queues, pools)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("kueue", "said"),
    [
        ({"preemption": {"borrowWithinCohort": {"policy": "LowerPriority"}}}, "does not go together with fair sharing"),
        ({"preemption": {"reclaimWithinCohort": "Never"}}, "say two things"),
        ({"resourceGroups": []}, "follows from the tree"),
    ],
)
def test_what_kueue_would_refuse_is_refused_before(kueue: dict[str, Any], said: str) -> None:
    with pytest.raises(TreeError, match=said):
        compiled([replace(seed(), kueue=kueue)], Engine.KUEUE)


@pytest.mark.parametrize(
    ("parent", "said"), [("departmnt-1", "; did you mean department-1?"), ("department-2", ""), ("department-all", "")]
)
def test_a_parent_that_no_manifest_describes_is_named_and_a_slip_of_the_pen_is_seen(parent: str, said: str) -> None:
    tree = QueueTree.of([KaiwoQueue("department-1"), KaiwoQueue("a", parent)])
    assert tree.assumptions() == [f"{parent} is described by no manifest, and has no bounds of its own{said}"]


def test_children_with_more_than_their_department_are_refused_but_by_kai() -> None:
    queues = [
        KaiwoQueue("all", pools={"default": {GPU: Share(4000)}}),
        KaiwoQueue("a", "all", pools={"default": {GPU: Share(5000)}}),
    ]
    for engine in (Engine.KUEUE, Engine.VOLCANO):
        with pytest.raises(TreeError, match="its queues have a quota of 5 together, and it has 4"):
            compiled(queues, engine)
    assert compiled(queues, Engine.KAI).objects


def test_pools_become_flavors_in_their_order_and_queues_of_kais_node_pools() -> None:
    pools = [KaiwoPool("h100", {"pool": "h100"}), KaiwoPool("mi300", gpu_resource="amd.com/gpu")]
    queue = KaiwoQueue("team", "all", pools={"mi300": {GPU: Share(8000)}, "h100": {GPU: Share(16000)}})
    tree = QueueTree.of([queue], pools)
    kueue = compile_tree(tree, Engine.KUEUE).objects
    flavors = [item for item in kueue if item["kind"] == "ResourceFlavor"]
    assert [(item["metadata"]["name"], item["spec"]) for item in flavors] == [
        ("h100", {"nodeLabels": {"pool": "h100"}}),
        ("mi300", {}),
    ]
    (group,) = next(item for item in kueue if item["kind"] == "ClusterQueue")["spec"]["resourceGroups"]
    assert [flavor["name"] for flavor in group["flavors"]] == ["mi300", "h100"]
    assert group["coveredResources"] == ["amd.com/gpu", "nvidia.com/gpu", "cpu", "memory"]
    kai = {item["metadata"]["name"]: item for item in compile_tree(tree, Engine.KAI).objects}
    assert kai["team-h100"]["spec"]["parentQueue"] == "all-h100"
    assert kai["team-h100"]["metadata"]["labels"]["kai.scheduler/node-pool"] == "h100"


def test_what_a_queue_says_nothing_about_is_free_or_refused() -> None:
    free = KaiwoQueue("a", "all", pools={"default": {GPU: Share(1000)}})
    for queue, covered in ((free, 3), (replace(free, other_resources=OtherResources.REFUSED), 1)):
        spec = next(item for item in compiled([queue], Engine.KUEUE).objects if item["kind"] == "ClusterQueue")["spec"]
        assert len(spec["resourceGroups"][0]["coveredResources"]) == covered


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "-1", "500m", "10Gi", "gpu", "1e9", "Any"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["gpu", "cpu", "quota", "limit", "name", "resources", "preemption", "borrowWithinCohort", "policy"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "parentQueue",
        "priority",
        "resources",
        "pools",
        "namespaces",
        "fairness",
        "otherResources",
        "kueue",
        "kai",
        "displayName",
    ]
)


@given(st.dictionaries(FIELDS, ANYTHING, max_size=4), ENGINES)
def test_whatever_people_write_is_read_or_refused(spec: dict[str, Any], engine: Engine) -> None:
    document = {"apiVersion": "kaiwo.ai/v1alpha2", "kind": "KaiwoQueue", "metadata": {"name": "any"}, "spec": spec}
    with contextlib.suppress(ValueError):
        compiled([queue_of(document)], engine)
