"""``kopt estimate`` of manifests of jobs of several pods: each set of pods, and all of them, for every kind."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from admission.whole_jobs import ASKED, JOBS, NEEDED, PODS, Object, ray_job, runtime
from typer.testing import CliRunner

from kopt.cli.main import app

ANALYTIC = ("--trainer", "megatron")
"""Read by its arguments: nothing is run."""
WORLD = {"Job": 4, "JobSet": 4, "PyTorchJob": 8, "MPIJob": 4, "RayJob": 2, "TrainJob": 4, "TrainJob-by-runtime": 4}
"""Processes of the whole job: pods times what each of them starts."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPT_HOME", str(tmp_path / "home"))


def estimated(path: Path, *documents: Object) -> Any:
    path.write_text(yaml.safe_dump_all(documents))
    done = CliRunner().invoke(app, ["estimate", str(path), *ANALYTIC, "-o", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", WORLD)
def test_the_answer_is_of_all_pods(name: str, tmp_path: Path) -> None:
    document = estimated(tmp_path / "job.yaml", runtime(), JOBS[name])
    job = document["job"]
    assert job["kind"] == JOBS[name]["kind"]
    assert (job["pods"], job["gpus"], job["advised_gpus"]) == (PODS[name], PODS[name] * ASKED, PODS[name] * NEEDED)
    assert {role["world_size"] for role in job["roles"]} == {WORLD[name]}
    for role in job["roles"]:
        memory, advice = role["memory"], role["recommendation"]
        assert (advice["count"], advice["kind"]) == (NEEDED, "whole")
        assert memory["low_bytes"] <= memory["peak_bytes"] <= memory["high_bytes"] <= advice["bytes"]
    assert document["recommendation"] == job["roles"][0]["recommendation"], "the rest is of the pods that need most"


def test_each_set_of_pods_has_a_line_and_there_is_a_sum(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOBS["PyTorchJob"]))
    printed = CliRunner().invoke(app, ["estimate", str(path), *ANALYTIC]).stdout
    assert "job: PyTorchJob pytorchjob" in printed
    assert "Master: 1 × 8 GPUs, 8 processes in all, each pod: 2 × H100-SXM5-80GB" in printed
    assert "Worker: 3 × 8 GPUs, 8 processes in all, each pod: 2 × H100-SXM5-80GB" in printed
    assert "all pods: 32 GPUs, 8 GPUs would do" in printed


def test_what_cannot_be_followed_has_a_need_but_no_advice(tmp_path: Path) -> None:
    document = estimated(tmp_path / "ray.yaml", ray_job(reserved=None))
    (role,) = document["job"]["roles"]
    assert (role["reason"]["code"], role["recommendation"]["kind"]) == ("RAY_WORKERS", "none")
    assert role["memory"]["peak_bytes"] > 1 << 30
    assert (document["job"]["gpus"], document["job"]["advised_gpus"]) == (ASKED, ASKED)


def test_without_its_runtime_in_the_file_that_of_torch_is_assumed_and_said(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOBS["TrainJob"]))
    done = CliRunner().invoke(app, ["estimate", str(path), *ANALYTIC])
    assert "node: 2 × 8 GPUs, 4 processes in all, each pod: 2 × " in done.stdout
    assert "assumed: its runtime is not in the file; one of torch's is assumed" in done.stdout


def test_one_pod_is_answered_as_before(tmp_path: Path) -> None:
    one = JOBS["Job"] | {"spec": {"template": JOBS["Job"]["spec"]["template"]}}
    document = estimated(tmp_path / "job.yaml", one)
    assert "job" not in document
    assert document["recommendation"]["count"] == NEEDED
