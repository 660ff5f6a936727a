"""The order as numbers: the same at any time, within the bound, in 32 bits; and which are written where."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.reason import Reason
from kopt.core.scheduling.queue_order import OrderedWorkload, OrderMark, OrderRules
from kopt.policies.priority import PendingWorkload, PriorityFormula
from kopt.policies.priority.order_writes import MOST_TIMES, OrderAction, OrderWrite, order_refusals, order_write
from kopt.policies.priority.queue_order import FIRST_S, HIGHEST, LAST_S, LOWEST, QueueOrder
from kopt.policies.priority.standing_order import StandingOrder

HOUR = 3600.0
NOW_S = 1_800_000_000.0
ORDER = QueueOrder()

orders = st.builds(
    QueueOrder, st.floats(0.1, 1000), st.floats(0, 100), st.floats(-1000, 1_000_000), st.integers(1, 4096)
)
workloads = st.builds(
    PendingWorkload,
    st.uuids().map(str),
    st.floats(-10_000, 2_000_000),
    st.floats(0, 5000),
    st.floats(NOW_S - 1000 * HOUR, NOW_S),
)


@given(orders, workloads, workloads, st.floats(0, 10_000 * HOUR))
@settings(max_examples=400, deadline=None)
def test_who_is_first_does_not_depend_on_when_it_is_asked(
    order: QueueOrder, one: PendingWorkload, other: PendingWorkload, later_s: float
) -> None:
    """A formula that nothing caps says at any time what the numbers say, but for less than their resolution."""
    formula = PriorityFormula(order.highest_class, order.age_per_hour, order.per_doubling, 0.0, order.most_gpus)

    def score(each: PendingWorkload) -> float:
        return formula.points(each) + order.age_per_hour * (NOW_S + later_s - each.submitted_s) / HOUR

    if order.number(one) > order.number(other):
        assert score(one) > score(other) - 1e-3
    if score(one) > score(other) + 2 * order.age_per_hour * order.resolution_s / HOUR:
        assert order.number(one) > order.number(other)


@given(orders, workloads, workloads, st.floats(0, 1000 * HOUR))
@settings(max_examples=400, deadline=None)
def test_nothing_that_comes_later_than_the_bound_is_ever_before_it(
    order: QueueOrder, own: PendingWorkload, other: PendingWorkload, more_s: float
) -> None:
    later_s = own.submitted_s + order.overtaken_by_until_s(own) + 1e-3 + more_s
    if later_s < LAST_S and order.number(own) > LOWEST:
        assert order.number(replace(other, submitted_s=later_s)) < order.number(own)


@given(orders, workloads)
@settings(max_examples=200, deadline=None)
def test_the_bound_is_met_by_the_worst_case(order: QueueOrder, own: PendingWorkload) -> None:
    """A smaller one would not hold: the highest class with most GPUs, just inside of it, is before."""
    bound_s = order.overtaken_by_until_s(own)
    worst = PendingWorkload("worst", order.highest_class, order.most_gpus, own.submitted_s + 0.9 * bound_s - 10.0)
    if own.submitted_s < worst.submitted_s < LAST_S and bound_s > 100 * order.resolution_s:
        assert order.number(worst) > order.number(own)


@given(st.lists(workloads, max_size=12))
def test_of_one_class_and_size_the_older_is_first(some: list[PendingWorkload]) -> None:
    alike = [replace(each, class_points=50.0, gpus=2.0) for each in some]
    alike.sort(key=lambda each: each.submitted_s)
    numbers = [ORDER.number(each) for each in alike]
    assert numbers == sorted(numbers, reverse=True)


@given(orders, st.floats(-1e12, 1e12), st.floats(0, 1e9), st.floats(-1e12, 1e12))
def test_numbers_fit_into_a_priority(order: QueueOrder, points: float, gpus: float, at_s: float) -> None:
    assert LOWEST <= order.number(PendingWorkload("any", points, gpus, at_s)) <= HIGHEST


def test_the_number_is_what_its_docstring_says() -> None:
    age_points = 10 * (LAST_S - NOW_S) / HOUR
    assert ORDER.number(PendingWorkload("a", 100.0, 8.0, NOW_S)) == int(100 * (100 + 15 + age_points))
    assert ORDER.number(PendingWorkload("a", 5000.0, 1.0, FIRST_S)) == int(
        100 * (1000 + 10 * (LAST_S - FIRST_S) / HOUR)
    )
    assert ORDER.resolution_s == pytest.approx(3.6)
    with pytest.raises(ValueError, match="divide both"):
        QueueOrder(age_per_hour=10_000)


def seen(
    name: str, *, age_s: float = 0.0, priority: int | None = 100, gpus: int = 1, **more: object
) -> OrderedWorkload:
    known = {"queue": "a", "class_name": "", "pending": True, **more}
    return OrderedWorkload(
        name=name, uid=name, priority=priority, more_points=0.0, gpus=1000 * gpus, created_s=NOW_S - age_s, **known
    )  # type: ignore[arg-type]


def standing_order(workloads: Iterable[OrderedWorkload], order: QueueOrder | None, *queues: str) -> StandingOrder:
    result = StandingOrder(order)
    result.include(set(queues))
    for workload in workloads:
        result.put(workload)
    return result


def write_of(workload: OrderedWorkload, order: QueueOrder = ORDER) -> OrderWrite:
    write = order_write(workload, order, is_ordered=True)
    assert isinstance(write, OrderWrite)
    return write


def written(workload: OrderedWorkload, order: QueueOrder = ORDER) -> OrderedWorkload:
    write = write_of(workload, order)
    assert write.mark is not None
    return replace(workload, priority=write.mark.written, mark=write.mark)


def test_numbers_are_written_from_the_first_in_the_order_down() -> None:
    some = [seen("late"), seen("old", age_s=20 * HOUR), seen("large", gpus=64), seen("high", priority=200)]
    writes = list(standing_order(some, ORDER, "a").writes)
    assert [write.workload.name for write in writes] == ["old", "high", "large", "late"]
    assert [write.mark.priority for write in writes if write.mark] == [100, 200, 100, 100]


def test_what_stands_is_not_written_again_and_what_is_admitted_is_left_alone() -> None:
    standing = written(seen("a"))
    both = standing_order([standing, replace(seen("b"), pending=False)], ORDER, "a")
    assert (both.unordered, both.ordered) == (0, 1)
    admitted = replace(standing, pending=False)
    assert order_write(admitted, QueueOrder(20.0), is_ordered=True) is None
    write = write_of(standing, QueueOrder(20.0))
    assert write.mark == replace(written(seen("a"), QueueOrder(20.0)).mark)
    assert write.mark is not None
    assert write.mark.priority == 100


@pytest.mark.parametrize("pending", [True, False])
def test_what_may_not_be_ordered_has_its_own_back_the_last_first(pending: bool) -> None:
    some = [replace(written(seen("old", age_s=HOUR)), pending=pending), replace(written(seen("new")), pending=pending)]
    for standing in (standing_order(some, None, "a"), standing_order(some, ORDER, "b")):
        assert [(write.action, write.workload.name) for write in standing.writes] == [
            (OrderAction.GIVE_BACK, "new"),
            (OrderAction.GIVE_BACK, "old"),
        ]
    assert order_write(replace(some[0], may_change=False), None, is_ordered=True) is None


def test_a_number_of_others_is_respected_and_another_class_counts() -> None:
    standing = written(seen("a"))
    respected = standing_order([replace(standing, priority=7)], ORDER, "a")
    assert respected.unordered == 0
    assert respected.respected["a"].code == "PRIORITY_OF_OTHERS"
    write = write_of(replace(standing, priority=200, class_name="high"))
    assert write.mark is not None
    assert (write.mark.priority, write.mark.written) == (200, standing.mark.written + 10_000)  # type: ignore[union-attr]


def test_its_own_priority_that_comes_back_is_written_over_a_few_times_only() -> None:
    workload = written(seen("a"))
    for times in range(2, MOST_TIMES + 1):
        write = write_of(replace(workload, priority=100))
        assert write.mark is not None
        assert write.mark.times == times
        workload = replace(workload, priority=write.mark.written, mark=write.mark)
    respected = standing_order([replace(workload, priority=100)], ORDER, "a")
    assert (respected.unordered, set(respected.respected)) == (0, {"a"})


def test_a_cohort_in_which_one_queue_evicts_by_priority_is_refused_as_a_whole() -> None:
    quiet = OrderRules("quiet", "all")
    assert order_refusals([quiet, OrderRules("alone", reclaim="Any")]) == {}
    for rules, code in (
        (OrderRules("evicts", "all", within="LowerPriority"), "EVICTS_BY_PRIORITY"),
        (OrderRules("evicts", "all", reclaim="Any"), "EVICTS_BY_PRIORITY"),
        (OrderRules("evicts", "all", borrows=True), "EVICTS_BY_PRIORITY"),
        (OrderRules("evicts", "all", by_usage=True), "ORDERED_BY_USAGE"),
    ):
        refusals = order_refusals([quiet, rules, OrderRules("alone")])
        assert {name: reason.code for name, reason in refusals.items()} == {"quiet": code, "evicts": code}


def test_own_priority_of_a_mark_that_does_not_stand_is_what_is_there() -> None:
    workload = seen("a", mark=OrderMark(100, 9000), priority=7)
    assert (workload.stands, workload.own_priority) == (False, 7)
    assert replace(workload, priority=9000).own_priority == 100


states = st.builds(
    OrderedWorkload,
    name=st.sampled_from("abcd"),
    uid=st.sampled_from(["1", "2"]),
    queue=st.sampled_from(["p", "p", "p", "q", ""]),
    priority=st.sampled_from([None, 0, 100, 5_000]),
    class_name=st.sampled_from(["", "", "high"]),
    more_points=st.sampled_from([0.0, 25.0]),
    gpus=st.sampled_from([0, 1000, 8000]),
    created_s=st.sampled_from([NOW_S, NOW_S - 1.0, NOW_S - HOUR]),
    pending=st.sampled_from([True, True, True, False]),
    may_change=st.sampled_from([True, True, True, False]),
    mark=st.none() | st.builds(OrderMark, st.sampled_from([None, 100]), st.sampled_from([7, 100, 5_000])),
)
put = st.tuples(st.just("put"), states)
own_write = st.tuples(st.just("written"), st.none())
remove = st.tuples(st.just("remove"), st.sampled_from("abcd"))
include = st.tuples(st.just("include"), st.sets(st.sampled_from(["", "p", "q"])))


@given(
    st.lists(put | put | put | own_write | remove | include, min_size=10, max_size=20),
    st.sampled_from([ORDER, ORDER, ORDER, None]),
)
@settings(max_examples=50, deadline=None)
def test_after_any_history_all_is_as_decided_on_at_once(
    history: list[tuple[str, object]], order: QueueOrder | None
) -> None:
    standing, queues, there = StandingOrder(order), {"p"}, dict[str, OrderedWorkload]()
    standing.include({"p"})
    for action, what in history:
        if action == "put":
            assert isinstance(what, OrderedWorkload)
            there[what.name] = what
            standing.put(what)
        elif action == "remove":
            there.pop(str(what), None)
            standing.remove(str(what))
        elif action == "include":
            queues = what  # type: ignore[assignment]
            for name in standing.include(set(queues)):
                standing.put(there[name])
        elif write := next(standing.writes, None):
            after = replace(write.workload, priority=write.mark.written if write.mark else 0, mark=write.mark)
            there[after.name] = after
            standing.put(after)
    _same(standing, list(there.values()), order, queues)


def _same(
    standing: StandingOrder, workloads: list[OrderedWorkload], order: QueueOrder | None, queues: set[str]
) -> None:
    """As if all had been read just now."""
    decided = {each.name: order_write(each, order, is_ordered=each.queue in queues) for each in workloads}
    writes = [each for each in decided.values() if isinstance(each, OrderWrite)]
    give_back = [each for each in writes if each.mark is None]
    numbered = [each for each in writes if each.mark is not None]
    give_back.sort(key=lambda each: (each.workload.mark.written, each.workload.name))  # type: ignore[union-attr]
    numbered.sort(key=lambda each: (-each.mark.written, each.workload.created_s, each.workload.name))  # type: ignore[union-attr]
    assert list(standing.writes) == give_back + numbered
    assert standing.unordered == len(writes)
    assert standing.respected == {name: each for name, each in decided.items() if isinstance(each, Reason)}
    stands = [each for each in workloads if order and each.may_change and each.queue in queues and each.stands]
    assert standing.ordered == len(stands)
