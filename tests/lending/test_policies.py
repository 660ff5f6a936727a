"""What is promised of the policies, whatever comes: drawn at random."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kopt.core.reason import Reason
from kopt.core.scheduling.lending_pool import LendingPool, PoolService, Verb
from kopt.core.units import MilliGpu
from kopt.core.workload.checkpoint import Estimate, JobState, JobStatus, Member
from kopt.core.workload.save_state import SaveState
from kopt.policies.lending import (
    Candidate,
    Choice,
    Claim,
    HeldWorkload,
    Room,
    ServiceSnapshot,
    Turn,
    VictimAction,
    choose,
    lead_time,
    plan,
    resumed,
    shares,
    turn,
)
from kopt.policies.lending import VictimAction as Action
from kopt.policies.lending.plan import learned
from kopt.policies.lending.policy import LendingState
from kopt.policies.lending.returns import PATIENCE_S
from kopt.policies.preemption import PreemptionState, RunningGang

NOW_S, LEAD_S = 1_900_000_000.0, 300.0
QUANTILES = (0.5, 0.9, 0.95, 0.99)
CALM = dict(zip(QUANTILES, (2.0, 3.0, 3.0, 4.0), strict=True))
SPIKE = dict(zip(QUANTILES, (9.0, 10.0, 11.0, 12.0), strict=True))
demands = st.lists(st.floats(0, 40), min_size=4, max_size=4).map(
    lambda found: dict(zip(QUANTILES, sorted(found), strict=True))
)


@st.composite
def moments(draw: st.DrawFn) -> tuple[int, dict[float, float] | None]:
    """What pods ask for, and a forecast or none."""
    return draw(st.integers(0, 20)), draw(st.none() | demands)


def pool(gpus: int = 16, minimum: int = 2, hold_s: float = 0.0, hysteresis: int = 1) -> LendingPool:
    service = PoolService("chat", "team", {"app": "chat"}, "team/chat", 1.0, minimum)
    return LendingPool("p", gpus, (service,), hold_s=hold_s, hysteresis_gpus=hysteresis)


def view(gpus: int, forecast: dict[float, float] | None, minimum: int = 2) -> ServiceSnapshot:
    return ServiceSnapshot("chat", gpus, 1.0, minimum, {LEAD_S: forecast} if forecast is not None else {})


@given(st.lists(moments(), min_size=1, max_size=30), st.sampled_from([0.0, 120.0, 1800.0]), st.integers(0, 4))
def test_never_lends_what_is_guaranteed_or_asked_for(
    found: list[tuple[int, dict[float, float] | None]], hold_s: float, hysteresis: int
) -> None:
    one, state = pool(hold_s=hold_s, hysteresis=hysteresis), LendingState()
    for number, (asked, forecast) in enumerate(found):
        before = state.lent_gpus
        now_s = NOW_S + 60 * number
        state = learned(one, state, asked, now_s, 120.0)
        made = plan(one, [view(asked, forecast)], before, LEAD_S, state, now_s)
        state = made.state
        assert 0 <= made.lent <= one.gpus - 2
        assert made.lent <= max(0, one.gpus - asked)
        assert made.provision == one.gpus - made.lent
        assert made.gpus == abs(made.lent - before)
        assert (made.verb is Verb.KEEP) == (made.lent == before)
        if forecast is None:
            assert made.lent <= before, "nothing new is lent without a forecast"
        if asked > one.gpus - before:
            assert made.need_in_s == 0, "a pod that waits is a need at once"


def test_a_forecast_alone_takes_back_before_the_spike() -> None:
    state = LendingState()
    lent = plan(pool(), [view(2, CALM)], 0, LEAD_S, state, NOW_S)
    found = plan(pool(), [view(2, SPIKE)], lent.lent, LEAD_S, lent.state, NOW_S + 60)
    assert (lent.verb, found.verb) == (Verb.LEND, Verb.RECLAIM)
    assert found.lent == 4
    assert found.need_in_s == LEAD_S


def test_the_first_horizon_that_is_short_says_when() -> None:
    one = ServiceSnapshot("chat", 2, 1.0, 2, {300.0: CALM, 900.0: CALM, 1800.0: SPIKE})
    found = plan(pool(), [one], 8, 1800.0, LendingState(lent_gpus=12), NOW_S)
    assert found.need_in_s == 1800.0
    assert plan(pool(), [one], 0, 1800.0, LendingState(), NOW_S).need_in_s == math.inf


def test_a_miss_makes_it_more_cautious() -> None:
    state = LendingState()
    first = plan(pool(), [view(2, CALM)], 0, LEAD_S, state, NOW_S)
    later = NOW_S + LEAD_S
    missed = learned(pool(), first.state, 12, later, 120.0)
    assert plan(pool(), [view(2, CALM)], 0, LEAD_S, missed, later).caution > (first.caution or 0)  # type: ignore[operator]
    unseen = learned(pool(), first.state, 12, later + 1000, 120.0)
    assert unseen.caution.level is None, "nothing is learned from a moment that was not seen"


@given(st.integers(0, 40), st.lists(st.builds(Claim, st.integers(0, 20), st.integers(0, 30)), max_size=5))
def test_shares_are_what_is_lent_and_no_more(lent: int, claims: list[Claim]) -> None:
    found = shares(lent, claims)
    assert sum(found) == (
        min(lent, sum(one.borrowed for one in claims))
        if sum(one.borrowed for one in claims) > lent
        else lent
        if claims
        else 0
    )
    if sum(one.borrowed for one in claims) > lent:
        assert all(share <= one.borrowed for share, one in zip(found, claims, strict=True))
    else:
        assert all(share >= one.borrowed for share, one in zip(found, claims, strict=True)), "nobody loses for another"


def test_little_is_taken_from_one_queue_and_much_from_all() -> None:
    """Each queue gives whole gangs: one GPU from each of four would cost four gangs."""
    assert shares(396, [Claim(100)] * 4) == (96, 100, 100, 100)
    assert shares(200, [Claim(100)] * 4) == (44, 52, 52, 52)
    assert shares(10, [Claim(30), Claim(2)]) == (8, 2)


waiting = st.lists(
    st.builds(
        HeldWorkload,
        st.text("abcdef", min_size=1, max_size=6),
        st.integers(1, 8).map(lambda n: n * 1000),
        st.integers(0, 50),
        st.floats(NOW_S - 7200, NOW_S),
    ),
    max_size=12,
    unique_by=lambda one: one.name,
)


@given(waiting, st.integers(0, 20_000))
def test_return_in_order_into_the_room_there_is(found: list[HeldWorkload], room: int) -> None:
    names = resumed(found, room, 16_000, NOW_S)
    by_name = {one.name: one for one in found}
    assert len(set(names)) == len(names)
    assert sum(by_name[name].gpus for name in names) <= room
    assert all(by_name[a].order <= by_name[b].order for a, b in pairwise(names))
    passed = [one for one in found if one.name not in names]
    for one in passed:
        behind = [by_name[name] for name in names if by_name[name].order > one.order]
        assert not any(it.gpus >= one.gpus for it in behind), "nobody as large passes it"
        if NOW_S - one.since_s > PATIENCE_S:
            assert not behind, "after an hour nobody passes"


@given(waiting, waiting, st.integers(0, 20), st.integers(0, 20))
def test_nobody_new_comes_before_one_that_has_waited_too_long(
    held: list[HeldWorkload], returning: list[HeldWorkload], usable: int, used: int
) -> None:
    room = Room(usable * 1000, used * 1000, 0, 16_000)
    returning = [replace(one, name=f"back/{one.name}") for one in returning]
    found = turn(room, held, returning, NOW_S)
    back = [one for one in held if one.name in found.names]
    assert used * 1000 + sum(one.gpus for one in (*back, *_that_fit(returning, room))) <= max(usable, used) * 1000
    assert found.open <= max(usable, used) * 1000
    left = [one for one in (*held, *returning) if one not in back and one not in _that_fit(returning, room)]
    if any(NOW_S - one.since_s > PATIENCE_S for one in left):
        entering = sum(one.gpus for one in (*back, *_that_fit(returning, room)))
        assert found.open <= used * 1000 + entering, "what they need who were let go, and nothing for who is new"
        assert entering or found.open == 0, "and nothing that comes free"
    else:
        assert found.open == usable * 1000


def _that_fit(returning: list[HeldWorkload], room: Room) -> list[HeldWorkload]:
    found, left = [], room.usable - room.used
    for one in sorted(returning, key=lambda it: (it.order, it.name)):
        if one.gpus <= left:
            found.append(one)
            left -= one.gpus
    return found


def test_nobody_waits_for_one_that_will_never_fit() -> None:
    big = HeldWorkload("big", 8000, 1, NOW_S - 7200)
    assert turn(Room(4000, 2000, 0, 6000), [big], [], NOW_S).open == 4000
    assert turn(Room(4000, 2000, 0, 8000), [big], [], NOW_S).open == 0
    assert turn(Room(4000, 2000, 0, 8000), [HeldWorkload("big", 8000, 1, NOW_S - 60)], [], NOW_S).open == 4000
    assert turn(Room(8000, 0, 0, 8000), [big], [], NOW_S).names == ("big",)


def test_who_was_let_go_and_has_waited_too_long_is_not_passed_either() -> None:
    big, small = HeldWorkload("big", 8000, 1, NOW_S - 7200), HeldWorkload("small", 1000, 2, NOW_S - 60)
    assert turn(Room(2000, 0, 0, 8000), [small], [big], NOW_S) == Turn((), 0)
    assert turn(Room(9000, 0, 0, 8000), [small], [big], NOW_S) == Turn(("small",), 9000)


def test_who_has_waited_too_long_gets_what_is_free_first() -> None:
    assert shares(6, [Claim(0, 8), Claim(0, 4, due=4, due_s=10.0)]) == (2, 4)
    assert shares(6, [Claim(4, 8), Claim(0, 4, due=4, due_s=10.0)]) == (4, 2), "nobody loses for it"
    assert shares(6, [Claim(0, 8, due=5, due_s=20.0), Claim(0, 8, due=4, due_s=10.0)]) == (2, 4)


@given(waiting, st.lists(st.integers(0, 12_000), min_size=1, max_size=20))
def test_each_returns_once(found: list[HeldWorkload], rooms: list[int]) -> None:
    left, back = list(found), list[str]()
    for room in [*rooms, 200_000]:
        names = resumed(left, room, 200_000, NOW_S)
        back += names
        left = [one for one in left if one.name not in names]
    assert sorted(back) == sorted(one.name for one in found)


STATES = tuple(JobState)


@st.composite
def gangs(draw: st.DrawFn) -> list[Candidate]:
    saving = st.sampled_from(list(SaveState))
    return [
        Candidate(
            gang(
                f"team/j{number}",
                draw(st.integers(1, 4)),
                draw(st.sampled_from(STATES)),
                draw(st.booleans()),
                draw(st.booleans()),
                draw(st.integers(0, 5000)),
                draw(st.sampled_from([1.0, 30.0, 200.0])),
            ),
            draw(st.booleans()),
            draw(st.none() | st.just(Reason("NOT_OURS", "no"))),
            draw(saving),
        )
        for number in range(draw(st.integers(0, 7)))
    ]


def gang(
    name: str,
    gpus: int,
    state: JobState = JobState.TRAIN,
    safe: bool = True,
    evidence: bool = True,
    lost: float = 100.0,
    age_s: float = 1.0,
) -> RunningGang:
    status = JobStatus(
        state,
        safe,
        evidence,
        1.0,
        seconds_since_durable=lost / gpus if evidence else None,
        work_at_risk_gpu_seconds=Estimate(lost, 0.0, lost * 2 + 1) if evidence else None,
    )
    member = Member(MilliGpu(gpus * 1000), status, NOW_S - age_s)
    return RunningGang(name, "q", 0, (member,), NOW_S - 3600)


@given(gangs(), st.integers(1, 12), st.floats(-100, 600))
def test_never_one_in_a_write_or_without_evidence(found: list[Candidate], missing: int, left_s: float) -> None:
    choice = choose(found, PreemptionState(), missing * 1000, NOW_S, NOW_S + left_s)
    by_name = {one.gang.name: one for one in found}
    assert len(choice.candidate_reasons) == len(found)
    if choice.action is not VictimAction.STOP:
        assert choice.action is VictimAction.REQUEST_SAVE or choice.victims == ()
        assert choice.until_s is None or choice.until_s >= NOW_S
    for name in choice.victims:
        one = by_name[name]
        assert one.barred is None
        status = one.gang.members[0].status
        assert status is not None
        if choice.action is VictimAction.STOP and not one.idle:
            assert status.state is not JobState.CKPT_WRITING
            assert status.evidence
            assert status.safe
        if choice.action is VictimAction.REQUEST_SAVE:
            assert one.save in (SaveState.ASKABLE, SaveState.ASKED)
            assert left_s > 0, "nobody is asked past the deadline"


def test_the_cheapest_goes_and_no_more_than_needed() -> None:
    found = [Candidate(gang("a", 2, lost=900)), Candidate(gang("b", 2, lost=10)), Candidate(gang("c", 4, lost=300))]
    choice = choose(found, PreemptionState(), 2000, NOW_S, NOW_S + 300)
    assert (choice.action, choice.victims) == (VictimAction.STOP, ("b",))


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 4), st.integers(0, 5000)), min_size=1, max_size=8),
    st.integers(1, 12),
    st.dictionaries(st.sampled_from("xyz"), st.integers(0, 8)),
)
def test_the_pool_gives_back_what_loses_least_whatever_the_queue(
    found: list[tuple[str, int, int]], missing: int, spare: dict[str, int]
) -> None:
    """Against all sets there are; a queue gives back no more than it has beyond its own."""
    them = [
        Candidate(replace(gang(f"j{number}", gpus, lost=lost), queue=queue))
        for number, (queue, gpus, lost) in enumerate(found)
    ]
    limits = {queue: gpus * 1000 for queue, gpus in spare.items()}
    choice = choose(them, PreemptionState(), missing * 1000, NOW_S, NOW_S - 1, spare=limits)

    def freed(chosen: Sequence[Candidate]) -> int:
        total = Counter[str]()
        for one in chosen:
            total[one.gang.queue] += one.gang.gpus
        return sum(min(gpus, limits.get(queue, gpus)) for queue, gpus in total.items())

    def lost(chosen: Sequence[Candidate]) -> float:
        return sum(found[int(one.gang.name[1:])][2] + one.gang.gpus / 1000 for one in chosen)

    sets = [its for size in range(1, len(them) + 1) for its in combinations(them, size) if freed(its) >= missing * 1000]
    chosen = [one for one in them if one.gang.name in choice.victims]
    if sets and not spare:
        assert lost(chosen) <= min(map(lost, sets)) + 0.01
    if sets and choice.reason.code == "LEAST_LOST":
        alone = [
            one
            for one in sets
            if all(sum(it.gang.gpus for it in one if it.gang.queue == queue) <= gpus for queue, gpus in limits.items())
        ]
        if alone:
            assert freed(chosen) >= missing * 1000
            assert lost(chosen) <= min(map(lost, alone)) + 0.01


def test_a_gang_on_gpus_of_its_queues_own_gives_back_the_rest_alone() -> None:
    found = [Candidate(replace(gang("a", 4, lost=1), queue="x")), Candidate(replace(gang("c", 3, lost=50), queue="y"))]
    choice = choose(found, PreemptionState(), 4000, NOW_S, NOW_S + 300, spare={"x": 1000, "y": 3000})
    assert (choice.action, choice.victims) == (VictimAction.STOP, ("a", "c"))


def test_who_does_not_run_goes_first() -> None:
    found = [Candidate(gang("a", 2, lost=1)), Candidate(gang("b", 2, JobState.UNKNOWN, False, False), idle=True)]
    assert choose(found, PreemptionState(), 2000, NOW_S, NOW_S + 300).victims == ("b",)


@pytest.mark.parametrize(("left_s", "verdict", "victims"), [(300.0, Action.WAIT, ()), (0.0, Action.STOP, ("b",))])
def test_a_write_is_waited_for_until_the_deadline(left_s: float, verdict: Action, victims: tuple[str, ...]) -> None:
    """Past it those go who may, and the native scheduler takes the rest."""
    found = [Candidate(gang("a", 2, JobState.CKPT_WRITING, False)), Candidate(gang("b", 1))]
    choice = choose(found, PreemptionState(), 3000, NOW_S, NOW_S + left_s)
    assert (choice.action, choice.victims) == (verdict, victims)


def asked(save: SaveState, left_s: float, state: JobState = JobState.TRAIN, lost: float = 5000) -> Choice:
    safe = state is JobState.TRAIN
    found = [Candidate(gang("a", 2, state, safe, lost=lost), save=save)]
    return choose(found, PreemptionState(), 2000, NOW_S, NOW_S + left_s)


def test_who_can_be_asked_saves_first() -> None:
    assert (asked(SaveState.ASKABLE, 300).action, asked(SaveState.ASKABLE, 300).victims) == (
        Action.REQUEST_SAVE,
        ("a",),
    )
    assert asked(SaveState.ASKED, 20).action is Action.REQUEST_SAVE, "it is waited for"
    assert asked(SaveState.SAVED, 300, lost=10).action is Action.STOP
    assert asked(SaveState.EXPIRED, 300).action is Action.STOP
    assert asked(SaveState.ASKABLE, 20).action is Action.STOP, "there is no time to answer"
    assert asked(SaveState.ASKED, -1).action is Action.STOP, "past the deadline"
    assert asked(SaveState.ASKED, -1, JobState.CKPT_WRITING).action is Action.LEAVE


def test_lead_time_is_learned_from_what_was_seen() -> None:
    assert lead_time(None, [], 30.0, []).seconds == 210.0
    found = lead_time(None, [10.0] * 9 + [100.0], 20.0, [30.0, 40.0])
    assert (found.seconds, found.needed_s) == (70.0, 30.0)
    assert lead_time(300.0, [1000.0], 30.0, []) == lead_time(300.0, [2000.0], 30.0, [])
    assert lead_time(None, [90_000.0], 30.0, []).seconds == 3600.0
