"""Changes of CPU and memory: by what was used, within what a resize in place may do."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.reason import Reason
from kopt.core.units import GIB
from kopt.core.workload.rightsizing import (
    Bounds,
    ContainerResources,
    ContainerUse,
    Lever,
    Outcome,
    QosClass,
    Resize,
    ResizeRecord,
)
from kopt.policies.rightsizing.cool_down import cooling_down
from kopt.policies.rightsizing.proposal import ProposalSettings, propose, qos_class

SETTINGS = ProposalSettings()
DAY_S = 86_400.0
USE = ContainerUse(2000, 3000, 10 * GIB, DAY_S)
BURSTABLE = ContainerResources("main", Bounds(8000), Bounds(64 * GIB))
GUARANTEED = ContainerResources("main", Bounds(8000, 8000), Bounds(64 * GIB, 64 * GIB))


def _code(result: Resize | Reason) -> str:
    assert isinstance(result, Reason)
    return result.code


def _after(result: Resize | Reason) -> Bounds:
    assert isinstance(result, Resize), result
    return result.after


@st.composite
def containers(draw: st.DrawFn) -> ContainerResources:
    def bounds(unit: int) -> Bounds:
        request = draw(st.none() | st.integers(1, 200))
        more = draw(st.none() | st.integers(0, 100))
        limit = None if more is None else (request or 1) + more
        return Bounds(request and request * unit, limit and limit * unit)

    return ContainerResources("main", bounds(500), bounds(GIB))


uses = st.builds(
    lambda p95, more, memory: ContainerUse(p95, p95 + more, memory, DAY_S),
    st.floats(0, 2e5),
    st.floats(0, 1e5),
    st.floats(0, 4e11),
)


@given(st.lists(containers(), min_size=1, max_size=3), uses, st.sampled_from(Lever))
def test_a_change_is_one_that_the_api_server_takes_and_leaves_what_is_used(
    others: list[ContainerResources], use: ContainerUse, lever: Lever
) -> None:
    pod = [replace(each, name=f"c{index}") for index, each in enumerate(others)]
    result = propose(pod, "c0", lever, use)
    if isinstance(result, Reason):
        return
    before, after = result.before, result.after
    assert after.request is not None
    assert (after.limit is None) == (before.limit is None), "limits are neither added nor removed"
    assert after.limit is None or after.request <= after.limit
    highest = use.cpu_max if lever is Lever.CPU else use.memory_max_bytes
    assert after.limit is None or after.limit >= highest * (1 + SETTINGS.margin)
    assert lever is Lever.CPU or after.request >= use.memory_max_bytes * (1 + SETTINGS.margin)
    assert after.request >= (before.request or 0) * (1 - SETTINGS.most_taken), "at most half at once"
    changed = [replace(pod[0], **{lever.value: after}), *pod[1:]]  # type: ignore[arg-type]
    assert qos_class(changed) is qos_class(pod)


def test_requests_follow_usual_cpu_and_the_most_memory() -> None:
    use = replace(USE, cpu_p95=5000, cpu_max=7900, memory_max_bytes=40 * GIB)
    assert _after(propose([BURSTABLE], "main", Lever.CPU, use)) == Bounds(5750)
    assert _after(propose([BURSTABLE], "main", Lever.MEMORY, use)) == Bounds(46 * GIB)


def test_a_limit_that_is_the_request_follows_the_highest_use() -> None:
    use = replace(USE, cpu_p95=2000, cpu_max=5000)
    assert _after(propose([GUARANTEED], "main", Lever.CPU, use)) == Bounds(6000, 6000), "whole CPUs stay whole"


def test_at_most_half_is_taken_away_at_once() -> None:
    assert _after(propose([BURSTABLE], "main", Lever.MEMORY, USE)) == Bounds(32 * GIB)


def test_a_limit_above_the_request_is_only_raised() -> None:
    container = ContainerResources("main", Bounds(8000, 16_000), Bounds(64 * GIB))
    assert _after(propose([container], "main", Lever.CPU, replace(USE, cpu_p95=6000))) == Bounds(6900, 16_000)
    assert _after(propose([container], "main", Lever.CPU, replace(USE, cpu_max=15_000))) == Bounds(4000, 17_250)


def test_memory_about_to_run_out_is_raised() -> None:
    tight = ContainerResources("main", Bounds(8000), Bounds(10 * GIB, 10 * GIB))
    assert _after(propose([tight], "main", Lever.MEMORY, replace(USE, memory_max_bytes=9.9 * GIB))).limit > 11 * GIB  # type: ignore[operator]


@pytest.mark.parametrize(
    ("container", "use", "code"),
    [
        (replace(BURSTABLE, cpu=Bounds(2300)), USE, "RIGHT_SIZED"),
        (replace(BURSTABLE, cpu=Bounds()), USE, "NO_REQUEST"),
        (replace(BURSTABLE, restarts_for=frozenset({Lever.CPU})), USE, "RESTART_NEEDED"),
        (replace(BURSTABLE, resizable=False), USE, "NOT_RESIZABLE"),
        (BURSTABLE, None, "USE_UNMEASURED"),
        (BURSTABLE, replace(USE, measured_s=600), "USE_UNMEASURED"),
    ],
)
def test_what_is_not_changed_says_why(container: ContainerResources, use: ContainerUse | None, code: str) -> None:
    assert _code(propose([container], "main", Lever.CPU, use)) == code


def test_a_pod_does_not_become_guaranteed() -> None:
    nearly = ContainerResources("main", Bounds(4000, 4600), Bounds(64 * GIB, 64 * GIB))
    result = propose([nearly], "main", Lever.CPU, replace(USE, cpu_p95=4000, cpu_max=4000))
    assert _code(result) == "QOS_WOULD_CHANGE"


@pytest.mark.parametrize(
    ("pod", "qos"),
    [
        ([GUARANTEED], QosClass.GUARANTEED),
        ([replace(GUARANTEED, cpu=Bounds(None, 8000))], QosClass.GUARANTEED),
        ([GUARANTEED, BURSTABLE], QosClass.BURSTABLE),
        ([ContainerResources("main")], QosClass.BEST_EFFORT),
    ],
)
def test_qos_classes_are_those_of_kubernetes(pod: list[ContainerResources], qos: QosClass) -> None:
    assert qos_class(pod) is qos


CHANGE = Resize("main", Lever.CPU, Bounds(8000), Bounds(4000))


@pytest.mark.parametrize(
    ("record", "lever", "now_s", "code"),
    [
        (ResizeRecord(CHANGE, 0.0), Lever.MEMORY, 1e6, "CHANGE_IS_OPEN"),
        (ResizeRecord(CHANGE, 0.0, Outcome.KEPT, 500.0), Lever.MEMORY, 2000.0, "COOLING_DOWN"),
        (ResizeRecord(CHANGE, 0.0, Outcome.KEPT, 500.0), Lever.CPU, 2301.0, ""),
        (ResizeRecord(CHANGE, 0.0, Outcome.UNDONE, 500.0), Lever.CPU, 80_000.0, "COOLING_DOWN"),
        (ResizeRecord(CHANGE, 0.0, Outcome.UNDONE, 500.0), Lever.MEMORY, 2301.0, ""),
        (ResizeRecord(CHANGE, 0.0, Outcome.UNDONE, 500.0), Lever.CPU, 86_901.0, ""),
    ],
)
def test_a_workload_rests_after_a_change(record: ResizeRecord, lever: Lever, now_s: float, code: str) -> None:
    result = cooling_down([record], f"{lever} of main", now_s)
    assert (result.code if result else "") == code
