"""Starts of whole jobs: the order of the queue and what returns GPUs are read from the objects."""

import asyncio
import random
from typing import Any

from benchmarked import benchmark_module

from kopt.core.workload.run_time import RunTimeQuantiles

nodes = benchmark_module("why_situations.nodes")
kueue = benchmark_module("why_situations.kueue")
gangs = benchmark_module("why_situations.gangs")
objects = benchmark_module("why_situations.objects")
reading = benchmark_module("why_situations.reading")


def diagnosis(cluster: Any, engine: str, **seconds: float) -> Any:
    """With exact run times by the name of a workload, in which ``__`` stands for ``/`` and ``_`` for ``-``."""
    run_times = {
        name.replace("__", "/").replace("_", "-"): RunTimeQuantiles((0.5,), (value,)) for name, value in seconds.items()
    }
    constructed = objects.Constructed(engine, "", cluster)
    return asyncio.run(reading.diagnosis_of(constructed, run_times=run_times))


def test_pods_start_on_the_node_that_has_room_first() -> None:
    """Three GPUs of one node return before all eight of another; GPUs of the pool that is not selected do not help."""
    fleet = nodes.Fleet(random.Random(1))
    fleet.cluster.nodes.clear()
    for number, pool in enumerate(("a", "a", "b")):
        fleet.cluster.nodes.append(objects.node(f"n{number}", 8, labels={nodes.POOL: pool}))
    for name, gpus in (("n0", 5), ("n0", 3), ("n1", 8), ("n2", 8)):
        fleet.run(name, objects.pod_spec(gpus))
    fleet.waits(objects.pod_spec(3, nodeSelector={nodes.POOL: "a"}), "")
    result = diagnosis(
        fleet.cluster,
        "kube-scheduler",
        others__other_1=500,
        others__other_2=300,
        others__other_3=900,
        others__other_4=10,
    )
    assert (result.start.p50_s, result.start.p90_s) == (300, 300)
    (wait,) = [change for change in result.changes if change.kind == "wait"]
    assert wait.names == ("others/other-2",)
    part = diagnosis(fleet.cluster, "kube-scheduler", others__other_1=500)
    assert part.start.p50_s == 500
    assert part.start.reason.code == "RUN_TIME_UNKNOWN"
    assert diagnosis(fleet.cluster, "kube-scheduler").start.p50_s is None


def test_kueue_admits_in_order_as_quota_returns() -> None:
    made = kueue.Queues(random.Random(1))
    made.queue("research", {"h100": 8}, local="gpus", queueingStrategy="StrictFIFO")
    for _ in range(2):
        made.run("research", "h100", 4)
    made.waits(6, name="first", age_s=2000)
    made.waits(2)
    times = {"others__job_other_1": 100.0, "others__job_other_2": 400.0, "team__job_first": 1000.0}
    # The first takes six at 400 s, and two are left.
    assert diagnosis(made.cluster, "Kueue", **times).start.p50_s == 400
    made.cluster.cluster_queues[0]["spec"]["queueingStrategy"] = "BestEffortFIFO"
    assert diagnosis(made.cluster, "Kueue", **times).start.p50_s == 100


def test_only_what_its_queue_gets_back_counts() -> None:
    """The queue may borrow no more: what ends elsewhere in the cohort is of no use to it."""
    made = kueue.Queues(random.Random(1))
    made.queue("research", {"h100": 4}, cohort="all", borrowing=0, local="gpus")
    made.queue("production", {"h100": 8}, cohort="all")
    made.run("research", "h100", 4)
    made.run("production", "h100", 8)
    made.waits(2)
    start = diagnosis(made.cluster, "Kueue", others__job_other_1=700, others__job_other_2=50).start
    assert (start.p50_s, start.reason) == (700, None)


def test_a_gang_waits_for_the_limit_of_its_queue() -> None:
    made = gangs.Gangs(random.Random(1), gangs.KAI)
    made.queue("research", limit=4)
    for _ in range(2):
        made.add(8)
    made.run_gang("research", 3)
    made.run_gang("other", 2)
    made.waits_gang(3, 1, "research", "")
    start = diagnosis(made.cluster, "KAI", others__gang_1=250, others__gang_2=20).start
    assert (start.p50_s, start.p90_s) == (250, 250)


def test_higher_priority_and_age_come_first() -> None:
    fleet = nodes.Fleet(random.Random(1))
    fleet.cluster.nodes.clear()
    where = fleet.add(8, 0)
    fleet.run(where, objects.pod_spec(8))
    spec = objects.pod_spec(8, priority=10)
    other = objects.pod("urgent-x", spec, owned_by=objects.owner("Job", "urgent", "others"), space="others")
    fleet.cluster.pods.append(other)
    fleet.waits(objects.pod_spec(8), "")
    times = {"others__other_1": 100.0, "others__urgent": 1000.0}
    assert diagnosis(fleet.cluster, "kube-scheduler", **times).start.p50_s == 1100
    other["spec"]["priority"] = 0
    other["metadata"]["creationTimestamp"] = objects.stamp(1)
    assert diagnosis(fleet.cluster, "kube-scheduler", **times).start.p50_s == 100


def test_a_flavor_that_is_too_small_for_it_is_not_waited_for() -> None:
    """Both lack eight GPUs now; one of them has four in all."""
    made = kueue.Queues(random.Random(1))
    made.queue("research", {"a-small": 4, "h100": 8}, local="gpus")
    made.run("research", "a-small", 4)
    made.run("research", "h100", 8)
    made.waits(8)
    start = diagnosis(made.cluster, "Kueue", others__job_other_1=50, others__job_other_2=700).start
    assert (start.p50_s, start.reason) == (700, None)
