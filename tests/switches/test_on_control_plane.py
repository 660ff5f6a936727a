"""``kopt features`` on a real API server, with the object, the rights and the guard that the chart installs."""

import csv
import io
import json
import subprocess
from typing import Any

import httpx
import pytest
from chart import NAMESPACE, Helm
from controlplane.api import Refused
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from deploy.rights import start_controller
from openfeature import api

from kopt.cluster.client.api import connect
from kopt.cluster.runtime.feature_provider import provider
from kopt.cluster.runtime.switches import user_of, write_switches
from kopt.core.switches import FEATURES, Alarm

from .conftest import Run

pytestmark = pytest.mark.cluster
ROLLOUT = ("kaiwo.ai/v1alpha1", "FeatureRollout", "default")
VALUES = {"features": {"sizing": 50}}
ADMIN = "kopt-tests"
MISSES = Alarm("Drift", "sizing@7", "71 % of the last 200 measurements lay in the predicted interval.")


@pytest.fixture(scope="module")
def rollout(control_plane: ControlPlane, charts: Helm) -> dict[str, Any]:
    """The chart's object, as it was installed."""
    charts.install(control_plane, VALUES)
    (document,) = (item for item in charts.render(VALUES) if item["kind"] == "FeatureRollout")
    return document


@pytest.fixture(autouse=True)
def installed(control_plane: ControlPlane, rollout: dict[str, Any]) -> None:
    """Each test begins with switches that nobody has set."""
    control_plane.api.delete(*ROLLOUT)
    control_plane.api.create(rollout)


def rows(done: subprocess.CompletedProcess[str], name: str = "features") -> dict[str, dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return {row["feature"]: row for row in json.loads(done.stdout)[name]}


def test_a_switch_that_is_set_is_seen_with_who_and_why(control_plane: ControlPlane, kopt: Run) -> None:
    before = rows(kopt("features", "-o", "json"))
    assert set(before) == {feature.name for feature in FEATURES}
    assert (before["sizing"]["percent"], before["queues"]["percent"], before["queues"]["by"]) == (50, 100, None)
    done = kopt("features", "set", "queues", "--percent", "10", "--reason", "first trial", "-o", "json")
    assert rows(done)["queues"]["percent"] == 10
    after = rows(kopt("features", "-o", "json"))["queues"]
    assert (after["percent"], after["default"], after["by"], after["reason"]) == (10, 100, ADMIN, "first trial")
    table = kopt("features").stdout
    assert "10 %" in table
    assert ADMIN in table
    again = kopt("features", "set", "queues", "--percent", "10", "--reason", "once more", "-o", "json")
    assert json.loads(again.stdout)["changed"] is False
    (flip,) = csv.DictReader(io.StringIO(kopt("features", "history", "-o", "csv").stdout))
    assert (flip["feature"], flip["before"], flip["after"], flip["by"]) == ("queues", "100", "10", ADMIN)
    events = control_plane.api.list("events.k8s.io/v1", "Event", "default")
    assert "queues: 100 % to 10 % by kopt-tests: first trial" in [event["note"] for event in events]


@pytest.mark.long
def test_an_upgrade_leaves_what_was_set_and_brings_new_defaults(
    control_plane: ControlPlane, charts: Helm, kopt: Run
) -> None:
    # By helm itself, which owns the fields that it has applied.
    control_plane.api.delete(*ROLLOUT)
    charts.install(control_plane, VALUES)
    assert kopt("features", "set", "placement", "--off", "--reason", "maintenance").returncode == 0
    charts.install(control_plane, {"features": {"sizing": 20, "placement": 90}})
    after = rows(kopt("features", "-o", "json"))
    assert (after["placement"]["percent"], after["placement"]["default"]) == (0, 90)
    assert after["sizing"]["percent"] == 20
    assert kopt("features", "set", "placement", "--default", "--reason", "done").returncode == 0
    assert rows(kopt("features", "-o", "json"))["placement"]["percent"] == 90


async def test_a_component_switches_off_once_and_can_do_nothing_else(control_plane: ControlPlane, kopt: Run) -> None:
    path = control_plane.kubeconfig_for("kopt-sizing", NAMESPACE)
    async with connect(path) as kube, connect(path) as other:
        user = await user_of(kube)
        assert user == f"system:serviceaccount:{NAMESPACE}:kopt-sizing"
        _, first = await write_switches(kube, lambda now: now.fall_back(user, "profiling", MISSES, 1.8e9))
        _, second = await write_switches(other, lambda now: now.fall_back(user, "profiling", MISSES, 1.8e9))
        assert first is not None
        assert second is None
        with pytest.raises(Exception, match="components only switch their features off"):
            await write_switches(kube, lambda now: now.set_by(user, "queues", 5, "trial", 1.8e9))
        with pytest.raises(Exception, match="components only switch their features off"):
            await write_switches(kube, lambda now: now.set_by(user, "profiling", 100, "again", 1.8e9))
    row = rows(kopt("features", "-o", "json"))["profiling"]
    assert (row["percent"], row["by"], row["alarm"]) == (0, user, "Drift/sizing@7")
    assert "Switched off by an alarm: profiling" in kopt("features").stdout
    assert kopt("features", "set", "profiling", "--on", "--reason", "looked at it").returncode == 0
    async with connect(path) as kube:
        _, flip = await write_switches(kube, lambda now: now.fall_back(user, "profiling", MISSES, 1.8e9))
    assert flip is None, "a person has overruled this alarm"


def setting(percent: int, by: str) -> dict[str, Any]:
    return {"percent": percent, "by": by, "at": "2026-11-28T12:00:00Z", "reason": "x"}


def record(name: str, percent: int, by: str) -> dict[str, Any]:
    return {"feature": name, "from": 100, "to": percent, "by": by, "at": "2026-11-28T12:00:00Z", "reason": "x"}


def test_nobody_sets_a_switch_in_another_name_or_without_a_record(control_plane: ControlPlane, kopt: Run) -> None:
    assert kopt("features", "set", "lending", "--off", "--reason", "x").returncode == 0
    unrecorded = {"spec": {"settings": {"queues": setting(5, ADMIN)}}}
    anothers = record("queues", 5, "somebody-else")
    for changes, says in (
        ({"spec": {"settings": {"queues": setting(5, "somebody-else")}}}, "who you are to the API server"),
        (unrecorded, "needs its record"),
        (unrecorded | {"status": {"history": [anothers]}}, "needs its record"),
        ({"spec": {"settings": {"lending": None}}}, "needs its record"),
        ({"status": {"history": []}}, "the history only grows"),
    ):
        with pytest.raises(Refused, match=says):
            control_plane.api.patch(*ROLLOUT, changes)


@pytest.mark.long
def test_programs_of_others_follow_through_openfeature(control_plane: ControlPlane, kopt: Run) -> None:
    with provider(control_plane.kubeconfig) as switches:
        api.set_provider(switches, "cluster")
        client = api.get_client("cluster")
        assert client.get_boolean_value("lending", False)
        assert kopt("features", "set", "lending", "--off", "--reason", "x").returncode == 0
        wait_for(lambda: not client.get_boolean_value("lending", True), what="the switch is seen")
    api.clear_providers()


def test_who_may_not_is_told_who_may(control_plane: ControlPlane, kopt: Run) -> None:
    done = kopt(
        "features", "set", "queues", "--off", "--reason", "x", kubeconfig=control_plane.kubeconfig_as("mallory")
    )
    assert done.returncode == 1
    assert "kopt-features-edit" in done.stderr


@pytest.mark.long
def test_a_component_shows_the_percentages_that_it_follows(
    control_plane: ControlPlane, kopt: Run, charts: Helm
) -> None:
    """A real process, with its account's token."""
    server, metrics = start_controller(control_plane, charts, {}, "kopt-sizing")
    try:
        server.wait_until(lambda: 'kopt_feature_percent{feature="profiling"} 100.0' in _text(metrics))
        assert kopt("features", "set", "profiling", "--percent", "30", "--reason", "trial").returncode == 0
        server.wait_until(lambda: 'kopt_feature_percent{feature="profiling"} 30.0' in _text(metrics))
    finally:
        server.stop()


def _text(url: str) -> str:
    return httpx.get(url, trust_env=False).text
