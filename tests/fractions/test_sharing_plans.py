"""Modes of sharing: what adds up, what is promised, and which mode is preferred."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.scheduling.workload_class import WorkloadClass
from kopt.core.sharing.modes import SharingExecutor, SharingMode, sharing_table
from kopt.policies.fractions.ladder import rungs
from kopt.policies.fractions.sharing import (
    Sharer,
    SharingHardware,
    SharingPlan,
    SharingSettings,
    plan_claim,
    plan_node,
)

H100 = SharingHardware(SharingExecutor.DEVICE_PLUGIN, 81_559, (9, 0))
CLAIM = replace(H100, executor=SharingExecutor.DRA)
SETTINGS = SharingSettings()
SERVICE, BATCH, NOTEBOOK = WorkloadClass.INFERENCE, WorkloadClass.UNATTENDED, WorkloadClass.INTERACTIVE


def pod(name: str, workload_class: WorkloadClass, width: int, use: int, mib: int = 8000, owner: str = "a") -> Sharer:
    return Sharer(name, workload_class, width, use, mib, owner=owner)


def sharers() -> st.SearchStrategy[list[Sharer]]:
    percent = st.one_of(st.integers(0, 40), st.integers(0, 100))
    mib = st.one_of(st.integers(1, 12_000), st.integers(1, 90_000))
    guarantee = st.one_of(st.just(0), percent)
    one_pod = st.builds(Sharer, st.just("pod"), st.sampled_from(WorkloadClass), percent, percent, mib, guarantee)
    return st.lists(one_pod, min_size=1, max_size=6)


def hardware() -> st.SearchStrategy[SharingHardware]:
    """Mostly of the kind that can be shared in every way."""
    whole = st.builds(replace, st.sampled_from((H100, CLAIM)))
    anything = st.builds(
        SharingHardware,
        st.sampled_from(SharingExecutor),
        st.sampled_from((0, 16_384, 81_559, 143_771)),
        st.sampled_from((None, (6, 1), (7, 0), (8, 0), (9, 0))),
        st.booleans(),
        st.sampled_from(("", "its daemon is away")),
    )
    return st.one_of(whole, whole, anything)


def check(plan: SharingPlan, pods: list[Sharer], gpu_mib: int) -> None:
    """Whichever pods meet on a GPU, their parts are no more than it, and each has its floor."""
    for share, sharer in zip(plan.shares, pods, strict=True):
        assert share.percent >= sharer.floor_percent >= sharer.guarantee_percent
        assert plan.mode is not SharingMode.MPS or share.mib >= sharer.mib
    together = min(plan.replicas, len(plan.shares))
    for group in combinations(plan.shares, together):
        assert plan.mode is SharingMode.EXCLUSIVE or sum(share.percent for share in group) <= 100
        assert plan.mode is SharingMode.EXCLUSIVE or sum(share.mib for share in group) <= gpu_mib


@given(hardware(), sharers())
def test_parts_never_exceed_a_gpu_and_floors_hold_on_every_rung(gpu: SharingHardware, pods: list[Sharer]) -> None:
    for planner in (plan_node, plan_claim):
        for rung in rungs(planner(gpu, pods, SETTINGS), gpu, pods, SETTINGS):
            check(rung, pods, gpu.gpu_mib)


@given(hardware(), sharers())
def test_what_has_to_answer_keeps_its_width_on_every_rung(gpu: SharingHardware, pods: list[Sharer]) -> None:
    for planner in (plan_node, plan_claim):
        for rung in rungs(planner(gpu, pods, SETTINGS), gpu, pods, SETTINGS):
            for share, sharer in zip(rung.shares, pods, strict=True):
                assert sharer.workload_class is not SERVICE or share.percent >= sharer.width_percent


@given(hardware(), sharers())
def test_mps_is_planned_only_where_it_limits(gpu: SharingHardware, pods: list[Sharer]) -> None:
    plan = plan_node(gpu, pods, SETTINGS)
    if plan.mode is SharingMode.MPS:
        assert gpu.executor is not SharingExecutor.NONE
        assert not gpu.mps_problem
        assert not gpu.has_partitions
        support = sharing_table().mps_of(gpu.capability)
        assert support is not None
        assert support.limits
        assert plan.replicas <= support.clients


def test_services_share_by_mps_and_batch_of_several_owners_in_turns() -> None:
    services = [pod(f"chat-{number}", SERVICE, 25, 8) for number in range(4)]
    plan = plan_node(H100, services, SETTINGS)
    assert (plan.mode, plan.replicas, plan.reasons[0].code) == (SharingMode.MPS, 2, "SHARING_BY_MPS")
    batch = [pod(f"eval-{number}", BATCH, 60, 30, owner=f"team-{number}") for number in range(4)]
    plan = plan_node(H100, batch, SETTINGS)
    assert (plan.mode, plan.replicas, plan.reasons[0].code) == (SharingMode.TIME_SLICING, 4, "SHARING_BY_TURNS")
    assert plan_node(H100, [replace(each, owner="a") for each in batch], SETTINGS).mode is SharingMode.MPS


def test_the_fewest_replicas_for_the_fewest_gpus() -> None:
    """Three fit on a GPU; four pods need two of them either way, so two to each have more room."""
    plan = plan_node(H100, [pod(f"chat-{number}", SERVICE, 25, 8) for number in range(4)], SETTINGS)
    assert plan.replicas == 2
    assert {share.percent for share in plan.shares} == {50}


def test_a_claims_service_has_what_it_fills_and_batch_the_rest() -> None:
    plan = plan_claim(CLAIM, [pod("train", BATCH, 90, 70, 30_000), pod("chat", SERVICE, 40, 10)], SETTINGS)
    assert plan.mode is SharingMode.MPS
    assert [share.percent for share in plan.shares] == [52, 48]
    assert sum(share.mib for share in plan.shares) <= CLAIM.gpu_mib


def test_a_claims_pods_have_all_their_memory_with_headroom_or_no_claim() -> None:
    for mib, mode in ((33_000, SharingMode.MPS), (36_000, SharingMode.EXCLUSIVE), (80_000, SharingMode.EXCLUSIVE)):
        pods = [pod(name, SERVICE, 30, 5, mib) for name in ("a", "b")]
        assert plan_claim(CLAIM, pods, SETTINGS).mode is mode


@pytest.mark.parametrize(
    ("gpu", "code"),
    [
        (replace(H100, executor=SharingExecutor.NONE, capability=None), "SHARING_NOT_SETTABLE"),
        (replace(H100, has_partitions=True), "SHARING_OF_PARTITIONS"),
        (replace(H100, gpu_mib=0), "SHARING_NOT_MEASURED"),
    ],
)
def test_gpus_that_are_not_shared_say_why(gpu: SharingHardware, code: str) -> None:
    plan = plan_node(gpu, [pod("a", SERVICE, 20, 5), pod("b", SERVICE, 20, 5)], SETTINGS)
    assert (plan.mode, plan.reasons[0].code) == (SharingMode.EXCLUSIVE, code)


@pytest.mark.parametrize("gpu", [replace(H100, mps_problem="its daemon is away"), replace(H100, capability=(6, 1))])
def test_without_mps_pods_take_turns_where_floors_hold(gpu: SharingHardware) -> None:
    narrow = [pod("a", SERVICE, 30, 5), pod("b", BATCH, 90, 40)]
    plan = plan_node(gpu, narrow, SETTINGS)
    assert plan.mode is SharingMode.TIME_SLICING
    assert [reason.code for reason in plan.reasons] == ["SHARING_BY_TURNS", "SHARING_WITHOUT_MPS"]
    wide = plan_node(gpu, [pod("a", SERVICE, 60, 5), pod("b", BATCH, 90, 40)], SETTINGS)
    assert wide.mode is SharingMode.EXCLUSIVE


def test_amounts_that_are_none_are_refused() -> None:
    for wrong in ({"width_percent": 101}, {"use_percent": -1}, {"mib": 0}):
        with pytest.raises(ValueError, match="chat"):
            replace(pod("chat", SERVICE, 20, 5), **wrong)  # type: ignore[arg-type]
