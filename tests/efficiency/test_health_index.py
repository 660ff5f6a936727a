"""Where GPU-hours go and the health index: what must hold whatever was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.gpu_hours import ClusterStep, GpuHours
from kopt.policies.efficiency.health_index import Spent, health_index, spent

_GPUS = st.floats(0, 1e5)
STEPS = st.builds(ClusterStep, _GPUS, _GPUS, _GPUS, _GPUS, _GPUS, _GPUS, st.just(0.0))


def step(**gpus: float) -> ClusterStep:
    """Ten GPUs of which nine can be used, eight are asked for and held, and four compute."""
    usual = {"installed": 10, "available": 9, "requested": 8, "allocated": 8, "measured": 8, "used": 4, "at_s": 0}
    return ClusterStep(**{**usual, **gpus})


@given(st.lists(STEPS, max_size=5), st.floats(0.01, 24))
def test_every_gpu_hour_is_of_one_kind(steps: list[ClusterStep], step_h: float) -> None:
    total = spent(steps, step_h)
    assert all(hours >= 0 for hours in total.document().values())
    # Pods may be seen on more GPUs than nodes are seen to have, and nodes offer more than they have for a moment.
    installed = sum(max(each.installed, each.available, each.allocated) for each in steps)
    assert total.installed == pytest.approx(installed * step_h, abs=1e-6)
    assert total.allocated == pytest.approx(sum(each.allocated for each in steps) * step_h, abs=1e-6)


@given(st.lists(STEPS, min_size=1, max_size=5))
def test_the_index_is_the_product_of_shares(steps: list[ClusterStep]) -> None:
    health = health_index(spent(steps, 1.0))
    if health is not None and health.index is not None and health.computing is not None:
        assert all(-1e-9 <= share <= 1 + 1e-9 for share in (health.available, health.served, health.computing))
        assert health.index == pytest.approx(100 * health.available * health.served * health.computing)


def test_each_kind_of_loss_lowers_its_own_factor() -> None:
    whole = health_index(spent([step()], 1.0))
    assert whole is not None
    assert (whole.available, whole.served, whole.computing) == pytest.approx((0.9, 1.0, 0.5))
    assert whole.index == pytest.approx(45)
    behind = health_index(spent([step(allocated=6, measured=6, used=3)], 1.0))
    assert behind is not None
    # Two more are asked for and three are free: two are free while work waits.
    assert (behind.available, behind.served, behind.computing) == pytest.approx((0.9, 6 / 8, 0.5))


def test_free_gpus_that_nobody_waits_for_are_no_loss() -> None:
    calm = health_index(spent([step(requested=2, allocated=2, measured=2, used=2)], 1.0))
    assert calm is not None
    assert calm.index == pytest.approx(90)


def test_work_that_waits_by_day_is_not_met_by_gpus_that_are_free_at_night() -> None:
    night = step(requested=0, allocated=0, measured=0, used=0)
    day = step(requested=18, allocated=9, measured=9, used=9)
    assert spent([night, day], 12.0) == Spent(unavailable=24, free=108, used=108)


def test_what_a_cordoned_node_still_runs_is_in_use() -> None:
    assert spent([step(available=4)], 1.0) == Spent(unavailable=2, unused=4, used=4)


def test_without_measurements_nothing_is_said_to_be_unused() -> None:
    total = spent([step(measured=0, used=0)], 1.0)
    assert (total.unmeasured, total.unused, total.used) == (8, 0, 0)
    health = health_index(total)
    assert health is not None
    assert health.index is None
    assert health_index(Spent()) is None


def test_hours_add_up_and_efficiency_is_of_what_was_measured() -> None:
    hours = GpuHours(10, 8, 4, 1) + GpuHours(0, 0, 4, 3)
    assert hours == GpuHours(10, 8, 8, 4)
    assert (hours.efficiency, hours.unused, hours.waited) == (0.5, 4, 2)
    assert GpuHours(1, 1).efficiency is None
