"""Killed before and after each kind of write to a real API server, once each, the controller has the data fetched once,
the job runs with it, and everything is given back. The same for a leader that is stopped, and for `kopt off`."""

import asyncio
import itertools
import signal
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from controlplane.processes import Server, wait_for
from cut_off import way_to
from mortal import Met, Mortal, lives, until_killed
from replicas import KOPT

from kopt.cluster.runtime.lease import LeaseSettings
from kopt.controllers.staging.main import ProcessSettings, Replica
from kopt.controllers.staging.ports import StagingSettings
from kopt.core.decision import Mode
from kopt.policies.staging.pod import PodSettings

from .conftest import DATA, SYSTEM, Controller, Team

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
STAGES = {"make data", "guard", "make job", "status", "hold", "release", "ungate"}
REMOVES = {"make job", "unguard"}


def call_of(method: str, path: str, body: Any) -> str:
    """What a write does; empty for everything that decides nothing."""
    made = {("POST", "stageddata"): "make data", ("POST", "jobs"): "make job", ("DELETE", "jobs"): "end job"}
    parts = path.split("/")
    for (verb, plural), call in made.items():
        if method == verb and plural in parts:
            return call
    if method == "PUT" and path.endswith("/status") and "stageddata" in parts:
        return "status"
    if method != "PATCH":
        return ""
    labels = body["metadata"].get("labels", {})
    if "stageddata" in parts:
        return "guard" if body["metadata"]["finalizers"] else "unguard"
    if "pods" in parts:
        return "ungate" if "kaiwo.ai/held" in labels else ""
    if "workloads" in parts:
        return "stop" if body["spec"].get("active") is False else "give back"
    if "jobs" in parts and "kaiwo.ai/held" in labels:
        return "hold" if labels["kaiwo.ai/held"] else "release"
    return "tell" if "jobs" in parts else ""


def killed(kubeconfig: Path, met: Met) -> AbstractContextManager[None]:
    """One controller after the other, each killed at another write."""

    async def live(over: asyncio.Event, number: int) -> None:
        kube = Mortal(kubeconfig, met, call_of)
        settings = ProcessSettings(
            lease=LeaseSettings(1.5, 1.0, 0.2),
            namespace=SYSTEM,
            identity=f"life-{number}",
            port=0,
            staging=StagingSettings(PodSettings("kopt-staging:test", cpu="10m"), Mode.ENFORCE),
        )
        await until_killed(kube, Replica(kube, settings).run(), over)

    return lives(live)


def gated(team: Team, name: str, request: str) -> None:
    """A pod as the webhook leaves it."""
    labels = {"kaiwo.ai/held": "staging", "kaiwo.ai/asks-for-data": "true"}
    notes = {
        "kaiwo.ai/stage": request,
        "kaiwo.ai/stage-secret": "s3",
        "kaiwo.ai/held-undo": '{"gates":["kaiwo.ai/staging"]}',
    }
    spec = {
        "containers": [{"name": "serve", "image": "team/serve:1", "command": ["sleep", "600"]}],
        "schedulingGates": [{"name": "kaiwo.ai/staging"}],
        "nodeSelector": team.node.selector,
        "terminationGracePeriodSeconds": 0,
    }
    team.api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "spec": spec,
            "metadata": {"name": name, "namespace": team.space, "labels": labels, "annotations": notes},
        }
    )


@pytest.mark.long
def test_data_is_fetched_once_and_the_job_runs_wherever_it_dies(team: Team) -> None:
    met: Met = set()
    team.s3.put(f"{team.space}/a", b"content")
    with killed(team.plane.kubeconfig, met):
        # Kueue's own scheduler is not to be there first: it waits for a queue that is made later.
        request = f"s3://data/{team.space} -> pvc://data/copy"
        gated(team, "serve", request)
        team.submit("train", stage=request, stage_secret="s3", queue="later")
        wait_for(lambda: team.told("train").get("state") == "ready", 150, "it is told that its data is there")
        (made,) = team.api.list(*DATA, team.space)
        assert team.status(made["metadata"]["name"])["attempts"] == 1
        assert (team.claim / "copy" / "a").read_bytes() == b"content"
        wait_for(lambda: not team.holder("train"), what="nobody holds it")
        wait_for(lambda: team.api.get("v1", "Pod", "serve", team.space)["spec"].get("nodeName"), what="the pod as well")
        assert team.job("train")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "later"
        assert set(itertools.product(("before", "after"), STAGES)) <= met
        met.clear()
        met |= set(itertools.product(("before", "after"), {"make data", "guard", "hold", "release", "tell", "ungate"}))
        team.api.delete("v1", "Pod", "serve", team.space)
        team.api.delete("batch/v1", "Job", "train", team.space, propagationPolicy="Background")
        team.api.delete(*DATA, made["metadata"]["name"], team.space)
        wait_for(lambda: not team.api.list(*DATA, team.space), 150, "it is gone with its copy")
        wait_for(lambda: set(itertools.product(("before", "after"), REMOVES)) <= met, what="it died at each")
    assert list(team.claim.iterdir()) == []


@pytest.mark.long
def test_another_takes_over_from_a_leader_that_is_stopped(
    team: Team, controller: Callable[..., Controller], webhook: Server
) -> None:
    first = controller()
    team.wait_reviewed()
    team.submit("train", "tokens")
    team.wait_told("train", "failed")
    first.server.signal(signal.SIGSTOP)
    second = controller(leads=False)
    second.wait_leading()
    team.s3.put(f"{team.space}/a", b"content")
    team.stage("tokens", f"s3://data/{team.space}")
    wait_for(lambda: team.runs("train"), what="it runs")
    first.server.signal(signal.SIGCONT)
    first.wait_deposed()
    assert team.status("tokens")["attempts"] == 1
    assert len(team.staging_jobs()) == 1


@pytest.mark.long
def test_it_goes_on_after_the_way_to_the_api_server_was_cut(
    team: Team, controller: Callable[..., Controller], webhook: Server, tmp_path: Path
) -> None:
    with way_to(team.plane.kubeconfig, tmp_path) as way:
        one = controller(kubeconfig=way.kubeconfig)
        team.wait_reviewed()
        team.stage("tokens", f"s3://data/{team.space}/missing")
        stored = team.submit("train", "tokens")
        wait_for(lambda: "there is nothing at" in team.told("train").get("message", ""), what="it is told why it waits")
        way.close()
        one.wait_deposed()
        team.s3.put(f"{team.space}/missing/a", b"content")
        team.again("tokens")
        assert (team.holder("train"), team.status("tokens")["attempts"]) == ("staging", 1)
        way.open()
        wait_for(lambda: team.runs("train"), what="it runs")
    assert (team.claim / "tokens" / "a").read_bytes() == b"content"
    assert (team.status("tokens")["attempts"], len(team.staging_jobs())) == (2, 2)
    assert team.holders(stored) == ["staging", ""]
    assert team.times("train", "DataReady") == 1


def test_kopt_off_gives_back_everything(team: Team, controller: Callable[..., Controller], webhook: Server) -> None:
    one = controller()
    team.wait_reviewed()
    team.s3.put(f"{team.space}/a", b"content")
    team.stage("tokens", f"s3://data/{team.space}")
    team.wait_phase("tokens", "Ready")
    team.submit("train", "tokens,others")
    team.submit("alone", "others", queue="")
    for name in ("train", "alone"):
        team.wait_told(name, "failed")
        assert team.holder(name) == "staging"
    one.server.kill()
    done = subprocess.run(
        [*KOPT, "off", "--kubeconfig", str(team.plane.kubeconfig)],
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in ("train", "alone"):
        wait_for(lambda name=name: team.runs(name), what=f"{name} runs")
        assert team.holder(name) == ""
    team.api.delete(*DATA, "tokens", team.space)
    wait_for(lambda: not team.api.list(*DATA, team.space), what="deleting it waits for nobody")
