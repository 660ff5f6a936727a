"""``kopt simulate preemption`` as people and scripts call it."""

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kopt.cli.main import app

HEAD = "job_id,submit_time,duration,gpus,vc\n"
ROWS = "".join(f"j{n},{300 * n},{3600 * (1 + n % 7)},{(1, 1, 2, 4)[n % 4]},q\n" for n in range(400))


@pytest.fixture
def trace(tmp_path: Path) -> list[str]:
    (tmp_path / "jobs.csv.gz").write_bytes(gzip.compress((HEAD + ROWS).encode()))
    return [
        "simulate",
        "preemption",
        "--jobs",
        str(tmp_path / "jobs.csv.gz"),
        "--warm",
        "0.2",
        "--days",
        "1",
        "--urgent",
        "0.15",
        "--workers",
        "1",
    ]


def test_policies_stand_side_by_side_by_number_of_candidates(trace: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "lost.svg"
    done = CliRunner().invoke(
        app, [*trace, "--gpus", "64", "--pool", "4", "--pool", "12", "--plot", str(picture), "-o", "json"]
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["schema"] == "kopt/v1"
    assert document["observable"] == 0.7
    rows = {(one["candidates"], one["policy"]): one for one in document["policies"]}
    assert len(rows) == 12
    assert rows[12, "newest-first"]["of_newest_first"] == 1.0
    assert rows[12, "kopt"]["of_newest_first"] < 1.0
    assert rows[12, "kopt"]["torn"] == 0
    assert rows[12, "kopt"]["lost_gpu_hours_low"] <= rows[12, "kopt"]["lost_gpu_hours_mean"]
    assert "<svg" in picture.read_text()


def test_one_policy_alone_is_compared_with_nothing(trace: list[str]) -> None:
    done = CliRunner().invoke(app, [*trace, "--gpus", "64", "--policy", "kopt", "--pool", "12"])
    assert done.exit_code == 0, done.output
    assert "kopt" in done.stdout
    assert "–" in done.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--policy", "luck"], "no policy 'luck'; there are priority-only"),
        (["--pool", "0"], "a pool has 1 to 200"),
        (["--urgent", "2"], "2 is not a share"),
        (["--observable", "nan"], "nan is not a share"),
        (["--days", "0"], "must be positive"),
        (["--budget", "nan"], "must be positive"),
        (["--plot", "lost.gif"], "a picture ends in .png"),
    ],
)
def test_wrong_usage_says_what_is_right(trace: list[str], options: list[str], told: str) -> None:
    done = CliRunner().invoke(app, [*trace, *options], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert told in done.stderr


def test_a_cluster_that_is_never_full_is_refused(trace: list[str]) -> None:
    done = CliRunner().invoke(app, [*trace, "--gpus", "100000", "--pool", "4", "--policy", "kopt"])
    assert done.exit_code == 1
    assert "found the 100000 GPUs full" in done.stderr
