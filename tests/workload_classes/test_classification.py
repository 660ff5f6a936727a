"""Which class a workload has: what is stated, else the first rule that holds, for objects as people write them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.workloads.kinds import BY_KEY
from kopt.cluster.workloads.workload import read_workload
from kopt.cluster.workloads.workload_class import class_of_kueue_workload, class_of_pod
from kopt.core.scheduling.classify import ClassSigns, classify
from kopt.core.scheduling.workload_class import ClassPlacement, ClassRule, WorkloadClass, default_classes

INTERACTIVE, UNATTENDED, INFERENCE = WorkloadClass
TABLE = default_classes()
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def container(**fields: Any) -> dict[str, Any]:
    return {"name": "main", "image": "team/train:1"} | GPU | fields


def job(**fields: Any) -> dict[str, Any]:
    template = {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [container(**fields)]}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "w"}, "spec": {"template": template}}


def deployment(**fields: Any) -> dict[str, Any]:
    return job(**fields) | {"apiVersion": "apps/v1", "kind": "Deployment"}


def pod(owner: str = "", **fields: Any) -> dict[str, Any]:
    group, _, kind = owner.rpartition("/")
    owners = [{"apiVersion": f"{group}/v1", "kind": kind, "name": "o", "uid": "u", "controller": True}]
    metadata = {"name": "w"} | ({"ownerReferences": owners} if owner else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container(**fields)]}}


def code_of(document: dict[str, Any]) -> tuple[WorkloadClass, str]:
    group = document["apiVersion"].rpartition("/")[0]
    workload = read_workload(document, group, document["kind"], "team", "w")
    assert workload is not None
    return workload.classified.workload_class, workload.classified.reasons[-1].code


ASKED = {"readinessProbe": {"httpGet": {"path": "/health", "port": 8000}}}
SHELL = {"stdin": True, "tty": True}


@pytest.mark.parametrize(
    ("document", "expected", "code"),
    [
        (job(), UNATTENDED, "CLASS_KIND"),
        (job(tty=True), UNATTENDED, "CLASS_KIND"),
        (job(**SHELL), INTERACTIVE, "CLASS_TERMINAL"),
        (job(image="quay.io:5000/jupyter/pytorch-notebook:2024"), INTERACTIVE, "CLASS_NOTEBOOK"),
        (job(image="registry.jupyter.org/team/train:jupyter"), UNATTENDED, "CLASS_KIND"),
        (job(command=["/opt/conda/bin/jupyter", "lab"]), INTERACTIVE, "CLASS_NOTEBOOK"),
        (job(args=["sh", "-c", "exec jupyter-lab --ip=0.0.0.0"]), INTERACTIVE, "CLASS_NOTEBOOK"),
        (job(**ASKED), UNATTENDED, "CLASS_KIND"),
        (deployment(), INFERENCE, "CLASS_KIND"),
        (deployment(ports=[{"containerPort": 8888}]), INTERACTIVE, "CLASS_NOTEBOOK"),
        (deployment(image="codercom/code-server"), INTERACTIVE, "CLASS_NOTEBOOK"),
        (pod(), UNATTENDED, "CLASS_DEFAULT"),
        (pod(**ASKED), INFERENCE, "CLASS_ANSWERS"),
        (pod("kubeflow.org/Notebook"), INTERACTIVE, "CLASS_KIND"),
        (pod("ray.io/RayCluster"), INTERACTIVE, "CLASS_KIND"),
    ],
)
def test_kinds_and_containers_say_what_it_is_for(document: dict[str, Any], expected: WorkloadClass, code: str) -> None:
    assert code_of(document) == (expected, code)


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        ("batch/Job", UNATTENDED),
        ("apps/ReplicaSet", INFERENCE),
        ("kubeflow.org/PyTorchJob", UNATTENDED),
        ("serving.kserve.io/InferenceService", INFERENCE),
        ("aim.silogen.ai/AIMService", INFERENCE),
        ("aim.eai.amd.com/AIMService", INFERENCE),
        ("kaiwo.silogen.ai/KaiwoService", INFERENCE),
        ("kaiwo.silogen.ai/KaiwoJob", UNATTENDED),
        ("ray.io/RayCluster", INTERACTIVE),
    ],
)
def test_a_pod_and_a_workload_of_kueues_have_the_class_of_their_owner(owner: str, expected: WorkloadClass) -> None:
    made = pod(owner)
    assert class_of_pod(made).workload_class is expected
    sets = [{"name": "main", "count": 1, "template": {"metadata": {}, "spec": made["spec"]}}]
    workload = {"metadata": made["metadata"], "spec": {"podSets": sets}}
    assert class_of_kueue_workload(workload).workload_class is expected


def test_a_cluster_of_a_ray_job_is_no_playground() -> None:
    signs = ClassSigns(kinds=("ray.io/RayCluster", "ray.io/RayJob"))
    assert classify(signs, TABLE).workload_class is UNATTENDED
    assert classify(replace(signs, kinds=("ray.io/RayCluster",)), TABLE).workload_class is INTERACTIVE


@pytest.mark.parametrize("section", ["labels", "annotations"])
@pytest.mark.parametrize("on_template", [True, False])
def test_what_is_stated_counts_wherever_it_stands(section: str, *, on_template: bool) -> None:
    document = job(**SHELL)
    metadata = document["spec"]["template"]["metadata"] if on_template else document["metadata"]
    metadata[section] = {"kaiwo.ai/class": "Training"}
    assert code_of(document) == (UNATTENDED, "CLASS_STATED")


def test_a_word_that_is_no_class_is_said_and_the_rules_decide() -> None:
    document = deployment()
    document["metadata"]["labels"] = {"kaiwo.ai/class": "interactiv"}
    workload = read_workload(document, "apps", "Deployment", "team", "w")
    assert workload is not None
    class_ = workload.classified
    assert class_.workload_class is INFERENCE
    assert [reason.code for reason in class_.reasons] == ["CLASS_UNKNOWN", "CLASS_KIND"]
    assert "did you mean interactive" in class_.why


WORDS = st.text(alphabet="abjupyter/-.:0189", max_size=14)
SIGNS = st.builds(
    ClassSigns,
    st.sampled_from(["", "interactive", "serving", "nonsense"]),
    st.lists(st.sampled_from(sorted({kind for rule in TABLE.rules for kind in rule.kinds} | {"/Pod"})), max_size=3).map(
        tuple
    ),
    st.lists(WORDS, max_size=2).map(tuple),
    st.lists(WORDS, max_size=2).map(tuple),
    st.lists(st.sampled_from(["8888", "80", "notebook"]), max_size=2).map(tuple),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@given(SIGNS, st.sampled_from(WorkloadClass), st.permutations(TABLE.rules))
def test_what_is_stated_wins_over_whatever_else_holds(
    signs: ClassSigns, stated: WorkloadClass, order: list[ClassRule]
) -> None:
    table = replace(TABLE, rules=tuple(order))
    assert classify(replace(signs, stated=stated.upper()), table).workload_class is stated


@given(SIGNS, st.permutations(TABLE.rules))
def test_the_first_rule_that_holds_decides_and_later_ones_change_nothing(
    signs: ClassSigns, order: list[ClassRule]
) -> None:
    signs = replace(signs, stated="")
    whole = classify(signs, replace(TABLE, rules=tuple(order)))
    alone = [classify(signs, replace(TABLE, rules=(rule,))) for rule in order]
    holding = [each for each in alone if each.reasons[0].code != "CLASS_DEFAULT"]
    expected = holding[0] if holding else classify(signs, replace(TABLE, rules=()))
    assert whole == expected
    assert whole.traits == TABLE.of(whole.workload_class)


@given(SIGNS)
def test_every_workload_has_one_class_and_a_reason(signs: ClassSigns) -> None:
    class_ = classify(signs, TABLE)
    assert class_.workload_class in WorkloadClass
    assert class_.why


def test_every_kind_in_the_list_of_kinds_but_pods_has_a_rule() -> None:
    known = {kind for rule in TABLE.rules for kind in rule.kinds}
    assert {f"{group}/{kind}" for group, kind in BY_KEY} - known == {"/Pod"}


def test_the_table_can_be_changed_entry_by_entry() -> None:
    changed = TABLE.overridden(
        {
            "classes": {"inference": {"placement": "pack", "also": ["api"]}},
            "rules": [{"class": "interactive", "images": ["our-desk"]}],
        }
    )
    assert changed.of(INFERENCE) == replace(TABLE.of(INFERENCE), placement=ClassPlacement.PACK, also=("api",))
    assert changed.of(UNATTENDED) == TABLE.of(UNATTENDED)
    assert changed.named("API") is INFERENCE
    assert changed.named("serving") is None
    desk = ClassSigns(kinds=("batch/Job",), images=("host:1/team/our-desk:3",))
    assert classify(desk, changed).reasons[0].code == "CLASS_RULE"
    assert classify(desk, TABLE).workload_class is UNATTENDED


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"class": {}}, "class: there are classes and rules"),
        ({"classes": {"batch": {}}}, "classes: 'batch' is no class"),
        ({"classes": {"inference": {"idle": 3}}}, "classes.inference.idle: there are preemptible"),
        ({"classes": {"inference": {"idle_s": -1}}}, "classes.inference.idle_s: -1 is no number"),
        ({"classes": {"inference": {"preemptible": "no"}}}, "classes.inference.preemptible: 'no' is no bool"),
        (
            {"classes": {"inference": {"placement": "gang"}}},
            "classes.inference.placement: 'gang' is not pack or spread",
        ),
        ({"rules": [{"class": "inference"}]}, "rules.0.: a rule for inference without a condition"),
        ({"rules": [{"class": "inference", "unless_owned_by": ["a/B"]}]}, "without a condition"),
        ({"rules": [{"class": "inference", "image": ["a"]}]}, "rules.0..image: there are class, code, kinds"),
        ({"rules": [{"class": "inference", "images": "a"}]}, "rules.0..images: a list of words"),
        ({"rules": [{"class": "inference", "stays": True, "code": "OURS"}]}, "rules.0..code: 'OURS' is none of KIND"),
    ],
)
def test_a_table_that_cannot_be_meant_names_the_field(document: dict[str, Any], where: str) -> None:
    with pytest.raises(ValueError, match=where):
        TABLE.overridden(document)
