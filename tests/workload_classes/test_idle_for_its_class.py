"""How long GPUs may be idle, by the class of what holds them."""

from hypothesis import given
from hypothesis import strategies as st

from kopt.core.scheduling.workload_class import WorkloadClass, default_classes
from kopt.core.units import Bytes
from kopt.core.workload.measured import MeasuredUse
from kopt.policies.idle import Idleness, idleness, should_give_up

TABLE = default_classes()


@given(st.sampled_from(WorkloadClass), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1e6))
def test_only_what_was_idle_for_as_long_as_its_class_may_be_should_end(
    workload_class: WorkloadClass, activity: float, highest: float, measured_s: float
) -> None:
    use = MeasuredUse(Bytes(0), activity=activity, activity_high=highest, measured_s=measured_s)
    traits, state = TABLE.of(workload_class), idleness(use, 0.05)
    ends = should_give_up(state, use, traits)
    assert ends == (highest < 0.05 and traits.idle_s > 0 and measured_s >= traits.idle_s)
    assert not (ends and workload_class is WorkloadClass.INFERENCE)
    assert not should_give_up(Idleness.UNMEASURED, None, traits)
