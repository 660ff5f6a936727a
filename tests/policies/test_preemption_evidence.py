"""What the statuses of a gang say: whether it may be killed, from when on, and what that loses."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from kopt.core.units import MilliGpu
from kopt.core.workload.checkpoint import Estimate, JobState, JobStatus, Member
from kopt.policies.preemption import PreemptionSettings, RunningGang
from kopt.policies.preemption.evidence import Outlook, Phase, claims_sentence, cost_of, outlook, risk_gpu_s
from kopt.policies.preemption.state import Rhythm

from .test_preemption import NOW, gang, training, writing

SETTINGS = PreemptionSettings()
GUARD_S, ACT_S, RECHECK_S = SETTINGS.write_guard_s, SETTINGS.act_s, SETTINGS.recheck_s


def seen(candidate: RunningGang, rhythm: Rhythm | None = None, **settings: float) -> Outlook:
    return outlook(candidate, rhythm, NOW, PreemptionSettings(**settings))  # type: ignore[arg-type]


def of(*members: Member, **more: object) -> RunningGang:
    return replace(gang("g", training()), members=members, **more)  # type: ignore[arg-type]


def member(status: JobStatus | None, gpus: int = 1, ago_s: float = 0.0, claimed: bool = False) -> Member:
    return Member(MilliGpu(1000 * gpus), status, NOW - ago_s, claimed=claimed)


def test_a_safe_gang_may_be_killed_from_now_on_for_what_it_has_at_risk() -> None:
    """600 GPU-seconds at risk when seen ten seconds ago, of which 300 s of two GPUs are work."""
    known = seen(of(member(training(600.0, 200.0), gpus=2, ago_s=10.0)))
    assert known.phases == (Phase(NOW, math.inf, 600_000 + 20_000, 2000),)
    assert (known.spared, known.temporary, known.hazard, known.askable) == (None, True, 1 / SETTINGS.usual_s, False)
    assert known.saved_cost == 600_000 - 400_000
    assert known.fresh_cost == known.saved_cost + 2000 * 90


def test_what_starting_again_takes_is_told_or_read_off_the_status() -> None:
    assert seen(replace(gang("g", training(600.0, 300.0), gpus=2), restart_s=50.5)).saved_cost == 101_000
    assert seen(gang("g", training(100.0, 300.0))).saved_cost == 0
    assert seen(gang("g", replace(training(600.0), seconds_since_durable=None))).saved_cost == 600_000
    assert seen(gang("g", replace(training(), work_at_risk_gpu_seconds=None))).saved_cost == 0
    pair = of(member(training(600.0, 200.0)), member(training(600.0, 500.0)))
    assert seen(pair).saved_cost == 400_000 + 100_000
    assert seen(of(member(None), member(training(600.0, 200.0)))).saved_cost == 400_000


def test_costs_add_up_over_members_and_grow_with_every_second() -> None:
    pair = seen(of(member(training(600.0), gpus=2), member(training(100.0), gpus=1, ago_s=4.0)))
    assert pair.cost_at(NOW) == 700_000 + 4_000
    assert pair.cost_at(NOW + 10) == 704_000 + 30_000
    assert pair.cost_at(NOW - 1) is None


def test_the_later_of_two_phases_counts_where_both_hold() -> None:
    known = Outlook(gang("g"), (Phase(0.0, 100.0, 50, 1), Phase(60.0, math.inf, 5, 1)))
    assert [known.cost_at(at_s) for at_s in (-1.0, 0.0, 59.0, 60.0, 99.0, 100.0)] == [None, 50, 109, 5, 44, 45]
    assert Outlook(gang("g"), (Phase(0.0, 10.0, 5, 1),)).cost_at(10.0) is None


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        ({"state": JobState.CKPT_WRITING}, "WRITING", "it is eligible once the write is complete"),
        ({"state": JobState.OOM}, "ENDING", "g is OOM and will free its GPUs itself"),
        ({"state": JobState.CRASHED}, "ENDING", "g is CRASHED"),
        ({"state": JobState.UNKNOWN, "reason": "no lines"}, "UNKNOWN", "is unknown (no lines)"),
        ({"state": JobState.UNKNOWN}, "UNKNOWN", "(no reason given)"),
        ({"evidence": False}, "NO_EVIDENCE", "all its work would be lost"),
        ({"safe": False, "reason": "loading"}, "NOT_SAFE", "g is in TRAIN, not safe to kill (loading)"),
        ({"safe": False}, "NOT_SAFE", "(no reason given)"),
        ({"confidence": 0.49}, "UNSURE", "g's state has confidence 0.49, below 0.50"),
        ({"work_at_risk_gpu_seconds": None}, "COST_UNKNOWN", "The work that g would lose is unknown"),
    ],
)
def test_a_doubt_says_what_was_seen_and_when(change: Mapping[str, object], code: str, part: str) -> None:
    known = seen(of(member(replace(training(), **change), ago_s=3.0)))  # type: ignore[arg-type]
    assert known.spared is not None
    assert known.spared.code == code
    assert part in known.spared.message
    state, confidence = change.get("state", JobState.TRAIN), change.get("confidence", 0.95)
    assert known.spared.numbers == {"state": str(state), "age_s": 3.0, "confidence": confidence}


def test_of_a_silent_gang_it_is_said_what_to_do() -> None:
    spared = seen(gang("g", None)).spared
    assert spared is not None
    assert spared.code == "NO_STATUS"
    assert "have its log followed" in spared.message


def test_of_several_doubts_the_first_member_and_the_first_doubt_are_told() -> None:
    torn = replace(training(), state=JobState.CKPT_WRITING, evidence=False, safe=False, confidence=0.0)
    assert seen(of(member(training()), member(torn), member(None))).spared == seen(of(member(torn))).spared
    unclear = replace(training(), evidence=False, safe=False, confidence=0.0)
    assert code_of(unclear) == "NO_EVIDENCE"
    assert code_of(replace(unclear, evidence=True)) == "NOT_SAFE"
    assert code_of(replace(unclear, evidence=True, safe=True)) == "UNSURE"


def code_of(status: JobStatus | None, ago_s: float = 0.0) -> str | None:
    spared = seen(of(member(status, ago_s=ago_s))).spared
    return None if spared is None else spared.code


def test_a_status_is_of_now_for_half_a_minute_and_not_of_the_future() -> None:
    assert [code_of(training(), ago_s) for ago_s in (-0.1, 0.0, 30.0, 30.1)] == ["STALE", None, None, "STALE"]
    assert code_of(replace(training(), confidence=0.5)) is None


def test_figures_that_the_owner_claims_are_said_to_be_claims() -> None:
    claimed = of(member(replace(training(), evidence=False), claimed=True))
    spared = seen(claimed).spared
    assert spared is not None
    assert spared.message.endswith(claims_sentence([claimed]))
    assert "What is said of the checkpoints of g is " in claims_sentence([claimed])
    other = seen(of(member(replace(training(), evidence=False))))
    assert other.spared is not None
    assert other.spared.message == "No durable checkpoint of g has been observed; all its work would be lost."
    mixed = of(member(replace(training(), evidence=False)), member(training(), claimed=True))
    assert seen(mixed).spared == other.spared, "what is told was not claimed"
    both = claims_sentence([claimed, gang("h", training()), replace(claimed, name="i")])
    assert both.startswith(" What is said of the checkpoints of g, i is ")
    assert claims_sentence([gang("h", training())]) == ""


@pytest.mark.parametrize(
    ("members", "temporary"),
    [
        ([member(replace(training(), state=JobState.FINISHED, evidence=False))], True),
        ([member(writing())], True),
        ([member(replace(writing(), evidence=False))], False),
        ([member(None)], False),
        ([member(writing()), member(None)], False),
        ([member(writing()), member(training())], True),
    ],
)
def test_a_doubt_passes_where_the_gang_ends_or_has_made_checkpoints(members: list[Member], temporary: bool) -> None:
    assert seen(of(*members)).temporary is temporary


def test_a_write_that_is_seen_ends_when_its_status_expects() -> None:
    known = seen(of(member(writing(60.0), gpus=2, ago_s=5.0), member(training(100.0, 0.0))))
    assert known.phases == (Phase(NOW + 55, math.inf, known.fresh_cost, 3000),)
    assert known.hazard == 0.0
    assert known.fresh_cost == known.saved_cost + 3000 * 90


def test_of_two_writes_the_later_end_counts_and_one_without_an_end_none() -> None:
    assert phase_starts(member(writing(60.0)), member(writing(90.0))) == [NOW + 90]
    assert phase_starts(member(writing(60.0)), member(writing(None))) == []
    assert phase_starts(member(writing(60.0)), member(replace(training(), safe=False))) == []
    assert phase_starts(member(writing(5.0))) == [NOW + RECHECK_S], "no earlier than the next look"


def phase_starts(*members: Member, rhythm: Rhythm | None = None) -> list[float]:
    return [phase.from_s for phase in seen(of(*members), rhythm).phases]


def test_a_write_that_takes_longer_than_it_ever_should_ends_at_no_known_time() -> None:
    assert phase_starts(member(writing(20.0), ago_s=30.0)) == [NOW + RECHECK_S]
    assert phase_starts(member(writing(10.0), ago_s=20.0)) == [NOW + RECHECK_S]
    assert phase_starts(member(writing(10.0), ago_s=21.0)) == []


REGULAR = Rhythm("g", NOW - 50_000, NOW - 60, NOW - 1000, (1800.0,) * 5)


def test_a_rhythm_says_until_when_a_gang_may_be_killed_and_when_again() -> None:
    known = seen(gang("g", training(1000.0, 1000.0)), REGULAR)
    due_s, next_s = NOW - 1000 + 1800 - 0.15 * 1800 - GUARD_S - ACT_S, NOW + 800
    assert [(phase.from_s, phase.until_s) for phase in known.phases] == [(NOW, due_s), (next_s, math.inf)]
    assert (known.spared, known.hazard) == (None, 0.0)
    late = replace(REGULAR, durable_at_s=NOW - 1700)
    known = seen(gang("g", training(1700.0, 1700.0)), late)
    assert known.spared is not None
    assert known.spared.code == "WRITE_DUE"
    assert known.spared.numbers == {"intervals": 5}
    assert f"complete at {NOW + 100:.0f} s, by the 5 intervals observed" in known.spared.message
    assert [phase.from_s for phase in known.phases] == [NOW + 100]
    overdue = seen(gang("g", training(1795.0, 1795.0)), replace(REGULAR, durable_at_s=NOW - 1795))
    assert [phase.from_s for phase in overdue.phases] == [NOW + RECHECK_S]


def test_at_the_moment_from_which_a_write_is_due_a_gang_is_spared() -> None:
    due = Rhythm("g", NOW - 50_000, NOW - 60, NOW - 350, ())
    assert seen(gang("g", training(350.0, 350.0)), due).spared is not None
    assert seen(gang("g", training(349.0, 349.0)), replace(due, durable_at_s=NOW - 349)).spared is None


def test_where_no_time_is_known_a_write_may_come_at_any_moment() -> None:
    known = seen(gang("g", training(900.0, 900.0)), Rhythm("g", NOW - 50_000, NOW - 60, NOW - 900, ()))
    assert known.spared is not None
    assert (known.spared.code, known.spared.numbers) == ("WRITE_POSSIBLE", {"intervals": 0})
    assert "(at any time, by the 0 intervals observed)" in known.spared.message
    assert (known.phases, known.hazard) == ((), 1 / 1800)
    silent = seen(gang("g", None), Rhythm("g", NOW - 50_000, NOW - 60, NOW - 900, ()))
    assert silent.hazard == 0.0, "nothing is hoped for where nothing was ever seen"


def test_a_checkpoint_that_does_not_fit_the_rhythm_adds_to_the_cost() -> None:
    early = replace(REGULAR, durable_at_s=NOW - 100, intervals_s=(1800.0,) * 5 + (900.0,))
    known = seen(gang("g", training(200.0, 100.0), gpus=2), early)
    assert known.cost_at(NOW) == 200_000 + 2000 * 900


def expecting(value: float, low: float | None = None, high: float | None = None) -> JobStatus:
    after = Estimate(value, value - 20 if low is None else low, value + 20 if high is None else high)
    return replace(training(1700.0, 300.0), next_checkpoint_seconds=after)


def test_where_no_rhythm_is_known_the_statuses_say_when_the_next_checkpoint_comes() -> None:
    known = seen(of(member(expecting(200.0), ago_s=5.0)))
    assert [(phase.from_s, phase.until_s) for phase in known.phases] == [
        (NOW, NOW + 175 - GUARD_S - ACT_S),
        (NOW + 195, math.inf),
    ]
    assert known.hazard == 0.0
    pair = seen(of(member(expecting(200.0)), member(expecting(300.0))))
    assert [(phase.from_s, phase.until_s) for phase in pair.phases] == [
        (NOW, NOW + 180 - GUARD_S - ACT_S),
        (NOW + 300, math.inf),
    ]
    part = seen(of(member(expecting(200.0)), member(training())))
    assert (len(part.phases), part.hazard) == (1, 1 / 1800), "of one member nothing is known"


def test_an_expectation_that_has_passed_says_nothing() -> None:
    assert len(seen(of(member(expecting(10.0, 0.0, 20.0), ago_s=20.0))).phases) == 1
    assert seen(of(member(expecting(10.0, 0.0, 20.0), ago_s=20.0))).spared is not None
    passed = seen(of(member(expecting(10.0, 0.0, 20.0), ago_s=21.0)))
    assert (len(passed.phases), passed.hazard, passed.spared) == (1, 1 / 1800, None)


def test_a_rhythm_counts_before_what_statuses_expect_and_intervals_keep_the_moment_from_which_a_write_is_due() -> None:
    assert seen(of(member(expecting(500.0))), REGULAR).phases[1].from_s == NOW + 800
    some = Rhythm("g", NOW - 50_000, NOW - 60, NOW - 100, (1000.0,))
    known = seen(of(member(expecting(500.0))), some)
    assert [(phase.from_s, phase.until_s) for phase in known.phases] == [
        (NOW, NOW - 100 + 0.6 * 750 - GUARD_S - ACT_S),
        (NOW + 500, math.inf),
    ]


def test_a_gang_that_can_be_asked_has_saved_some_time_after() -> None:
    known = seen(replace(gang("g", training(600.0, 300.0)), saves_s=40.0))
    assert known.phases[1:] == (Phase(NOW + 40, math.inf, 300_000, 1000),)
    assert (known.askable, known.hazard) == (True, 0.0)
    both = seen(replace(gang("g", training(1000.0, 1000.0)), saves_s=40.0), REGULAR)
    assert [phase.from_s for phase in both.phases] == [NOW, NOW + 40, NOW + 800]
    late = seen(replace(gang("g", training(1000.0, 1000.0)), saves_s=900.0), REGULAR)
    assert [phase.from_s for phase in late.phases] == [NOW, NOW + 800, NOW + 900]
    busy = seen(replace(gang("g", writing(60.0)), saves_s=40.0))
    assert ([phase.from_s for phase in busy.phases], busy.askable) == ([NOW + 60], False)


def test_work_at_risk_beyond_all_sense_is_no_figure() -> None:
    def at_risk(value: float) -> float | None:
        return risk_gpu_s(member(replace(training(), work_at_risk_gpu_seconds=Estimate(value, 0.0, value))))

    assert (at_risk(1e12), at_risk(1.1e12)) == (1e12, None)
    assert risk_gpu_s(member(None)) is None
    assert cost_of(member(None, ago_s=2.5), NOW) == 2500
    assert cost_of(member(training(0.0001)), NOW) == 1
