"""``kopt profile`` as people call it."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.cli.sizing.estimate import read_profile
from kopt.core.units import GIB, MIB

HEADER = "timestamp, uuid, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]"


def kopt(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["profile", *arguments])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    rows = [
        f"2026/03/01 10:0{n // 60}:{n % 60:02d}.000, GPU-1, NVIDIA L4, {min(n, 9) * 900} MiB, 23034 MiB, 80 %"
        for n in range(150)
    ]
    path.write_text("\n".join([HEADER, *rows, ""]))
    return path


def test_a_recording_becomes_a_profile_that_an_estimate_reads(log: Path, tmp_path: Path) -> None:
    done = kopt("--from-csv", str(log), "-o", "json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["schema"], document["peak_bytes"], document["steady"]) == ("kopt/v1", 8100 * MIB, True)
    (tmp_path / "profile.json").write_text(done.stdout)
    assert read_profile(tmp_path / "profile.json").peak_bytes == 8100 * MIB
    shown = kopt("--from-csv", str(log)).stdout
    assert "7.9 GiB" in shown
    assert "80%" in shown


def test_a_command_is_run_and_its_options_stay_its_own(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPT_PROFILE_SOURCE", f"csv:{log}")
    done = kopt("--interval", "0.01", "-o", "json", "--", "sh", "-c", "exit 3", "--pod", "x")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["exit_status"] == 3


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "give one of"),
        (("--from-csv", "/no/file"), 1, "/no/file"),
        (("--prometheus", "http://127.0.0.1:1", "--pod", "bad"), 2, "NAMESPACE/POD"),
        (("--prometheus", "file:///etc", "--pod", "a/b"), 2, "not http"),
        (("--prometheus", "http://127.0.0.1:1", "--pod", 'a/b"} or up{x="'), 2, "NAMESPACE/POD"),
        (("--interval", "5", "--", "true"), 2, "samples every second"),
        (("--source", "csv:/no", "--", "true"), 1, "/no"),
    ],
)
def test_what_cannot_be_is_said(arguments: tuple[str, ...], status: int, words: str) -> None:
    done = kopt(*arguments)
    assert (done.exit_code, words in done.output) == (status, True), done.output


@pytest.mark.services
def test_a_pods_series_come_from_prometheus(prometheus_server: Callable[..., Any]) -> None:
    now = int(time.time())
    labels = 'UUID="GPU-1",gpu="0",modelName="NVIDIA A100-SXM4-80GB",namespace="a",pod="train-0"'
    others = labels.replace("train-0", "other").replace("GPU-1", "GPU-2")
    lines = ["# TYPE DCGM_FI_DEV_FB_USED gauge"]
    for at in range(now - 1200, now - 60, 15):
        lines.append(f"DCGM_FI_DEV_FB_USED{{{labels}}} {10240 if at > now - 1000 else 2048} {at}")
    lines += [f"DCGM_FI_DEV_FB_USED{{{others}}} 70000 {at}" for at in range(now - 1200, now - 60, 15)]
    lines.append("# TYPE DCGM_FI_PROF_SM_ACTIVE gauge")
    lines += [f"DCGM_FI_PROF_SM_ACTIVE{{{labels}}} 0.5 {at}" for at in range(now - 1200, now - 60, 15)]
    server = prometheus_server("\n".join([*lines, "# EOF", ""]))
    done = kopt("--prometheus", server.url, "--pod", "a/train-0", "-o", "json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["peak_bytes"], document["activity"], document["steady"]) == (10 * GIB, 0.5, True)
    assert kopt("--prometheus", server.url, "--pod", "a/nobody").exit_code == 1
