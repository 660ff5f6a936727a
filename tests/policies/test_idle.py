"""GPUs that are held and not used: by the busiest step, by the mean, and never by a guess."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cli.sizing.measured import Measurements, Question
from kopt.cluster.client.resources import PODS
from kopt.cluster.workloads.kinds import BY_KEY
from kopt.controllers.overview.running_workloads import pods_of
from kopt.core.units import GIB, Bytes
from kopt.core.workload.measured import MeasuredUse, together
from kopt.data.gpu_use import Readings
from kopt.policies.idle import Idleness, idleness, unused_gpu_hours

GPU_CONTAINER = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}


def use(mean: float | None, high: float | None, measured_s: float = 3_600.0) -> MeasuredUse:
    return MeasuredUse(Bytes(GIB), measured_s, activity=mean, activity_high=high)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (None, Idleness.UNMEASURED),
        (use(None, None), Idleness.UNMEASURED),
        (use(0.0, 0.0), Idleness.IDLE),
        (use(0.01, 0.049), Idleness.IDLE),
        (use(0.01, 0.9), Idleness.LOW),
        (use(0.05, 0.05), Idleness.USED),
    ],
)
def test_states(measured: MeasuredUse | None, expected: Idleness) -> None:
    assert idleness(measured, 0.05) is expected


@given(st.integers(0, 64_000), st.floats(0, 1), st.floats(0, 1e6))
def test_unused_hours_are_between_none_and_all_that_were_held(milli_gpu: int, mean: float, measured_s: float) -> None:
    unused = unused_gpu_hours(milli_gpu, use(mean, 1.0, measured_s))
    assert unused is not None
    assert 0 <= unused <= milli_gpu / 1000 * measured_s / 3600


def test_what_is_not_measured_has_no_hours() -> None:
    assert unused_gpu_hours(8_000, None) is None
    assert unused_gpu_hours(8_000, use(None, None)) is None


def test_a_pod_that_came_back_a_moment_ago_was_not_idle_for_as_long_as_its_sibling() -> None:
    both = together([use(0.0, 0.0, 36_000.0), use(0.5, 0.5, 3_600.0)])
    assert both is not None
    assert both.measured_s == 36_000
    assert unused_gpu_hours(2 * 4_000, both) == pytest.approx(4 * 10 + 4 * 0.5)


@pytest.mark.parametrize(("started_s", "hours"), [({}, 0.5), ({"p": 970.0}, 30 / 3600), ({"p": -9_000.0}, 0.5)])
def test_a_pod_is_unused_for_no_longer_than_it_runs(started_s: dict[str, float], hours: float) -> None:
    """Readings are known by the step: half an hour here, of which the pod had its last seconds alone."""
    readings = Readings({("team", "p"): use(0.0, 0.0, 1_800.0)}, frozenset(), is_named=True, until_s=1_000.0)
    document = {"metadata": {"name": "p", "namespace": "team"}, "spec": {"containers": [GPU_CONTAINER]}}
    (pod_kind,) = pods_of(document, BY_KEY["", "Pod"], PODS)
    pod_kind = replace(pod_kind, pod_names=("p",), started_s=started_s)
    measured = Measurements(Question("http://127.0.0.1:9", 1_800), readings).use_of(pod_kind)
    assert unused_gpu_hours(1_000, measured) == pytest.approx(hours)
