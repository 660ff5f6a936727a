"""``kopt simulate placement`` as people and scripts call it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from kopt.cli.main import app

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,96000,393216,8,G2\nb,64000,262144,2,T4\nc,32000,262144,0,\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(
    f"p{i},{1000 + 1000 * (i % 4)},1024,{int(i % 6 < 5)},{(1000, 470, 810)[i % 3]},{'' if i % 4 else 'T4|G2'}\n"
    for i in range(24)
)


@pytest.fixture
def trace(tmp_path: Path) -> list[str]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return ["simulate", "placement", "--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")]


def test_one_policy_is_one_document(trace: list[str]) -> None:
    done = CliRunner().invoke(app, [*trace, "--policy", "kopt", "--seeds", "42-44", "--workers", "1", "-o", "json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["schema"] == "kopt/v1"
    assert (document["policy"], document["seeds"]) == ("kopt", [42, 43, 44])
    assert len(document["allocated"]) == 3
    assert document["mean"] == pytest.approx(sum(document["allocated"]) / 3)
    assert all(0.5 < share <= 1 for share in document["allocated"])


def test_several_policies_stand_side_by_side(trace: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "load.svg"
    args = [
        *trace,
        "--policy",
        "kopt,fgd",
        "--policy",
        "random",
        "--seeds",
        "1,2",
        "--plot",
        str(picture),
        "-o",
        "json",
    ]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [one["policy"] for one in document["policies"]] == ["kopt", "fgd", "random"]
    drawn = picture.read_text()
    assert "<svg" in drawn
    assert CliRunner().invoke(app, [*trace, "--policy", "all", "--seeds", "1"]).stdout.count("%") >= 18


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--policy", "luck"], "no policy 'luck'; there are random"),
        (["--seeds", "5-3"], "are not seeds"),
        (["--seeds", "1-999999999"], "are not seeds"),
        (["--seeds", ""], "are not seeds"),
        (["--load", "0"], "a load of 0"),
        (["--load", "nan"], "a load of nan"),
        (["--load", "1e9"], "a load of 1e+09"),
        (["--expect", "future"], "neither arrivals nor trace"),
        (["--plot", "load.gif"], "a picture ends in .png"),
    ],
)
def test_wrong_usage_says_what_is_right(trace: list[str], options: list[str], told: str) -> None:
    done = CliRunner().invoke(app, [*trace, *options], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert told in done.stderr


def test_a_fleet_without_gpus_is_refused(trace: list[str], tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nc,32000,262144,0,\n")
    done = CliRunner().invoke(app, trace)
    assert done.exit_code == 1
    assert "none of the nodes has a GPU" in done.stderr


def test_ctrl_c_ends_a_study_without_a_workers_traceback(trace: list[str], tmp_path: Path) -> None:
    head, *pods = PODS.splitlines()
    many = [line.replace("p", f"p{copy}-", 1) for copy in range(400) for line in pods]
    (tmp_path / "pods.csv").write_text("\n".join([head, *many]))
    code = "from kopt.cli.main import app; app(prog_name='kopt')"
    command = [sys.executable, "-P", "-c", code, *trace, "--policy", "all", "--seeds", "1-30", "--workers", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 60
        while len(psutil.Process(process.pid).children()) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1.0)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert "Traceback" not in out + err, err
