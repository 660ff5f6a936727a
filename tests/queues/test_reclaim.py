"""A conservative queue takes its quota back after the grace, from nobody in its minimum run time, and not in turns."""

from hypothesis import given
from hypothesis import strategies as st

from kopt.policies.queues.reclaim import LONGEST_S, PAUSE_S, BorrowedRun, OwnerState, delayed_reclaim

TIMES = st.floats(0.0, 5000.0, allow_nan=False)
RUNS = st.lists(st.builds(BorrowedRun, st.just("team/job"), TIMES, st.sampled_from([0, 300, 3600])), max_size=4)


@given(st.none() | TIMES, st.none() | TIMES, RUNS, TIMES)
def test_it_reclaims_only_when_every_rule_lets_it(
    waits_s: float | None, reclaimed_s: float | None, runs: list[BorrowedRun], now_s: float
) -> None:
    decision = delayed_reclaim(OwnerState("own", 600, waits_s, reclaimed_s), runs, now_s)
    rested = reclaimed_s is None or not LONGEST_S <= now_s - reclaimed_s < PAUSE_S
    grown = all(now_s - run.started_s >= run.min_runtime_s for run in runs)
    assert decision.reclaims == (waits_s is not None and now_s - waits_s >= 600 and rested and grown)
    assert decision.again_s > 0


@given(TIMES, RUNS)
def test_what_waits_is_served_in_the_end(waits_s: float, runs: list[BorrowedRun]) -> None:
    """Looked at again when the last decision says, with the same borrowers, it reclaims within three looks."""
    now_s = waits_s
    for _ in range(4):
        decision = delayed_reclaim(OwnerState("own", 600, waits_s), runs, now_s)
        if decision.reclaims:
            break
        now_s += decision.again_s + 0.001
    assert decision.reclaims
    grown_s = max((run.started_s + run.min_runtime_s for run in runs), default=0.0)
    assert now_s <= max(waits_s + 600, grown_s) + 1


def test_an_engine_that_does_not_get_it_done_is_stopped_and_tried_again_after_the_pause() -> None:
    when = {at_s: delayed_reclaim(OwnerState("own", 0, 0.0, 0.0), [], at_s) for at_s in (30.0, 60.0, 599.0, 600.0)}
    assert {at_s: decision.reclaims for at_s, decision in when.items()} == {
        30.0: True,
        60.0: False,
        599.0: False,
        600.0: True,
    }
    assert when[599.0].reason.code == "BACKS_OFF"
