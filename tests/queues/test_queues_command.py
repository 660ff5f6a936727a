"""``kopt queues plan`` and ``explain``: for people, for programs and for kubectl, without a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from kopt.cli.main import app

from .test_compiler import SEED


@pytest.fixture
def seed_file(tmp_path: Path) -> Path:
    path = tmp_path / "queues.yaml"
    path.write_text(SEED)
    return path


def kopt(*words: object) -> Any:
    return CliRunner().invoke(app, ["queues", *map(str, words)])


def test_a_plan_for_programs_has_objects_and_what_they_leave_out(seed_file: Path) -> None:
    done = kopt("plan", "-f", seed_file, "--engine", "kueue", "-o", "json")
    document = json.loads(done.stdout)
    assert (done.exit_code, document["schema"], document["engine"]) == (0, "kopt/v1", "kueue")
    assert [item["kind"] for item in document["objects"]] == ["ResourceFlavor", "ClusterQueue"]
    (found,) = document["not_expressible"]
    assert set(found) == {"code", "path", "text"}
    assert (found["code"], found["path"]) == ("QUEUE_PRIORITY", "research-queue/spec.priority")


@pytest.mark.parametrize("engine", ["kueue", "kai", "volcano"])
def test_a_plan_in_yaml_is_what_kubectl_applies(seed_file: Path, engine: str) -> None:
    text = kopt("plan", "-f", seed_file, "--engine", engine, "-o", "yaml").stdout
    objects = json.loads(kopt("plan", "-f", seed_file, "--engine", engine, "-o", "json").stdout)["objects"]
    assert list(yaml.safe_load_all(text)) == objects
    assert ("# QUEUE_PRIORITY research-queue/spec.priority: 100" in text) is (engine == "kueue")


def test_people_read_what_each_engine_will_do(seed_file: Path) -> None:
    kueue = kopt("explain", "-f", seed_file, "--engine", "kueue", "--queue", "research-queue", "-o", "json")
    (row,) = json.loads(kueue.stdout)["queues"]
    assert row["quota"] == "10 GPUs whenever it wants them."
    assert row["borrowing"] == "May use up to 20 GPUs, idle ones from ai-department."
    assert row["reclaim"].startswith("Takes its quota back at once")
    assert "research-queue" in kopt("explain", "-f", seed_file, "--engine", "kai").stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"overQuotaWieght": 5}, "there is no field overQuotaWieght; did you mean overQuotaWeight?"),
        ({"quota": "ten"}, "spec.resources.gpu.quota: 'ten' is not an amount"),
        ({"limit": 5}, "the limit 5 is below the quota 10"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    document = yaml.safe_load(SEED)
    document["spec"]["resources"]["gpu"].update(change)
    path = tmp_path / "queues.yaml"
    path.write_text(yaml.safe_dump(document))
    done = kopt("plan", "-f", path, "--engine", "kueue")
    assert done.exit_code == 1
    assert said in str(done.stderr)


def test_usage_is_told_apart_from_refusals(seed_file: Path, tmp_path: Path) -> None:
    assert kopt("plan", "-f", seed_file, "--engine", "slurm").exit_code == 2
    assert kopt("explain", "-f", seed_file, "--engine", "kai", "--queue", "reserch-queue").exit_code == 2
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    assert kopt("plan", "-f", empty, "--engine", "kai").exit_code == 1
