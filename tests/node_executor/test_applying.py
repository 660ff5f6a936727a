"""What an executor makes of a signed plan: the driver is changed as it says, or is as before."""

import pytest
from nvml_standin.executors import NOW_S, OWN, Node

from kopt.agents.node_executor.executor import OwnNode, Phase
from kopt.core.node_plan.state import Compute

H100_LAYOUT = [("1g.10gb", 0, True), ("3g.40gb", 4, True)]


def halves(node: Node) -> tuple:
    return (node.mode(0, enabled=True), node.create(0, "3g.40gb", 4), node.create(0, "1g.10gb", 0))


def test_a_signed_plan_is_applied_and_read_back(node: Node) -> None:
    outcome = node.handle(node.signed(*halves(node)))
    assert (outcome.phase, outcome.reason.code) == (Phase.APPLIED, "NODE_PLAN_APPLIED")
    assert node.devices.layout(0) == H100_LAYOUT
    assert node.devices.layout(1) == []


def test_the_same_envelope_is_applied_once_and_answered_again(node: Node) -> None:
    document = node.signed(*halves(node))
    first = node.handle(document)
    calls = node.devices.state.calls
    assert node.handle(document) == first
    assert node.devices.state.calls == calls


def test_running_instances_beside_the_change_are_not_touched(node: Node) -> None:
    node.handle(node.signed(*halves(node)))
    kept = node.devices.state.gpus[0].instances[0].id
    node.devices.state.gpus[0].process, node.devices.state.gpus[0].process_instance = 4711, kept
    steps = (node.destroy(0, "1g.10gb", 0), node.create(0, "2g.20gb", 0))
    assert node.handle(node.signed(*steps, sequence=2)).phase is Phase.APPLIED
    assert node.devices.layout(0) == [("2g.20gb", 0, True), ("3g.40gb", 4, True)]
    assert node.devices.state.gpus[0].instances[0].id == kept


@pytest.mark.parametrize("call", range(1, 6))
def test_a_step_that_the_driver_refuses_is_rolled_back(node: Node, call: int) -> None:
    before = node.hardware.read()
    document = node.signed(*halves(node))
    node.devices.state.fail_at, node.devices.state.fail_with = call, 999
    outcome = node.handle(document)
    assert (outcome.phase, outcome.reason.code) == (Phase.ROLLED_BACK, "NODE_STEP_FAILED")
    assert "Unknown Error" in outcome.reason.message
    assert node.hardware.read() == before


@pytest.mark.parametrize("call", range(1, 6))
def test_success_that_was_none_is_noticed_and_rolled_back(node: Node, call: int) -> None:
    before = node.hardware.read()
    document = node.signed(*halves(node))
    node.devices.state.lie_at = call
    outcome = node.handle(document)
    assert outcome.phase is Phase.ROLLED_BACK
    assert outcome.reason.code in ("NODE_STEP_NOT_VERIFIED", "NODE_STEP_FAILED")
    assert node.hardware.read() == before


def test_a_mode_that_waits_for_a_reset_is_not_called_changed(node: Node) -> None:
    node.devices.state.gpus[0].needs_reset = 1
    outcome = node.handle(node.signed(*halves(node)))
    assert (outcome.phase, outcome.reason.code) == (Phase.ROLLED_BACK, "NODE_STEP_NOT_VERIFIED")
    assert (node.devices.state.gpus[0].mode, node.devices.state.gpus[0].pending) == (0, 0)


def test_a_node_that_cannot_be_restored_is_reported_and_takes_another_plan(node: Node) -> None:
    node.handle(node.signed(*halves(node)))
    document = node.signed(node.destroy(0, "1g.10gb", 0), node.create(0, "1g.20gb", 0), sequence=2)
    # From the third call on, which creates an instance, nothing can be changed any more.
    node.devices.reset_faults()
    node.devices.state.fail_at, node.devices.state.fail_with = -3, 999
    outcome = node.handle(document)
    assert (outcome.phase, outcome.reason.code) == (Phase.FAILED, "NODE_ROLLBACK_FAILED")
    assert "could not be restored" in outcome.reason.message
    assert node.devices.layout(0) == [("3g.40gb", 4, True)]
    node.devices.reset_faults()
    assert node.recover() is None
    assert node.handle(node.signed(node.create(0, "1g.10gb", 0), sequence=3)).phase is Phase.APPLIED
    assert node.devices.layout(0) == H100_LAYOUT


def test_an_instance_without_its_compute_instance_can_be_destroyed(node: Node) -> None:
    node.handle(node.signed(*halves(node)))
    node.devices.state.gpus[0].instances[1].parts[0] = 0
    assert [each.compute for each in node.hardware.read().gpus[0].instances] == [Compute.NONE, Compute.WHOLE]
    assert node.handle(node.signed(node.destroy(0, "1g.10gb", 0), sequence=2)).phase is Phase.APPLIED
    assert node.devices.layout(0) == [("3g.40gb", 4, True)]


def test_compute_instances_of_others_are_neither_destroyed_nor_taken_for_ours(node: Node) -> None:
    node.handle(node.signed(*halves(node)))
    parts = node.devices.state.gpus[0].instances[0].parts
    parts[0], parts[1] = 1, 1
    outcome = node.handle(node.signed(node.destroy(0, "3g.40gb", 4), sequence=2))
    assert (outcome.phase, outcome.reason.code) == (Phase.REFUSED, "NODE_PLAN_IMPOSSIBLE")
    assert list(parts[:3]) == [1, 1, 0]


def test_a_device_in_use_is_refused_before_the_first_step(node: Node) -> None:
    node.handle(node.signed(*halves(node)))
    gpu, calls = node.devices.state.gpus[0], node.devices.state.calls
    gpu.process, gpu.process_instance = 4711, gpu.instances[1].id
    steps = (node.destroy(0, "3g.40gb", 4), node.destroy(0, "1g.10gb", 0))
    outcome = node.handle(node.signed(*steps, sequence=2))
    assert (outcome.phase, outcome.reason.code) == (Phase.REFUSED, "NODE_PLAN_IN_USE")
    assert "process 4711" in outcome.reason.message
    assert node.devices.state.calls == calls
    gpu.process = 0
    assert node.handle(node.signed(*steps, sequence=2)).phase is Phase.APPLIED


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"node": "gpu-8"}, "NODE_PLAN_WRONG_NODE"),
        ({"node_uid": "uid-of-an-earlier-node"}, "NODE_PLAN_WRONG_NODE"),
        ({"expires_at_s": NOW_S - 1, "issued_at_s": NOW_S - 60}, "NODE_PLAN_EXPIRED"),
        ({"issued_at_s": NOW_S + 3600, "expires_at_s": NOW_S + 7200}, "NODE_PLAN_EXPIRED"),
        ({"state_before": "0" * 64}, "NODE_PLAN_STATE_CHANGED"),
    ],
)
def test_a_plan_for_another_node_time_or_state_is_refused(node: Node, fields: dict, code: str) -> None:
    outcome = node.handle(node.signed(*halves(node), **fields))
    assert (outcome.phase, outcome.reason.code) == (Phase.REFUSED, code)
    assert node.devices.state.calls == 0
    assert not outcome.sequence


def test_a_plan_that_cannot_work_is_refused_whole(node: Node) -> None:
    outcome = node.handle(node.signed(*halves(node), node.create(0, "1g.20gb", 0)))
    assert (outcome.phase, outcome.reason.code) == (Phase.REFUSED, "NODE_PLAN_IMPOSSIBLE")
    assert "step 4" in outcome.reason.message
    assert node.devices.state.calls == 0


@pytest.mark.parametrize("label", ["nvidia.com/mig.config", "dcm.amd.com/gpu-config-profile"])
def test_a_node_that_others_partition_is_left_to_them(node: Node, label: str) -> None:
    outcome = node.handle(node.signed(*halves(node)), OwnNode(OWN.name, OWN.uid, {label: "all-1g.10gb"}))
    assert (outcome.phase, outcome.reason.code) == (Phase.REFUSED, "NODE_PLAN_OTHER_AUTHORITY")
