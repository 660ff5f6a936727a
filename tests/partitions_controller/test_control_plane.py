"""Partitions before a real control plane: what waits is planned, cut and bound by the real scheduler."""

import asyncio
import itertools
import json
import time
from typing import Any

import pytest
from controlplane.processes import wait_for
from mortal import Met, Mortal, lives, until_killed
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.cluster.client.api import connect
from kopt.cluster.client.resources import NODES
from kopt.cluster.objects.device_slices import API_VERSION, mig_gpus
from kopt.cluster.runtime.lease import LeaseSettings
from kopt.cluster.teardown.switch_off import switch_off
from kopt.controllers.partitions.executors import MigManager as Label
from kopt.controllers.partitions.main import ProcessSettings, Replica
from kopt.controllers.partitions.pools import Managers
from kopt.controllers.partitions.reconciler import ControllerSettings
from kopt.core.decision import Mode
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry

from .conftest import GPUS, LABEL, Bench, MigManager, Start

pytestmark = pytest.mark.cluster
SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


def test_what_waits_is_cut_and_bound_and_what_runs_stays(bench: Bench, manager: MigManager, controller: Start) -> None:
    busy = bench.nodes[0]
    bench.pod("whole", "nvidia.com/gpu", 1, busy)
    assert bench.bound("whole") == busy
    strategy = bench.strategy("infer")
    replica = controller("--mode=enforce")
    for number in range(10):
        bench.pod(f"small-{number}", SMALL)
    bench.pod("large", LARGE)
    homes = {bench.bound(f"small-{number}") for number in range(10)} | {bench.bound("large")}
    assert busy not in homes
    assert bench.where("whole") == busy
    assert sorted(bench.labels().values()) == ["", "all-1g.10gb", "all-3g.40gb"]
    assert all(not pods for _, _, pods in manager.cut)
    assert len(manager.cut) == 2
    assert not any(bench.node(name)["spec"].get("unschedulable") for name in bench.nodes)
    row = wait_for(lambda: bench.row(strategy, bench.where("large")), what="its row")
    assert (row["executor"], row["configuration"]) == ("mig-manager", "all-3g.40gb")
    assert replica.metric("kopt_partitions_errors") == 0
    # A whole GPU more than there is: everything else has pods.
    bench.pod("more", "nvidia.com/gpu", 2)
    wait_for(lambda: any(row["reason"] == "NoIdleNode" for row in bench.status(strategy)["undone"]), what="it is said")
    assert {row["subject"] for row in bench.status(strategy)["undone"]} >= {"gpu", "configuration too-many"}
    (refused,) = (row for row in bench.status(strategy)["undone"] if row["subject"] == "configuration too-many")
    assert "8 of 7 compute slices" in refused["message"]


def test_it_is_shown_and_nothing_is_written_before_it_acts(
    bench: Bench, manager: MigManager, controller: Start
) -> None:
    strategy = bench.strategy("observed")
    bench.pod("small", SMALL)
    (before,) = wait_for(
        lambda: [row for row in kopt(bench, "plan")["partitions"] if row["reason"] == "ToCut"], what="it is planned"
    )
    assert before["wanted"]["1g.10gb"] >= 1
    replica = controller()
    rows = wait_for(
        lambda: [row for row in bench.status(strategy).get("nodes", ()) if row["reason"] == "ToCut"], what="a plan"
    )
    assert len(rows) == 1
    assert rows[0]["wanted"] == {"1g.10gb": 7 * GPUS} or rows[0]["wantedConfiguration"] == "all-balanced"
    assert bench.accepted(strategy) == "OnlyObserved"
    assert set(bench.labels().values()) == {""}
    assert set(bench.held()) == {""}
    assert replica.metric("kopt_partitions_planned") == 1
    listed = [row for row in kopt(bench, "list")["partitions"] if row["strategy"] == strategy]
    assert {row["node"]: row["reason"] for row in listed} == {
        row["name"]: row["reason"] for row in bench.status(strategy)["nodes"]
    }
    assert not manager.cut


def kopt(bench: Bench, command: str) -> Any:
    where = [f"--configurations={bench.space}/mig-parted"] if command == "plan" else []
    words = ["partitions", command, *where, "--kubeconfig", str(bench.plane.kubeconfig), "-o", "json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.long
def test_a_pod_that_comes_after_the_cordon_keeps_its_node(bench: Bench, manager: MigManager, controller: Start) -> None:
    """One that was scheduled before it is bound afterwards."""
    bench.strategy("late")
    controller("--mode=enforce", "--settle=4s")
    for node in bench.nodes:
        bench.pod(f"small-{node}", SMALL, 14, node)
    wait_for(lambda: bench.held()["partitions"] == 3, what="nodes are cordoned")
    busy = bench.nodes[0]
    bench.bind("late", "nvidia.com/gpu", busy)
    assert bench.bound(f"small-{bench.nodes[1]}") == bench.nodes[1]
    wait_for(lambda: not bench.node(busy)["spec"].get("unschedulable"), what="it takes pods again")
    assert LABEL not in bench.node(busy)["metadata"]["labels"]
    assert busy not in {name for name, _, _ in manager.cut}
    assert bench.where("late") == busy


@pytest.mark.long
def test_a_node_is_not_cut_again_within_the_interval(bench: Bench, manager: MigManager, controller: Start) -> None:
    strategy = bench.strategy("calm")
    controller("--mode=enforce")
    bench.pod("small", SMALL, 2)
    home = bench.bound("small")
    bench.ends("small")
    for number in range(3):
        bench.pod(f"whole-{number}", "nvidia.com/gpu", 2)
    wait_for(lambda: bench.row(strategy, home).get("reason") == "CutLately", what="it says so")
    wait_for(lambda: sum(bool(bench.where(f"whole-{number}")) for number in range(3)) == 2, what="the others have room")
    assert len(manager.cut) == 1
    # What does not change is not written again, although time passes.
    wait_for(lambda: _is_calm(bench, strategy), what="its status stays as it is")


def _is_calm(bench: Bench, strategy: str) -> bool:
    written = bench.version(strategy)
    time.sleep(2.5)
    return bench.version(strategy) == written


def test_what_mig_manager_cannot_do_is_put_back(bench: Bench, manager: MigManager, controller: Start) -> None:
    manager.fails = "all-3g.40gb"
    strategy = bench.strategy("fails", {"3g.40gb": "100%"})
    controller("--mode=enforce")
    bench.pod("large", LARGE, 4)
    wait_for(lambda: manager.cut, what="it was tried")
    tried = manager.cut[0][0]
    wait_for(lambda: bench.row(strategy, tried).get("reason") == "FailedLately", what="it says so")
    node = bench.node(tried)
    assert LABEL not in node["metadata"]["labels"]
    assert not node["spec"].get("unschedulable")


@pytest.mark.long
@pytest.mark.parametrize("by", ["kubectl-label", "strategy"])
def test_two_authorities_are_refused(bench: Bench, manager: MigManager, controller: Start, by: str) -> None:
    strategy = bench.strategy("mine")
    if by == "strategy":
        other = bench.strategy("other")
    else:
        bench.label(bench.nodes[0], "all-balanced", by)
    bench.pod("small", SMALL, 14, bench.nodes[0])
    controller("--mode=enforce")
    wait_for(lambda: bench.accepted(strategy) == "TwoAuthorities", what="it is refused")
    message = bench.row(strategy, bench.nodes[0])["message"]
    assert (other if by == "strategy" else by) in message
    assert set(bench.held()) == {""}
    if by == "strategy":
        bench.api.delete("kgwe.nvidia.io/v1", "MIGStrategy", other, "")
        assert bench.bound("small") == bench.nodes[0]


def call_of(method: str, path: str, body: Any) -> str:
    """What a write does; empty for everything that decides nothing."""
    if "migstrategies" in path and method == "PUT":
        return "status"
    if method != "PATCH" or "/nodes/" not in path:
        return ""
    note = (body["metadata"].get("annotations") or {}).get("kaiwo.ai/held-undo")
    return json.loads(note)["phase"] if note else "give back"


@pytest.mark.long
def test_whoever_dies_at_a_write_the_next_goes_on(bench: Bench, manager: MigManager) -> None:
    met: Met = set()
    where = (bench.space, "mig-parted")

    async def live(over: asyncio.Event, number: int) -> None:
        kube = Mortal(bench.plane.kubeconfig, met, call_of)
        settings = ProcessSettings(
            lease=LeaseSettings(1.0, 0.7, 0.1),
            namespace=bench.space,
            identity=f"life-{number}",
            port=0,
            controller=ControllerSettings(Mode.ENFORCE, managers=Managers(Label(settle_s=0.5))),
            configurations=where,
        )
        await until_killed(kube, Replica(kube, settings).run(), over)

    bench.strategy("mortal")
    bench.pod("large", LARGE, 4)
    with lives(live):
        assert bench.bound("large")
        wait_for(lambda: ("after", "status") in met, what="its status is written")
        bench.ends("large")
        bench.api.delete("kgwe.nvidia.io/v1", "MIGStrategy", bench.made.pop(), "")
        wait_for(lambda: set(bench.held()) == {""} and set(bench.labels().values()) == {""}, what="all is given back")
        wanted = {"cordoned", "cutting", "cut", "give back", "status"}
        assert set(itertools.product(("before", "after"), wanted)) <= met
    assert [configuration for _, configuration, _ in manager.cut] == ["all-3g.40gb"]
    assert not any(bench.node(name)["spec"].get("unschedulable") for name in bench.nodes)


def switched_off(bench: Bench) -> list[str]:
    """What could not be given back."""

    async def run() -> list[str]:
        async with connect(bench.plane.kubeconfig) as kube:
            outcomes = switch_off(kube, held_kinds=(NODES,), namespace=bench.space)
            return [outcome.error async for outcome in outcomes if outcome.error]

    return asyncio.run(run())


def test_off_gives_back_what_no_pod_uses_and_says_what_stays(
    bench: Bench, manager: MigManager, controller: Start
) -> None:
    bench.label(bench.nodes[0], "all-disabled", "gpu-operator")
    bench.strategy("off")
    replica = controller("--mode=enforce")
    bench.pod("small", SMALL, 14, bench.nodes[0])
    bench.pod("large", LARGE, 4)
    assert bench.bound("small") == bench.nodes[0]
    home = bench.bound("large")
    replica.server.kill()
    bench.ends("large")
    (stays,) = switched_off(bench)
    assert "small has GPUs of it" in stays
    assert "run this again when they have ended" in stays
    assert bench.labels() == dict.fromkeys(bench.nodes, "") | {bench.nodes[0]: "all-1g.10gb"}
    assert LABEL not in bench.node(home)["metadata"]["labels"]
    assert bench.where("small") == bench.nodes[0]
    bench.ends("small")
    assert not switched_off(bench)
    assert bench.labels()[bench.nodes[0]] == "all-disabled"
    assert set(bench.held()) == {""}


@pytest.mark.long
def test_a_driver_that_cuts_on_demand_is_left_to_it(bench: Bench, controller: Start) -> None:
    node, driver = bench.nodes[0], f"{bench.space}.devices.test"
    slices = mig_gpus(driver, node, GPUS, mig_geometry(find_gpu("h100-80gb"))).slices()
    for document in slices:
        bench.api.replace(document)
    expression = f'device.driver == "{driver}" && device.attributes["{driver}"].type == "mig"'
    device_class = {"selectors": [{"cel": {"expression": expression}}]}
    bench.api.create(
        {"apiVersion": API_VERSION, "kind": "DeviceClass", "metadata": {"name": driver}, "spec": device_class}
    )
    try:
        strategy = bench.strategy("dynamic")
        controller("--mode=enforce")
        bench.claim_template("instance", driver, "3g.40gb")
        for number in range(2 * GPUS + 1):
            bench.pod_with_claim(f"large-{number}", "instance", node)
        wait_for(lambda: bench.row(strategy, node).get("actual") == {"3g.40gb": 2 * GPUS}, what="its instances")
        row = bench.row(strategy, node)
        assert row["executor"] == "dra"
        assert "cuts on demand" in row["message"]
        wait_for(lambda: {"profile": "3g.40gb", "waiting": 1, "planned": 0} in bench.status(strategy)["demand"])
        bench.label(node, "all-1g.10gb", "kubectl-label")
        wait_for(lambda: bench.row(strategy, node)["reason"] == "TwoAuthorities", what="it is refused")
    finally:
        for number in range(2 * GPUS + 1):
            bench.ends(f"large-{number}")
        for document in slices:
            bench.api.delete(API_VERSION, "ResourceSlice", document["metadata"]["name"], "")
        bench.api.delete(API_VERSION, "DeviceClass", driver, "")
