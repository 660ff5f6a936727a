"""A job is in no queue until its data is complete, whatever goes wrong meanwhile; then it runs with it."""

import os
from collections.abc import Callable

import pytest
from controlplane.processes import Server, wait_for
from staging.servers import Pipe

from .conftest import Controller, Team

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
MIB = 1 << 20


def test_a_job_waits_outside_its_queue_until_its_data_is_complete(
    team: Team, controller: Callable[..., Controller], webhook: Server
) -> None:
    controller()
    team.s3.put(f"{team.space}/a", os.urandom(3 * MIB))
    team.s3.put(f"{team.space}/b", b"second")
    team.wait_reviewed()
    team.stage("tokens", f"s3://data/{team.space}")
    stored = team.submit("train", "tokens", script="cp /data/tokens/b /data/seen; sleep 600")
    assert stored["metadata"]["labels"]["kaiwo.ai/held"] == "staging"
    assert stored["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "kaiwo-held"
    wait_for(lambda: team.runs("train"), what="it runs")
    status = team.status("tokens")
    assert (status["phase"], status["progress"]["bytes"], status["progress"]["bytesDone"]) == (
        "Ready",
        3 * MIB + 6,
        3 * MIB + 6,
    )
    assert len(status["digest"]) == 64
    assert [one["name"] for one in status["users"]] == ["train"]
    assert team.conditions("train")["QuotaReserved"]["lastTransitionTime"] >= status["readyAt"]
    assert team.told("train")["state"] == "ready"
    assert team.holder("train") == ""
    assert team.job("train")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    wait_for(lambda: (team.claim / "seen").exists() and (team.claim / "seen").read_bytes() == b"second")
    assert {"DataReady"} <= team.events("train").keys()


@pytest.mark.long
def test_wrong_credentials_hold_it_with_the_reason_until_they_are_right(
    team: Team, controller: Callable[..., Controller], webhook: Server
) -> None:
    controller("--slow-retry=2s")
    team.wait_reviewed()
    team.s3.put(f"{team.space}/a", b"content")
    team.secret("s3", team.s3.variables | {"AWS_SECRET_ACCESS_KEY": "not-the-right-one"})
    team.stage("tokens", f"s3://data/{team.space}")
    team.submit("train", "tokens")
    told = team.wait_told("train", "failed")
    assert (told["reason"], "credentials" in told["message"]) == ("Denied", True)
    assert "not-the-right-one" not in str(told)
    assert team.wait_phase("tokens", "Failed")["reason"] == "Denied"
    assert "StagingFailed" in team.events("tokens")
    assert team.holder("train") == "staging"
    wait_for(lambda: "QuotaReserved" not in team.conditions("train"), what="no quota is kept for it")
    team.secret("s3", team.s3.variables)
    wait_for(lambda: team.runs("train"), what="it runs once the Secret is right")
    assert team.status("tokens").get("reason") is None


@pytest.mark.long
def test_data_that_is_not_there_is_waited_for(
    team: Team, controller: Callable[..., Controller], webhook: Server
) -> None:
    controller()
    team.wait_reviewed()
    team.submit("train", "tokens")
    told = team.wait_told("train", "failed")
    assert (told["reason"], "no StagedData tokens" in told["message"]) == ("NotFound", True)
    team.stage("tokens", f"s3://data/{team.space}/missing")
    assert "there is nothing at" in team.wait_phase("tokens", "Failed")["message"]
    wait_for(lambda: "missing" in team.told("train")["message"], what="the reason stands on the job as well")
    assert (team.told("train")["state"], team.holder("train")) == ("failed", "staging")
    team.s3.put(f"{team.space}/missing/a", b"now")
    team.again("tokens")
    wait_for(lambda: team.runs("train"), what="it runs")


@pytest.mark.long
def test_equal_requests_by_annotation_are_fetched_once(
    team: Team, controller: Callable[..., Controller], webhook: Server
) -> None:
    controller()
    team.wait_reviewed()
    team.s3.put(f"{team.space}/a", b"shared")
    request = f"s3://data/{team.space} -> pvc://data/shared/tokens"
    for name in ("first", "second"):
        team.submit(name, stage=request, stage_secret="s3")
    for name in ("first", "second"):
        wait_for(lambda name=name: team.runs(name), what=f"{name} runs")
    assert (team.claim / "shared" / "tokens" / "a").read_bytes() == b"shared"
    assert len(team.staging_jobs()) == 1
    (made,) = team.api.list("kaiwo.ai/v1alpha1", "StagedData", team.space)
    wait_for(lambda: len(team.status(made["metadata"]["name"]).get("users", [])) == 2, what="both are counted")


@pytest.mark.long
def test_what_its_queue_admitted_before_we_were_there_is_stopped_and_waits(
    team: Team, controller: Callable[..., Controller]
) -> None:
    team.s3.put(f"{team.space}/a", b"content")
    # Its pod cannot begin before this Secret is there.
    team.submit("train", "tokens", secret="later", script="cat /data/tokens/a && sleep 600")
    wait_for(lambda: "Admitted" in team.conditions("train"), what="Kueue admits it")
    wait_for(lambda: team.api.list("v1", "Pod", team.space), what="its pod is made")
    controller()
    wait_for(lambda: team.holder("train") == "staging", what="it is held")
    wait_for(lambda: "QuotaReserved" not in team.conditions("train"), what="no quota is kept for it")
    parked = "kueue.x-k8s.io/queue-name"
    wait_for(lambda: team.job("train")["metadata"]["labels"][parked] == "kaiwo-held", what="it is in no queue")
    team.secret("later", {"ANY": "thing"})
    team.stage("tokens", f"s3://data/{team.space}")
    wait_for(lambda: team.runs("train"), what="it runs once its data is there")
    assert team.status("tokens")["phase"] == "Ready"
    workloads = team.api.list("kueue.x-k8s.io/v1beta1", "Workload", team.space)
    assert not [one for one in workloads if "kaiwo.ai/held" in one["metadata"].get("labels", {})]


def test_a_killed_download_goes_on_where_it_was(
    team: Team, controller: Callable[..., Controller], webhook: Server
) -> None:
    controller()
    team.wait_reviewed()
    content = os.urandom(96 * MIB)
    team.s3.put(f"{team.space}/large", content)
    pipe = Pipe(team.s3.port)
    team.secret("s3", team.s3.through(pipe.url))
    team.stage("tokens", f"s3://data/{team.space}", limit="12MiB/s", parallel=1)
    team.submit("train", "tokens")

    def under_way() -> bool:
        return (team.status("tokens").get("progress") or {}).get("bytesDone", 0) > 20 * MIB

    wait_for(under_way, what="a sixth is there, and told")
    assert team.told("train")["state"] == "held"
    (pod,) = team.api.list("v1", "Pod", team.space, "app.kubernetes.io/component=staging")
    assert os.system(f"kill -9 {pod['status']['containerStatuses'][0]['containerID'].removeprefix('process://')}") == 0
    before = pipe.bytes
    assert team.holder("train") == "staging"
    wait_for(lambda: team.runs("train"), 120, "it runs")
    assert (team.claim / "tokens" / "large").read_bytes() == content
    assert pipe.bytes - before < len(content) - 12 * MIB, "finished parts are not fetched again"
