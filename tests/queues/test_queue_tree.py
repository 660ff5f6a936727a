"""The tree of queues from objects of Kueue, use over time from the meter, reservations as people read them, and what
the controller reports of demand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kopt.cli.cluster.queueing.reservations import axis_line
from kopt.cluster.client.resources import (
    KUEUE_CLUSTER_QUEUES,
    KUEUE_COHORTS,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    Object,
)
from kopt.cluster.objects.custom.reservation import standing_of
from kopt.cluster.workloads.kueue.reading import read_kueue_workload
from kopt.controllers.meter.queue_use import queue_use
from kopt.controllers.meter.store import CostStore
from kopt.controllers.overview.queue_standings import queue_standings
from kopt.controllers.queues.demand import QueueDemand, gpus_of_workloads, queued_gpus
from kopt.core.cost.metering import Attributes, Demand, MeteredNode, MeteredPod, Offer, Rule
from kopt.policies.cost import Meter, Observation, advance

GPU = "nvidia.com/gpu"
HOUR_MS = 3_600_000


def cluster_queue(name: str, quota: int, cohort: str = "ai", **more: object) -> Object:
    flavor = {"name": "h100", "resources": [{"name": GPU, "nominalQuota": str(quota), **more}]}
    groups = [{"coveredResources": [GPU], "flavors": [flavor]}]
    return {"metadata": {"name": name}, "spec": {"cohort": cohort, "resourceGroups": groups}}


def local_queue(name: str, target: str, namespace: str = "n") -> Object:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterQueue": target}}


def workload(name: str, local: str, gpus: int, queue: str = "", **spec: object) -> Object:
    """Admitted to ``queue`` where that is named."""
    container = {"name": "main", "resources": {"requests": {GPU: str(gpus)}}}
    pod_sets = [{"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}]
    status: dict[str, Any] = {}
    if queue:
        use = {"name": "main", "count": 1, "flavors": {GPU: "h100"}, "resourceUsage": {GPU: str(gpus)}}
        at = "2026-11-28T10:00:00Z"
        status["conditions"] = [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": at}]
        status["admission"] = {"clusterQueue": queue, "podSetAssignments": [use]}
    metadata = {"name": name, "namespace": "n", "uid": name, "creationTimestamp": "2026-11-28T09:00:00Z"}
    return {"metadata": metadata, "spec": {"queueName": local, "podSets": pod_sets, **spec}, "status": status}


def documents(*workloads: Object, queues: tuple[Object, ...] = ()) -> dict[Any, Any]:
    return {
        KUEUE_CLUSTER_QUEUES: queues or (cluster_queue("research", 8), cluster_queue("production", 8)),
        KUEUE_COHORTS: (),
        KUEUE_FLAVORS: ({"metadata": {"name": "h100"}, "spec": {}},),
        KUEUE_LOCAL_QUEUES: (local_queue("gpus", "research"), local_queue("prod", "production", "p")),
        KUEUE_WORKLOADS: workloads,
    }


def test_queues_have_use_borrowing_and_what_waits_and_departments_their_sum() -> None:
    read = queue_standings(
        documents(workload("a", "gpus", 6, "research"), workload("b", "gpus", 4, "research"), workload("c", "gpus", 3))
    )
    assert [(queue.name, queue.depth, queue.is_leaf) for queue in read.queues] == [
        ("ai", 0, False),
        ("production", 1, True),
        ("research", 1, True),
    ]
    ai, production, research = read.queues
    assert (research.quota, research.use, research.borrowing) == (8000, 10_000, 2000)
    assert (research.pending_gpus, research.pending) == (3000, 1)
    assert (ai.quota, ai.use, ai.pending_gpus, production.use) == (16_000, 10_000, 3000, 0)
    assert (sorted(research.namespaces), sorted(ai.namespaces)) == (["n"], ["n", "p"])
    assert not read.skipped


def test_objects_that_contradict_each_other_are_named_and_nothing_is_guessed() -> None:
    torn = {
        "metadata": {"name": "torn"},
        "spec": {"resourceGroups": [{"flavors": [{"name": "gone", "resources": []}]}]},
    }
    read = queue_standings(documents(queues=(cluster_queue("research", 8), torn)))
    assert [queue.name for queue in read.queues] == ["ai", "research"]
    assert any("torn" in each for each in read.skipped)


def test_the_meter_says_what_each_queue_used_hour_by_hour(tmp_path: Path) -> None:
    store = CostStore(tmp_path / "cost.db")
    store.begin("test", Rule.MAX)
    node = MeteredNode("node", "node", 8, Offer("H100"), 0)
    pod = MeteredPod("a", "node", Demand(4), HOUR_MS // 2, attributes=Attributes("n", "a", "jobs/a", "gpus", {}))
    no_queue = MeteredPod("b", "node", Demand(2), 0, attributes=Attributes("n", "b", "jobs/b", "", {}))
    meters: Mapping[str, Meter] = {}
    seen = None
    for at_ms in (0, HOUR_MS, 2 * HOUR_MS + HOUR_MS // 2):
        pods = [each for each in (pod, no_queue) if each.started_ms <= at_ms]
        meters, changes = advance(
            meters, Observation(at_ms, {"node": node}, pods, {}, seen, False, frozenset()), Rule.MAX, {(4, 1000): 1.0}
        )
        store.store("test", changes, at_ms)
        seen = at_ms
    used = queue_use(store, 0, HOUR_MS, 4)
    store.close()
    assert set(used) == {("n", "gpus")}
    assert used["n", "gpus"] == pytest.approx((2000.0, 4000.0, 4000.0, None))


def reservation(status: Object, **spec: object) -> Object:
    times = {"start": "2026-12-01T08:00:00Z", "until": "2026-12-01T12:00:00Z"}
    whole = {"queueName": "evaluation", "pool": "h100", "nodes": 2, "gpusPerNode": 4, **times, **spec}
    return {"metadata": {"namespace": "n", "name": "r"}, "spec": whole, "status": status}


def test_a_reservation_says_how_it_stands_and_what_others_used_of_it() -> None:
    account = {
        "start": "2026-12-01T08:00:00Z",
        "until": "2026-12-01T12:00:00Z",
        "openedAt": "2026-12-01T06:00:00Z",
        "since": "2026-12-01T07:00:00Z",
        "backfilledGpuSeconds": 4 * 3600.0,
    }
    standing = standing_of(reservation({"phase": "Backfilled", "heldGpus": 4, "account": account}))
    assert (standing.gpus, standing.held, standing.phase, standing.backfilled_share) == (8, 4, "Backfilled", 0.5)
    unseen = standing_of(reservation({}))
    assert (unseen.phase, unseen.backfilled_share) == ("Unseen", None)
    assert "kopt controller reservations" in unseen.message
    torn = standing_of(reservation({"phase": "??"}, start="when it suits"))
    assert (torn.start_s, torn.gpus) == (None, 0)
    assert "spec.start" in torn.message


def test_an_axis_has_what_is_held_reserved_and_now_where_they_are() -> None:
    line = axis_line([(24.0, 36.0, "#"), (12.0, 24.0, "~"), (47.5, 47.6, "#"), (60.0, 70.0, "#")], 6.0, 0.0, 48.0)
    assert line == "......|.....~~~~~~~~~~~~############...........#"


def test_the_controller_reports_what_each_leaf_uses_and_waits_for() -> None:
    def queue(name: str, *pools: str) -> Object:
        rows = [{"name": pool, "resources": {"gpu": {"quota": 4}}} for pool in pools]
        return {"metadata": {"name": name}, "spec": {"parentQueue": "ai", "pools": rows}}

    runs, waits = workload("a", "gpus", 6, "research"), workload("b", "gpus", 3)
    held = workload("c", "gpus", 2, active=False)
    held["metadata"]["labels"] = {"kaiwo.ai/held": "reclaim"}
    stopped = workload("d", "gpus", 5, active=False)
    other = workload("e", "elsewhere", 5)
    documents = (runs, waits, held, stopped, other, workload("f", "gpus", 0))
    kept = [queued_gpus(read_kueue_workload(each)) for each in documents]
    assert kept[3] is None
    assert kept[5] is None
    demand = QueueDemand(
        lambda: [queue("research", "first", "h100"), queue("idle", "h100")],
        list,
        lambda _: gpus_of_workloads([each for each in kept if each is not None], {("n", "gpus"): "research"}),
        lambda: True,
    )
    (family,) = demand.collect()
    values = {tuple(sample.labels.values()): sample.value for sample in family.samples}
    assert values == {
        ("research", "first", "used"): 0.0,
        ("research", "first", "pending"): 5.0,
        ("research", "h100", "used"): 6.0,
        ("research", "h100", "pending"): 0.0,
        ("idle", "h100", "used"): 0.0,
        ("idle", "h100", "pending"): 0.0,
    }
    unread = QueueDemand(list, list, lambda _: (), lambda: False)
    assert not next(iter(unread.collect())).samples
