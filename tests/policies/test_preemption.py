"""What pre-emption may never do, and that it takes those who lose least."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.decision import Mode
from kopt.core.units import MilliGpu
from kopt.core.workload.checkpoint import Estimate, JobState, JobStatus, Member
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
    observe,
)
from kopt.policies.preemption.checkpoint_interval import beat
from kopt.policies.preemption.evidence import outlook
from kopt.policies.preemption.native import expected_loss
from kopt.policies.preemption.search import Need, Option, cheapest
from kopt.policies.preemption.state import Rhythm

NOW = 100_000.0
QUEUES = ("a", "b", "c")


def training(risk_gpu_s: float = 600.0, since_s: float = 300.0) -> JobStatus:
    return JobStatus(
        JobState.TRAIN,
        safe=True,
        evidence=True,
        confidence=0.95,
        seconds_since_durable=since_s,
        work_at_risk_gpu_seconds=Estimate(risk_gpu_s, 0.5 * risk_gpu_s, 2 * risk_gpu_s),
        next_safe_seconds=Estimate(0, 0, 0),
    )


def writing(ends_in_s: float | None = 60.0) -> JobStatus:
    after = None if ends_in_s is None else Estimate(ends_in_s, ends_in_s / 2, 2 * ends_in_s)
    return JobStatus(
        JobState.CKPT_WRITING,
        evidence=True,
        confidence=0.95,
        seconds_since_durable=1800.0,
        work_at_risk_gpu_seconds=Estimate(2000, 1500, 2500),
        next_safe_seconds=after,
    )


def gang(name: str, status: JobStatus | None = None, gpus: int = 1, **more: object) -> RunningGang:
    member = Member(MilliGpu(1000 * gpus), status, NOW)
    return replace(RunningGang(name, "", 0, (member,), NOW - 50_000), **more)  # type: ignore[arg-type]


def waiting(gpus: int = 1, budget_s: float = 0.0, **more: object) -> Preemptor:
    return replace(Preemptor("urgent", "", 10, MilliGpu(1000), NOW, budget_s, gpus), **more)  # type: ignore[arg-type]


def decided(
    *gangs: RunningGang,
    ask: Preemptor | None = None,
    state: PreemptionState | None = None,
    how: PreemptionSettings | None = None,
    **more: Mapping[str, object],
) -> PreemptionDecision:
    scene = Snapshot(ask or waiting(), gangs, NOW, **more)  # type: ignore[arg-type]
    return decide(scene, state, how)[0]


def reason_for(decision: PreemptionDecision, name: str) -> str:
    return next(note.reason.code for note in decision.candidates if note.gang == name)


# Scenes as they may come: any status, any queue, any place.

estimates = st.tuples(st.floats(0, 1e6), st.floats(0, 1), st.floats(1, 3)).map(
    lambda drawn: Estimate(drawn[0], drawn[0] * drawn[1], drawn[0] * drawn[2])
)
statuses = st.builds(
    JobStatus,
    state=st.sampled_from(JobState),
    safe=st.booleans(),
    evidence=st.booleans(),
    confidence=st.floats(0, 1),
    seconds_since_durable=st.none() | st.floats(0, 1e5),
    work_at_risk_gpu_seconds=st.none() | estimates,
    next_safe_seconds=st.none() | estimates,
    next_checkpoint_seconds=st.none() | estimates,
)
good = st.builds(training, st.floats(0, 1e5), st.floats(0, 3600))
spoiled = st.tuples(
    good,
    st.sampled_from(
        [
            {"state": JobState.CKPT_WRITING},
            {"state": JobState.UNKNOWN},
            {"safe": False},
            {"evidence": False},
            {"confidence": 0.1},
            {"work_at_risk_gpu_seconds": None},
            {"state": JobState.FINISHED},
        ]
    ),
).map(lambda drawn: replace(drawn[0], **drawn[1]))
members = st.builds(
    Member,
    gpus=st.sampled_from([500, 1000, 2000, 8000]).map(MilliGpu),
    status=st.one_of(good, good, good, good, spoiled, spoiled, statuses, st.none()),
    observed_at_s=st.sampled_from([NOW, NOW, NOW, NOW, NOW - 5, NOW - 29, NOW - 31, NOW - 1e4, NOW + 60]),
    node=st.sampled_from(["", "n1", "n2"]),
)


@st.composite
def gangs(draw: st.DrawFn, name: str) -> RunningGang:
    return RunningGang(
        name,
        draw(st.sampled_from(["", *QUEUES])),
        draw(st.integers(0, 6)),
        tuple(draw(st.lists(members, min_size=1, max_size=2))),
        NOW - draw(st.sampled_from([10.0, 2000.0, 90_000.0])),
        draw(st.sampled_from([True, True, True, False])),
        draw(st.sampled_from([0, 0, 0, 1, 4])),
        draw(st.none() | st.floats(0, 600)),
    )


@st.composite
def scenes(draw: st.DrawFn) -> Snapshot:
    found = tuple(draw(gangs(f"g{number}")) for number in range(draw(st.integers(0, 7))))
    parents = {"a": "", "b": draw(st.sampled_from(["", "a"])), "c": draw(st.sampled_from(["", "a", "b"]))}
    queues = {
        name: QueueShare(
            name,
            MilliGpu(draw(st.integers(0, 10)) * 1000),
            MilliGpu(draw(st.integers(0, 20)) * 1000),
            draw(st.none() | st.integers(20, 40).map(lambda gpus: MilliGpu(1000 * gpus))),
            parents[name],
        )
        for name in QUEUES
        if draw(st.sampled_from([True, True, True, False]))
    }
    ask = Preemptor(
        "urgent",
        draw(st.sampled_from(["", *QUEUES])),
        draw(st.integers(4, 12)),
        MilliGpu(draw(st.sampled_from([500, 1000, 2000]))),
        NOW - draw(st.sampled_from([0.0, 100.0, 400.0])),
        draw(st.sampled_from([0.0, 300.0])),
        draw(st.integers(1, 6)),
    )
    free = draw(st.dictionaries(st.sampled_from(["", "n1", "n2"]), st.sampled_from([0, 500, 1000]), max_size=3))
    return Snapshot(ask, found, NOW, queues, free)


@st.composite
def states(draw: st.DrawFn) -> PreemptionState:
    rhythms = tuple(
        Rhythm(
            f"g{number}",
            NOW - 90_000,
            NOW - 60,
            NOW - draw(st.floats(60, 4000)),
            tuple(draw(st.lists(st.floats(10, 4000), max_size=9))),
        )
        for number in range(8)
        if draw(st.booleans())
    )
    return PreemptionState(rhythms)


def _fits(free: Mapping[str, int], per_pod: int, pods: int) -> bool:
    return sum(amount // per_pod for amount in free.values()) >= pods


@given(scenes(), states())
def test_a_write_in_progress_or_no_evidence_is_never_chosen(scene: Snapshot, state: PreemptionState) -> None:
    decision, _ = decide(scene, state)
    for one in (one for one in scene.gangs if one.name in decision.victims):
        for member in one.members:
            assert member.status is not None
            assert member.status.state not in (JobState.CKPT_WRITING, JobState.UNKNOWN)
            assert member.status.safe
            assert member.status.evidence
            assert NOW - member.observed_at_s <= PreemptionSettings().stale_s
    assert set(decision.guarded).isdisjoint(decision.unguarded)
    assert set(decision.unguarded).isdisjoint(decision.victims)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (None, "NO_STATUS"),
        (writing(), "WRITING"),
        (replace(training(), state=JobState.CKPT_WRITING), "WRITING"),
        (replace(training(), state=JobState.UNKNOWN), "UNKNOWN"),
        (replace(training(), evidence=False), "NO_EVIDENCE"),
        (replace(training(), safe=False), "NOT_SAFE"),
        (replace(training(), confidence=0.4), "UNSURE"),
        (replace(training(), work_at_risk_gpu_seconds=None), "COST_UNKNOWN"),
        (replace(training(), work_at_risk_gpu_seconds=Estimate(math.inf, 0, math.inf)), "COST_UNKNOWN"),
        (replace(training(), state=JobState.FINISHED), "ENDING"),
    ],
)
def test_doubt_spares_a_gang_whatever_it_would_cost(status: JobStatus | None, code: str) -> None:
    decision = decided(gang("g", status))
    assert decision.action is PreemptionAction.LEAVE
    assert reason_for(decision, "g") == code


def test_an_old_status_says_nothing_about_now() -> None:
    one = gang("g", training())
    old = replace(one, members=(replace(one.members[0], observed_at_s=NOW - 31),))
    assert reason_for(decided(old), "g") == "STALE"
    assert decided(replace(one, members=(replace(one.members[0], observed_at_s=NOW - 29),))).victims == ("g",)


@given(scenes(), states())
def test_no_queue_falls_below_its_guarantee(scene: Snapshot, state: PreemptionState) -> None:
    decision, _ = decide(scene, state)
    own, name = set(), scene.preemptor.queue
    while name in scene.queues and name not in own:
        own.add(name)
        name = scene.queues[name].parent
    lost: dict[str, int] = {}
    for one in (one for one in scene.gangs if one.name in decision.victims):
        name = one.queue
        while name in scene.queues:
            lost[name] = lost.get(name, 0) + one.gpus
            name = scene.queues[name].parent
    for name in lost.keys() - own:
        assert scene.queues[name].used - lost[name] >= scene.queues[name].guaranteed


@given(scenes(), states())
def test_victims_have_lower_priority_and_free_enough_or_nobody_goes(scene: Snapshot, state: PreemptionState) -> None:
    decision, after = decide(scene, state)
    chosen = [one for one in scene.gangs if one.name in decision.victims]
    assert (decision.action is PreemptionAction.PREEMPT) == bool(chosen)
    assert len(after.evictions) == len(chosen)
    assert all(one.preemptible and one.priority < scene.preemptor.priority for one in chosen)

    def free_without(gone: list[RunningGang]) -> dict[str, int]:
        free = dict(scene.free)
        for one in gone:
            for member in one.members:
                free[member.node] = free.get(member.node, 0) + member.gpus
        return free

    ask = scene.preemptor
    if chosen:
        assert _fits(free_without(chosen), ask.gpus_per_pod, ask.pods)
        for spared in chosen:
            left = [one for one in chosen if one is not spared]
            assert not _fits(free_without(left), ask.gpus_per_pod, ask.pods)


@given(scenes(), states(), st.randoms(use_true_random=False))
def test_the_order_of_the_gangs_means_nothing(scene: Snapshot, state: PreemptionState, chance: object) -> None:
    shuffled = list(scene.gangs)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert decide(replace(scene, gangs=tuple(shuffled)), state) == decide(scene, state)


@given(scenes(), states())
def test_every_candidate_gets_a_reason_and_every_wait_a_moment(scene: Snapshot, state: PreemptionState) -> None:
    decision, _ = decide(scene, state)
    assert [note.gang for note in decision.candidates] == sorted(one.name for one in scene.gangs)
    assert {note.gang for note in decision.candidates if note.selected} == set(decision.victims)
    assert all(note.reason.code and note.reason.message.endswith(".") for note in decision.candidates)
    assert decision.reasons
    assert (decision.action is PreemptionAction.WAIT) == (decision.until_s is not None)
    if decision.until_s is not None:
        assert decision.until_s > NOW
    document = decision.to_dict()
    assert document["verdict"] == decision.action.value
    assert len(decision.as_decision(Mode.OBSERVE).actions) == (
        len(decision.victims) + len(decision.guarded) + len(decision.unguarded)
    )


@settings(max_examples=examples(60))
@given(scenes(), states(), st.floats(1, 1e5))
def test_more_work_at_risk_never_makes_a_gang_more_likely_to_be_chosen(
    scene: Snapshot, state: PreemptionState, more_gpu_s: float
) -> None:
    victims = decide(scene, state)[0].victims
    for place, one in enumerate(scene.gangs):
        status = one.members[0].status
        risk = status.work_at_risk_gpu_seconds if status else None
        if status is None or risk is None or one.name in victims:
            continue
        more = risk.value + more_gpu_s
        dearer = replace(one.members[0], status=replace(status, work_at_risk_gpu_seconds=Estimate(more, more, more)))
        changed = replace(one, members=(dearer, *one.members[1:]))
        others = (*scene.gangs[:place], changed, *scene.gangs[place + 1 :])
        assert one.name not in decide(replace(scene, gangs=others), state)[0].victims


# The search.


def _brute(options: list[Option], need: Need) -> tuple[int, int, int] | None:
    found = []
    for chosen in itertools.chain.from_iterable(itertools.combinations(options, n) for n in range(len(options) + 1)):
        free, slack = dict(need.free), dict(need.slack)
        for one in chosen:
            for node, amount in one.on:
                free[node] = free.get(node, 0) + amount
            for queue in one.queues:
                slack[queue] = slack.get(queue, 10**9) - one.gpus
        if min(slack.values(), default=0) >= 0 and _fits(free, need.per_pod, need.pods):
            found.append((sum(one.cost for one in chosen), len(chosen), sum(one.gpus for one in chosen)))
    return min(found, default=None)


@st.composite
def options(draw: st.DrawFn, name: str) -> Option:
    on = draw(st.dictionaries(st.sampled_from("xy"), st.sampled_from([500, 1000, 2000]), min_size=1))
    queues = tuple(sorted(draw(st.sets(st.sampled_from("pq")))))
    return Option(name, draw(st.sampled_from([0, 0, 7, 7, 20, 33, 100])), sum(on.values()), tuple(on.items()), queues)


@settings(max_examples=examples(80))
@given(st.data())
def test_the_search_finds_what_trying_everything_finds(data: st.DataObject) -> None:
    found = [data.draw(options(f"g{number}")) for number in range(data.draw(st.integers(0, 8)))]
    free, slack = data.draw(st.sampled_from([0, 500, 1000])), data.draw(st.sampled_from([0, 2000, 9000]))
    need = Need(data.draw(st.integers(1, 4)), data.draw(st.sampled_from([500, 1000, 2000])), {"x": free}, {"p": slack})
    best, result = _brute(found, need), cheapest(found, need, 1)
    assert cheapest(found[::-1], need, 1) == result
    by_name = {one.name: one for one in found}
    assert (result is None) == (best is None)
    if result is not None:
        gpus = sum(by_name[name].gpus for name in result.names)
        assert (result.cost, len(result.names), gpus) == best
        assert result.exact


def test_among_many_candidates_the_search_stays_within_its_steps_and_says_so() -> None:
    many = [
        Option(f"g{n:03}", 1000 + (n * 7919) % 97, 1000 * (1 + n % 3), (("", 1000 * (1 + n % 3)),)) for n in range(200)
    ]
    found = cheapest(many, Need(50, 1000), 400)
    assert found is not None
    assert not found.exact
    ratios = sorted(one.cost / one.gpus for one in many)
    assert 50_000 * ratios[0] <= found.cost <= 1.2 * 50_000 * ratios[40]


# Scenes with a name.


def test_the_gang_that_loses_least_makes_room_and_the_others_hear_why() -> None:
    decision = decided(gang("dear", training(5000)), gang("cheap", training(50)), gang("silent"))
    assert decision.victims == ("cheap",)
    assert decision.lost_gpu_s == pytest.approx(50)
    assert [reason_for(decision, name) for name in ("cheap", "dear", "silent")] == ["CHOSEN", "DEARER", "NO_STATUS"]


@pytest.mark.parametrize(("priority", "goes"), [(9, True), (10, False), (11, False)])
def test_only_a_lower_priority_makes_room(priority: int, goes: bool) -> None:
    decision = decided(gang("g", training(10), priority=priority), ask=waiting(priority=10))
    assert decision.victims == (("g",) if goes else ())
    assert (reason_for(decision, "g") == "PRIORITY") == (not goes)


def test_a_gang_is_counted_as_one_over_all_its_members() -> None:
    pair = gang("pair", training(400))
    pair = replace(pair, members=(pair.members[0], Member(MilliGpu(1000), training(400), NOW)))
    assert decided(pair, gang("one", training(500)), gang("two", training(500)), ask=waiting(2)).victims == ("pair",)
    torn = replace(pair, members=(pair.members[0], Member(MilliGpu(1000), writing(), NOW)))
    decision = decided(torn, gang("one", training(500)), gang("two", training(500)), ask=waiting(2))
    assert decision.victims == ("one", "two")
    assert reason_for(decision, "pair") == "WRITING"


def test_room_on_two_nodes_is_no_room_for_a_pod_that_needs_one() -> None:
    members = {name: (Member(MilliGpu(1000), training(10), NOW, name),) for name in "xy"}
    halves = [gang(name, members=of) for name, of in members.items()]
    ask = waiting(1, gpus_per_pod=MilliGpu(2000))
    assert decided(*halves, ask=ask).action is PreemptionAction.LEAVE
    assert decided(*halves, ask=ask, free={"x": 1000}).victims == ("x",)


def test_a_write_that_ends_within_the_budget_is_waited_for() -> None:
    gangs = gang("saves", writing(60)), gang("trains", training(3000))
    decision = decided(*gangs, ask=waiting(budget_s=300))
    assert decision.action is PreemptionAction.WAIT
    assert decision.reasons[0].code == "CHEAPER_LATER"
    assert decision.until_s is not None
    assert decision.until_s - NOW == PreemptionSettings().recheck_s
    assert decided(*gangs, ask=waiting(budget_s=30)).victims == ("trains",)
    assert decided(*gangs, ask=waiting(budget_s=300, since_s=NOW - 301)).victims == ("trains",)


def test_a_checkpoint_that_the_rhythm_promises_is_waited_for() -> None:
    """Every 1,800 s so far, the last 1,620 s ago: the next is due in three minutes."""
    state = PreemptionState((Rhythm("g", NOW - 50_000, NOW - 60, NOW - 1620, (1800.0,) * 5),))
    regular = gang("g", training(1700, 1620))
    decision = decided(regular, gang("other", training(1500)), ask=waiting(budget_s=300), state=state)
    assert decision.action is PreemptionAction.WAIT
    assert reason_for(decision, "g") == "WRITE_DUE"
    assert decision.reasons[0].numbers["in_s"] == pytest.approx(180, abs=1)
    assert decided(regular, gang("other", training(1500)), ask=waiting(), state=state).victims == ("other",)


def test_the_next_checkpoint_that_a_status_expects_is_waited_for_where_no_rhythm_was_seen() -> None:
    status = replace(training(1700, 300), next_checkpoint_seconds=Estimate(120, 100, 140))
    decision = decided(gang("g", status), gang("other", training(1600)), ask=waiting(budget_s=300))
    assert (decision.action, decision.reasons[0].code) == (PreemptionAction.WAIT, "CHEAPER_LATER")
    assert decision.reasons[0].numbers["in_s"] == pytest.approx(120)
    soon = replace(status, next_checkpoint_seconds=Estimate(40, 30, 50))
    assert reason_for(decided(gang("g", soon)), "g") == "WRITE_DUE"
    overdue = gang("g", replace(status, next_checkpoint_seconds=Estimate(5, 2, 10)))
    assert decided(replace(overdue, members=(replace(overdue.members[0], observed_at_s=NOW - 20),))).victims == ("g",)


def test_a_checkpoint_that_was_none_leaves_the_rhythm_as_it_is() -> None:
    steady, torn = (1800.0,) * 6, (1800.0, 1800.0, 500.0, 1300.0, 1800.0, 1800.0, 1800.0)
    assert beat(steady, 0.3) == beat(torn, 0.3)
    missed = beat((1800.0, 3600.0, 1800.0, 1800.0), 0.3)
    assert missed is not None
    assert missed.period_s == missed.shortest_s == 1800
    assert beat((1800.0, 500.0, 1300.0, 500.0, 1300.0, 1800.0), 0.3) is None, "too often to be mistakes"
    for changed in ((500.0, 500.0), (500.0, 400.0, 900.0)):
        assert beat((*steady, *changed), 0.3) is None, "several on end: another rhythm"
    assert beat((*steady, 500.0, 400.0, 900.0, 1800.0), 0.3), "long ago"
    last = beat((*steady, 500.0), 0.3)
    assert last is not None
    assert (last.period_s, last.early_s) == (1800, 500)


def test_a_checkpoint_too_early_counts_as_doubtful_and_the_next_is_due_as_if_it_were_none() -> None:
    rhythm = Rhythm("g", NOW - 50_000, NOW - 60, NOW - 100, (1800.0,) * 5 + (900.0,))
    decision = decided(gang("g", training(200, 100)), gang("sure", training(1000)), state=PreemptionState((rhythm,)))
    assert decision.victims == ("sure",)
    lost = {note.gang: note.lost_gpu_s for note in decision.candidates}
    assert lost["g"] == pytest.approx(200 + 900)
    late = replace(rhythm, durable_at_s=NOW - 650)
    decision = decided(gang("g", training(750, 650)), state=PreemptionState((late,)))
    assert reason_for(decision, "g") == "WRITE_DUE", "1,550 s after the last that fits"


@pytest.mark.parametrize(
    ("intervals", "code"), [((), "WRITE_POSSIBLE"), ((5400.0,), "WRITE_POSSIBLE"), ((5400.0,) * 3, "CHOSEN")]
)
def test_one_interval_may_span_checkpoints_that_nobody_saw(intervals: tuple[float, ...], code: str) -> None:
    state = PreemptionState((Rhythm("g", NOW - 50_000, NOW - 60, NOW - 900, intervals),))
    assert reason_for(decided(gang("g", training(1000, 900)), state=state), "g") == code


def test_an_overdue_checkpoint_may_come_at_any_moment() -> None:
    """It is not taken for one that nobody saw, after which there would be time again."""

    def spared(ago_s: float) -> str:
        state = PreemptionState((Rhythm("g", NOW - 50_000, NOW - 60, NOW - ago_s, (1800.0,) * 5),))
        return reason_for(decided(gang("g", training(ago_s, ago_s)), state=state), "g")

    assert [spared(ago_s) for ago_s in (1000, 1700, 2500, 9000)] == [
        "CHOSEN",
        "WRITE_DUE",
        "WRITE_DUE",
        "WRITE_POSSIBLE",
    ]


def test_where_checkpoints_may_come_at_any_moment_a_large_loss_is_worth_a_moment() -> None:
    gangs = [gang(f"g{number}", training(400, 300)) for number in range(12)]
    ask = waiting(budget_s=300)
    assert decided(*gangs, ask=ask).reasons[0].code == "MAY_GET_CHEAPER"
    assert decided(*gangs, gang("fresh", training(80, 20)), ask=ask).victims == ("fresh",)


def test_a_job_that_never_reports_is_never_chosen_but_not_kept_from_the_native_scheduler() -> None:
    young, old = gang("young", started_at_s=NOW - 3600), gang("old", started_at_s=NOW - 7 * 3600)
    decision = decided(young, old)
    assert (decision.guarded, decision.unguarded, decision.victims) == ((), (), ())
    assert decision.action is PreemptionAction.LEAVE
    assert decision.reasons[0].code == "NATIVE_LOSES_LESS"
    assert decision.lost_gpu_s == pytest.approx(3600 + PreemptionSettings().restart_s), "all since its start"
    busy = decided(young, gang("busy", writing(), gpus=2, started_at_s=NOW - 3600), ask=waiting(2))
    assert (busy.action, busy.guarded, busy.reasons[0].code) == (PreemptionAction.LEAVE, ("busy",), "BUDGET_SPENT")


@pytest.mark.parametrize(("ran_s", "left"), [(300, True), (700, False)])
def test_the_native_rule_is_left_alone_where_it_loses_less(ran_s: float, left: bool) -> None:
    """A gang of which nothing is known loses no more than its whole run so far."""
    new, safe = gang("new", started_at_s=NOW - ran_s), gang("safe", training(600))
    decision = decided(new, safe)
    assert (decision.action, decision.victims) == (
        (PreemptionAction.LEAVE, ()) if left else (PreemptionAction.PREEMPT, ("safe",))
    )
    large = replace(new, members=(replace(new.members[0], gpus=MilliGpu(8000)),))
    assert decided(large, safe).victims == ("safe",)


def test_it_is_not_left_alone_at_once_where_others_may_soon_lose_much_less() -> None:
    """Silent for hours on 8 GPUs, beside one that is about to write: next in 600 s, as its rhythm goes."""
    state = PreemptionState((Rhythm("g", NOW - 50_000, NOW - 60, NOW - 1200, (1800.0, 1800.0, 1800.0, 1500.0)),))
    gangs = gang("silent", gpus=8, started_at_s=NOW - 20_000), gang("g", training(1300, 1200), gpus=8)
    decision = decided(*gangs, ask=waiting(8, budget_s=300), state=state)
    assert reason_for(decision, "g") == "WRITE_DUE"
    assert (decision.action, decision.reasons[0].code) == (PreemptionAction.WAIT, "NOT_YET")
    assert (
        decided(*gangs, ask=waiting(8, budget_s=300, since_s=NOW - 290), state=state).action is PreemptionAction.LEAVE
    )


def test_the_native_scheduler_has_its_time_and_then_ours_is_taken() -> None:
    gangs = gang("new", started_at_s=NOW - 60), gang("safe", training(600))
    late = waiting(since_s=NOW - PreemptionSettings().settle_s - 1)
    assert decided(*gangs, ask=late).victims == ("safe",)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"preemptions": 3}, "LIMIT"),
        ({"preemptions": 1}, "RESUMED"),
        ({"priority": 10}, "PRIORITY"),
        ({"preemptible": False}, "NOT_PREEMPTIBLE"),
    ],
)
def test_whom_our_rules_protect_is_not_left_to_the_native_scheduler(change: dict[str, object], code: str) -> None:
    new, safe = gang("new", started_at_s=NOW - 60, **change), gang("safe", training(600))
    decision = decided(new, safe)
    assert decision.victims == ("safe",)
    assert reason_for(decision, "new") == code


@given(scenes(), states())
def test_no_more_is_expected_to_be_lost_than_by_the_native_rule(scene: Snapshot, state: PreemptionState) -> None:
    """Where it would take nobody who may be in a write or whom our rules protect, and nothing is waited for."""
    how, ask = PreemptionSettings(), replace(scene.preemptor, since_s=NOW, budget_s=0.0)
    decision, _ = decide(replace(scene, preemptor=ask), state, how)
    rhythms = {one.gang: one for one in observe(state, scene.gangs, NOW).rhythms}
    codes = {note.gang: note.reason.code for note in decision.candidates}
    free, chosen = dict(scene.free), list[RunningGang]()
    for one in sorted(scene.gangs, key=lambda one: (one.priority, -one.started_at_s, one.name)):
        in_reach = one.preemptible and one.priority < ask.priority and one.name not in decision.guarded
        if in_reach and not _fits(free, ask.gpus_per_pod, ask.pods):
            chosen.append(one)
            for member in one.members:
                free[member.node] = free.get(member.node, 0) + member.gpus
    ours_to_protect = {"REVERSAL", "LIMIT", "RESUMED", "QUOTA", "QUEUE_UNKNOWN"}
    left = not any(codes[one.name] in ours_to_protect or one.name in decision.unguarded for one in scene.gangs)
    if left and chosen and _fits(free, ask.gpus_per_pod, ask.pods) and decision.reasons[0].code != "QUEUE_LIMIT":
        most = sum(expected_loss(outlook(one, rhythms[one.name], NOW, how), NOW, how) for one in chosen)
        assert decision.lost_gpu_s is not None
        assert decision.lost_gpu_s <= most / 1000 + 1e-6


def test_a_job_stuck_in_a_write_loses_our_guard_after_it_was_last_seen_safe() -> None:
    stuck = gang("stuck", writing(None))
    safe_before = PreemptionState((Rhythm("stuck", stuck.started_at_s, NOW - 60, None, (), NOW - 3600),))
    assert decided(stuck, state=safe_before).guarded == ("stuck",)
    long_ago = PreemptionState((Rhythm("stuck", stuck.started_at_s, NOW - 60, None, (), NOW - 7 * 3600),))
    assert decided(stuck, state=long_ago).unguarded == ("stuck",)


def test_quota_is_spared_across_queues_and_counted_over_all_victims() -> None:
    ours = [gang(f"b{number}", training(10 * number), queue="b") for number in range(1, 4)]
    shares = {"a": QueueShare("a", MilliGpu(4000), MilliGpu(0)), "b": QueueShare("b", MilliGpu(1000), MilliGpu(3000))}
    assert decided(*ours, ask=waiting(2, queue="a"), queues=shares).victims == ("b1", "b2")
    assert decided(*ours, ask=waiting(3, queue="a"), queues=shares).action is PreemptionAction.LEAVE
    assert decided(*ours, ask=waiting(3, queue="b"), queues=shares).victims == ("b1", "b2", "b3")
    tight = shares | {"b": QueueShare("b", MilliGpu(3000), MilliGpu(3000))}
    decision = decided(*ours, ask=waiting(1, queue="a"), queues=tight)
    assert reason_for(decision, "b1") == "QUOTA"
    unknown = decided(*ours, ask=waiting(1, queue="a"), queues={})
    assert reason_for(unknown, "b1") == "QUEUE_UNKNOWN"


def test_those_told_to_go_count_against_the_quota_until_they_are_gone() -> None:
    ours = tuple(gang(f"b{number}", training(10 * number), queue="b") for number in (1, 2))
    shares = {"a": QueueShare("a", MilliGpu(4000), MilliGpu(0)), "b": QueueShare("b", MilliGpu(1000), MilliGpu(2000))}
    first, state = decide(Snapshot(waiting(1, queue="a"), ours, NOW, shares))
    assert first.victims == ("b1",)
    second, _ = decide(Snapshot(waiting(1, queue="a", name="next"), ours, NOW + 1, shares), state)
    assert second.action is PreemptionAction.LEAVE
    assert reason_for(second, "b1") == "GOING"


def test_a_queue_takes_back_what_it_owns_from_any_priority_only_where_that_is_set() -> None:
    borrower = gang("b", training(10), queue="b", priority=50)
    shares = {"a": QueueShare("a", MilliGpu(4000), MilliGpu(0)), "b": QueueShare("b", MilliGpu(0), MilliGpu(1000))}
    ask = waiting(1, queue="a")
    assert reason_for(decided(borrower, ask=ask, queues=shares), "b") == "PRIORITY"
    any_priority = PreemptionSettings(reclaims_any_priority=True)
    assert decided(borrower, ask=ask, queues=shares, how=any_priority).victims == ("b",)
    full = shares | {"a": QueueShare("a", MilliGpu(4000), MilliGpu(4000))}
    assert decided(borrower, ask=ask, queues=full, how=any_priority).action is PreemptionAction.LEAVE


def test_a_workload_over_its_queues_limit_takes_nobodys_room() -> None:
    shares = {"a": QueueShare("a", MilliGpu(0), MilliGpu(1000), limit=MilliGpu(1000))}
    decision = decided(gang("g", training(10), queue="a"), ask=waiting(1, queue="a"), queues=shares)
    assert (decision.action, decision.reasons[0].code) == (PreemptionAction.LEAVE, "QUEUE_LIMIT")


def test_victims_on_their_way_out_are_room_for_a_while() -> None:
    one, two = gang("one", training(10)), gang("two", training(20))
    first, state = decide(Snapshot(waiting(), (one, two), NOW))
    assert first.victims == ("one",)
    again, same = decide(Snapshot(waiting(), (one, two), NOW + 5), state)
    assert (again.action, again.reasons[0].code, again.victims) == (PreemptionAction.WAIT, "GOING", ())
    assert same.evictions == state.evictions


def test_whoever_made_room_does_not_take_it_back() -> None:
    low, high = gang("low", training(10)), gang("high", training(10), priority=1)
    _, state = decide(Snapshot(waiting(name="high", priority=1), (low,), NOW))
    raised = Preemptor("low", "", 10, MilliGpu(1000), NOW + 60, 0.0)
    fresh = replace(high, members=(replace(high.members[0], observed_at_s=NOW + 60),))
    decision, _ = decide(Snapshot(raised, (fresh,), NOW + 60), state)
    assert reason_for(decision, "high") == "REVERSAL"
    assert decision.action is PreemptionAction.LEAVE


def test_intervals_are_learned_from_what_is_seen_and_not_across_a_restart() -> None:
    state = PreemptionState()
    for number in range(4):
        at = NOW + 600 * number
        one = gang("g", training(100, 30))
        state = observe(state, [replace(one, members=(replace(one.members[0], observed_at_s=at),))], at)
    rhythm = state.rhythm("g")
    assert rhythm is not None
    assert rhythm.intervals_s == (600.0, 600.0, 600.0)
    later = NOW + 9000
    one = gang("g", training(100, 30), started_at_s=NOW + 5000)
    again = observe(state, [replace(one, members=(replace(one.members[0], observed_at_s=later),))], later).rhythm("g")
    assert again is not None
    assert (again.intervals_s, again.durable_at_s) == (rhythm.intervals_s, later - 30)


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.floats(1, 900), st.integers(0, 5)), min_size=5, max_size=60))
def test_a_long_story_never_flaps(story: list[tuple[float, int]]) -> None:
    """Six jobs take turns in being evicted, waiting at raised priority and running again."""
    how = PreemptionSettings(most_per_hour=4, most_per_gang=3, resumed_s=1200, reversal_s=3600, hold_s=60)
    state, now = PreemptionState(), NOW
    started = {f"g{number}": NOW - 5000.0 for number in range(6)}
    told: list[tuple[float, str, str]] = []
    for step, (pause, number) in enumerate(story):
        now += pause
        asker = f"g{number}" if step % 2 else f"new{step}"
        running = tuple(
            gang(name, members=(Member(MilliGpu(1000), training(100 + int(name[1]), 60), now),), started_at_s=began)
            for name, began in started.items()
            if name != asker
        )
        # Whatever rhythm sixty seconds since the last checkpoint at every look would make.
        state = PreemptionState(evictions=state.evictions)
        ask = Preemptor(asker, "", 10, MilliGpu(1000), now, 0.0)
        decision, state = decide(Snapshot(ask, running, now), state, how)
        for victim in decision.victims:
            earlier = [at for at, name, _ in told if name == victim]
            assert len(earlier) < how.most_per_gang
            assert not earlier or now - started[victim] >= how.resumed_s
            assert not any(name == asker and by == victim and now - at < how.reversal_s for at, name, by in told)
            told.append((now, victim, asker))
            started[victim] = now + 1
        for at, _, _ in told:
            assert sum(at <= other < at + 3600 for other, _, _ in told) <= how.most_per_hour


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="hold_s"):
        PreemptionSettings(hold_s=-1)
    with pytest.raises(ValueError, match="stale_s"):
        PreemptionSettings(stale_s=math.nan)
    with pytest.raises(ValueError, match="confidence"):
        PreemptionSettings(min_confidence=2)
    with pytest.raises(ValueError, match="ancestor"):
        Snapshot(waiting(), (), NOW, {"a": QueueShare("a", MilliGpu(0), MilliGpu(0), parent="a")})
    with pytest.raises(ValueError, match="one name"):
        Snapshot(waiting(), (gang("g"), gang("g")), NOW)


def test_whom_the_limit_protects_is_told_so() -> None:
    often = gang("often", training(10), preemptions=3)
    decision = decided(often, gang("dear", training(900)))
    assert decision.victims == ("dear",)
    assert reason_for(decision, "often") == "LIMIT"
    resumed = gang("resumed", training(10), preemptions=1, started_at_s=NOW - 600)
    assert reason_for(decided(resumed), "resumed") == "RESUMED"
    assert decided(resumed, how=PreemptionSettings(resumed_s=500)).victims == ("resumed",)


def test_after_room_was_made_more_is_taken_only_after_a_while() -> None:
    """The victim is gone, and another workload was faster."""
    two = gang("two", training(20, 30))
    _, state = decide(Snapshot(waiting(), (gang("one", training(10)),), NOW))
    fresh = replace(two, members=(Member(MilliGpu(1000), training(80, 90), NOW + 60),))
    held, same = decide(Snapshot(waiting(), (fresh,), NOW + 60), state)
    assert (held.action, held.reasons[0].code, held.until_s) == (PreemptionAction.WAIT, "HOLD", NOW + 120)
    later = replace(two, members=(Member(MilliGpu(1000), training(140, 151), NOW + 121),))
    assert decide(Snapshot(waiting(), (later,), NOW + 121), same)[0].victims == ("two",)


def test_no_more_than_allowed_go_within_an_hour() -> None:
    how, state = PreemptionSettings(most_per_hour=1), PreemptionState().evicted(NOW - 600, ["earlier"], "other")
    decision = decided(gang("g", training(10)), state=state, how=how)
    assert (decision.action, decision.reasons[0].code, decision.until_s) == (PreemptionAction.WAIT, "RATE", NOW + 3000)


def test_of_equals_the_first_by_name_goes() -> None:
    gangs = [gang(name, training(10)) for name in ("b", "c", "a")]
    assert decided(*gangs).victims == decided(*reversed(gangs)).victims == ("a",)


def test_who_frees_gpus_one_by_one_may_be_thousands() -> None:
    options = [Option(f"g{n:04}", 100 + n, 1000, (("", 1000),)) for n in range(1500)]
    found = cheapest(options, Need(1, 1_200_000), 2_000)
    assert found is not None
    assert found.names == tuple(f"g{n:04}" for n in range(1200))
    assert cheapest(options, Need(1, 1_501_000), 2_000) is None


@pytest.mark.parametrize("lost", [1e308, 1e13, math.inf, math.nan])
def test_a_loss_that_cannot_be_is_none(lost: float) -> None:
    status = replace(training(), work_at_risk_gpu_seconds=unchecked(lost))
    decision = decided(gang("absurd", status), gang("safe", training()))
    assert decision.victims == ("safe",)
    assert decided(gang("absurd", status)).action is PreemptionAction.LEAVE


def unchecked(value: float) -> Estimate:
    """As a process of another version may have written it."""
    found = Estimate(1.0, 1.0, 1.0)
    object.__setattr__(found, "value", value)
    return found
