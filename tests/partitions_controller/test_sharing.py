"""How a node's GPUs are shared, watched and changed: proposals, the ladder, a lost daemon of MPS, and the way back."""

import asyncio
import copy
from collections.abc import Coroutine
from typing import Any

import pytest

from kopt.cluster.client.resources import NODES, PODS
from kopt.cluster.holds.hold import hold_metadata, release, undo_of
from kopt.cluster.holds.node_sharing import SharingHold, SharingPhase, read_sharing
from kopt.cluster.teardown.changes import release_held
from kopt.cluster.workloads.node_standing import statements_of
from kopt.controllers.overview.reduced import reduced_node
from kopt.formats.sharing_terms import read_plugin_configuration

from .sharing_bench import EASY, HARD, SharingBench


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def contended(bench: SharingBench) -> None:
    bench.pod("batch")
    bench.pressure = HARD
    await bench.passes(180)
    await bench.ends("batch")
    bench.pressure = None


def test_a_contended_node_goes_down_the_ladder_once_nothing_runs_on_it() -> None:
    async def work() -> None:
        bench = SharingBench()
        bench.pod("batch")
        bench.pressure = HARD
        await bench.passes(180)
        assert bench.labels == ["mps-4"]
        (proposed,) = bench.events
        assert proposed[0] == "SharingProposed"
        assert (
            "would be shared as mps-2 instead of mps-4: 1 pods with GPUs run on it, and are not drained" in proposed[1]
        )
        assert not bench.is_held
        (statement,) = (each for each in statements_of(reduced_node(bench.node)) if each.by == "kopt sharing")
        assert statement.text == proposed[1]
        await bench.ends("batch")
        bench.pressure = None
        await bench.passes(180)
        (statement,) = (each for each in statements_of(reduced_node(bench.node)) if each.by == "kopt sharing")
        assert statement.text == "GPUs shared as mps-2 in place of mps-4 (shared)"
        assert (bench.label, bench.is_cordoned) == ("mps-2", False)
        assert bench.reasons[1:] == ["SharingCordon", "SharingApply", "SharingApplied"]
        for expected in ("turns-4", "whole"):
            await contended(bench)
            await bench.passes(300)
            await contended(bench)
            await bench.passes(180)
            assert bench.label == expected
        await contended(bench)
        await bench.passes(600)
        assert bench.labels == ["mps-4", "mps-2", "turns-4", "whole"]

    run(work())


def test_pods_are_not_ended_for_what_others_did_before_them() -> None:
    async def work() -> None:
        bench = SharingBench(drains=True)
        bench.pod("before")
        bench.pressure = HARD
        await bench.passes(30)
        await bench.ends("before")
        bench.pressure = None
        bench.history += [(bench.now_s + second, HARD) for second in range(0, 120, 30)]
        bench.now_s += 3600.0
        bench.pod("late")
        await bench.passes(180)
        assert bench.label == "mps-4"
        assert [each["metadata"]["name"] for each in bench.pods()] == ["late"]

    run(work())


@pytest.mark.parametrize("sharing", [{"mps": ["a"]}, {"mps": {"resources": "all"}}, "mps", ["mps"], {"timeSlicing": 3}])
def test_a_configuration_that_is_no_sharing_shares_nothing_and_stops_nothing(sharing: Any) -> None:
    read = read_plugin_configuration({"version": "v1", "sharing": sharing})
    assert read is not None
    assert read.replicas == 1


def test_after_a_calm_it_goes_up_again_and_is_given_back() -> None:
    async def work() -> None:
        bench = SharingBench()
        await contended(bench)
        await bench.passes(120)
        assert bench.label == "mps-2"
        bench.pressure = EASY
        await bench.passes(1100)
        assert (bench.label, bench.is_held) == ("mps-2", True), (
            "a calm of less than a quarter of an hour, settling left out"
        )
        await bench.passes(400)
        assert bench.label == "mps-4"
        await bench.passes(1200)
        assert not bench.is_held
        assert bench.reasons[-1] == "SharingGiveBack"

    run(work())


@pytest.mark.parametrize(
    ("workload_class", "leads_anew", "next_label"),
    [("inference", False, "whole"), ("unattended", False, "turns-4"), ("unattended", True, "whole")],
)
def test_turns_are_left_out_where_a_latency_is_to_be_kept_or_nobody_knows(
    workload_class: str, leads_anew: bool, next_label: str
) -> None:
    async def work() -> None:
        bench = SharingBench(without=["mps-2"])
        bench.pod("chat", workload_class=workload_class)
        bench.pressure = HARD
        await bench.passes(180)
        await bench.ends("chat")
        bench.pressure = None
        if leads_anew:
            bench.leads_anew()
        await bench.passes(120)
        assert bench.labels == ["mps-4", next_label]

    run(work())


@pytest.mark.parametrize("drains", [False, True])
def test_without_its_daemon_pods_take_turns_and_an_event_says_so(drains: bool) -> None:
    async def work() -> None:
        bench = SharingBench(drains=drains, measures=False)
        bench.pod("batch")
        bench.has_mps = False
        await bench.passes(90)
        assert not bench.events, "the daemon may start anew"
        await bench.passes(180)
        assert bench.reconciler.without_mps == (0 if drains else 1)
        if not drains:
            assert bench.label == "mps-4"
            assert "The daemon of MPS is away" in bench.events[0][1]
            await bench.ends("batch")
            await bench.passes(180)
        assert bench.label == "turns-4"
        assert not bench.pods()
        cordon = next(sentence for reason, sentence in bench.events if reason == "SharingCordon")
        assert "The daemon of MPS is away, and the plugin offers no GPU meanwhile." in cordon

    run(work())


def test_mps_that_is_still_away_is_tried_and_taken_back() -> None:
    async def work() -> None:
        bench = SharingBench()
        bench.has_mps = False
        await bench.passes(300)
        assert bench.label == "turns-4"
        bench.pressure = EASY
        await bench.passes(3600 + 900, every_s=60.0)
        assert bench.labels[-3:] == ["turns-4", "mps-2", "turns-4"]
        assert bench.reasons[-2:] == ["SharingFailed", "SharingRestored"]
        assert not bench.is_cordoned
        tried = len(bench.labels)
        await bench.passes(1200, every_s=60.0)
        assert len(bench.labels) == tried

    run(work())


@pytest.mark.parametrize("owner", ["", "DaemonSet"])
def test_what_nothing_would_start_again_is_never_drained(owner: str) -> None:
    async def work() -> None:
        bench = SharingBench(drains=True)
        bench.pod("notebook", owner=owner)
        bench.pressure = HARD
        await bench.passes(600)
        assert bench.labels == ["mps-4"]
        assert len(bench.pods()) == 1
        assert bench.reasons == ["SharingProposed"]
        assert "it cannot be drained: team/notebook" in bench.events[0][1]

    run(work())


def test_a_pod_that_came_meanwhile_keeps_its_gpus() -> None:
    async def work() -> None:
        bench = SharingBench()
        bench.pod("batch")
        bench.pressure = HARD
        await bench.passes(180)
        await bench.ends("batch")
        bench.pressure = None
        await bench.passes(30)
        assert bench.is_cordoned
        bench.pod("late")
        await bench.passes(60)
        assert (bench.labels, bench.is_cordoned) == (["mps-4"], False)
        assert [each["metadata"]["name"] for each in bench.pods()] == ["late"]

    run(work())


def test_a_pod_that_came_to_a_node_that_was_changed_before_keeps_its_gpus() -> None:
    async def work() -> None:
        bench = SharingBench()
        await contended(bench)
        await bench.passes(420)
        bench.pod("batch")
        bench.pressure = HARD
        await bench.passes(180)
        await bench.ends("batch")
        bench.pressure = None
        await bench.passes(30)
        assert bench.is_cordoned
        bench.pod("late")
        await bench.passes(60)
        assert (bench.labels, bench.is_cordoned, bench.is_held) == (["mps-4", "mps-2"], False, True)

    run(work())


def test_switched_off_it_is_given_back_once_nothing_runs_on_it() -> None:
    async def work() -> None:
        bench = SharingBench()
        await contended(bench)
        await bench.passes(120)
        assert bench.label == "mps-2"
        bench.pod("runs")
        bench.gate.is_on = False
        await bench.passes(120)
        assert (bench.label, bench.is_held) == ("mps-2", True)
        await bench.ends("runs")
        await bench.passes(60)
        assert (bench.label, bench.is_held, bench.is_cordoned) == ("mps-4", False, False)
        await contended(bench)
        await bench.passes(120)
        assert (bench.label, bench.is_held) == ("mps-4", False)

    run(work())


def test_a_pod_of_which_the_informer_does_not_know_keeps_its_label() -> None:
    async def work() -> None:
        bench = SharingBench()
        await contended(bench)
        await bench.passes(120)
        # A node that changes is read anew, and so are its pods.
        bench.informer_is_late, bench.has_plugin = True, False
        await bench.passes(60)
        bench.pod("runs")
        bench.gate.is_on = False
        await bench.passes(120)
        assert (bench.label, bench.is_held) == ("mps-2", True)
        await bench.ends("runs")
        await bench.passes(60)
        assert (bench.label, bench.is_held) == ("mps-4", False)

    run(work())


def test_off_gives_it_back_once_nothing_runs_on_it() -> None:
    async def work() -> None:
        bench = SharingBench()
        await contended(bench)
        await bench.passes(120)
        bench.pod("runs")
        kube: Any = bench.kube
        (outcome,) = [each async for each in release_held(kube, NODES, NODES, False, 0.0)]
        assert "its label stays, as runs has GPUs of it" in outcome.error
        assert bench.label == "mps-2"
        await bench.ends("runs")
        (outcome,) = [each async for each in release_held(kube, NODES, NODES, False, 0.0)]
        assert (outcome.error, bench.label, bench.is_held) == ("", "mps-4", False)

    run(work())


def test_what_others_do_to_a_node_is_left_alone() -> None:
    async def work() -> None:
        bench = SharingBench()
        await contended(bench)
        await bench.passes(120)
        labelled = bench.node
        labelled["metadata"]["labels"]["nvidia.com/device-plugin.config"] = "whole"
        bench.kube.put(NODES, labelled)
        await bench.passes(60)
        assert (bench.label, bench.is_held) == ("whole", False)
        # Another holder, a cordon, GPUs in instances, and a node that is not ready.
        for change in (
            {"metadata": hold_metadata("partitions", {})},
            {"spec": {"unschedulable": True}},
            {"status": {"allocatable": {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "7"}}},
            {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
        ):
            other = SharingBench()
            other.has_plugin = False
            await other.kube.patch(NODES, "n0", change)
            kept = other.node
            await contended(other)
            await other.passes(120)
            assert (other.label, other.node["spec"]) == ("mps-4", kept["spec"])
            assert "SharingCordon" not in other.reasons

    run(work())


def test_a_proposal_is_annotated_but_in_mode_observe_and_goes_with_its_reason() -> None:
    async def work() -> None:
        bench = SharingBench()
        bench.pod("batch")
        bench.pressure = HARD
        await bench.passes(180)
        assert "kaiwo.ai/sharing-proposal" in bench.node["metadata"]["annotations"]
        bench.pressure = EASY
        await bench.passes(120)
        assert "kaiwo.ai/sharing-proposal" not in bench.node["metadata"]["annotations"]
        bench.gate.is_on = False
        version, bench.pressure = bench.node["metadata"]["annotations"], HARD
        await bench.passes(180)
        assert bench.node["metadata"]["annotations"] == version
        assert bench.reasons == ["SharingProposed"] * 2

    run(work())


def test_on_amd_it_says_that_turns_are_all_there_is() -> None:
    async def work() -> None:
        bench = SharingBench("turns-4")
        bench.has_plugin = False
        await bench.kube.patch(NODES, "n0", {"status": {"allocatable": {"amd.com/gpu": "2"}}})
        await contended(bench)
        await bench.passes(120)
        assert bench.labels == ["turns-4"]
        assert "AMD's GPUs have time-slicing alone, which nothing sets or limits" in bench.events[0][1]

    run(work())


def test_without_prometheus_nothing_moves_and_it_counts_as_not_measured() -> None:
    async def work() -> None:
        bench = SharingBench()
        bench.fails = True
        await contended(bench)
        await bench.passes(300)
        assert (bench.labels, bench.events, bench.reconciler.measured) == (["mps-4"], [], 0)
        bench.fails = False
        await bench.passes(180)
        assert (bench.label, bench.reconciler.measured) == ("mps-2", 1)

    run(work())


def test_what_releases_a_node_gives_back_label_and_pods() -> None:
    hold = SharingHold("mps-4", "mps-2", "mps-4", "mps-2", SharingPhase.APPLYING, 5.0, True, 2, 900.0, 3.0)
    assert read_sharing(hold.undo()) == hold
    label = "nvidia.com/device-plugin.config"
    node = {
        "metadata": {"name": "n0", "resourceVersion": "1", **hold_metadata("sharing", hold.undo())},
        "spec": {"unschedulable": True},
    }
    assert undo_of(node) == hold.undo()
    node["metadata"]["labels"][label] = "mps-2"
    changes = release(NODES, node)
    assert changes["metadata"]["labels"] == {"kaiwo.ai/held": None, label: "mps-4"}
    assert changes["spec"] == {"unschedulable": None}
    node["metadata"]["labels"][label] = "theirs"
    assert label not in release(NODES, node)["metadata"]["labels"]
    for change in ({"own": ""}, {"phase": "new"}, {"gpus": 0}, {"own": "x" * 64}, {"since": "now"}, {"since": None}):
        assert read_sharing({"sharing": hold.undo()["sharing"] | change}) is None
    assert read_sharing({"sharing": []}) is None


def test_pods_are_read_anew_only_where_some_came_or_went() -> None:
    """Of 50 nodes that share; a list for each of them and each pass would be 100."""

    async def work() -> None:
        bench, read = SharingBench(), list[str]()
        bench.pod("first")
        for number in range(1, 50):
            other = copy.deepcopy(bench.node)
            other["metadata"] |= {"name": f"n{number}", "uid": f"u{number}"}
            bench.kube.put(NODES, other)
        listed = bench.kube.list

        async def counting(resource: Any, *args: Any, **more: Any) -> Any:
            if resource is PODS:
                read.append(more["field_selector"].split(",")[0].removeprefix("spec.nodeName="))
            return await listed(resource, *args, **more)

        bench.kube.list = counting  # type: ignore[method-assign]
        nodes = bench.live_nodes()
        offered = await nodes.offered()
        assert len(await nodes.nodes(offered)) == len(read) == 50
        bench.pod("second")
        again = {node.name: node for node in await nodes.nodes(offered)}
        assert (read[50:], again["n0"].state.pods) == (["n0"], ("team/first", "team/second"))
        await bench.ends("first")
        await nodes.patch_node(again["n7"], {"metadata": {"annotations": {"other": "1"}}})
        again = {node.name: node for node in await nodes.nodes(offered)}
        assert (sorted(read[51:]), again["n0"].state.pods) == (["n0", "n7"], ("team/second",))
        await nodes.nodes(offered)
        assert len(read) == 53, "nothing has changed"

    run(work())


def test_what_is_awaited_is_read_in_every_pass() -> None:
    """A pod that ends or has not started, and a daemon of MPS that is away while the plugin offers nothing."""

    async def work() -> None:
        for change in ("ending", "not started", "nothing offered"):
            bench = SharingBench()
            bench.pod("first")
            pod = bench.pods()[0]
            if change == "ending":
                pod["metadata"]["deletionTimestamp"] = "2026-12-01T00:00:00Z"
            if change == "not started":
                del pod["status"]["startTime"]
            bench.kube.put(PODS, pod)
            if change == "nothing offered":
                bench.has_mps = False
                await bench.passes(30)
            nodes = bench.live_nodes()
            offered = await nodes.offered()
            (before,) = await nodes.nodes(offered)
            (after,) = await nodes.nodes(offered)
            assert before is not after, change

    run(work())
