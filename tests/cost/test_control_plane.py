"""The meter before a real control plane: pods come and go, it is killed in between, and the sum closes."""

import csv
import itertools
import time
from pathlib import Path

import pytest
import yaml
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok, Nodes
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.dashboards.catalogue import dashboards
from tests.metric_names import named_in, shown_in

from .conftest import GPU, PRODUCT, Start, Team, kopt, metered_past, now_s

pytestmark = pytest.mark.cluster
CRD = Path(__file__).resolve().parents[2] / "deploy" / "chart" / "crds" / "kaiwobudgets.yaml"
OFTEN = "--reconcile=1s"


def test_the_sum_closes_although_the_meter_is_killed(
    control_plane: ControlPlane, nodes: Nodes, kwok: Kwok, meter: Start, home: Path
) -> None:
    team = Team(control_plane, nodes, "research")
    other = Team(control_plane, nodes, "other")
    began_s = now_s()
    first = meter(OFTEN)
    team.pod("whole", {GPU: 2}, {"team": "vision"})
    team.pod("half", {}, {"team": "vision"}, **{"kaiwo.ai/gpu-fraction": "0.5"})
    lost = team.pod("lost", {GPU: 1})
    metered_past(first, now_s())
    with kwok.nodes(1, gpus=0, labels=PRODUCT, more={"nvidia.com/mig-1g.10gb": "7"}) as cut:
        slices = Team(control_plane, cut, "slices")
        slices.pod("slice", {"nvidia.com/mig-1g.10gb": 2})
        metered_past(first, now_s())
        first.server.kill()
        team.ends("lost")
        late = other.pod("late", {GPU: 1})
        # A Lease of its own: that of the dead one runs out in a quarter of a minute only.
        second = meter(OFTEN, f"--namespace={other.space}")
        time_at_s = now_s()
        metered_past(second, time_at_s)
        team.ends("whole")
        metered_past(second, now_s())
    control_plane.api.patch(
        "v1", "Pod", "half", {"metadata": {"annotations": {"kaiwo.ai/gpu-fraction": "0.25"}}}, team.space
    )
    metered_past(second, now_s() + 1)
    assert second.metric("kopt_cost_unreconciled_gpu_hours") == 0
    (costs,) = (dashboard for dashboard in dashboards() if dashboard.name == "cost")
    read = {name for panel in costs.panels for query in panel.queries for name in named_in(query.expr)}
    assert read <= shown_in(second.metrics), "what the dashboard reads"
    second.server.stop()
    answer = kopt("cost", "--since", "1h")
    assert answer["gpu_hours"] == answer["node_gpu_hours"] > 0
    assert answer["micro"] == answer["node_micro"]
    assert answer["gpu_hours"] <= (8 + 1) * (now_s() - began_s) / 3600
    by_name = {row["name"]: row for row in answer["costs"]}
    assert {team.space, other.space, slices.space, "(idle: unallocated)"} <= set(by_name)
    assert sum(row["gpu_hours"] for row in answer["costs"]) == pytest.approx(answer["gpu_hours"])
    assert sum(row["micro"] or 0 for row in answer["costs"]) == sum(answer["micro"].values())
    assert by_name["(unattributed)"]["micro"] == 0
    teams = {row["name"] for row in kopt("cost", "--by", "team", "--since", "1h")["costs"]}
    assert {"vision", "(unattributed)"} <= teams
    events = kopt("cost", "explain", team.space, "--since", "1h")["events"]
    assert {event["gpus"] for event in events if event["subject"].endswith("/half")} == {0.5, 0.25}
    assert {event["gpus"] for event in events if event["subject"].endswith("/lost")} == {1.0}
    assert sum(event["gpu_hours"] for event in events) == pytest.approx(by_name[team.space]["gpu_hours"])
    assert abs(sum(event["micro"] for event in events) - by_name[team.space]["micro"]) <= len(events)
    assert lost != late
    _is_exported(home / "focus.csv", answer["micro"]["USD"])


def test_a_spot_node_that_vanishes_under_its_pods_was_interrupted(
    control_plane: ControlPlane, kwok: Kwok, meter: Start, home: Path
) -> None:
    prices = home / "prices.toml"
    entry = '[[price]]\nmodel = "h100"\nprovider = "lambda"\ncapacity = "{}"\nper_gpu_hour = {}\nsource = "contract"\n'
    prices.write_text(entry.format("spot", 1.0) + entry.format("on-demand", 3.0), encoding="utf-8")
    replica = meter(OFTEN)
    with kwok.nodes(1, gpus=4, labels=PRODUCT | {"kaiwo.ai/capacity": "spot"}) as spot:
        Team(control_plane, spot, "spot").pod("training", {GPU: 4})
        metered_past(replica, now_s() + 1)
    metered_past(replica, now_s() + 2)
    replica.server.stop()
    words = ("cost", "spot", "--gpu", "h100", "--provider", "lambda", "--run-time", "24h", "--prices", str(prices))
    answer = kopt(*words, "--since", "1h")
    assert 0 < answer["hazard_per_hour"] < 3600
    assert not answer["use_spot"], "an interruption within seconds"


def _is_exported(path: Path, micro: int) -> None:
    done = CliRunner().invoke(app, ["cost", "export", "--focus", str(path), "--since", "1h"])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(path.open()))
    assert abs(sum(float(row["BilledCost"]) for row in rows) * 1e6 - micro) <= 2
    assert {row["ResourceType"] for row in rows} == {"Pod", "Idle GPU"}
    assert all(row["ChargePeriodStart"].endswith("Z") and row["PricingUnit"] == "GPU Hours" for row in rows)


def budget(name: str, space: str, **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "kaiwo.ai/v1alpha1",
        "kind": "KaiwoBudget",
        "metadata": {"name": name},
        "spec": {"target": {"namespace": space}, "limit": {"gpuHours": "0.001"}, "action": "Hold", **spec},
    }


def test_a_budget_that_is_spent_stops_one_teams_queue_and_not_anothers(
    control_plane: ControlPlane, nodes: Nodes, kueue: Kueue, meter: Start
) -> None:
    control_plane.apply_crd(yaml.safe_load(CRD.read_text()))
    api = control_plane.api
    spends, saves = (Team(control_plane, nodes, name) for name in ("spends", "saves"))
    quota = {GPU: 8, "cpu": 100}
    names = [f"{team.space}-budget" for team in (spends, saves)]
    with kueue.queue(spends.space, quota), kueue.queue(saves.space, quota):
        spends.job("first", 2, "gpus")
        wait_for(lambda: spends.runs("first"), what="it is admitted while there is budget")
        replica = meter(OFTEN, "--mode=enforce")
        api.create(budget(names[0], spends.space))
        api.create(budget(names[1], saves.space, limit={"gpuHours": 100}))
        replica.server.wait_until(
            lambda: spends.queue()["spec"].get("stopPolicy") == "Hold", what="the budget is spent"
        )
        assert spends.queue()["metadata"]["labels"]["kaiwo.ai/held"] == "budget"
        spends.job("second", 1, "gpus")
        saves.job("third", 1, "gpus")
        wait_for(lambda: saves.runs("third"), what="the other team goes on")
        assert saves.queue()["spec"].get("stopPolicy", "None") == "None"
        assert not spends.runs("second")
        assert spends.runs("first"), "what runs goes on"
        event = wait_for(
            lambda: next(
                (e for e in api.list("events.k8s.io/v1", "Event", spends.space) if e["reason"] == "BudgetSpent"), None
            ),
            what="its owner is told",
        )
        assert event is not None
        assert "of 0.0 GPU-hours used in this month" in event["note"]
        assert "nothing new starts until" in event["note"]
        status = api.get("kaiwo.ai/v1alpha1", "KaiwoBudget", names[0])["status"]
        assert (status["state"], status["heldQueues"]) == ("Spent", [f"{spends.space}/gpus"])
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 600))
        exception = {"until": until, "reason": "deadline of the paper", "by": "alice"}
        api.patch("kaiwo.ai/v1alpha1", "KaiwoBudget", names[0], {"spec": {"exceptions": [exception]}})
        wait_for(lambda: spends.runs("second"), what="an exception opens the queue")
        assert "kaiwo.ai/held" not in spends.queue()["metadata"].get("labels", {})
        told = wait_for(
            lambda: [e for e in api.list("events.k8s.io/v1", "Event") if e["reason"] == "BudgetExcepted"],
            what="the exception is logged",
        )
        assert told
        assert all("alice" in event["note"] and "deadline of the paper" in event["note"] for event in told)
        for name, (team, job) in itertools.product(names, ((spends, "first"), (spends, "second"), (saves, "third"))):
            api.delete("batch/v1", "Job", job, team.space, propagationPolicy="Background")
            api.delete("kaiwo.ai/v1alpha1", "KaiwoBudget", name)


DRIVER = "gpu.nvidia.com"
DRA = "resource.k8s.io/v1"


@pytest.mark.long
def test_devices_of_a_driver_are_charged_to_the_pods_of_their_claims(
    control_plane: ControlPlane, kwok: Kwok, meter: Start
) -> None:
    """The scheduler allocates one of two GPUs to a claim; no device plugin offers anything."""
    api = control_plane.api
    attributes = {"type": {"string": "gpu"}, "productName": {"string": PRODUCT["nvidia.com/gpu.product"]}}
    with kwok.nodes(1, gpus=0, labels=PRODUCT) as nodes:
        team = Team(control_plane, nodes, "claims")
        name, node = team.space, nodes[0]
        devices = [
            {"name": f"gpu-{index}", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}
            for index in range(2)
        ]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        request = {"name": "gpu", "exactly": {"deviceClassName": name}}
        for kind, namespace, spec in (
            ("ResourceSlice", "", {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}),
            ("DeviceClass", "", {"selectors": [selector]}),
            ("ResourceClaim", team.space, {"devices": {"requests": [request]}}),
        ):
            metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
            api.create({"apiVersion": DRA, "kind": kind, "metadata": metadata, "spec": spec})
        replica = meter(OFTEN)
        team.pod("claims", {}, claim=name)
        metered_past(replica, now_s() + 1)
        replica.server.stop()
        for kind in ("ResourceSlice", "DeviceClass"):
            api.delete(DRA, kind, name)
    answer = kopt("cost", "explain", team.space, "--since", "1h")
    assert {(event["gpus"], event["node"]) for event in answer["events"]} == {(1.0, node)}
    assert kopt("cost", "--since", "1h")["node_gpu_hours"] > 0
