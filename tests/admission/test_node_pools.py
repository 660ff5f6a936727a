"""Node pools that workloads name: what is written holds on exactly the nodes that it should, and names are checked."""

import copy
from typing import Any

import orjson
import pytest
from admission.patching import patched
from admission.workloads import Object, deployment, job, pod, review
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.admission.review import parse_review
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.workloads.kinds import template
from kopt.cluster.workloads.node_pools import write_pools
from kopt.cluster.workloads.node_selection import runs_on
from kopt.controllers.admission.answers import Admission
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.policy import parse_policy
from kopt.core.scheduling.queue_tree import KaiwoPool
from kopt.core.scheduling.submission import Framework
from kopt.policies.admission.pools import MOST_POOLS, choose_pools, preference_weights

TOLERATES = {"key": "reserved", "operator": "Exists"}
POOLS = {
    "h100": KaiwoPool("h100", {"gpu": "h100"}, tolerations=(TOLERATES,)),
    "mi300x": KaiwoPool("mi300x", {"gpu": "mi300x", "zone": "west"}),
    "any": KaiwoPool("any"),
}
LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), max_size=3)
POOL_SETS = st.lists(
    LABELS.filter(bool), min_size=1, max_size=4, unique_by=lambda labels: tuple(sorted(labels.items()))
)
TERMS = st.lists(
    st.lists(
        st.builds(
            lambda key, value: {"key": key, "operator": "In", "values": [value]},
            st.sampled_from("abc"),
            st.sampled_from("12"),
        ),
        min_size=1,
        max_size=2,
    ).map(lambda expressions: {"matchExpressions": expressions}),
    max_size=3,
)


def with_gpu(terms: list[Object], selector: dict[str, str]) -> Object:
    spec = pod("p")["spec"] | ({"nodeSelector": selector} if selector else {})
    if terms:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    return {"metadata": {"name": "p"}, "spec": spec}


@given(POOL_SETS, TERMS, LABELS, LABELS)
def test_a_pod_may_run_where_it_might_before_as_far_as_that_is_in_one_of_its_pools(
    pool_labels: list[dict[str, str]], terms: list[Object], selector: dict[str, str], node: dict[str, str]
) -> None:
    pools = [KaiwoPool(f"p{number}", labels) for number, labels in enumerate(pool_labels)]
    document = with_gpu(terms, selector)
    before = copy.deepcopy(document)
    pod_sets = (template(document, (), 1),)
    weights = {pool.name: weight for pool, weight in preference_weights(pools)}
    patch = JsonPatch(document)
    write_pools(patch, pod_sets, pools, weights)
    assert patched(before, patch.operations) == patch.document
    in_pool = any(labels.items() <= node.items() for labels in pool_labels)
    assert runs_on(patch.document["spec"], node, ()) == (runs_on(before["spec"], node, ()) and in_pool)
    again = JsonPatch(copy.deepcopy(patch.document))
    write_pools(again, pod_sets, pools, weights)
    assert again.operations == []


@given(POOL_SETS)
def test_an_earlier_pool_weighs_more_than_a_later_one(pool_labels: list[dict[str, str]]) -> None:
    pools = [KaiwoPool(f"p{number}", labels) for number, labels in enumerate(pool_labels)]
    weights = [weight for _, weight in preference_weights(pools)]
    assert weights == sorted(set(weights), reverse=True)
    assert len(weights) == len(pools) - 1
    assert all(1 <= weight <= 100 for weight in weights)


NAMES = st.text(alphabet="hm130x", min_size=1, max_size=6)


@given(st.lists(st.sampled_from(["h100", "mi300x"]) | NAMES, max_size=6))
def test_a_name_that_there_is_not_is_refused_and_no_other_is(names: list[str]) -> None:
    choice = choose_pools(" , ".join(names), POOLS, [{}], Framework.KUEUE)
    assert choice.refused == (not names or not set(names) <= POOLS.keys())
    if not choice.refused:
        assert [pool.name for pool in choice.pools] == list(dict.fromkeys(names))


@pytest.mark.parametrize(
    ("written", "selector", "framework", "codes", "refused"),
    [
        ("h100", {}, Framework.KUEUE, ["POOLS"], False),
        ("h100,mi300x", {}, Framework.KUEUE, ["POOLS", "POOLS_ORDER_OF_QUEUE"], False),
        ("h100,mi300x", {}, Framework.KAI, ["POOLS", "POOLS_ONE_FOR_KAI"], False),
        ("h100,any", {}, Framework.VOLCANO, ["POOLS", "POOLS_ANY_NODE"], False),
        ("h100,mi300x", {"gpu": "h100"}, Framework.VOLCANO, ["POOLS", "POOLS_EXCLUDED"], False),
        ("mi300x", {"zone": "east"}, Framework.VOLCANO, ["POOLS_EXCLUDED"], True),
        (" , ", {}, Framework.VOLCANO, ["POOLS_COUNT"], True),
        (",".join(f"p{n}" for n in range(MOST_POOLS + 1)), {}, Framework.VOLCANO, ["POOLS_COUNT"], True),
        ("h1000", {}, Framework.VOLCANO, ["POOL_UNKNOWN"], True),
    ],
)
def test_what_cannot_be_had_is_said(
    written: str, selector: dict[str, str], framework: Framework, codes: list[str], refused: bool
) -> None:
    choice = choose_pools(written, POOLS, [selector], framework)
    assert ([reason.code for reason in choice.reasons], choice.refused) == (codes, refused)


def test_without_knowledge_of_the_pools_or_a_template_nothing_is_refused() -> None:
    assert [each.code for each in choose_pools("h1", None, [{}], Framework.KUEUE).reasons] == ["POOLS_NOT_KNOWN"]
    assert [each.code for each in choose_pools("h100", POOLS, [], Framework.KUEUE).reasons] == ["POOLS_NO_FIELD"]


async def answered(workload: Object, mode: str = "enforce", framework: str = "Volcano") -> Admission:
    policy = parse_policy(
        {"metadata": {"name": "default"}, "spec": {"mode": mode, "framework": framework, "queues": {"default": "q"}}}
    )
    state = FixedState(policy, node_pools=POOLS)
    return await Admissions(state).mutate(parse_review(orjson.dumps(review(workload))))


def naming(workload: Object, pools: str) -> Object:
    workload["metadata"].setdefault("annotations", {})["kaiwo.ai/node-pools"] = pools
    return workload


@pytest.mark.parametrize("make", [job, deployment, pod])
async def test_templates_of_every_kind_are_limited_to_the_pools(make: Any) -> None:
    wanted = naming(make("w"), "mi300x,h100")
    made = patched(wanted, (await answered(wanted)).answer.patch)
    found = orjson.dumps(made).decode()
    assert '{"matchExpressions":[{"key":"gpu","operator":"In","values":["h100"]}]}' in found
    assert found.count('"weight":100') == 1
    assert found.count('"key":"reserved"') == 1


async def test_the_mode_decides_between_record_advice_and_refusal() -> None:
    wrong, right = naming(job("w"), "h10,mi300x"), naming(job("w"), "mi300x")
    for mode, refused, warned in (("observe", False, False), ("annotate", False, True), ("enforce", True, False)):
        answer = (await answered(wrong, mode)).answer
        assert bool(answer.refusal) is refused, mode
        assert any("did you mean h100?" in each for each in answer.warnings) is warned, mode
        made = patched(right, (await answered(right, mode)).answer.patch)
        assert ("affinity" in made["spec"]["template"]["spec"]) is refused, mode
        advised = made["metadata"]["annotations"].get("kaiwo.ai/recommended-node-pools")
        assert advised == ("mi300x" if mode == "annotate" else None)
    refusal = (await answered(wrong)).answer.refusal
    assert refusal == "There is no node pool h10 (kaiwo.ai/node-pools); did you mean h100?"


async def test_kai_is_given_its_label_for_one_pool_alone() -> None:
    key = "kai.scheduler/node-pool"
    for pools, label in (("h100", "h100"), ("h100,mi300x", None)):
        wanted = naming(job("w"), pools)
        made = patched(wanted, (await answered(wanted, framework="KAI")).answer.patch)
        assert made["spec"]["template"]["metadata"]["labels"].get(key) == label
    own = naming(job("w"), "h100")
    own["spec"]["template"]["metadata"]["labels"][key] = "theirs"
    made = patched(own, (await answered(own, framework="KAI")).answer.patch)
    assert made["spec"]["template"]["metadata"]["labels"][key] == "theirs"
