"""Which gangs give back lent GPUs, and when: the set that loses least at the best moment before the deadline."""

from dataclasses import replace

import pytest

from kopt.core.reason import Reason
from kopt.core.units import MilliGpu
from kopt.core.workload.checkpoint import Estimate, JobState, JobStatus, Member
from kopt.core.workload.save_state import SaveState
from kopt.policies.lending.victims import MOST_CANDIDATES, Candidate, Choice, VictimAction, choose
from kopt.policies.preemption import PreemptionSettings, PreemptionState, RunningGang
from kopt.policies.preemption.state import Rhythm

NOW_S = 1_900_000_000.0
NOT_OURS = Reason("NOT_OURS", "It belongs to nobody here.")


def gang(name: str, gpus: int, lost: float = 100.0, *, queue: str = "q", **status: object) -> RunningGang:
    """One that trains and would lose ``lost`` GPU-seconds, a tenth of them for starting again."""
    known = JobStatus(
        JobState.TRAIN,
        safe=True,
        evidence=True,
        confidence=0.9,
        seconds_since_durable=0.9 * lost / gpus,
        work_at_risk_gpu_seconds=Estimate(lost, 0.0, 2 * lost + 1),
    )
    member = Member(MilliGpu(1000 * gpus), replace(known, **status), NOW_S)  # type: ignore[arg-type]
    return RunningGang(name, queue, 0, (member,), NOW_S - 3600)


def writing(name: str, gpus: int, ends_in_s: float | None, lost: float = 100.0) -> RunningGang:
    after = None if ends_in_s is None else Estimate(ends_in_s, 0.0, 2 * ends_in_s)
    return gang(name, gpus, lost, state=JobState.CKPT_WRITING, safe=False, next_safe_seconds=after)


def unknown(name: str, gpus: int) -> RunningGang:
    return replace(gang(name, gpus), members=(Member(MilliGpu(1000 * gpus), None, NOW_S),))


def chosen(*gangs: RunningGang | Candidate, missing: int, left_s: float = 300.0, **more: object) -> Choice:
    candidates = [each if isinstance(each, Candidate) else Candidate(each) for each in gangs]
    return choose(candidates, PreemptionState(), 1000 * missing, NOW_S, NOW_S + left_s, **more)  # type: ignore[arg-type]


def codes(choice: Choice) -> dict[str, str]:
    return {name: reason.code for name, reason in choice.candidate_reasons}


def test_the_set_that_loses_least_gives_back_at_once_and_each_hears_why() -> None:
    choice = chosen(gang("a", 2, 900), gang("b", 1, 10), gang("c", 1, 20), unknown("d", 2), missing=2)
    assert (choice.action, choice.victims, choice.lost_gpu_s, choice.until_s) == (
        VictimAction.STOP,
        ("b", "c"),
        30.0,
        None,
    )
    assert choice.reason.code == "LEAST_LOST"
    assert choice.reason.numbers == {"lost_gpu_s": 30.0, "missing_milli_gpu": 2000, "left_s": 300.0}
    assert choice.reason.message.startswith("Reclaiming 2 GPUs from b, c loses 30 GPU-seconds,")
    assert codes(choice) == {"a": "NOT_CHOSEN", "b": "CHOSEN", "c": "CHOSEN", "d": "NO_STATUS"}
    notes = dict(choice.candidate_reasons)
    assert notes["a"].message == "a could give its GPUs back; others lose less."
    assert notes["b"].message == "b gives its GPUs back."


def test_figures_that_only_the_owner_claims_are_named_beside_the_loss() -> None:
    claimed = gang("a", 1, 10)
    claimed = replace(claimed, members=(replace(claimed.members[0], claimed=True),))
    choice = chosen(claimed, gang("b", 1, 900), missing=1)
    assert choice.victims == ("a",)
    assert "What is said of the checkpoints of a is " in choice.reason.message
    other = chosen(claimed, gang("b", 1, 5), missing=1)
    assert other.victims == ("b",)
    assert "What is said" not in other.reason.message


def test_a_write_that_ends_before_the_deadline_is_waited_for_where_that_loses_less() -> None:
    choice = chosen(writing("w", 2, 60.0), gang("t", 2, 900), missing=2)
    assert (choice.action, choice.victims, choice.until_s) == (VictimAction.WAIT, (), NOW_S + 15)
    assert choice.reason.code == "CHEAPER_LATER"
    assert choice.lost_gpu_s == pytest.approx(10 + 2 * 90)
    assert choice.reason.numbers == {"lost_gpu_s": choice.lost_gpu_s, "missing_milli_gpu": 2000, "left_s": 300.0}
    assert choice.reason.message == "Reclaiming 2 GPUs from w in 60 s loses 190 GPU-seconds, less than now."
    assert codes(choice) == {"w": "WRITING", "t": "NOT_CHOSEN"}
    patient = chosen(writing("w", 2, 60.0), gang("t", 2, 900), missing=2, settings=PreemptionSettings(recheck_s=600))
    assert patient.action is VictimAction.STOP, "the write counts as ended no earlier than the next look"


@pytest.mark.parametrize(
    ("left_s", "verdict"), [(60.0, VictimAction.WAIT), (59.0, VictimAction.STOP), (0.0, VictimAction.STOP)]
)
def test_only_moments_up_to_the_deadline_count(left_s: float, verdict: VictimAction) -> None:
    choice = chosen(writing("w", 2, 60.0), gang("t", 2, 900), missing=2, left_s=left_s)
    assert (choice.action, choice.victims) == (verdict, ("t",) if verdict is VictimAction.STOP else ())
    assert choice.reason.numbers["left_s"] == left_s


def test_the_next_look_is_at_the_better_moment_where_that_is_near() -> None:
    soon = PreemptionSettings(recheck_s=100.0)
    choice = chosen(writing("w", 2, 120.0), gang("t", 2, 900), missing=2, settings=soon)
    assert choice.until_s == NOW_S + 100
    choice = chosen(writing("w", 2, 100.0), gang("t", 2, 900), missing=2, settings=soon)
    assert choice.until_s == NOW_S + 100


def test_of_equal_losses_the_present_moment_is_taken() -> None:
    settings = PreemptionSettings(write_guard_s=0.0)
    choice = chosen(writing("w", 2, 60.0, lost=100.0), gang("t", 2, 10), missing=2, settings=settings)
    assert (choice.action, choice.victims) == (VictimAction.STOP, ("t",))


def test_a_rhythm_says_when_a_gang_loses_least() -> None:
    regular = Rhythm("g", NOW_S - 3600, NOW_S - 60, NOW_S - 1750, (1800.0,) * 5)
    candidate = Candidate(gang("g", 2, 3500, seconds_since_durable=1750.0))
    state = PreemptionState((regular,))
    choice = choose([candidate], state, 2000, NOW_S, NOW_S + 300)
    assert (choice.action, choice.reason.code) == (VictimAction.WAIT, "CHEAPER_LATER")
    assert choice.reason.message.startswith("Reclaiming 2 GPUs from g in 50 s ")
    other = PreemptionState((replace(regular, gang="other"),))
    assert choose([candidate], other, 2000, NOW_S, NOW_S + 300).action is VictimAction.STOP


def asked(save: SaveState, left_s: float, lost: float = 5000.0) -> Choice:
    return chosen(Candidate(gang("a", 2, lost), save=save), missing=2, left_s=left_s)


@pytest.mark.parametrize(
    ("save", "left_s", "verdict"),
    [
        (SaveState.ASKABLE, 60.0, VictimAction.REQUEST_SAVE),
        (SaveState.ASKABLE, 59.0, VictimAction.STOP),
        (SaveState.ASKED, 59.0, VictimAction.REQUEST_SAVE),
        (SaveState.ASKED, 1.0, VictimAction.REQUEST_SAVE),
        (SaveState.ASKED, 0.0, VictimAction.STOP),
        (SaveState.ASKABLE, 0.0, VictimAction.STOP),
        (SaveState.EXPIRED, 300.0, VictimAction.STOP),
        (SaveState.UNASKABLE, 300.0, VictimAction.STOP),
    ],
)
def test_a_gang_is_asked_while_there_is_time_to_answer_and_waited_for_once_asked(
    save: SaveState, left_s: float, verdict: VictimAction
) -> None:
    assert asked(save, left_s).action is verdict


def test_what_is_asked_is_said_with_what_would_still_be_lost_and_when_to_look_again() -> None:
    choice = asked(SaveState.ASKABLE, 300.0)
    assert (choice.reason.code, choice.victims, choice.lost_gpu_s) == ("SAVE_FIRST", ("a",), 500.0)
    assert choice.reason.message == "Asked to save before 2 GPUs are taken back: a; 300 s are left."
    assert choice.until_s == NOW_S + 5
    assert codes(choice) == {"a": "NOT_CHOSEN"}
    assert asked(SaveState.ASKED, 3.0).until_s == NOW_S + 3


def test_one_that_was_asked_leaves_time_for_those_beside_it() -> None:
    two = [Candidate(gang("b", 1, 900), save=SaveState.ASKED), Candidate(gang("a", 1, 900), save=SaveState.ASKABLE)]
    choice = chosen(*two, missing=2, left_s=30.0)
    assert (choice.action, choice.victims) == (VictimAction.REQUEST_SAVE, ("a", "b"))


def test_only_those_of_the_set_that_can_be_asked_are_asked() -> None:
    askable, safe = Candidate(gang("a", 1, 900), save=SaveState.ASKABLE), Candidate(gang("b", 1, 10))
    dear = Candidate(gang("c", 1, 9000), save=SaveState.ASKABLE)
    choice = chosen(askable, safe, dear, missing=2)
    assert (choice.action, choice.victims) == (VictimAction.REQUEST_SAVE, ("a",))
    assert choice.lost_gpu_s == 90 + 10


def test_nobody_is_asked_where_that_saves_nothing_or_none_of_the_set_can_be() -> None:
    can = {"save": SaveState.ASKABLE}
    fresh = gang("a", 2, 100, seconds_since_durable=0.0)
    assert chosen(Candidate(fresh, **can), missing=2).action is VictimAction.STOP  # type: ignore[arg-type]
    cheap = chosen(Candidate(gang("a", 2, 5000), **can), gang("b", 2, 499), missing=2)  # type: ignore[arg-type]
    assert (cheap.action, cheap.victims) == (VictimAction.STOP, ("b",))
    barred = chosen(Candidate(gang("a", 2, 5000), False, NOT_OURS, **can), gang("b", 2, 900), missing=2)  # type: ignore[arg-type]
    assert (barred.action, barred.victims) == (VictimAction.STOP, ("b",))
    assert codes(barred)["a"] == "NOT_OURS"


def test_one_in_a_write_can_be_asked_where_nothing_else_can_give_back() -> None:
    choice = chosen(Candidate(writing("w", 2, None), save=SaveState.ASKABLE), missing=2)
    assert (choice.action, choice.victims) == (VictimAction.REQUEST_SAVE, ("w",))


def test_gangs_that_do_not_run_lose_nothing_whatever_is_known_of_them() -> None:
    idle, busy = Candidate(unknown("i", 2), idle=True), gang("b", 2, 10)
    choice = chosen(idle, busy, missing=2)
    assert (choice.victims, choice.lost_gpu_s) == (("i",), 0.0)
    assert codes(choice) == {"i": "CHOSEN", "b": "NOT_CHOSEN"}
    barred = chosen(Candidate(unknown("i", 2), True, NOT_OURS), busy, missing=2)
    assert barred.victims == ("b",)
    assert codes(barred)["i"] == "NOT_OURS"


def test_while_others_may_become_safe_nothing_is_taken_before_the_deadline() -> None:
    choice = chosen(gang("a", 1, 50), writing("w", 2, None), missing=3)
    assert (choice.action, choice.reason.code, choice.victims) == (VictimAction.WAIT, "NOT_YET", ())
    assert choice.until_s == NOW_S + 15
    assert choice.reason.message.startswith("3 GPUs missing; ")
    assert choice.reason.message.endswith(", 300 s are left.")
    assert codes(choice) == {"a": "NOT_CHOSEN", "w": "WRITING"}
    assert chosen(gang("a", 1), writing("w", 2, None), missing=3, left_s=10.0).until_s == NOW_S + 10


@pytest.mark.parametrize("left_s", [0.0, -5.0])
def test_past_the_deadline_all_that_may_give_back_do(left_s: float) -> None:
    choice = chosen(gang("b", 1, 50), gang("a", 1, 20), writing("w", 2, None), missing=4, left_s=left_s)
    assert (choice.action, choice.reason.code, choice.victims) == (VictimAction.STOP, "PARTLY", ("a", "b"))
    assert (choice.lost_gpu_s, choice.until_s) == (70.0, NOW_S + 15)
    assert choice.reason.message == "All GPUs of a, b are reclaimed; that is less than the 4 GPUs needed."
    assert codes(choice) == {"b": "CHOSEN", "a": "CHOSEN", "w": "WRITING"}
    assert dict(choice.candidate_reasons)["a"] == Reason("CHOSEN", choice.reason.message)


def test_what_does_not_run_adds_nothing_to_what_all_of_them_lose() -> None:
    choice = chosen(Candidate(unknown("i", 1), idle=True), gang("b", 1, 50), missing=4)
    assert (choice.reason.code, choice.victims, choice.lost_gpu_s) == ("PARTLY", ("b", "i"), 50.0)


def test_where_all_that_there_are_may_give_back_and_do_not_suffice_the_deadline_is_not_waited_for() -> None:
    choice = chosen(gang("b", 1, 50), gang("a", 1, 20), missing=4)
    assert (choice.action, choice.reason.code, choice.victims) == (VictimAction.STOP, "PARTLY", ("a", "b"))


def test_where_nobody_may_give_back_it_is_the_native_schedulers() -> None:
    choice = chosen(unknown("a", 2), missing=2, left_s=0.0)
    assert (choice.action, choice.reason.code, choice.victims) == (VictimAction.LEAVE, "NATIVE", ())
    assert choice.until_s == NOW_S + 15
    assert "2 GPUs have to be reclaimed and no gang is eligible" in choice.reason.message
    assert codes(choice) == {"a": "NO_STATUS"}
    assert chosen(missing=2).action is VictimAction.LEAVE


def test_a_queue_gives_back_no_more_than_it_has_beyond_its_own() -> None:
    large, small = gang("large", 4, 10, queue="x"), gang("small", 2, 50, queue="y")
    assert chosen(large, small, missing=2, spare={"x": 1000}).victims == ("small",)
    assert chosen(large, small, missing=2, spare={"x": 2000}).victims == ("large",)
    assert chosen(large, small, missing=2, spare={"y": 0}).victims == ("large",)
    assert chosen(large, small, missing=2).victims == ("large",)


def test_gangs_of_one_queue_share_what_it_has_beyond_its_own() -> None:
    ours = [gang("a", 2, 10, queue="x"), gang("b", 2, 20, queue="x")]
    other = gang("c", 2, 500, queue="y")
    assert chosen(*ours, other, missing=4, spare={"x": 2000}).victims == ("a", "c")
    assert chosen(*ours, other, missing=4, spare={"x": 4000}).victims == ("a", "b")
    assert chosen(*ours, other, missing=4, spare={"x": 3000}).victims == ("a", "c")
    below = chosen(*ours, missing=3, spare={"x": 2000})
    assert (below.action, below.victims) == (VictimAction.STOP, ("a", "b")), (
        "there is no set that spares the queue's own"
    )


def test_a_set_that_gives_back_enough_may_take_a_queue_below_its_own() -> None:
    ours, other = [gang("a", 4, 10, queue="x"), gang("b", 2, 20, queue="x")], gang("c", 5, 500, queue="y")
    assert chosen(*ours, other, missing=5, spare={"x": 5000}).victims == ("a", "b")
    assert chosen(*ours, other, missing=5, spare={"x": 4999}).victims == ("c",)
    almost = chosen(gang("a", 2, queue="x"), missing=2, spare={"x": 1999})
    assert (almost.action, almost.reason.code) == (VictimAction.STOP, "PARTLY")


def test_nobody_is_asked_where_another_will_soon_lose_less() -> None:
    askable = Candidate(gang("a", 2, 5000), save=SaveState.ASKABLE)
    choice = chosen(askable, writing("w", 2, 60.0), missing=2)
    assert (choice.action, choice.lost_gpu_s) == (VictimAction.WAIT, 190.0)


def test_among_many_the_cheapest_of_each_gpu_are_compared_and_as_many_as_are_needed() -> None:
    dear = [gang(f"d{number:02}", 1, 1000.0 + number) for number in range(MOST_CANDIDATES + 5)]
    assert chosen(*dear[: MOST_CANDIDATES - 1], gang("cheap", 1, 5), missing=1).victims == ("cheap",)
    choice = chosen(*dear, gang("cheap", 1, 5), missing=1)
    assert choice.victims == ("cheap",)
    assert len(choice.candidate_reasons) == MOST_CANDIDATES
    assert {name for name, _ in choice.candidate_reasons} == {
        "cheap",
        *(f"d{number:02}" for number in range(MOST_CANDIDATES - 1)),
    }
    every = chosen(*dear, missing=MOST_CANDIDATES + 5)
    assert len(every.victims) == MOST_CANDIDATES + 5
    barely = choose([Candidate(each) for each in dear], PreemptionState(), 1000 * MOST_CANDIDATES + 1, NOW_S, NOW_S)
    assert len(barely.victims) == MOST_CANDIDATES + 1, "a thousandth of a GPU more than the first ones have"


def test_among_many_the_price_is_of_each_gpu_and_those_that_cannot_go_now_come_last() -> None:
    small = [gang(f"s{number:02}", 1, 100.0) for number in range(MOST_CANDIDATES)]
    wide = gang("wide", 8, 400.0)
    choice = chosen(*small, wide, writing("w", 8, 60.0, lost=1.0), missing=8)
    assert choice.victims == ("wide",)
    names = [name for name, _ in choice.candidate_reasons]
    assert names[0] == "wide"
    assert "w" not in names


def test_among_many_what_a_queue_can_spare_is_counted_once() -> None:
    ours = [gang(f"a{number:02}", 1, 1.0 + number, queue="x") for number in range(MOST_CANDIDATES)]
    others = [gang(f"b{number}", 1, 100.0 + number, queue="y") for number in range(4)]
    choice = chosen(*ours, *others, missing=4, spare={"x": 2000})
    assert choice.victims == ("a00", "a01", "b0", "b1")
    assert len(choice.candidate_reasons) == MOST_CANDIDATES + 2
