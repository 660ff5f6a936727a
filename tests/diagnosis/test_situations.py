"""Constructed situations of four schedulers: the cause that was built in is named, and what is advised holds."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from benchmarked import benchmark_module

evaluation = benchmark_module("why_situations.evaluation")
reading = benchmark_module("why_situations.reading")
redo = benchmark_module("why_situations.redo")
SEEDS = range(3)
IN_USE = {
    "BORROWING_LIMIT",
    "COHORT_IN_USE",
    "CPU_IN_USE",
    "GPUS_FRAGMENTED",
    "GPUS_IN_USE",
    "MEMORY_IN_USE",
    "PODS_PER_NODE",
    "QUEUE_LIMIT",
    "QUEUE_QUOTA",
    "QUOTA_IN_USE",
}
"""What an end of others cures."""


@pytest.mark.parametrize("make", evaluation.MAKERS, ids=lambda make: make.__name__)
def test_the_cause_is_named_and_every_change_holds(make: Callable[[random.Random], Any]) -> None:
    for seed in SEEDS:
        situation = make(random.Random(f"test {make.__name__} {seed}"))
        diagnosis = asyncio.run(reading.diagnosis_of(situation))
        assert evaluation.first_code(diagnosis) in situation.right
        assert diagnosis.scheduler == situation.engine
        for change in diagnosis.changes:
            assert change.verified
            after = redo.redone(situation, change)
            assert redo.fits(after), f"{change.message} does not hold"
            # The product says so, too: nothing binds any more.
            assert evaluation.first_code(asyncio.run(reading.diagnosis_of(after))) in ("FITS_NOW", "nothing")
        if diagnosis.changes:
            assert not redo.fits(situation)
        if situation.label in IN_USE and redo.fits(redo.all_ended(situation)):
            assert "wait" in {change.kind for change in diagnosis.changes}


def test_without_the_right_to_read_nodes_the_messages_speak() -> None:
    situations = evaluation.situations(2)
    for engine, score in evaluation.scores(situations).items():
        assert score.right == score.situations, (engine, score.wrong)
        assert score.counted == score.smallest
    for situation in situations:
        diagnosis = asyncio.run(reading.diagnosis_of(situation, nodes=False))
        assert situation.engine == "Kueue" or not diagnosis.changes, "nothing can be tried on nodes that are not known"


def test_amounts_are_those_of_the_objects() -> None:
    nodes = benchmark_module("why_situations.nodes")
    objects = benchmark_module("why_situations.objects")
    fleet = nodes.Fleet(random.Random(7))
    fleet.add(8, 5)
    fleet.add(8, 6)
    fleet.waits(objects.pod_spec(4), "")
    diagnosis = asyncio.run(reading.diagnosis_of(objects.Constructed("kube-scheduler", "", fleet.cluster)))
    cause = diagnosis.causes[0]
    assert (cause.code, cause.wanted, cause.free, cause.unit) == ("GPUS_FRAGMENTED", 4, 3, "GPUs")
    assert cause.since_s == objects.NOW_S - 300
    fewer = next(change for change in diagnosis.changes if change.kind == "fewer-gpus")
    assert fewer.message == "Request 3 GPUs instead of 4."
    assert {operation["path"] for operation in fewer.patch} == {
        "/spec/template/spec/containers/0/resources/requests/nvidia.com~1gpu",
        "/spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu",
    }
    assert fewer.about == "Job team/train"


def test_a_cluster_without_nodes_has_none_to_fit_on() -> None:
    """Scaled to nothing, as clusters that grow on demand are."""
    nodes = benchmark_module("why_situations.nodes")
    objects = benchmark_module("why_situations.objects")
    fleet = nodes.Fleet(random.Random(7))
    fleet.waits(objects.pod_spec(4), "")
    diagnosis = asyncio.run(reading.diagnosis_of(objects.Constructed("kube-scheduler", "", fleet.cluster)))
    assert [cause.code for cause in diagnosis.causes] == ["GPU_ABSENT"]


def test_a_cut_is_made_where_it_is_requested() -> None:
    """Two containers: the total is cut by what the change says, in the one that has enough."""
    nodes, objects = benchmark_module("why_situations.nodes"), benchmark_module("why_situations.objects")
    fleet = nodes.Fleet(random.Random(7))
    fleet.add(8, held_cpu=50)
    spec = objects.pod_spec(1, cpu=2)
    spec["containers"].append({"name": "loader", "resources": {"requests": {"cpu": "60"}, "limits": {"cpu": "90"}}})
    fleet.waits(spec, "")
    situation = objects.Constructed("kube-scheduler", "CPU_IN_USE", fleet.cluster)
    diagnosis = asyncio.run(reading.diagnosis_of(situation))
    less = next(change for change in diagnosis.changes if change.kind == "less-cpu")
    assert (less.before, less.after) == ("62", "46")
    (operation,) = less.patch
    assert operation["path"] == "/spec/template/spec/containers/1/resources/requests/cpu"
    assert operation["value"] == "44000m"
    assert redo.fits(redo.redone(situation, less))


def test_room_that_is_being_made_is_said() -> None:
    nodes, objects = benchmark_module("why_situations.nodes"), benchmark_module("why_situations.objects")
    fleet = nodes.Fleet(random.Random(7))
    where = fleet.add(8, 8)
    fleet.waits(objects.pod_spec(4), "")
    fleet.cluster.pods[-1]["status"]["nominatedNodeName"] = where
    diagnosis = asyncio.run(reading.diagnosis_of(objects.Constructed("kube-scheduler", "", fleet.cluster)))
    assert [str(cause.code) for cause in diagnosis.causes] == ["GPUS_IN_USE", "PREEMPTS"]
    assert where in diagnosis.causes[1].message


def test_whatever_kueue_charges_and_the_queue_has_no_quota_for_is_named() -> None:
    """Also where Kueue's own message is of something else, and not before Kueue has said what it charges."""
    kueue, objects = benchmark_module("why_situations.kueue"), benchmark_module("why_situations.objects")
    made = kueue.Queues(random.Random(7))
    made.queue("research", {"h100": 16}, local="gpus")
    workload = made.waits(2)
    (container,) = workload["spec"]["podSets"][0]["template"]["spec"]["containers"]
    container["resources"]["requests"]["example.com/license"] = "2"
    situation = objects.Constructed("Kueue", "QUOTA_ABSENT", made.cluster)
    assert evaluation.first_code(asyncio.run(reading.diagnosis_of(situation))) != "QUOTA_ABSENT"
    counted = {objects.GPU: "2", "cpu": "4", "memory": "16Gi", "example.com/license": "2", "example.com/none": "0"}
    workload["status"]["resourceRequests"] = [{"name": "main", "resources": counted}]
    (cause, *_) = asyncio.run(reading.diagnosis_of(situation)).causes
    assert (cause.code, cause.wanted, cause.free, cause.unit) == ("QUOTA_ABSENT", 2, 0, "example.com/license")
    assert cause.message == "It needs 2 example.com/license, for which queue research has no quota."
