"""Steps between any two layouts lead from one to the other, and back; what is written of a layout is what is made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvml_standin.devices import H100

from kopt.core.gpu import Vendor
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry
from kopt.core.node_plan.plan import NodePlan, plan_document, plan_of
from kopt.core.node_plan.state import Compute, MigGpu, MigInstance, NodeState, PartitionedGpu, document_of, state_of
from kopt.core.node_plan.steps import StepError, all_after, is_restored, steps_between
from kopt.core.node_plan.wanted import with_layout
from kopt.policies.partitions.layouts import layouts_of

GEOMETRY = mig_geometry(find_gpu(H100))
LAYOUTS = layouts_of(GEOMETRY)


def gpu(uuid: str, layout: int | None, compute: Compute = Compute.WHOLE) -> MigGpu:
    if layout is None:
        return MigGpu(uuid, H100, enabled=False, pending=False)
    instances = (
        MigInstance(GEOMETRY.profiles[profile].name, start, compute) for profile, start in LAYOUTS.layouts[layout]
    )
    return MigGpu(uuid, H100, enabled=True, pending=True).with_instances(*instances)


NUMBERS = st.none() | st.integers(0, len(LAYOUTS) - 1)
STATES = st.builds(lambda a, b: NodeState(Vendor.NVIDIA, (gpu("GPU-a", a), gpu("GPU-b", b))), NUMBERS, NUMBERS)
MODES = st.tuples(st.sampled_from(["SPX", "DPX", "QPX", "CPX"]), st.sampled_from(["SPX", "CPX"]), st.sampled_from("14"))
AMD_STATES = MODES.map(
    lambda mode: NodeState(
        Vendor.AMD,
        (
            PartitionedGpu("a", "MI300X", mode[0], f"NPS{mode[2]}"),
            PartitionedGpu("b", "MI300X", mode[1], f"NPS{mode[2]}"),
        ),
    )
)


@given(STATES, STATES)
def test_steps_lead_from_any_state_to_any_other_and_back(a: NodeState, b: NodeState) -> None:
    steps = steps_between(a, b)
    assert all_after(a, steps)[-1] == b
    assert all_after(b, steps_between(b, a))[-1] == a
    touched = {(step.gpu, step.profile, step.start) for step in steps if hasattr(step, "profile")}
    shared = {
        (one.uuid, each.profile, each.start)
        for one, other in zip(a.gpus, b.gpus, strict=True)
        for each in {*one.instances} & {*other.instances}
    }
    assert not touched & shared


@given(AMD_STATES, AMD_STATES)
def test_steps_of_amd_lead_from_any_state_to_any_other(a: NodeState, b: NodeState) -> None:
    assert all_after(a, steps_between(a, b))[-1] == b


@given(STATES | AMD_STATES)
def test_a_state_survives_being_published_and_has_one_digest(state: NodeState) -> None:
    read = state_of(document_of(state))
    assert read == state
    assert read.digest == state.digest


@given(STATES, STATES)
def test_states_that_differ_have_other_digests_and_are_not_restored(a: NodeState, b: NodeState) -> None:
    assert (a.digest == b.digest) == (a == b)
    assert is_restored(a, b) == (a == b)


@given(STATES, STATES)
def test_a_plan_survives_being_written(a: NodeState, b: NodeState) -> None:
    steps = steps_between(a, b)
    if steps:
        plan = NodePlan("gpu-7", "uid", 3, 10.0, 20.0, a.digest, steps)
        assert plan_of(plan_document(plan)) == plan


@given(STATES, st.integers(0, len(LAYOUTS) - 1))
def test_a_layout_is_made_as_it_is_written(state: NodeState, number: int) -> None:
    wanted = gpu("GPU-a", number)
    text = ",".join(f"{each.profile}@{each.start}" for each in wanted.instances) or "empty"
    assert with_layout(state, "0", text).gpus == (wanted, state.gpus[1])


@given(STATES, st.integers(0, len(LAYOUTS) - 1))
def test_a_layout_without_starts_is_found_where_there_is_one(state: NodeState, number: int) -> None:
    names = sorted(each.profile for each in gpu("GPU-a", number).instances)
    made = with_layout(state, "GPU-a", ",".join(names) or "empty").gpus[0]
    assert sorted(each.profile for each in made.instances) == names
    assert all_after(state, steps_between(state, state.with_gpu(made)))[-1].gpus[0] == made


def test_instances_that_stay_keep_their_start() -> None:
    before = NodeState(Vendor.NVIDIA, (gpu("GPU-a", None),))
    before = with_layout(before, "0", "1g.10gb@6,3g.40gb@0")
    after = with_layout(before, "0", "2x1g.10gb,3g.40gb")
    assert [str(step) for step in steps_between(before, after)] == ["mig-create 1g.10gb at 4 on GPU-a"]


@pytest.mark.parametrize(
    "text", ["8x1g.10gb", "2x4g.40gb", "1g.5gb", "1g", "", "on", "1g.10gb@7", "2x1g.10gb@0", "CPX"]
)
def test_layouts_that_no_gpu_has_are_refused(text: str) -> None:
    with pytest.raises(StepError):
        with_layout(NodeState(Vendor.NVIDIA, (gpu("GPU-a", 0),)), "0", text)


def test_an_instance_that_an_interrupted_step_left_is_taken_away_and_never_made() -> None:
    left = NodeState(Vendor.NVIDIA, (gpu("GPU-a", 5, Compute.NONE),))
    empty = NodeState(Vendor.NVIDIA, (gpu("GPU-a", 0),))
    assert [step.verb for step in steps_between(left, empty)] == ["mig-destroy"] * len(LAYOUTS.layouts[5])
    assert is_restored(empty, left)
    assert not is_restored(left, empty)
