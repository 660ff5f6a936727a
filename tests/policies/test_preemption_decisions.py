"""What is decided about a workload that waits, with the numbers and the moment that go with it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kopt.core.units import MilliGpu
from kopt.core.workload.checkpoint import Estimate, Member
from kopt.policies.preemption import (
    PreemptionAction,
    PreemptionDecision,
    PreemptionSettings,
    PreemptionState,
    Preemptor,
    QueueShare,
    RunningGang,
    Snapshot,
    decide,
)
from kopt.policies.preemption.search import EXACT, Need, Option, cheapest
from kopt.policies.preemption.state import Eviction, Rhythm

from .test_preemption import NOW, decided, gang, training, waiting, writing

ALONE = PreemptionSettings(stands_aside=False)
RECHECK_S = ALONE.recheck_s


def summary(decision: PreemptionDecision) -> tuple[PreemptionAction, str, tuple[str, ...], float | None]:
    until_s = None if decision.until_s is None else decision.until_s - NOW
    return decision.action, decision.reasons[0].code, decision.victims, until_s


def numbers(decision: PreemptionDecision) -> Mapping[str, float | int | str]:
    return decision.reasons[0].numbers


def share(name: str, guaranteed: int, used: int, limit: int | None = None, parent: str = "") -> QueueShare:
    most = None if limit is None else MilliGpu(1000 * limit)
    return QueueShare(name, MilliGpu(1000 * guaranteed), MilliGpu(1000 * used), most, parent)


def on(node: str, *gangs: RunningGang) -> tuple[RunningGang, ...]:
    return tuple(replace(each, members=tuple(replace(member, node=node) for member in each.members)) for each in gangs)


def test_what_is_free_is_enough_or_a_milli_gpu_too_little() -> None:
    enough = decided(gang("g", training(10)), ask=waiting(2), free={"": 2000})
    assert summary(enough) == (PreemptionAction.FITS, "FITS", (), None)
    assert enough.reasons[0].message == "urgent asks for 2 GPUs, which are free."
    assert decided(gang("g", training(10)), ask=waiting(2), free={"": 1999}).victims == ("g",)
    assert decided(gang("g", training(10)), ask=waiting(2), free={"a": 1999, "b": 1999}).action is PreemptionAction.FITS


def test_what_is_free_below_limits_has_to_be_so_below_all_of_a_room() -> None:
    free = {"team": 2000, "pool": 1000}
    for rooms, action in (((("team",),), PreemptionAction.FITS), ((("team", "pool"),), PreemptionAction.LEAVE)):
        assert decided(ask=waiting(2), free=free, rooms=rooms).action is action  # type: ignore[arg-type]


def test_victims_are_counted_and_what_they_lose_and_how_long_was_waited() -> None:
    gangs = gang("a", training(30)), gang("b", training(20)), gang("c", training(900))
    decision = decided(*gangs, ask=waiting(2, since_s=NOW - 40), how=ALONE)
    assert summary(decision) == (PreemptionAction.PREEMPT, "LEAST_LOST", ("a", "b"), None)
    assert numbers(decision) == {"lost_gpu_s": 50.0, "waited_s": 40.0, "victims": 2}
    assert decision.lost_gpu_s == 50.0


def test_a_decision_is_remembered_as_made_for_its_workload() -> None:
    _, state = decide(Snapshot(waiting(), (gang("g", training(10)),), NOW), None, ALONE)
    assert state.evictions == (Eviction(NOW, "g", "urgent"),)
    assert [rhythm.gang for rhythm in state.rhythms] == ["g"]


@pytest.mark.parametrize(("used", "limited"), [(3, False), (4, True)])
def test_a_queue_may_use_its_limit_and_no_more(used: int, limited: bool) -> None:
    queues = {"q": share("q", 0, used, limit=5)}
    decision = decided(gang("g", training(10), queue="q"), ask=waiting(2, queue="q"), queues=queues, how=ALONE)
    assert (decision.reasons[0].code == "QUEUE_LIMIT") is limited
    if limited:
        assert summary(decision) == (PreemptionAction.LEAVE, "QUEUE_LIMIT", (), None)
        assert numbers(decision) == {"used_milli_gpu": 4000, "limit_milli_gpu": 5000}
        assert decision.reasons[0].message.startswith(
            "Queue q uses 4 of at most 5 GPUs; urgent asks for 2 more. Raise the limit or wait"
        )


def test_the_limit_of_a_queue_above_counts_and_one_that_has_none_does_not() -> None:
    queues = {"q": share("q", 0, 1, parent="p"), "p": share("p", 0, 4, limit=5)}
    assert summary(decided(ask=waiting(2, queue="q"), queues=queues))[1] == "QUEUE_LIMIT"
    assert summary(decided(ask=waiting(1, queue="q"), queues=queues))[1] == "NOT_ENOUGH"


def going(*evictions: Eviction, pods: int = 1, free: int = 0) -> str:
    gangs = gang("a", training(10), started_at_s=NOW - 1000), gang("b", training(20), started_at_s=NOW - 1000)
    state = PreemptionState((), evictions)
    decision = decided(*gangs, ask=waiting(pods), state=state, how=ALONE, free={"": free})
    if decision.reasons[0].code == "GOING":
        assert summary(decision) == (PreemptionAction.WAIT, "GOING", (), RECHECK_S)
        assert decision.reasons[0].message == "Gangs that were preempted for urgent are terminating."
    return decision.reasons[0].code


def test_those_that_were_told_to_make_room_for_it_are_waited_for() -> None:
    assert going(Eviction(NOW - 119, "a", "urgent")) == "GOING"
    assert going(Eviction(NOW - 120, "a", "urgent")) == "LEAST_LOST", "it should be gone"
    assert going(Eviction(NOW - 119, "a", "other")) == "LEAST_LOST"
    assert going(Eviction(NOW - 5, "c", "urgent")) == "HOLD", "of one that is gone there is nothing to wait for"
    both = Eviction(NOW - 5, "a", "urgent"), Eviction(NOW - 5, "b", "urgent")
    assert going(*both, pods=2) == "GOING"
    assert going(both[0], pods=2) == "NOT_ENOUGH"
    assert going(both[0], pods=2, free=1000) == "GOING", "with what is free"


def test_a_gang_that_started_again_is_not_going_any_more() -> None:
    again = gang("a", training(10), started_at_s=NOW - 30)
    at_its_start = PreemptionState((), (Eviction(NOW - 30, "a", "urgent"),))
    assert summary(decided(again, state=at_its_start))[1] == "GOING"
    before = PreemptionState((), (Eviction(NOW - 31, "a", "urgent"),))
    assert summary(decided(again, state=before))[1] != "GOING"


def test_those_on_their_way_out_are_room_on_their_own_node() -> None:
    gangs = *on("x", gang("a", training(10))), *on("y", gang("b", training(10)))
    state = PreemptionState((), (Eviction(NOW - 5, "a", "urgent"),))
    ask = waiting(1, gpus_per_pod=MilliGpu(2000))
    assert summary(decided(*gangs, ask=ask, state=state, free={"x": 1000}))[1] == "GOING"
    assert summary(decided(*gangs, ask=ask, state=state, free={"y": 1000}))[1] == "HOLD"
    small = replace(gangs[0], members=(replace(gangs[0].members[0], gpus=MilliGpu(999)),))
    assert summary(decided(small, gangs[1], state=state))[1] == "HOLD", "a thousandth too little on a node of its own"


def test_what_those_on_their_way_out_still_use_is_no_slack_of_their_queues() -> None:
    gangs = gang("a", training(10), queue="b"), gang("c", training(20), queue="b")
    queues = {"a": share("a", 4, 0), "b": share("b", 1, 3, parent="p"), "p": share("p", 1, 3)}
    told = PreemptionState((), (Eviction(NOW - 500, "a", "another"),))
    ask = waiting(1, queue="a")
    assert decided(*gangs, ask=ask, queues=queues, state=told, how=ALONE).victims == ("c",)
    tight = queues | {"p": share("p", 2, 3)}
    assert decided(*gangs, ask=ask, queues=tight, state=told, how=ALONE).action is PreemptionAction.LEAVE
    assert decided(*gangs, ask=ask, queues=tight, how=ALONE).victims == ("a",)


def test_waiting_for_a_cheaper_moment_says_what_it_brings_and_when_to_look_again() -> None:
    decision = decided(gang("w", writing(60.0)), gang("t", training(3000)), ask=waiting(budget_s=300), how=ALONE)
    assert summary(decision) == (PreemptionAction.WAIT, "CHEAPER_LATER", (), RECHECK_S)
    fresh = 2000 - 1800 + 90.0
    assert numbers(decision) == {"in_s": 60.0, "lost_gpu_s": fresh, "lost_now_gpu_s": 3000.0}
    assert decision.lost_gpu_s == fresh
    assert decision.reasons[0].message == (
        "In 60 s w should have fresh checkpoints and lose 290 GPU-seconds; preempting now would lose 3000."
    )
    alone = decided(gang("w", writing(60.0)), ask=waiting(budget_s=300), how=ALONE)
    assert numbers(alone) == {"in_s": 60.0, "lost_gpu_s": fresh}
    assert alone.reasons[0].message == "In 60 s w should have fresh checkpoints and lose 290 GPU-seconds."
    soon = decided(gang("w", writing(5.0)), ask=waiting(budget_s=300), how=replace(ALONE, recheck_s=3.0))
    assert summary(soon)[3] == 3.0
    near = decided(gang("w", writing(20.0)), ask=waiting(budget_s=300), how=replace(ALONE, recheck_s=20.0))
    assert summary(near)[3] == 20.0


@pytest.mark.parametrize(("budget_s", "waits"), [(60.0, True), (59.0, False)])
def test_a_moment_within_the_budget_is_waited_for(budget_s: float, waits: bool) -> None:
    gangs = gang("w", writing(60.0)), gang("t", training(3000))
    for begun_s in (0.0, 100.0):
        ask = waiting(budget_s=budget_s + begun_s, since_s=NOW - begun_s)
        assert (decided(*gangs, ask=ask, how=ALONE).action is PreemptionAction.WAIT) is waits


@pytest.mark.parametrize(("now_gpu_s", "waits"), [(295.0, False), (297.0, True)])
def test_waiting_has_its_price_for_each_gpu_that_waits(now_gpu_s: float, waits: bool) -> None:
    """60 s for one GPU at a tenth of a GPU-second: it must save 6 of what is lost now."""
    gangs = gang("w", writing(60.0)), gang("t", training(now_gpu_s))
    assert (decided(*gangs, ask=waiting(budget_s=300), how=ALONE).action is PreemptionAction.WAIT) is waits


def test_of_equal_plans_the_earlier_is_taken() -> None:
    free = replace(ALONE, wait_price=0.0)
    gangs = gang("w", writing(60.0)), gang("t", training(290.0))
    assert decided(*gangs, ask=waiting(budget_s=300), how=free).victims == ("t",)


def saving(name: str, risk_gpu_s: float, saves_s: float) -> RunningGang:
    return replace(gang(name, training(risk_gpu_s, risk_gpu_s)), saves_s=saves_s)


def test_those_whose_checkpoint_the_plan_needs_are_asked_in_time_and_not_earlier() -> None:
    decision = decided(saving("a", 5000, 40.0), ask=waiting(budget_s=300), how=ALONE)
    assert summary(decision) == (PreemptionAction.WAIT, "CHEAPER_LATER", (), RECHECK_S)
    assert decision.save_requests == ("a",)
    assert "; a can be asked to save." in decision.reasons[0].message
    pair = decided(saving("a", 5000, 40.0), saving("b", 5000, 90.0), ask=waiting(2, budget_s=300), how=ALONE)
    assert (pair.save_requests, numbers(pair)["in_s"]) == (("b",), 90.0), "there is time to ask a later"
    both = decided(saving("a", 5000, 90.0), saving("b", 5000, 90.0), ask=waiting(2, budget_s=300), how=ALONE)
    assert both.save_requests == ("a", "b")
    assert "a, b can be asked to save" in both.reasons[0].message
    writes = decided(gang("w", writing(60.0)), ask=waiting(budget_s=300), how=ALONE)
    assert writes.save_requests == ()


def hopeful(count: int, risk_gpu_s: float = 400.0, **more: object) -> PreemptionDecision:
    gangs = [gang(f"g{number:02}", training(risk_gpu_s, 300)) for number in range(count)]
    return decided(*gangs, ask=waiting(**({"budget_s": 300.0} | more)), how=ALONE)  # type: ignore[arg-type]


def test_where_checkpoints_may_come_a_moment_is_worth_what_they_should_save() -> None:
    """Each of twelve may have one within 1,800 s, after which 100 + 90 of its 400 GPU-seconds are lost."""
    decision = hopeful(12)
    assert summary(decision) == (PreemptionAction.WAIT, "MAY_GET_CHEAPER", (), RECHECK_S)
    assert decision.lost_gpu_s == 400.0
    assert numbers(decision) == {
        "saves_per_s": pytest.approx(12 * 210 / 1800),
        "costs_per_s": pytest.approx(1 + 0.1),
    }
    assert "should save 1.4 GPU-seconds per second of waiting, which costs 1.1." in decision.reasons[0].message
    assert hopeful(9).action is PreemptionAction.PREEMPT, "1.05 is less than 1.1"
    assert hopeful(10).action is PreemptionAction.WAIT


@pytest.mark.parametrize(("left_s", "waits"), [(RECHECK_S, True), (RECHECK_S - 1, False)])
def test_nothing_is_hoped_for_where_the_budget_ends_before_the_next_look(left_s: float, waits: bool) -> None:
    decision = hopeful(12, since_s=NOW - 100, budget_s=100 + left_s)
    assert (decision.action is PreemptionAction.WAIT) is waits


def test_a_checkpoint_that_would_change_nothing_saves_nothing() -> None:
    assert hopeful(40, risk_gpu_s=90.0).action is PreemptionAction.PREEMPT
    cheap = gang("cheap", training(50, 30), started_at_s=NOW - 50_000)
    gangs = [gang(f"g{number:02}", training(4000, 3900)) for number in range(12)]
    assert decided(*gangs, cheap, ask=waiting(budget_s=300), how=ALONE).victims == ("cheap",)


def test_what_may_become_safe_is_waited_for_while_there_is_budget() -> None:
    decision = decided(gang("w", writing(None)), ask=waiting(since_s=NOW - 10, budget_s=300), how=ALONE, free={"": 400})
    assert summary(decision) == (PreemptionAction.WAIT, "NOT_YET", (), RECHECK_S)
    assert numbers(decision) == {"missing_milli_gpu": 600, "budget_left_s": 290.0}
    assert decision.reasons[0].message.endswith("are not safe to kill yet; 290 s of its budget are left.")
    short = decided(gang("w", writing(None)), ask=waiting(budget_s=5), how=ALONE)
    assert summary(short) == (PreemptionAction.WAIT, "NOT_YET", (), 5.0)
    assert summary(decided(gang("w", writing(None)), ask=waiting(budget_s=0.5), how=ALONE))[3] == 0.5
    many = [gang(f"w{number:02}", writing(None)) for number in range(EXACT + 10)]
    assert summary(decided(*many, ask=waiting(budget_s=300), how=ALONE))[1] == "NOT_YET"


def test_where_nothing_suffices_it_is_said_whether_more_budget_would_have_helped() -> None:
    spent = decided(gang("w", writing(None)), ask=waiting(budget_s=0), how=ALONE)
    assert summary(spent) == (PreemptionAction.LEAVE, "BUDGET_SPENT", (), None)
    assert "urgent lacks 1 GPU; " in spent.reasons[0].message
    assert "its waiting budget is spent" in spent.reasons[0].message
    never = decided(gang("g", None), ask=waiting(budget_s=300), how=ALONE)
    assert summary(never) == (PreemptionAction.LEAVE, "NOT_ENOUGH", (), None)
    assert "they never free enough" in never.reasons[0].message
    assert numbers(never) == {"missing_milli_gpu": 1000, "budget_left_s": 300.0}
    safe = decided(gang("g", training()), ask=waiting(2, budget_s=300), how=ALONE)
    assert summary(safe)[1] == "NOT_ENOUGH"
    part = decided(gang("g", training()), gang("w", writing(None)), ask=waiting(2, budget_s=300), how=ALONE)
    assert summary(part)[1] == "NOT_YET", "the one is safe, the other may become so"


NEW = gang("new", started_at_s=NOW - 300)


def test_what_the_native_scheduler_does_better_is_left_to_it() -> None:
    decision = decided(NEW, gang("safe", training(600)))
    assert summary(decision) == (PreemptionAction.LEAVE, "NATIVE_LOSES_LESS", (), None)
    assert numbers(decision) == {"lost_gpu_s": 420.0}
    assert decision.lost_gpu_s == 420.0
    assert "which is expected to preempt new and lose 420 GPU-seconds" in decision.reasons[0].message
    assert decided(NEW, gang("safe", training(600)), how=ALONE).victims == ("safe",)
    assert decided(NEW, gang("safe", training(420))).victims == ("safe",), "where both lose as much it is ours"


@pytest.mark.parametrize(("ago_s", "left"), [(120.0, True), (121.0, False)])
def test_the_native_scheduler_has_a_while_after_the_budget(ago_s: float, left: bool) -> None:
    ask = waiting(budget_s=40, since_s=NOW - 40 - ago_s)
    assert (decided(NEW, gang("safe", training(600)), ask=ask).action is PreemptionAction.LEAVE) is left


def test_nothing_is_left_to_it_that_would_take_one_in_a_write_without_our_guard() -> None:
    status = replace(writing(None), work_at_risk_gpu_seconds=Estimate(10.0, 5.0, 20.0))
    stuck = replace(gang("stuck", status), started_at_s=NOW - 60)
    unguarded = PreemptionSettings(max_protection_s=30.0)
    decision = decided(stuck, gang("safe", training(600)), how=unguarded)
    assert (decision.unguarded, decision.victims) == (("stuck",), ("safe",))
    guarded = decided(stuck, NEW, gang("safe", training(600)))
    assert (guarded.guarded, guarded.reasons[0].code) == (("stuck",), "NATIVE_LOSES_LESS")


def test_it_takes_nobody_that_is_out_of_its_reach() -> None:
    fixed = gang("fixed", started_at_s=NOW - 10, preemptible=False)
    decision = decided(fixed, NEW, gang("safe", training(600)))
    assert summary(decision) == (PreemptionAction.LEAVE, "NATIVE_LOSES_LESS", (), None)
    assert numbers(decision) == {"lost_gpu_s": 420.0}


def test_more_is_taken_only_after_a_while_and_within_the_hours_limit() -> None:
    state = PreemptionState((), (Eviction(NOW - 50, "gone", "urgent"),))
    held = decided(gang("g", training(10)), state=state, how=ALONE)
    assert (summary(held), held.lost_gpu_s) == ((PreemptionAction.WAIT, "HOLD", (), 70.0), 10.0)
    assert held.reasons[0].message == "Gangs were preempted for urgent 50 s ago; no more are within 120 s."
    often = replace(ALONE, most_per_hour=0)
    assert summary(decided(gang("g", training(10)), how=often)) == (PreemptionAction.WAIT, "RATE", (), 3600.0)


def soon(risk: float, *, budget_s: float = 300.0, since_s: float = NOW, gpus: int = 8) -> PreemptionDecision:
    """Beside one that is silent and cheap for the native scheduler, one that will have a checkpoint at some time."""
    after = Estimate(400.0, 80.0, 500.0)
    due = gang("due", replace(training(risk, 300.0), next_checkpoint_seconds=after), gpus=8)
    silent = gang("silent", gpus=gpus, started_at_s=NOW - 400)
    return decided(silent, due, ask=waiting(8, budget_s=budget_s, since_s=since_s))


def test_before_it_is_left_to_the_native_scheduler_those_that_may_soon_lose_much_less_are_waited_for() -> None:
    """Started again for 100 GPU-seconds: 8 times 90 s and those after a checkpoint, against 8 times 520 s now."""
    decision = soon(2500.0)
    assert summary(decision) == (PreemptionAction.WAIT, "NOT_YET", (), RECHECK_S)
    assert numbers(decision) == {"lost_fresh_gpu_s": 820.0, "lost_native_gpu_s": 4160.0}
    assert decision.lost_gpu_s == 4160.0
    assert decision.reasons[0].message == (
        "due would lose 820 GPU-seconds after fresh checkpoints; "
        "the native scheduler's expected victims would lose 4160 now."
    )
    assert summary(soon(2400.0 + 4160.0 / 2 - 720.0))[1] == "NATIVE_LOSES_LESS", "not by half"
    assert summary(soon(2400.0 + 4160.0 / 2 - 721.0))[1] == "NOT_YET"


@pytest.mark.parametrize(("left_s", "code"), [(RECHECK_S, "NOT_YET"), (RECHECK_S - 1, "NATIVE_LOSES_LESS")])
def test_that_is_waited_for_only_while_the_budget_lasts(left_s: float, code: str) -> None:
    assert summary(soon(2500.0, budget_s=100 + left_s, since_s=NOW - 100))[1] == code


def test_up_to_twenty_options_the_search_is_exact_and_beyond_it_keeps_its_steps() -> None:
    def options(count: int) -> list[Option]:
        return [Option(f"g{number:02}", 100 + 7 * number % 31, 1000, (("", 1000),)) for number in range(count)]

    exact = cheapest(options(EXACT), Need(9, 1000), 1)
    assert exact is not None
    assert exact.exact
    assert exact.cost == sum(sorted(option.cost for option in options(EXACT))[:9])
    assert exact.gpus == 9000
    assert cheapest(options(EXACT + 1), Need(9, 1000), 1) is None
    many = cheapest(options(EXACT + 1), Need(9, 1000), 10_000)
    assert many is not None
    assert many.exact
    limited = cheapest(options(EXACT + 1), Need(9, 1000), 10)
    assert limited is not None
    assert not limited.exact


def test_less_than_nothing_free_on_a_node_does_not_count_against_others() -> None:
    option = Option("g", 5, 1000, (("x", 1000),))
    assert Need(1, 1000, {"x": -500, "y": 1000}).met_by({"x": -500, "y": 1000})
    result = cheapest([option], Need(1, 1000, {"x": -500, "y": 0}), 10)
    assert result is None, "what is owed there comes first"
    result = cheapest([option, Option("h", 5, 500, (("x", 500),))], Need(1, 1000, {"x": -500, "y": 0}), 10)
    assert result is not None
    assert (result.names, result.gpus) == (("g", "h"), 1500)


def test_options_that_free_nothing_are_left_out() -> None:
    nothing = Option("a", 0, 0, ())
    result = cheapest([nothing, Option("b", 5, 1000, (("", 1000),))], Need(1, 1000), 10)
    assert result is not None
    assert result.names == ("b",)


def test_a_claim_is_named_beside_what_it_is_expected_to_lose() -> None:
    claimed = replace(gang("w", writing(60.0)), members=(Member(MilliGpu(1000), writing(60.0), NOW, claimed=True),))
    decision = decided(claimed, gang("t", training(3000)), ask=waiting(budget_s=300), how=ALONE)
    assert "What is said of the checkpoints of w is " in decision.reasons[0].message


def test_a_rhythm_belongs_to_its_gang() -> None:
    rhythm = Rhythm("other", NOW - 50_000, NOW - 60, NOW - 1700, (1800.0,) * 5)
    assert decided(gang("g", training(10)), state=PreemptionState((rhythm,)), how=ALONE).victims == ("g",)
    own = PreemptionState((replace(rhythm, gang="g"),))
    assert decided(gang("g", training(1700, 1700)), state=own, how=ALONE).action is PreemptionAction.LEAVE


def test_a_workload_without_a_budget_waits_for_nothing() -> None:
    ask = Preemptor("urgent", "", 10, MilliGpu(1000), NOW, 0.0)
    assert decided(gang("w", writing(1.0)), gang("t", training(3000)), ask=ask, how=ALONE).victims == ("t",)
