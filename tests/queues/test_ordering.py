"""The rounds of the ordering: bounded, in order at any time, gone on with by whoever leads next, and undone."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from attacks.api_in_memory import merged
from attacks.scenarios.objects import cluster_queue, now, workload

from kopt.cluster.client.errors import Conflict, Forbidden
from kopt.cluster.client.resources import Key, Object, Resource, key_of
from kopt.cluster.runtime.isolation import Isolation
from kopt.cluster.workloads.kueue.order import ORDER_KEY
from kopt.controllers.queues.ordering import (
    MOST_WRITES,
    WINDOW_S,
    Ordering,
    QueuedWorkload,
    queued_workload,
    seen_queue,
)
from kopt.core.decision import Mode
from kopt.core.times import stamp
from kopt.policies.priority.queue_order import QueueOrder

NEVER = {"withinClusterQueue": "Never"}


class Killed(BaseException):
    """The process is gone."""


class Cluster:
    """Workloads as the API server has them, written under the condition of their version. The process is killed
    before its write number ``dies_at``; what is in ``forbidden`` may not be written."""

    def __init__(self, count: int, **rules: Any) -> None:
        self.documents = {f"w{number:05}": _waits(number) for number in range(count)}
        self.queue = cluster_queue("research", **({"preemption": NEVER} | rules))
        self.queue["metadata"]["uid"] = "uid-research"
        self.writes: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.now_s, self.between_s = 0.0, WINDOW_S
        self.local_queues = {("team", "gpus"): "research"}
        self.dies_at: int | None = None
        self.forbidden: set[str] = set()

    async def patch(self, resource: Resource, document: Object, changes: Object) -> Object:
        name = document["metadata"]["name"]
        if len(self.writes) == self.dies_at:
            raise Killed
        if name in self.forbidden:
            raise Forbidden(403, "Forbidden", "a policy says no")
        now_there = self.documents[name]
        if now_there["metadata"]["resourceVersion"] != document["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "it has changed")
        self.writes.append(name)
        after: Object = merged(now_there, changes)
        after["metadata"]["resourceVersion"] = str(int(now_there["metadata"]["resourceVersion"]) + 1)
        self.documents[name] = after
        return after

    def leader(self, order: QueueOrder | None = QueueOrder(), mode: Mode = Mode.ENFORCE) -> Ordering:  # noqa: B008
        return Ordering(
            self,
            order,
            mode,
            self.changes(),
            lambda _: None,
            lambda: self.local_queues,
            lambda: [seen_queue(self.queue)],
            dict,
            lambda regarding, reason, sentence: self.events.append((regarding["name"], reason)),
            Isolation("queues"),
            clock=lambda: self.now_s,
        )

    def changes(self) -> Callable[[], Mapping[Key, QueuedWorkload | None]]:
        """Called once in each round."""
        before: dict[Key, QueuedWorkload] = {}

        def changed() -> Mapping[Key, QueuedWorkload | None]:
            nonlocal before
            self.now_s += self.between_s
            known, before = before, self.kept()
            return {key: before.get(key) for key in known | before if known.get(key) != before.get(key)}

        return changed

    def kept(self) -> dict[Key, QueuedWorkload]:
        read = {key_of(document): queued_workload(document) for document in self.documents.values()}
        return {key: kept for key, kept in read.items() if kept is not None}

    @property
    def in_order(self) -> list[str]:
        """As Kueue admits them."""
        return sorted(self.documents, key=lambda name: (-self.documents[name]["spec"]["priority"], name))

    def ordered(self) -> set[str]:
        return {name for name, one in self.documents.items() if ORDER_KEY in one["metadata"]["labels"]}


def _waits(number: int) -> Object:
    """The younger the higher its class, by less than its age counts."""
    document = workload(f"w{number:05}", priority=number % 7)
    document["metadata"] |= {"uid": f"uid-{number}", "resourceVersion": "1"}
    document["metadata"]["creationTimestamp"] = stamp(now() - 90 * 86400 + number * 7200)
    return document


def rounds(ordering: Ordering, most: int = 100) -> int:
    async def until_done() -> int:
        for number in range(1, most + 1):
            await ordering.step()
            if not ordering.unordered:
                return number
        return most

    return asyncio.run(until_done())


def test_a_round_is_bounded_and_each_workload_is_written_once() -> None:
    cluster = Cluster(2 * MOST_WRITES + 50)
    ordering = cluster.leader()
    assert asyncio.run(ordering.step()) == 1.0
    assert len(cluster.writes) == MOST_WRITES
    assert rounds(ordering) == 3
    assert len(cluster.writes) == len(set(cluster.writes)) == len(cluster.documents)
    assert cluster.in_order == sorted(cluster.documents)
    assert ordering.ordered == len(cluster.documents)


def test_rounds_that_follow_each_other_at_once_write_no_more_than_one_of_them() -> None:
    cluster = Cluster(2 * MOST_WRITES)
    cluster.between_s = WINDOW_S / 4
    ordering = cluster.leader()
    assert asyncio.run(ordering.step()) == WINDOW_S
    for rest_s in (0.75, 0.5, 0.25):
        assert asyncio.run(ordering.step()) == rest_s * WINDOW_S
        assert len(cluster.writes) == MOST_WRITES
    asyncio.run(ordering.step())
    assert len(cluster.writes) == 2 * MOST_WRITES


@pytest.mark.parametrize("writes", range(12))
def test_killed_before_any_write_what_is_ordered_is_first_and_right_and_the_next_goes_on(writes: int) -> None:
    cluster = Cluster(12)
    cluster.dies_at = writes
    with pytest.raises(Killed):
        rounds(cluster.leader())
    assert cluster.in_order[:writes] == sorted(cluster.documents)[:writes]
    cluster.dies_at = None
    rounds(cluster.leader())
    assert cluster.in_order == sorted(cluster.documents)
    assert len(cluster.writes) == 12


@pytest.mark.parametrize("writes", range(6))
def test_killed_while_it_gives_back_the_next_goes_on_and_nothing_is_left(writes: int) -> None:
    cluster = Cluster(6)
    before = dict(cluster.documents)
    rounds(cluster.leader())
    cluster.writes.clear()
    cluster.dies_at = writes
    with pytest.raises(Killed):
        rounds(cluster.leader(None))
    assert cluster.ordered() == set(sorted(cluster.documents)[: 6 - writes])
    cluster.dies_at = None
    rounds(cluster.leader(None))
    for name, document in cluster.documents.items():
        document["metadata"]["resourceVersion"] = "1"
        assert document == before[name]


def test_what_is_admitted_meanwhile_is_left_alone() -> None:
    cluster = Cluster(2)
    kept = cluster.kept()
    ordering = cluster.leader()
    ordering._changes = lambda: kept
    cluster.documents["w00000"]["metadata"]["resourceVersion"] = "2"
    asyncio.run(ordering.step())
    assert cluster.writes == ["w00001"]
    assert (ordering.errors, ordering.broken_off) == (0, 1)


def test_a_queue_that_evicts_by_priority_keeps_its_order_and_says_so_once() -> None:
    cluster = Cluster(3, preemption={"withinClusterQueue": "LowerPriority"})
    ordering = cluster.leader()
    for _ in range(3):
        asyncio.run(ordering.step())
    assert (cluster.writes, cluster.events) == ([], [("research", "OrderRefused")])
    assert ordering.refused == 1
    cluster.queue["spec"]["preemption"] = NEVER
    rounds(ordering)
    assert len(cluster.ordered()) == 3
    cluster.queue["spec"]["preemption"] = {"withinClusterQueue": "LowerPriority"}
    rounds(ordering)
    assert not cluster.ordered()


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ANNOTATE])
def test_nothing_is_written_in_other_modes_of_the_controller_or_of_a_workload(mode: Mode) -> None:
    cluster = Cluster(2)
    assert rounds(cluster.leader(mode=mode)) == 1
    cluster.documents["w00001"]["metadata"]["annotations"]["kaiwo.ai/mode"] = mode.value
    rounds(cluster.leader())
    assert cluster.writes == ["w00000"]


def test_what_may_not_be_written_does_not_hold_up_the_others() -> None:
    cluster = Cluster(MOST_WRITES + 5)
    cluster.forbidden = set(sorted(cluster.documents)[:MOST_WRITES])
    ordering = cluster.leader()
    for _ in range(3):
        asyncio.run(ordering.step())
    assert len(cluster.writes) == 5
    assert len(cluster.events) == MOST_WRITES


def test_a_priority_of_others_stays_and_is_said() -> None:
    cluster = Cluster(2)
    ordering = cluster.leader()
    rounds(ordering)
    cluster.documents["w00001"]["spec"]["priority"] = 5_000
    for _ in range(2):
        asyncio.run(ordering.step())
    assert cluster.documents["w00001"]["spec"]["priority"] == 5_000
    assert cluster.events == [("w00001", "PriorityRespected")]
    rounds(cluster.leader(None))
    assert cluster.documents["w00001"]["spec"]["priority"] == 5_000
    assert not cluster.ordered()


def test_one_made_anew_under_its_name_has_a_number_of_its_own() -> None:
    cluster = Cluster(2)
    ordering = cluster.leader()
    rounds(ordering)
    before = cluster.documents["w00000"]["spec"]["priority"]
    anew = _waits(0)
    anew["metadata"] |= {"uid": "uid-anew", "creationTimestamp": stamp(now())}
    cluster.documents["w00000"] = anew
    rounds(ordering)
    assert cluster.documents["w00000"]["spec"]["priority"] < before
    assert cluster.in_order == ["w00001", "w00000"]


def test_what_is_gone_before_its_turn_is_not_written() -> None:
    cluster = Cluster(MOST_WRITES + 3)
    ordering = cluster.leader()
    asyncio.run(ordering.step())
    assert ordering.unordered == MOST_WRITES + 3
    gone, ended, _ = sorted(cluster.documents)[MOST_WRITES:]
    del cluster.documents[gone]
    cluster.documents[ended]["status"]["conditions"] = [{"type": "Finished", "status": "True"}]
    rounds(ordering)
    assert len(cluster.writes) == MOST_WRITES + 1
    assert not {gone, ended} & set(cluster.writes)


def test_workloads_go_with_their_local_queue_to_another_cluster_queue_and_back() -> None:
    cluster = Cluster(3)
    ordering = cluster.leader()
    rounds(ordering)
    cluster.local_queues = {("team", "gpus"): "elsewhere"}
    rounds(ordering)
    assert (cluster.ordered(), ordering.ordered) == (set(), 0)
    cluster.local_queues = {("team", "gpus"): "research"}
    rounds(ordering)
    assert len(cluster.ordered()) == ordering.ordered == 3


def test_one_that_cannot_be_decided_on_does_not_cost_the_others_their_number() -> None:
    cluster = Cluster(3)
    cluster.documents["w00000"]["spec"]["priority"] = 10**400
    ordering = cluster.leader()
    rounds(ordering)
    cluster.queue["spec"]["preemption"] = {"withinClusterQueue": "LowerPriority"}
    rounds(ordering)
    cluster.queue["spec"]["preemption"] = NEVER
    rounds(ordering)
    assert cluster.ordered() == {"w00001", "w00002"}
    assert ordering.errors == 0
