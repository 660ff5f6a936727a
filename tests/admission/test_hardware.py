"""Hardware that workloads name: what no node can satisfy is refused with what would fit, and what fits is selected."""

from typing import Any

import orjson
import pytest
from admission.patching import patched
from admission.workloads import Object, deployment, job, pod, review
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.admission.review import parse_review
from kopt.cluster.workloads.hardware import inventory_of
from kopt.cluster.workloads.node_selection import runs_on
from kopt.controllers.admission.answers import Admission
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.policy import parse_policy
from kopt.core.hardware.inventory import is_model
from kopt.policies.admission.hardware import HardwareWish, choose_hardware

H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-40GB"
TPU_LABEL = "cloud.google.com/gke-tpu-accelerator"


def node(name: str, amounts: dict[str, str], **labels: str) -> Object:
    named = {key.replace("__", "/").replace("_dot_", "."): value for key, value in labels.items()}
    return {"metadata": {"name": name, "labels": named}, "status": {"allocatable": amounts}}


def gpu_node(name: str, product: str, zone: str = "a") -> Object:
    return node(name, {"nvidia.com/gpu": "8"}) | {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product, "zone": zone}}
    }


def tpu_node(name: str) -> Object:
    labels = {TPU_LABEL: "tpu-v5-lite-podslice"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"google.com/tpu": "4"}}}


NODES = [gpu_node("h-1", H100, "a"), gpu_node("a-1", A100, "b"), tpu_node("t-1")]
INVENTORY = inventory_of(NODES, [])


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("h100", H100, True),
        ("H100", "NVIDIA H100 80GB HBM3", True),
        ("h100", "NVIDIA-GH100-96GB", False),
        ("h100 80gb", H100, True),
        ("mi300x", "AMD_Instinct_MI300X_OAM", True),
        ("mi300", "AMD_Instinct_MI300X_OAM", False),
        ("tpu-v5e", "tpu-v5-lite-podslice", True),
        ("tpu-v5p", "tpu-v5-lite-podslice", False),
        ("a100", H100, False),
    ],
)
def test_models_are_called_by_the_words_of_their_names(name: str, model: str, expected: bool) -> None:
    assert is_model(name, model) is expected


@pytest.mark.parametrize(
    ("wish", "selector", "code", "says"),
    [
        (HardwareWish("h100"), {}, "HARDWARE", "1 nodes have it: NVIDIA-H100-80GB-HBM3."),
        (HardwareWish("mi300x,h100"), {}, "HARDWARE", H100),
        (HardwareWish("tpu-v5e"), {}, "HARDWARE", "tpu-v5-lite-podslice"),
        (HardwareWish("", "60Gi"), {}, "HARDWARE", H100),
        (HardwareWish("h10"), {}, "HARDWARE_UNKNOWN", "did you mean h100?"),
        (HardwareWish("mi300x"), {}, "HARDWARE_UNKNOWN", "the cluster has NVIDIA-A100-SXM4-40GB, "),
        (HardwareWish("a100", "60Gi"), {}, "HARDWARE_TOO_SMALL", f"{H100} on node h-1 has 80 GiB"),
        (HardwareWish("h100", "90Gi"), {}, "HARDWARE_TOO_SMALL", "at most 80 GiB"),
        (
            HardwareWish("h100"),
            {"zone": "b"},
            "HARDWARE_EXCLUDED",
            f"as h-1; the nodes that it leaves have {A100}",
        ),
        (HardwareWish("h100", "much"), {}, "HARDWARE_UNREADABLE", "is an amount as 80Gi"),
        (HardwareWish("../x"), {}, "HARDWARE_UNREADABLE", "is no name of a model"),
        (HardwareWish("h100", placement="perhaps"), {}, "HARDWARE_UNREADABLE", "is required or not there"),
    ],
)
def test_what_no_node_can_satisfy_is_refused_with_what_would_fit(
    wish: HardwareWish, selector: dict[str, str], code: str, says: str
) -> None:
    choice = choose_hardware(wish, INVENTORY, [selector])
    assert choice.reasons[-1].code == code
    assert choice.refused == (code != "HARDWARE")
    assert says in choice.reasons[-1].message


def test_nothing_is_refused_while_the_inventory_is_not_known() -> None:
    choice = choose_hardware(HardwareWish("h100"), None, [{}])
    assert ([reason.code for reason in choice.reasons], choice.refused) == (["HARDWARE_NOT_KNOWN"], False)


MODELS = st.lists(st.sampled_from([H100, A100, "AMD_Instinct_MI300X_OAM", "tpu-v5-lite-podslice"]), max_size=5)


@given(MODELS, st.lists(st.sampled_from(["h100", "a100", "mi300x"]), min_size=1, max_size=3), st.sampled_from("ab"))
def test_it_is_refused_if_and_only_if_no_node_would_do(models: list[str], names: list[str], zone: str) -> None:
    nodes = [gpu_node(f"n{number}", model, "ab"[number % 2]) for number, model in enumerate(models)]
    choice = choose_hardware(
        HardwareWish(",".join(names), placement="required"), inventory_of(nodes, []), [{"zone": zone}]
    )
    would = {
        item["metadata"]["name"]
        for item in nodes
        if item["metadata"]["labels"]["zone"] == zone
        and any(name.upper() in item["metadata"]["labels"]["nvidia.com/gpu.product"] for name in names)
    }
    assert choice.refused == (not would)
    reached = {
        item["metadata"]["name"]
        for item in nodes
        if item["metadata"]["labels"]["zone"] == zone
        and any(item["metadata"]["labels"].get(key) == value for key, value in choice.labels)
    }
    assert reached == would


async def answered(workload: Object, mode: str = "enforce", known: bool = True) -> Admission:
    policy = parse_policy({"metadata": {"name": "default"}, "spec": {"mode": mode, "queues": {"default": "q"}}})
    state = FixedState(policy, node_hardware=INVENTORY if known else None)
    return await Admissions(state).mutate(parse_review(orjson.dumps(review(workload))))


def naming(workload: Object, part: str = "annotations", **keys: str) -> Object:
    written = {f"kaiwo.ai/hardware{'-' + key if key != 'name' else ''}": value for key, value in keys.items()}
    workload["metadata"].setdefault(part, {}).update(written)
    return workload


@pytest.mark.parametrize("make", [job, deployment, pod])
async def test_a_mismatch_is_refused_in_enforce_warned_of_in_annotate_and_only_recorded_in_observe(make: Any) -> None:
    refused = await answered(naming(make("w"), name="h200"))
    assert "did you mean h100?" in str(refused.answer.refusal)
    warned = await answered(naming(make("w"), name="h200"), "annotate")
    assert not warned.answer.refusal
    assert any("No node has h200" in line for line in warned.answer.warnings)
    observed = await answered(naming(make("w"), name="h200"), "observe")
    assert (observed.answer.refusal, observed.answer.warnings) == ((refused.answer.refusal and "") or "", ())
    assert "HARDWARE_UNKNOWN" in observed.answer.audit["hardware"]


async def test_a_label_names_it_as_well_and_an_unknown_inventory_lets_everything_through() -> None:
    assert "No node has h200" in str((await answered(naming(pod("p"), "labels", name="h200"))).answer.refusal)
    assert not (await answered(naming(pod("p"), name="h200"), known=False)).answer.refusal


@pytest.mark.parametrize("placement", ["", "required"])
async def test_required_node_affinity_is_written_where_it_is_asked_for(placement: str) -> None:
    wanted = naming(pod("p"), name="a100,h100", **({"placement": placement} if placement else {}))
    made = patched(wanted, (await answered(wanted)).answer.patch)
    runs = {item["metadata"]["name"] for item in NODES if runs_on(made["spec"], item["metadata"]["labels"], ())}
    assert runs == ({"h-1", "a-1"} if placement else {"h-1", "a-1", "t-1"})


async def test_other_accelerators_need_no_queue_and_are_checked_all_the_same() -> None:
    tpu = pod("p")
    tpu["spec"]["containers"][0]["resources"] = {"limits": {"google.com/tpu": "4"}}
    made = await answered(naming(tpu, name="tpu-v5e", placement="required"))
    spec = patched(tpu, made.answer.patch)["spec"]
    assert {item["metadata"]["name"] for item in NODES if runs_on(spec, item["metadata"]["labels"], ())} == {"t-1"}
    assert [record.row for record in made.records] == ["hardware"]
    assert "tpu-v5-lite-podslice" in str((await answered(naming(tpu, name="tpu-v5p"))).answer.refusal)
