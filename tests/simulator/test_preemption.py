"""The truth of a replay and what is seen of it are apart; figures are counted right."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.checkpoint import JobState
from kopt.data.jobs.openb import TraceError
from kopt.data.jobs.training import TraceJob, read_jobs
from kopt.policies.preemption import PreemptionSettings
from kopt.simulator.preemption.behaviour import STEADY, Habits, Manner, Scales, read_manners, sample
from kopt.simulator.preemption.replay import Outcome, Room, Scenario, replay
from kopt.simulator.preemption.rivals import Answer, Ask, Foresight, Ours, newest_first
from kopt.simulator.preemption.runs import Run
from kopt.simulator.preemption.sight import Sight, believed_durables, gang, next_checkpoint, observe, rhythm
from kopt.simulator.preemption.study import RIVALS, Setup, figures, study

EVERY_10_MINUTES = Manner((1.0,), (1.0,))
CLEAR = Sight(observable=1.0, delay_s=0.0, done_understood=1.0, false_done=0.0, held=0.0, restart_error=0.0)


def habits(**changes: object) -> Habits:
    draws = tuple(np.random.default_rng(3).random(64).tolist())
    steady = Habits(600.0, 60.0, 120.0, EVERY_10_MINUTES, observable=True, delay_s=0.0, draws=draws)
    return replace(steady, **changes)  # type: ignore[arg-type]


def run(started_s: float = 0.0, gpus: int = 1, number: int = 0, index: int = 1, **more: object) -> Run:
    return Run(index, TraceJob(f"j{index}", 0.0, 1e6, gpus), habits(**more), started_s, number=number)


def jobs(count: int = 400, seed: int = 0) -> tuple[TraceJob, ...]:
    chance = np.random.default_rng(seed)
    at = np.cumsum(chance.exponential(300.0, count))
    long = chance.choice([1800.0, 7200.0, 20_000.0], count)
    return tuple(
        TraceJob(f"j{n}", float(at[n]), float(long[n]), int(size))
        for n, size in enumerate(chance.choice([1, 1, 2, 4], count))
    )


def setup(**changes: object) -> Setup:
    return replace(Setup(jobs(), 48, 20_000.0, 150_000.0, urgent=0.15), **changes)  # type: ignore[arg-type]


# The truth.


def test_a_run_writes_at_its_interval_and_loses_what_is_not_durable() -> None:
    one = run(gpus=2)
    assert [one.writing(at) for at in (599, 600, 659, 660)] == [False, True, True, False]
    assert one.lost_s(599) == pytest.approx(599 + 120)
    assert one.lost_s(659) == pytest.approx(659 + 120), "what is being written does not count yet"
    assert one.lost_s(660) == pytest.approx(120), "training stood still while it wrote"
    assert one.lost_gpu_s(1000) == pytest.approx(2 * (340 + 120))
    background = run(manner=replace(EVERY_10_MINUTES, asynchronous=True))
    assert background.lost_s(660) == pytest.approx(60 + 120), "training went on while it wrote"


def test_a_second_run_starts_from_what_was_durable_after_its_restart() -> None:
    first = run()
    again = replace(first, started_s=5000.0, done_s=first.durable_work_s(1000), number=1, begins_s=[], ends_s=[])
    assert again.done_s == 660
    assert again.finishes_s == 5000 + 120 + 1e6 - 660
    assert again.lost_s(5060) == pytest.approx(60 + 120)
    assert again.lost_s(5400) == pytest.approx(280 + 120)
    assert not again.writing(5700)
    assert again.writing(5721)


@given(st.floats(0, 1e5), st.floats(0, 1e4))
def test_no_work_is_durable_before_it_is_done_and_none_is_lost_again(at_s: float, later_s: float) -> None:
    one = run()
    assert 0 <= one.durable_work_s(at_s) <= one.durable_work_s(at_s + later_s) <= at_s + later_s
    assert one.lost_s(at_s) >= one.habits.restart_s
    assert one.next_durable_s(at_s) > at_s


# What is seen.


def test_with_clear_sight_the_status_is_the_truth() -> None:
    one = run(gpus=4)
    status = observe(one, 1000.0, CLEAR).status
    assert status is not None
    assert (status.state, status.safe, status.seconds_since_durable) == (JobState.TRAIN, True, 340.0)
    assert status.work_at_risk_gpu_seconds is not None
    assert status.work_at_risk_gpu_seconds.value == pytest.approx(one.lost_gpu_s(1000.0))
    inside = observe(one, 1210.0, CLEAR).status
    assert inside is not None
    assert (inside.state, inside.safe) == (JobState.CKPT_WRITING, False)
    before = observe(one, 300.0, CLEAR).status
    assert before is not None
    assert (before.safe, before.evidence) == (False, False)
    assert rhythm(one, 3000.0, CLEAR).intervals_s == pytest.approx((600.0,) * 3)


def test_nothing_is_known_of_a_job_that_does_not_tell() -> None:
    assert observe(run(observable=False), 5000.0, CLEAR).status is None


def test_what_is_seen_is_late_and_may_be_wrong() -> None:
    late = observe(run(delay_s=30.0), 680.0, CLEAR)
    assert late.observed_at_s == 650.0
    assert late.status is not None
    assert late.status.state is JobState.CKPT_WRITING
    deaf = replace(CLEAR, done_understood=0.0)
    status = observe(run(), 1000.0, deaf).status
    assert status is not None
    assert not status.safe
    wrong = replace(CLEAR, false_done=1.0)
    believed = believed_durables(run(), 5000.0, wrong)
    truth = believed_durables(run(), 5000.0, CLEAR)
    assert set(truth) < set(believed)
    blind = observe(run(), 610.0 + 600 + 10, replace(CLEAR, safe_in_write=1.0)).status
    assert blind is not None
    assert blind.safe


def test_the_next_checkpoint_is_reckoned_from_what_is_believed_and_not_from_the_truth() -> None:
    told = next_checkpoint([0.0, 600.0, 1300.0, 1900.0], 2000.0)
    assert told is not None
    assert (told.value, told.low, told.high) == (500.0, 500.0, 600.0)
    assert next_checkpoint([0.0, 600.0], 700.0) is None, "one gap tells nothing"
    wrong = replace(CLEAR, false_done=1.0)
    status = observe(run(), 5000.0, wrong).status
    assert status is not None
    assert status.next_checkpoint_seconds is not None
    truth_s = run().next_durable_s(5000.0) - 5000.0
    assert abs(status.next_checkpoint_seconds.value - truth_s) > 60
    clear = observe(run(), 5000.0, CLEAR).status
    assert clear is not None
    assert clear.next_checkpoint_seconds is not None
    assert clear.next_checkpoint_seconds.value == pytest.approx(truth_s, abs=60)


def test_pre_emptions_count_for_a_day() -> None:
    often = replace(run(100_000.0, number=3), killed_s=(1000.0, 50_000.0, 99_000.0), begins_s=[], ends_s=[])
    assert [gang(often, at_s, CLEAR).preemptions for at_s in (100_000.0, 140_000.0, 190_000.0)] == [2, 1, 0]


def test_the_corpus_tells_how_regular_savers_are(tmp_path: Path) -> None:
    def record(starts: Sequence[float], arrivals: Sequence[int]) -> str:
        writes = [{"unit": "u", "after": 0, "by": 0, "start_s": at, "end_s": at + 1, "step": 1} for at in starts]
        return json.dumps({"name": "n", "framework": "f", "writes": writes, "arrivals_ms": list(arrivals)})

    file = tmp_path / "records.jsonl"
    ticking = record([0, 10, 20, 30], range(0, 31_000, 100))
    twice = record([0, 1, 10, 11, 20, 21, 30, 31], [x for x in range(0, 32_000, 100) if x % 10_000 >= 2000])
    file.write_text("\n".join([ticking, twice, record([0, 10], [])]))
    steady, pairs = read_manners(file)
    assert (steady.intervals, steady.asynchronous) == ((1.0, 1.0, 1.0), True)
    assert (pairs.intervals, pairs.asynchronous) == ((1.0, 1.0, 1.0), False), "two files at once are one checkpoint"
    file.write_text(record([0], []))
    with pytest.raises(ValueError, match="three checkpoints"):
        read_manners(file)


def test_habits_lie_in_their_ranges_and_follow_the_generator() -> None:
    drawn = [sample(np.random.default_rng(seed), STEADY, Scales(), 0.7, 5.0) for seed in range(300)]
    assert drawn[7] == sample(np.random.default_rng(7), STEADY, Scales(), 0.7, 5.0)
    assert all(
        900 <= one.interval_s <= 3600 and 10 <= one.write_s <= 156 and 60 <= one.restart_s <= 600 for one in drawn
    )
    assert 0.6 < np.mean([one.observable for one in drawn]) < 0.8


# The rivals.


def _ask(*pool: Run, missing: int = 1, now_s: float = 10_000.0) -> Ask:
    return Ask("u", now_s, now_s, missing, pool, {one.index: 0.1 * one.index for one in pool})


def test_each_rival_takes_whom_its_name_says() -> None:
    old, new = run(0.0, index=1), run(9000.0, index=2)
    fresh = run(9300.0 - 6600, index=3)
    assert newest_first(_ask(old, new, fresh)).victims == (new,)
    assert Foresight(0.0)(_ask(old, new, fresh)).victims == (
        min((old, new, fresh), key=lambda one: one.lost_s(10_000.0)),
    )
    assert newest_first(_ask(old, missing=2)) == Answer()


def test_kueues_order_spares_whom_it_does_not_need() -> None:
    small, large = run(9000.0, gpus=1, index=1), run(8000.0, gpus=4, index=2)
    assert newest_first(_ask(small, large, missing=4)).victims == (large,)


def test_foresight_waits_for_the_best_moment_within_the_budget_only() -> None:
    one = run()
    soon = one.next_durable_s(10_000.0)
    assert Foresight(soon - 10_000 + 1)(_ask(one)).until_s == pytest.approx(soon, abs=0.01)
    assert Foresight(1.0)(_ask(one)).victims == (one,)


def test_foresight_under_the_promises_takes_only_who_tells_of_checkpoints_or_leaves_it() -> None:
    silent, early, telling = run(9800.0, index=1, observable=False), run(9500.0, index=2), run(2500.0, index=3)
    promised, ask = Foresight(0.0, promised=True), _ask(silent, telling)
    assert silent.lost_s(ask.now_s) < telling.lost_s(ask.now_s)
    assert Foresight(0.0)(ask).victims == (silent,)
    assert promised(ask) == Answer(), "newest first loses less, and may take whom it likes"
    assert Foresight(0.0, promised=True)(_ask(early, telling, run(9999.0, 4, index=4), missing=4)) == Answer()
    dear = _ask(telling, run(2000.0, gpus=8, index=4), missing=1, now_s=10_100.0)
    assert Foresight(0.0, promised=True)(dear).victims == (telling,)


# Replays.


def _scenario(listed: Sequence[TraceJob], urgent: set[int], gpus: int) -> Scenario:
    return Scenario(listed, [habits()] * len(listed), frozenset(urgent), gpus, 12, 0.0, 1e6)


def test_an_urgent_job_takes_the_room_and_its_victim_comes_back_and_ends() -> None:
    listed = [TraceJob("long", 0, 5000, 2), TraceJob("urgent", 1000, 100, 1), TraceJob("later", 1010, 50, 2)]
    outcome = replay(_scenario(listed, {1}, 2), newest_first)
    assert [(room.victims, room.torn, room.waited_s) for room in outcome.rooms] == [(1, 0, 0.0)]
    assert outcome.rooms[0].lost_gpu_s == pytest.approx(2 * (340 + 120))
    assert outcome.started == 2
    assert outcome.waits_s == [0.0]


def test_our_policy_waits_for_the_end_of_the_write_where_newest_first_tears_it() -> None:
    listed = [TraceJob("long", 0, 90_000, 1), TraceJob("urgent", 6 * 600 + 20, 100, 1)]
    torn = replay(_scenario(listed, {1}, 1), newest_first)
    ours = replay(_scenario(listed, {1}, 1), Ours(CLEAR, PreemptionSettings(), 300.0))
    assert (torn.rooms[0].torn, ours.rooms[0].torn) == (1, 0)
    assert ours.rooms[0].lost_gpu_s < torn.rooms[0].lost_gpu_s / 3
    assert 0 < ours.rooms[0].waited_s <= 120
    assert not ours.rooms[0].native


def test_where_nobody_may_be_chosen_the_native_scheduler_decides() -> None:
    listed = [TraceJob("silent", 0, 90_000, 1), TraceJob("urgent", 30_000, 100, 1)]
    silent = replace(_scenario(listed, {1}, 1), habits=[habits(observable=False)] * 2)
    room = replay(silent, Ours(CLEAR, PreemptionSettings(), 300.0)).rooms[0]
    assert (room.native, room.waited_s) == (True, 0.0)
    writes = [TraceJob("long", 0, 90_000, 1), TraceJob("urgent", 30 * 660 + 610, 100, 1)]
    slow = replace(_scenario(writes, {1}, 1), habits=[habits(write_s=500.0, interval_s=1000.0)] * 2)
    guarded = replay(slow, Ours(CLEAR, PreemptionSettings(), 0.0)).rooms[0]
    assert guarded.torn == 0, "kept from it while it writes"
    assert guarded.waited_s > 0


def test_without_any_waiting_no_more_is_lost_than_by_newest_first() -> None:
    found = study(setup(budget_s=0.0), ["newest-first", "kopt"], (4, 12), (0, 1), workers=1)
    for pool in (4, 12):
        base, ours = (
            next(one for one in found if (one.policy, one.pool) == (name, pool)) for name in ("newest-first", "kopt")
        )
        assert ours.lost_mean < base.lost_mean
        assert ours.torn == 0


def test_the_same_seed_gives_the_same_figures_and_no_rival_changes_the_arrivals() -> None:
    once = study(setup(), list(RIVALS), (4, 12), (0, 1), workers=1)
    assert once == study(setup(), list(RIVALS), (4, 12), (0, 1), workers=2)
    by_policy = {one.policy: one for one in once if one.pool == 12}
    assert by_policy["kopt"].torn == 0
    order = ("oracle-future", "oracle-promised", "kopt", "newest-first")
    lost = [by_policy[name].lost_per_ask for name in order]
    assert lost == sorted(set(lost))
    assert by_policy["newest-first"].wait_p95_s == 0 < by_policy["kopt"].wait_mean_s
    assert len({(one.policy, one.pool) for one in once}) == 12


def test_figures_are_counted_over_all_seeds() -> None:
    room = Room(waited_s=10.0, lost_gpu_s=3600.0, victims=2, torn=1)
    found = figures("p", 12, [Outcome([room], [10.0, 30.0], 50), Outcome([replace(room, native=True)], [10.0], 50)])
    assert (found.asks, found.rooms, found.native, found.torn, found.torn_native) == (3, 2, 1, 1, 1)
    assert (found.lost_mean, found.lost_per_ask, found.preempted_share) == (1.0, pytest.approx(2 / 3), 0.04)
    assert found.wait_mean_s == pytest.approx(50 / 3)
    assert (found.lost_low, found.lost_high) == (1.0, 1.0)


# Traces.


def test_a_trace_is_read_in_order_of_submission(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("job_id,submit_time,duration,gpus,vc\nb,20,3.5,2,x\na,10,60,1,\nnone,5,60,0,\n")
    assert read_jobs(file) == (TraceJob("a", 10, 60, 1), TraceJob("b", 20, 3.5, 2, "x"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("job_id,submit_time,gpus\n", "no column 'duration'"),
        ("job_id,submit_time,duration,gpus\na,1,two,1\n", "line 2: duration is 'two'"),
        ("job_id,submit_time,duration,gpus\na,1,2,1.5\n", "line 2: gpus is '1.5'"),
        ("job_id,submit_time,duration,gpus\na,-1,2,1\n", "line 2: submit_time is -1"),
        ("job_id,submit_time,duration,gpus\na,1\n", "line 2: duration is None"),
    ],
)
def test_a_trace_that_cannot_be_read_says_where(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(text)
    with pytest.raises(TraceError, match=told):
        read_jobs(file)
