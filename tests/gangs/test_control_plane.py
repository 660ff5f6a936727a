"""Two gangs that wait for each other under the real kube-scheduler: one is released, and the other runs."""

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from agent_notes import checkpoint_notes
from asgi_server import served
from controlplane.kueue import Kueue
from controlplane.processes import wait_for
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.serving.audit.service import AuditService
from kopt.serving.audit.table import AuditTable
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.http.metrics import EndpointMetrics

from .conftest import GPU, Gangs, Start

pytestmark = pytest.mark.cluster
HOLD_S = 3.0


def test_the_younger_gives_up_its_node_and_comes_back_when_the_other_has_started(
    gangs: Gangs, controller: Start
) -> None:
    """The leader is killed as soon as the release is written: the other replica gives it back, and nothing is done
    twice."""
    first = controller("--mode=enforce", f"--hold={HOLD_S}s")
    second = controller("--mode=enforce", f"--hold={HOLD_S}s", leads=False)
    bound_s = gangs.deadlock()
    wait_for(lambda: gangs.is_suspended("newer"), what="the younger is released")
    first.server.kill()
    assert time.time() - bound_s <= HOLD_S + 5
    wait_for(lambda: gangs.bound("older") == 2, what="the older runs")
    assert time.time() - bound_s <= HOLD_S + 5
    labels = gangs.job("newer")["metadata"]["labels"]
    assert labels["kaiwo.ai/held"] == "gangs"
    second.wait_leading()
    wait_for(lambda: not gangs.is_suspended("newer"), what="it is given back")
    metadata = gangs.job("newer")["metadata"]
    assert "kaiwo.ai/held" not in metadata.get("labels", {})
    assert not {"kaiwo.ai/evicting", "kaiwo.ai/held-undo"} & set(metadata["annotations"])
    assert len(gangs.events("GangReleased")) <= 1, "it may die with the leader, and comes never twice"
    assert not gangs.is_suspended("older")
    gangs.ends("older")
    wait_for(lambda: len(gangs.pods("newer")) == 2, what="it has pods again")
    gangs.let_all("newer")
    wait_for(lambda: gangs.bound("newer") == 2, what="it runs after the other")


@pytest.mark.long
def test_what_is_admitted_by_kueue_is_released_by_its_workload(gangs: Gangs, controller: Start, kueue: Kueue) -> None:
    controller("--mode=enforce", f"--hold={HOLD_S}s")
    with kueue.queue(gangs.space, {GPU: 16, "cpu": 100}):
        bound_s = gangs.deadlock(queue="gpus")
        wait_for(lambda: gangs.bound("older") == 2, what="the older runs")
        assert time.time() - bound_s <= HOLD_S + 5
        wait_for(lambda: len(gangs.pods("newer")) == 2 and gangs.bound("newer") == 0, what="Kueue admits it again")
        assert not gangs.is_suspended("older")
        for name in ("newer", "older"):
            gangs.ends(name)


@pytest.mark.long
def test_without_enforce_it_is_only_said(gangs: Gangs, controller: Start) -> None:
    replica = controller("--mode=annotate", "--hold=1s")
    gangs.deadlock()
    wait_for(
        lambda: "kaiwo.ai/gang-deadlock" in gangs.job("newer")["metadata"].get("annotations", {}), what="it is said"
    )
    said = json.loads(gangs.job("newer")["metadata"]["annotations"]["kaiwo.ai/gang-deadlock"])
    names = {f"{gangs.space}/{name}" for name in ("older", "newer")}
    assert set(said["deadlock"]) == names
    assert said["release"] == [f"{gangs.space}/newer"]
    assert replica.metric("kopt_gangs_deadlocked") == 2
    assert (gangs.bound("older"), gangs.bound("newer")) == (1, 1)
    wait_for(lambda: gangs.events("GangDeadlock"), what="there is an event")
    gangs.ends("older")
    wait_for(lambda: not gangs.report("newer"), what="it is said no longer")


def test_the_audit_log_shows_each_step_with_what_it_replaced(
    gangs: Gangs, controller: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller and an endpoint as they run in a cluster: what was done is read by the command, and is whole."""
    audit = AuditService(AuditTable(tmp_path / "audit.db"))
    with served(create_app(Endpoint({}, EndpointMetrics(), audit=audit), manage=False)) as url:
        monkeypatch.setenv("KOPT_AUDIT_URL", url)
        replica = controller("--mode=enforce", f"--hold={HOLD_S}s")
        gangs.deadlock()
        wait_for(lambda: gangs.bound("older") == 2, what="the older runs")
        replica.server.stop()

        def answer(*arguments: str, status: int = 0) -> dict[str, Any]:
            done = CliRunner(env={"KOPT_URL": url}).invoke(app, ["audit", *arguments, "-o", "json"])
            assert done.exit_code == status, done.output
            result: dict[str, Any] = json.loads(done.stdout)
            return result

        rows = answer("log", "-n", gangs.space, "--name", "newer")["records"]
        suspended = next(row for row in rows if row["after"] and row["after"].get("spec") == {"suspend": True})
        assert suspended["before"]["spec"] == {"suspend": False}
        assert suspended["uid"] == gangs.job("newer")["metadata"]["uid"]
        released = next(row for row in rows if row["reason"] == "GangReleased")
        assert released["text"] == gangs.events("GangReleased")[0]["note"]
        assert {row["component"] for row in rows} == {"gangs"}
        assert answer("verify", str(replica.server.log))["whole"]
        with sqlite3.connect(tmp_path / "audit.db") as database:
            database.execute("UPDATE audit_record SET text = replace(text, 'newer', 'older')")
        assert not answer("verify", status=1)["whole"]
    audit.close()


@pytest.mark.long
@pytest.mark.parametrize("gangs", [4], indirect=True)
def test_pods_beyond_a_minimum_go_first(gangs: Gangs, controller: Start) -> None:
    """Four nodes: an elastic gang has two and can do with one, two others have one each and lack one."""
    gangs.submit("elastic", gated=False, gang_minimum="1")
    wait_for(lambda: gangs.bound("elastic") == 2, what="the elastic gang runs")
    gangs.deadlock()
    for pod in gangs.pods("elastic"):
        metadata = {"metadata": {"annotations": checkpoint_notes("TRAIN", True, 0, -1.0)}}
        gangs.api.patch("v1", "Pod", pod["metadata"]["name"], metadata, gangs.space)
    controller("--mode=enforce", "--hold=1s")
    # Their pods may have been made within a second: then either is the older.
    wait_for(lambda: {gangs.bound("older"), gangs.bound("newer")} == {1, 2}, what="one of them runs")
    assert gangs.bound("elastic") == 1
    assert not any(map(gangs.is_suspended, ("elastic", "older", "newer")))
    assert len(wait_for(lambda: gangs.events("GangShrunk"), what="it is said") or []) == 1


def test_replicas_are_advised_from_the_nodes_of_the_cluster(gangs: Gangs) -> None:
    gangs.submit("first", pods=1, gpus=2, gated=False)
    wait_for(lambda: gangs.bound("first") == 1, what="it runs")

    def advice() -> dict[str, Any]:
        words = ["replicas", "--gpus", "4", "--run-time", "2h", "--kubeconfig", str(gangs.plane.kubeconfig)]
        done = CliRunner().invoke(app, [*words, "-o", "json"])
        assert done.exit_code == 0, done.output
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    selected = advice()["selected"]
    assert (selected["replicas"], selected["gpus_per_replica"], selected["wait_seconds"]) == (1, 4, 0)
    gangs.submit("second", pods=1, gpus=1, gated=False)
    wait_for(lambda: gangs.bound("second") == 1, what="it runs")
    taken = {pod["spec"]["nodeName"] for name in ("first", "second") for pod in gangs.pods(name)}
    answer = advice()
    assert answer["selected"]["fits_now"]
    # Which of two shapes that fit strands less hangs on what other pods of the cluster usually ask for.
    assert answer["selected"]["replicas"] in ((1,) if len(taken) == 1 else (2, 4))
