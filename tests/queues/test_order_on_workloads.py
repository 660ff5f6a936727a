"""A rank in the order on a Workload: written and given back in one write, and known to all that read priorities."""

from typing import Any

import pytest
from attacks.api_in_memory import merged
from attacks.scenarios.objects import now, workload

from kopt.cli.cluster.queueing.scores import overtaken, scores
from kopt.cluster.client.resources import KUEUE_WORKLOADS
from kopt.cluster.holds.hold import release
from kopt.cluster.workloads.kueue.order import ORDER_KEY, order_mark_of, ordered, priority_class_of, unordered
from kopt.cluster.workloads.kueue.order_rules import in_trees
from kopt.cluster.workloads.kueue.reading import read_kueue_workload
from kopt.controllers.overview.queues import lines, queued_of
from kopt.controllers.preemption.patches import shielded
from kopt.controllers.queues.ordering import queued_workload
from kopt.core.reason import Reason
from kopt.core.scheduling.queue_order import OrderMark, OrderRules
from kopt.core.times import stamp
from kopt.policies.priority.order_writes import OrderWrite, order_write
from kopt.policies.priority.queue_order import QueueOrder

MARK = OrderMark(100, 640_000_000, "workloadpriorityclass/high", "10/5/1000/1024", 2)


def bare(name: str = "a", **metadata: Any) -> dict[str, Any]:
    document = workload(name, priority=100, **metadata)
    document["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": "1"}
    return document


def placed(document: dict[str, Any], mark: OrderMark = MARK) -> dict[str, Any]:
    return merged(document, ordered(mark))


def test_it_is_read_as_it_was_written_and_given_back_exactly() -> None:
    document = bare()
    after = placed(document)
    assert order_mark_of(after) == MARK
    assert after["spec"]["priority"] == MARK.written
    assert merged(after, unordered(after)) == document


def test_a_workload_without_priority_has_none_again() -> None:
    document = bare()
    del document["spec"]["priority"]
    after = placed(document, OrderMark(None, 5))
    assert "priority" not in merged(after, unordered(after))["spec"]


def test_a_priority_of_others_stays_when_the_note_goes() -> None:
    after = placed(bare())
    after["spec"]["priority"] = 7
    assert merged(after, unordered(after))["spec"]["priority"] == 7
    assert read_kueue_workload(after).priority == 7
    assert not read_kueue_workload(after).is_ordered


@pytest.mark.parametrize(
    "note", ["", "no json", "[]", '{"written": "7"}', '{"written": true}', '{"written":1,"priority":"x"}']
)
def test_a_note_that_cannot_be_read_changes_no_priority(note: str) -> None:
    after = placed(bare())
    after["metadata"]["annotations"][ORDER_KEY] = note
    assert order_mark_of(after) is None
    assert "spec" not in unordered(after)
    assert read_kueue_workload(after).priority == MARK.written


def test_readers_know_the_class_from_the_order() -> None:
    read = read_kueue_workload(placed(bare()))
    assert (read.priority, read.queue_priority, read.is_ordered) == (100, MARK.written, True)
    plain = read_kueue_workload(bare())
    assert (plain.priority, plain.queue_priority, plain.is_ordered) == (100, 100, False)


def test_a_shield_above_an_order_is_given_back_to_the_order_and_that_to_the_class() -> None:
    runs, urgent = placed(bare()), read_kueue_workload(bare("urgent"))
    after = merged(runs, shielded(read_kueue_workload(runs), urgent, 0.0))
    assert (read_kueue_workload(after).priority, after["spec"]["priority"]) == (100, 101)
    after = merged(after, release(KUEUE_WORKLOADS, after))
    assert after["spec"]["priority"] == MARK.written
    assert merged(after, unordered(after))["spec"]["priority"] == 100


def test_the_class_is_named_alike_in_both_versions_of_the_api() -> None:
    old, new = bare(), bare()
    old["spec"] |= {"priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass", "priorityClassName": "high"}
    new["spec"]["priorityClassRef"] = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
    assert priority_class_of(old) == priority_class_of(new) == "workloadpriorityclass/high"
    assert priority_class_of(bare()) == ""


def test_what_others_have_is_not_changed() -> None:
    def may_change(document: dict[str, Any]) -> bool:
        kept = queued_workload(document)
        assert kept is not None
        return kept.order.may_change

    assert may_change(bare())
    held, elsewhere = bare(), bare(labels={"kueue.x-k8s.io/multikueue-origin": "hub"})
    held["spec"]["active"] = False
    assert not may_change(held)
    assert not may_change(elsewhere)
    assert not may_change(bare(labels={"kaiwo.ai/held": "staging"}))
    kept = queued_workload(bare())
    assert kept is not None
    assert (kept.order.gpus, kept.order.pending, kept.order.priority) == (4000, True, 100)


def test_trees_are_named_by_their_root_also_in_a_cycle() -> None:
    queues = [OrderRules("a", "team"), OrderRules("b", "ring-2"), OrderRules("c")]
    parents = {"team": "ai", "ai": "", "ring-1": "ring-2", "ring-2": "ring-1"}
    assert [each.cohort for each in in_trees(queues, parents)] == ["ai", "ring-1", ""]
    assert in_trees([OrderRules("d", "ring-1")], parents)[0].cohort == "ring-1"


def _pending(name: str, priority: int, age_s: float) -> dict[str, Any]:
    document = bare(name, creationTimestamp=stamp(now() - age_s))
    document["spec"]["priority"] = priority
    kept = queued_workload(document)
    assert kept is not None
    write = order_write(kept.order, QueueOrder(), is_ordered=True)
    assert isinstance(write, OrderWrite)
    assert write.mark is not None
    return placed(document, write.mark)


def test_kopt_queue_lists_the_order_and_says_who_overtakes_whom_because_of_it() -> None:
    documents = [_pending("high", 200, 3600), _pending("old", 100, 20 * 3600), _pending("late", 100, 60)]
    queues = {("team", "gpus"): "research"}
    queued = lines(each for document in documents if (each := queued_of(document, queues)) is not None)
    assert [(each.name, each.priority, each.position) for each in queued] == [
        ("old", 100, 1),
        ("high", 200, 2),
        ("late", 100, 3),
    ]
    assert overtaken(queued) == {
        "uid-old": "before team/high, 19 h younger: its age, in place of priority 200 over 100"
    }
    refusals = {"research": Reason("EVICTS_BY_PRIORITY", "It evicts.")}
    remarks = scores(queued, now(), 10.0, 5.0, refusals).remarks
    assert list(remarks[1:]) == ["The order of 3 workloads is written.", "It evicts. (EVICTS_BY_PRIORITY)"]
