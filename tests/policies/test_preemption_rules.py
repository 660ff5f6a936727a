"""Each rule of pre-emption at its limits, and the numbers that it gives with its reason."""

from collections.abc import Mapping
from dataclasses import replace

from kopt.core.scheduling.classify import ClassSigns, classify, preemption_bar
from kopt.core.scheduling.workload_class import default_classes
from kopt.core.units import MilliGpu
from kopt.policies.preemption import PreemptionSettings, PreemptionState, QueueShare, RunningGang, Snapshot
from kopt.policies.preemption.rules import forbidden, preemptions, too_soon
from kopt.policies.preemption.state import Eviction

from .test_preemption import NOW, gang, training, waiting

SETTINGS = PreemptionSettings()
HOUR_S, DAY_S = 3600.0, 86_400.0
ALLOWED = (None, {})


def share(name: str, guaranteed: int, used: int, limit: int | None = None, parent: str = "") -> QueueShare:
    most = None if limit is None else MilliGpu(1000 * limit)
    return QueueShare(name, MilliGpu(1000 * guaranteed), MilliGpu(1000 * used), most, parent)


def rule(
    candidate: RunningGang,
    *evictions: Eviction,
    settings: PreemptionSettings = SETTINGS,
    queues: tuple[QueueShare, ...] = (),
    **more: object,
) -> tuple[str | None, Mapping[str, float | int | str]]:
    """The code and numbers of the first rule that forbids to take ``candidate``."""
    snapshot = Snapshot(waiting(**more), (candidate,), NOW, {queue.name: queue for queue in queues})  # type: ignore[arg-type]
    reason = forbidden(candidate, snapshot, PreemptionState((), evictions), settings)
    assert reason is None or candidate.name in reason.message
    return (None, {}) if reason is None else (reason.code, reason.numbers)


def test_a_workload_that_runs_in_part_is_not_taken_for_itself() -> None:
    assert rule(gang("urgent", training())) == ("NOT_PREEMPTIBLE", {})
    assert rule(gang("g", training(), preemptible=False)) == ("NOT_PREEMPTIBLE", {})
    assert rule(gang("g", training())) == ALLOWED


def test_equal_priority_is_not_less() -> None:
    numbers = {"priority": 10, "waiting_priority": 10}
    assert rule(gang("g", training(), priority=10), priority=10) == ("PRIORITY", numbers)
    assert rule(gang("g", training(), priority=9), priority=10) == ALLOWED


def test_any_priority_is_reclaimed_only_by_an_owner_from_a_borrower() -> None:
    queues = share("a", 4, 0), share("b", 0, 1)
    how = PreemptionSettings(reclaims_any_priority=True)
    borrower = gang("g", training(), queue="b", priority=50)
    assert rule(borrower, settings=how, queues=queues, queue="a") == ALLOWED
    assert rule(borrower, queues=queues, queue="a")[0] == "PRIORITY"
    assert rule(replace(borrower, queue="a"), settings=how, queues=queues, queue="a")[0] == "PRIORITY"
    assert rule(borrower, settings=how, queues=(share("a", 0, 0), queues[1]), queue="a")[0] == "PRIORITY"


def test_a_queue_gives_exactly_what_it_borrowed() -> None:
    two = gang("g", training(), gpus=2, queue="b")
    assert rule(two, queues=(share("b", 1, 3),), queue="a") == ALLOWED
    numbers = {"guaranteed_milli_gpu": 2000, "used_milli_gpu": 3000}
    assert rule(two, queues=(share("b", 2, 3),), queue="a") == ("QUOTA", numbers)
    above = share("b", 0, 3, parent="p"), share("p", 2, 3)
    assert rule(two, queues=above, queue="a") == ("QUOTA", numbers)
    assert rule(two, queues=above, queue="b") == ALLOWED, "within its own queue"
    assert rule(two, queues=(*above, share("a", 0, 0, parent="p")), queue="a") == ALLOWED, "their parent loses nothing"


def test_a_class_that_is_not_preemptible_is_not_selected_and_its_reason_says_what_to_do() -> None:
    table = default_classes()
    session = classify(ClassSigns("interactive"), table)
    bar = preemption_bar("g", session)
    assert rule(gang("g", training(), barred_by_class=bar)) == ("CLASS_NOT_PREEMPTIBLE", {"class": "interactive"})
    assert bar is not None
    assert "kaiwo.ai/class" in bar.message
    assert preemption_bar("g", classify(ClassSigns("training"), table)) is None
    may = table.overridden({"classes": {"interactive": {"preemptible": True}}})
    assert preemption_bar("g", classify(ClassSigns("interactive"), may)) is None


def test_a_queue_of_which_nothing_is_known_gives_nothing() -> None:
    assert rule(gang("g", training(), queue="b"), queue="a") == ("QUEUE_UNKNOWN", {})
    assert rule(gang("g", training(), queue="a"), queue="a") == ALLOWED
    assert rule(gang("g", training()), queue="a") == ALLOWED


def test_a_gang_that_was_told_to_go_in_this_run_is_going() -> None:
    candidate = gang("g", training(), started_at_s=NOW - 100)
    assert rule(candidate, Eviction(NOW - 100, "g", "x")) == ("GOING", {"since_s": 100.0})
    twice = Eviction(NOW - 90, "g", "x"), Eviction(NOW - 30, "g", "y")
    assert rule(candidate, *twice) == ("GOING", {"since_s": 30.0})
    assert rule(candidate, Eviction(NOW - 30, "other", "x")) == ALLOWED
    assert rule(replace(candidate, started_at_s=NOW - 2000), Eviction(NOW - 2001, "g", "x")) == ALLOWED


def test_a_gang_that_resumed_is_left_alone_for_a_while() -> None:
    resumed = gang("g", training(), preemptions=1, started_at_s=NOW - 1799)
    assert rule(resumed) == ("RESUMED", {"runs_s": 1799.0, "resumed_s": 1800.0})
    assert rule(replace(resumed, started_at_s=NOW - 1800)) == ALLOWED
    assert rule(replace(resumed, preemptions=0)) == ALLOWED
    ours = Eviction(NOW - 5000, "g", "x")
    assert rule(replace(resumed, preemptions=0), ours)[0] == "RESUMED"


def test_a_gang_is_taken_so_often_within_a_day_and_not_more() -> None:
    assert rule(gang("g", training(), preemptions=2)) == ALLOWED
    assert rule(gang("g", training(), preemptions=3)) == ("LIMIT", {"preemptions": 3, "most": 3})
    strict = PreemptionSettings(most_per_gang=1)
    old = gang("g", training(), started_at_s=NOW - 10_000)
    assert rule(old, Eviction(NOW - DAY_S + 1, "g", "x"), settings=strict) == ("LIMIT", {"preemptions": 1, "most": 1})
    assert rule(old, Eviction(NOW - DAY_S, "g", "x"), settings=strict) == ALLOWED


def test_preemptions_are_the_most_that_anyone_knows_of() -> None:
    evictions = (Eviction(NOW - 10, "g", "x"), Eviction(NOW - 20, "g", "x"), Eviction(NOW - 30, "h", "x"))
    snapshot, state = Snapshot(waiting(), (), NOW), PreemptionState((), evictions)
    assert [preemptions(gang("g", preemptions=known), snapshot, state) for known in (0, 2, 5)] == [2, 2, 5]


def test_room_that_was_made_for_a_gang_is_not_taken_back_for_hours() -> None:
    made = Eviction(NOW - 4 * HOUR_S + 60, "urgent", "g")
    assert rule(gang("g", training()), made) == ("REVERSAL", {"minutes_ago": 239.0})
    assert rule(gang("g", training()), replace(made, at_s=NOW - 4 * HOUR_S)) == ALLOWED
    assert rule(gang("g", training()), replace(made, by="h")) == ALLOWED
    assert rule(gang("g", training()), replace(made, gang="h")) == ALLOWED


def test_of_several_rules_the_first_is_told() -> None:
    worst = gang("urgent", training(), preemptible=False, priority=99, queue="z", preemptions=9, started_at_s=NOW - 10)
    codes = [rule(worst, Eviction(NOW - 5, "urgent", "x"))[0], rule(worst)[0]]
    other = replace(worst, name="g", preemptible=True)
    made = Eviction(NOW - 60, "urgent", "g")
    codes += [rule(other, made)[0], rule(replace(other, priority=0), made)[0]]
    known = replace(other, priority=0, queue="")
    codes += [rule(known, made)[0], rule(known)[0], rule(replace(known, preemptions=1))[0]]
    assert codes == ["GOING", "NOT_PREEMPTIBLE", "PRIORITY", "QUEUE_UNKNOWN", "REVERSAL", "LIMIT", "RESUMED"]


def held(*evictions: Eviction, count: int = 1, **settings: float) -> tuple[str, Mapping[str, object], float] | None:
    snapshot = Snapshot(waiting(), (), NOW)
    how = PreemptionSettings(**settings)  # type: ignore[arg-type]
    result = too_soon(snapshot, PreemptionState((), evictions), count, how)
    if result is None:
        return None
    assert result[0].message.endswith(".")
    return result[0].code, result[0].numbers, result[1]


def test_after_victims_were_taken_for_a_workload_no_more_are_for_a_while() -> None:
    assert held(Eviction(NOW - 119, "g", "urgent")) == ("HOLD", {"since_s": 119.0}, NOW + 1)
    assert held(Eviction(NOW - 120, "g", "urgent")) is None
    assert held(Eviction(NOW - 5, "g", "other")) is None
    latest = Eviction(NOW - 300, "g", "urgent"), Eviction(NOW - 20, "h", "urgent")
    assert held(*latest) == ("HOLD", {"since_s": 20.0}, NOW + 100)


def test_within_an_hour_no_more_go_than_is_allowed_and_the_oldest_decide_until_when() -> None:
    earlier = [Eviction(NOW - 3000 + 100 * number, f"g{number}", "x") for number in range(3)]
    assert held(*earlier, count=2, most_per_hour=5) is None
    numbers = {"within_hour": 3, "most": 5}
    assert held(*reversed(earlier), count=3, most_per_hour=5) == ("RATE", numbers, NOW - 3000 + HOUR_S)
    assert held(*earlier, count=4, most_per_hour=5) == ("RATE", numbers, NOW - 2900 + HOUR_S)
    assert held(*earlier, count=9, most_per_hour=5) == ("RATE", numbers, NOW - 2800 + HOUR_S)
    assert held(count=2, most_per_hour=1) == ("RATE", {"within_hour": 0, "most": 1}, NOW + HOUR_S)
    assert held(count=1, most_per_hour=1) is None
    assert held(Eviction(NOW - HOUR_S, "g", "x"), most_per_hour=1) is None
    assert held(Eviction(NOW - HOUR_S + 1, "g", "x"), most_per_hour=1) == (
        "RATE",
        {"within_hour": 1, "most": 1},
        NOW + 1,
    )
