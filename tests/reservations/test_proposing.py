"""From the recorded demand of a queue to a reservation that the real Kueue and the controller keep."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from prometheus_server import RunningPrometheus
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.cluster.workloads.kueue.reading import read_kueue_workload
from kopt.controllers.queues.demand import queued_gpus
from kopt.core.scheduling.queue_tree import DEMAND_METRIC

from .conftest import CRDS, GPU, GPUS_PER_NODE, KIND, KUEUE, SYSTEM, Start, Team, stamp

pytestmark = pytest.mark.cluster
HOUR_S, WEEK_S, WEEKS = 3600, 168 * 3600, 4
PEAK_AFTER_S, PEAK_S = 20 * HOUR_S, 4 * HOUR_S
Object = dict[str, Any]


class Serving:
    """A queue with a quota of four GPUs in a cohort of sixteen, beside ``gpus`` with the others."""

    def __init__(self, team: Team, flavor: str) -> None:
        self.team, self.flavor = team, flavor
        self.queue = f"{team.space}-serving"
        self.now_s = int(time.time()) // HOUR_S * HOUR_S
        self.start_s = self.now_s + PEAK_AFTER_S

    def history(self) -> str:
        """Once a week it demands twelve GPUs for four hours, else two; the other queue always uses all that it has."""
        lines = [f"# TYPE {DEMAND_METRIC} gauge"]
        first = self.now_s - WEEKS * WEEK_S
        for queue, state in ((self.queue, "used"), (self.queue, "pending"), (self.flavor, "used"),
                             (self.flavor, "pending")):  # fmt: skip
            labels = f'{{queue="{queue}",pool="{self.flavor}",state="{state}",pod="kopt-queues-0"}}'
            lines += [f"{DEMAND_METRIC}{labels} {self._gpus(queue, state, at)} {at}" for at in self._times(first)]
        return "\n".join([*lines, "# EOF", ""])

    def _times(self, first: int) -> range:
        return range(first + 150, self.now_s, 300)

    def _gpus(self, queue: str, state: str, at: int) -> int:
        if queue != self.queue:
            return 12 if state == "used" else 0
        peaks = (at - self.start_s) % WEEK_S < PEAK_S
        return (4 if peaks else 2) if state == "used" else 8 if peaks else 0

    def propose(self, url: str, *words: str, output: str = "json") -> Any:
        options = ["--prometheus", url, "--kubeconfig", str(self.team.plane.kubeconfig), "-o", output]
        done = CliRunner().invoke(app, ["reservations", "propose", *words, *options])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout) if output == "json" else done.stdout

    def rows(self, url: str, *words: str) -> dict[str, Object]:
        return {row["queue"]: row for row in self.propose(url, *words)["proposals"]}


@pytest.fixture
def serving(control_plane: ControlPlane, kueue: Kueue, kwok: Kwok) -> Iterator[Serving]:
    control_plane.api.namespace(SYSTEM)
    control_plane.apply_crds([CRDS / "kaiworeservations.yaml"])
    space = control_plane.api.space("proposed", {"kaiwo.ai/managed": "true"})
    with (
        kwok.nodes(4, gpus=GPUS_PER_NODE) as nodes,
        kueue.queue(space, {GPU: 12}, node_labels=nodes.selector, cohort=space) as flavor,
    ):
        team = Team(control_plane, space, dict(nodes.selector))
        serving = Serving(team, flavor)
        limits = [{"name": GPU, "nominalQuota": "4"}]
        group = {"coveredResources": [GPU], "flavors": [{"name": flavor, "resources": limits}]}
        control_plane.api.create(
            {
                "apiVersion": KUEUE,
                "kind": "ClusterQueue",
                "metadata": {"name": serving.queue},
                "spec": {"cohort": space, "namespaceSelector": {}, "resourceGroups": [group]},
            }
        )
        local = {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "serving", "namespace": space}}
        control_plane.api.create(local | {"spec": {"clusterQueue": serving.queue}})
        yield serving
        team.clear()
        control_plane.api.delete(KUEUE, "LocalQueue", "serving", space)
        control_plane.api.delete(KUEUE, "ClusterQueue", serving.queue, "")


@pytest.fixture
def prometheus(serving: Serving, tmp_path: Path) -> Iterator[RunningPrometheus]:
    server = RunningPrometheus(tmp_path, serving.history())
    yield server
    server.stop()


@pytest.mark.long
def test_a_weekly_peak_becomes_a_reservation_that_is_kept(
    serving: Serving, prometheus: RunningPrometheus, controller_of: Start
) -> None:
    team, url = serving.team, prometheus.url
    assert serving.rows(url)[serving.queue]["code"] == "RESERVATION_CLASS_UNKNOWN"
    team.submit("answers", 4, queue="serving", **{"class": "inference"})
    team.submit("trains", 4)
    wait_for(lambda: team.runs("answers") and team.runs("trains"), what="both run")
    rows = serving.rows(url)
    assert rows[serving.flavor]["code"] == "RESERVATION_CLASS_OTHER"
    row = rows[serving.queue]
    assert (row["code"], row["workload_class"]) == ("RESERVATION_PROPOSED", "inference")
    assert (row["nodes"], row["gpus_per_node"], row["start_s"]) == (3, 4, serving.start_s)
    assert (row["until_s"] - row["start_s"], row["free"]) == (PEAK_S, 4000)
    team.ends("trains")

    text = serving.propose(url, output="yaml")
    assert f"# RESERVATION_CLASS_OTHER {serving.flavor}" in text
    (manifest,) = yaml.safe_load_all(text)
    mark = json.loads(manifest["metadata"]["annotations"]["kaiwo.ai/reservation-forecast"])
    assert (mark["model"], mark["quantile"], mark["upper"], mark["kept"]) == ("same-hours/1", 0.9, "12", 1.0)
    team.api.create(manifest)
    name = manifest["metadata"]["name"]
    controller_of("--mode=enforce")
    wait_for(lambda: team.phase(name) == "Backfilled", what="it is accepted, and a day away")
    wait_for(lambda: team.held() == 12, what="what is idle is held")
    # What is held is not demanded, or it would be forecast, and reserved again.
    counted = [queued_gpus(read_kueue_workload(each)) for each in team.api.list(KUEUE, "Workload", team.space)]
    assert len(counted) == 4
    assert [each.gpus[0][1] for each in counted if each is not None] == [4000]

    (again,) = serving.propose(url)["manifests"]
    assert again["metadata"]["name"] == name, "a later forecast takes its place"
    assert serving.rows(url, "--quantile", "0.5", "--days", "1")[serving.queue]["reservation"] == f"{team.space}/{name}"
    now_s = float(int(time.time()))
    team.move(now_s + 2.0, now_s + 8.0, name)
    team.api.patch(*KIND, name, {"spec": {"lead": "1s", "nodes": 1}}, team.space)
    wait_for(lambda: team.status(name).get("history"), what="it is over")
    listed = CliRunner().invoke(
        app, ["reservations", "list", "-n", team.space, "--kubeconfig", str(team.plane.kubeconfig)]
    )
    assert "By forecast: 1 ended, 1 of them there in time" in " ".join(listed.output.split())


@pytest.mark.long
def test_what_is_reserved_by_hand_and_what_no_forecast_can_say(
    serving: Serving, prometheus: RunningPrometheus, tmp_path: Path
) -> None:
    team, url = serving.team, prometheus.url
    named = ("--queue", serving.queue)
    # Nothing of it runs: whole nodes.
    assert serving.rows(url, *named)[serving.queue]["nodes"] == 3
    assert serving.rows(url, "--queue", serving.flavor)[serving.flavor]["code"] == "RESERVATION_NOT_NEEDED"
    spec = {"start": stamp(serving.start_s), "until": stamp(serving.start_s + PEAK_S), "queueName": "serving"}
    team.reserve("by-hand", nodes=2, **spec)
    assert serving.rows(url, *named)[serving.queue]["nodes"] == 1
    team.reserve("rest", nodes=1, **spec)
    assert serving.rows(url, *named)[serving.queue]["code"] == "RESERVATION_NOTHING_LEFT"
    assert "# There is nothing to reserve." in serving.propose(url, *named, output="yaml")
    local = {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "second", "namespace": team.space}}
    team.api.create(local | {"spec": {"clusterQueue": serving.queue}})
    try:
        row = serving.rows(url, *named)[serving.queue]
        assert row["code"] == "RESERVATION_WHOSE"
        assert f"{team.space}/second, {team.space}/serving" in row["reason"]
        assert serving.rows(url, *named, "--for", f"{team.space}/second")[serving.queue]["nodes"] == 3
    finally:
        team.api.delete(KUEUE, "LocalQueue", "second", team.space)
    short = serving.rows(url, *named, "--since", "10d")[serving.queue]
    assert short["code"] == "RESERVATION_HISTORY_SHORT"
    flags = ["--prometheus", url, "--kubeconfig", str(team.plane.kubeconfig)]
    for words, expected in ((["--queue", serving.queue + "x"], "did you mean"), (["--for", "a"], "NAMESPACE/NAME"),
                            (["--lead", "2d"], "at most a day")):  # fmt: skip
        done = CliRunner().invoke(app, ["reservations", "propose", *words, *flags])
        assert done.exit_code == 2
        assert expected in " ".join(done.output.split())
