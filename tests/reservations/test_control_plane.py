"""A reservation from its creation to its end, before the real Kueue and kube-scheduler."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from agent_notes import checkpoint_notes
from controlplane.processes import wait_for
from typer.testing import CliRunner

from kopt.cli.main import app

from .conftest import Start, Team, stamp

pytestmark = pytest.mark.cluster
LEAD_S = 8.0


def test_others_use_it_until_it_starts_and_then_its_owner_does(team: Team, controller: Start) -> None:
    """Twelve of sixteen GPUs are reserved while a job that saves has eight. The leader is killed on the way."""
    first = controller("--mode=enforce")
    second = controller("--mode=enforce", leads=False)
    team.submit("saves", 8)
    wait_for(lambda: team.runs("saves"), what="it runs")
    team.note("saves", checkpoint_notes("TRAIN", True, 40, -5.0))
    start_s = time.time() + 3600.0
    team.reserve(nodes=3, start=start_s, until=start_s + 600.0, lead=f"{LEAD_S:.0f}s", unusedAfter="4s")
    wait_for(lambda: team.held() == 8, what="what is idle is held")
    # What fits beside it may start; what ends in time may use it, and what is not known to end may not.
    team.submit("beside", 4)
    wait_for(lambda: team.runs("beside") and team.held() == 4, what="it runs, and the rest is held")
    team.submit("unknown", 4)
    wait_for(lambda: team.workload("unknown"), what="it is in its queue")
    team.submit("short", 4, longest_s=3000)
    wait_for(lambda: team.runs("short"), what="the short one runs")
    wait_for(lambda: team.holder("unknown") == "reservations", what="the other is kept waiting")
    wait_for(lambda: not team.pods("unknown"), what="it has no pods")
    notice = json.loads(team.workload("unknown")["metadata"]["annotations"]["kaiwo.ai/reservation-wait"])
    assert "starts in" in notice["reason"]
    words = ["why", f"{team.space}/unknown", "--no-eta", "--kubeconfig", str(team.plane.kubeconfig), "-o", "json"]
    findings = json.loads(CliRunner().invoke(app, words).stdout)["findings"]
    assert "HELD_RESERVATIONS" in [finding["code"] for finding in findings]
    team.ends("short")
    wait_for(lambda: team.held() == 4, what="what it had is held again")
    first.server.kill()
    second.wait_leading()
    # Times of objects are whole seconds.
    start_s = float(int(time.time() + LEAD_S + 4.0))
    team.move(start_s, start_s + 600.0)
    # The lead begins: what saved is stopped, with the notice by which the ledger knows why.
    wait_for(lambda: team.holder("saves") == "reservations", what="it is reclaimed")
    assert time.time() >= start_s - LEAD_S
    evicting = json.loads(team.workload("saves")["metadata"]["annotations"]["kaiwo.ai/evicting"])
    assert evicting["for"] == f"{team.space}/night"
    wait_for(lambda: team.held() == 12, what="all of it is held")
    wait_for(lambda: team.status()["account"].get("metAt"), what="it is met")
    team.submit("own", 8, queue="nightly")
    wait_for(lambda: team.runs("own"), what="its owner runs on it")
    assert time.time() >= start_s - LEAD_S
    wait_for(lambda: team.phase() == "Active" and team.status()["usedGpus"] == 8, what="it is in use")
    assert not team.runs("saves")
    assert team.runs("beside")
    # It is left alone, and given back.
    team.ends("own")
    wait_for(lambda: team.phase() == "Released", what="it is given back")
    wait_for(lambda: team.runs("saves") and team.runs("unknown"), what="the others run")
    assert team.hold_jobs() == []
    assert [team.holder(name) for name in ("saves", "unknown")] == ["", ""]
    account = team.status()["account"]
    assert account["reclaimed"] == 1
    assert account["usedGpuSeconds"] > 0
    conditions = {each["type"]: each for each in team.status()["conditions"]}
    assert conditions["Met"]["status"] == "True"


@pytest.mark.long
@pytest.mark.parametrize("team", [2], indirect=True)
def test_it_recurs_and_says_how_it_went_and_what_cannot_be_kept_is_refused(team: Team, controller: Start) -> None:
    replica = controller("--mode=enforce", "--ahead=1h")
    now_s = time.time()
    start_s = now_s + 2.0
    team.reserve(start=start_s, until=start_s + 10.0, lead="1s", recurrence="FREQ=DAILY")
    later_s = now_s + 7200.0
    refused = {
        "large": ({"nodes": 3}, "TooLarge"),
        "nowhere": ({"queueName": "none"}, "UnknownQueue"),
        "strange": ({"pool": "none"}, "UnknownPool"),
    }
    for name, (spec, _) in refused.items():
        team.reserve(name, start=later_s, until=later_s + 60.0, **spec)
    team.reserve("first", start=later_s, until=later_s + 60.0)
    wait_for(lambda: team.phase("first") == "Scheduled", what="the older is accepted")
    team.reserve("second", nodes=2, start=later_s + 30.0, until=later_s + 90.0)
    for name, reason in [*((name, reason) for name, (_, reason) in refused.items()), ("second", "Overbooked")]:
        wait_for(lambda name=name: team.phase(name) == "Refused", what=f"{name} is refused")
        assert team.word(name)[0] == reason
    assert f"{team.space}/first would reserve 12 GPUs; the pool has 8" in team.word("second")[1]
    wait_for(lambda: team.status().get("history"), what="the first occurrence is over")
    (result,) = team.status()["history"]
    assert result["metAt"]
    assert result["lateSeconds"] <= 10
    assert result["usedShare"] == 0
    assert team.phase() == "Scheduled"
    wait_for(lambda: not team.hold_jobs(), what="nothing is held")
    assert replica.metric("kopt_reservations_refused") == 4


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"until": "2026-01-01T00:00:00Z"}, "it ends (until) after it starts"),
        ({"until": "2027-06-01T00:00:00Z"}, "31 days at most"),
        ({"recurrence": "FREQ=SECONDLY"}, "spec.recurrence"),
        ({"timeZone": "UTC"}, "a time zone is for a recurrence"),
        ({"gpusPerNode": 0}, "spec.gpusPerNode"),
        ({"lead": "soon"}, "spec.lead"),
    ],
)
def test_the_api_server_refuses_what_contradicts_itself(team: Team, spec: dict[str, object], words: str) -> None:
    with pytest.raises(Exception, match=r"(?i)invalid") as failure:
        team.reserve(**{"start": "2026-12-01T08:00:00Z", "until": "2026-12-01T09:00:00Z"} | spec)
    assert words in str(failure.value)


@pytest.mark.parametrize("team", [2], indirect=True)
def test_a_plan_says_what_it_would_do_and_a_list_where_it_stands(team: Team, controller: Start, tmp_path: Path) -> None:
    team.submit("runs", 4)
    wait_for(lambda: team.runs("runs"), what="it runs")
    start_s = time.time() + 3600.0
    manifest = {
        "apiVersion": "kaiwo.ai/v1alpha1",
        "kind": "KaiwoReservation",
        "metadata": {"name": "night", "namespace": team.space},
        "spec": {"queueName": "nightly", "nodes": 2, "gpusPerNode": 4, "start": stamp(start_s)},
    }
    manifest["spec"]["until"] = stamp(start_s + 60.0)  # type: ignore[index]
    file = tmp_path / "reservation.yaml"
    file.write_text(json.dumps(manifest))

    def kopt(*words: str) -> Any:
        return CliRunner().invoke(app, ["reservations", *words, "--kubeconfig", str(team.plane.kubeconfig)])

    done = kopt("plan", "-f", str(file), "-o", "json")
    document = json.loads(done.stdout)
    (row,) = document["jobs"]
    assert (document["schema"], row["effect"], row["gpus"]) == ("kopt/v1", "may still run", 4)
    assert "4 would be reclaimed" in " ".join(kopt("plan", "-f", str(file)).output.split())
    assert not team.hold_jobs(), "nothing is written"
    file.write_text(json.dumps(manifest).replace('"nodes": 2', '"nodes": 3'))
    refused = kopt("plan", "-f", str(file))
    assert refused.exit_code == 1
    controller("--mode=observe")
    team.reserve(nodes=2, start=start_s, until=start_s + 60.0)
    wait_for(lambda: team.word()[0] == "OnlyObserved", what="it is seen")
    assert not team.hold_jobs()
    listed = json.loads(kopt("list", "-n", team.space, "-o", "json").stdout)
    (row,) = listed["reservations"]
    assert (row["reservation"], row["gpus"], row["phase"]) == (f"{team.space}/night", 8, "Scheduled")
    assert "in time" not in kopt("list", "-n", team.space).stdout
