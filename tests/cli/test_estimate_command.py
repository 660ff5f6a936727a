"""``kopt estimate`` tells its own options from the script's, and shows what was found in every format."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from typer.testing import CliRunner, Result

from kopt.cli.main import app
from kopt.core.workload.sizing import TraceCoverage
from kopt.models.sizing import estimate as sizing
from kopt.tracing.trace import Traced

TRAINER = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("gpt2")
Trainer(model, TrainingArguments(output_dir="out", per_device_train_batch_size=8, bf16=True)).train()
"""


@pytest.fixture
def calls(made_up_traces: list[Any]) -> list[Any]:
    return made_up_traces


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, ["estimate", *words])


def test_options_after_the_script_are_its_own_unless_they_are_ours(calls: list[Any]) -> None:
    done = _run("train.py", "--model", "resnet50", "-b", "32", "--gpu", "a100-40gb", "--lr=1", "-o", "json", "--amp")
    assert done.exit_code == 0, done.stderr
    call, gpu = calls[0]
    assert call.arguments == ("train.py", "--model", "resnet50", "-b", "32", "--lr=1", "--amp")
    assert gpu.name == "A100-SXM4-40GB"
    document = json.loads(done.stdout)
    assert document["schema"] == "kopt/v1"
    assert document["trace"] == TraceCoverage.FULL.value
    assert document["memory"]["low_bytes"] <= document["memory"]["peak_bytes"] <= document["memory"]["high_bytes"]
    assert document["model"]["version"] == "shipped"


def test_behind_two_dashes_everything_is_the_scripts(calls: list[Any]) -> None:
    done = _run("--gpu", "h100", "--", "train.py", "--gpu", "0", "-o", "out.pt")
    assert done.exit_code == 0, done.stderr
    assert calls[0][0].arguments == ("train.py", "--gpu", "0", "-o", "out.pt")
    assert calls[0][1].name.startswith("H100")
    assert "fits:" in done.stdout
    assert "█" in done.stdout


def test_every_format_says_the_same(calls: list[Any]) -> None:
    document = yaml.safe_load(_run("train.py", "-o", "yaml").stdout)
    (line,) = csv.DictReader(io.StringIO(_run("train.py", "-o", "csv").stdout))
    assert int(float(line["peak_bytes"])) == document["memory"]["peak_bytes"]
    assert line["recommended_kind"] == document["recommendation"]["kind"]


def test_a_manifest_and_a_shell_line_name_what_runs(calls: list[Any], tmp_path: Path) -> None:
    container = {"name": "c", "command": ["python", "train.py", "--steps", "5"]}
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump({"kind": "Pod", "spec": {"containers": [container]}}))
    assert _run("pod.yaml", "-o", "json").exit_code == 0
    assert _run("torchrun --nproc-per-node 2 train.py --x 1", "-o", "json").exit_code == 0
    assert [one[0].arguments for one in calls] == [("train.py", "--steps", "5"), ("train.py", "--x", "1")]
    assert calls[1][0].world_size == 2


def test_a_picture_is_written_where_it_is_asked_for(calls: list[Any], tmp_path: Path) -> None:
    assert _run("train.py", "--plot", str(tmp_path / "memory.svg")).exit_code == 0
    assert (tmp_path / "memory.svg").read_text().startswith("<?xml")
    assert _run("train.py", "--plot", "memory.exe").exit_code == 2


def _out_of_time(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    problem = "it was ended at its limit of 60 s; --timeout gives it more"
    monkeypatch.setattr(sizing, "trace_script", lambda *_, **__: Traced(None, problem=problem))
    Path("train.py").write_text(script)


def test_an_answer_survives_a_picture_that_cannot_be_drawn(
    calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _out_of_time(monkeypatch, TRAINER)
    done = _run("train.py", "--plot", str(tmp_path / "memory.svg"), "-o", "json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["memory"]["peak_bytes"] > 1 << 30
    assert "memory.svg was not drawn" in done.stderr
    assert not (tmp_path / "memory.svg").exists()


def test_a_script_that_runs_out_of_time_is_read_instead(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _out_of_time(monkeypatch, TRAINER)
    done = _run("train.py", "-o", "json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["method"] == "analytic"
    assert document["memory"]["high_bytes"] > 1.3 * document["memory"]["low_bytes"]
    assert any("its limit of 60 s" in warning for warning in document["warnings"])


@pytest.mark.parametrize(
    "words",
    [
        ("llamafactory-cli train sft.yaml",),
        ("llamafactory-cli", "train", "sft.yaml"),
        ("litgpt", "finetune_lora", "microsoft/no-such-model"),
    ],
)
def test_why_a_trainers_arguments_do_not_suffice_is_the_first_thing_said(
    calls: list[Any], tmp_path: Path, words: tuple[str, ...]
) -> None:
    # Inside litgpt's repository the program has the name of a folder.
    (tmp_path / "litgpt").mkdir()
    done = _run(*words, "-o", "json")
    assert done.exit_code == 1, "there is no size"
    first, *_ = json.loads(done.stdout)["reasons"]
    assert first["code"] == "NO_FORMULA"
    assert "sft.yaml" in first["message"] or "no-such-model" in first["message"]


def test_a_dry_runs_profile_enters(calls: list[Any], tmp_path: Path) -> None:
    profile = {"gpu": "A100", "peak_bytes": 9 << 30, "duration_s": 300, "samples": 300, "steady": True, "steps": 90}
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    document = json.loads(_run("train.py", "--with-profile", "profile.json", "-o", "json").stdout)
    assert document["method"] == "combined"
    assert document["observed_peak_bytes"] == document["memory"]["low_bytes"] == 9 << 30
    (tmp_path / "profile.json").write_text("[1")
    assert "not a dry run's profile" in _run("train.py", "--with-profile", "profile.json").stderr


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("absent.py",), 1, "no such script"),
        (("train.py", "--gpu", "abacus"), 1, "no GPU model"),
        (("train.py", "--world-size", "0"), 2, "world-size"),
        (("train.py", "--timeout", "0"), 2, "timeout"),
        (("echo hello",), 1, "no command"),
        (("torn.yaml",), 1, "not YAML"),
        (("list.yaml",), 1, "holds no object"),
        (("folder.py",), 1, "is a folder; name the script in it"),
        (("folder",), 1, "is a folder; name the script in it"),
        (("empty.py",), 1, "empty.py is empty"),
        (("huge.py",), 1, "at most 16 MiB"),
        (("absent.yaml",), 1, "no such manifest"),
        (("train.py", "--with-profile", "absent.json"), 1, "absent.json: there is no such file"),
        (("train.py", "--sizing-model", "99"), 1, "99"),
        ((), 2, "SCRIPT"),
    ],
)
def test_what_cannot_be_estimated_is_said(
    calls: list[Any], tmp_path: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    (tmp_path / "torn.yaml").write_text("a: [1")
    (tmp_path / "list.yaml").write_text("- 1")
    for name in ("folder", "folder.py"):
        (tmp_path / name).mkdir()
    (tmp_path / "empty.py").touch()
    with (tmp_path / "huge.py").open("wb") as file:
        file.truncate(17 << 20)
    done = _run(*words)
    assert done.exit_code == status, done.output
    assert said in " ".join(done.stderr.split())
    assert not calls, "nothing is run that is refused"


def test_a_refusal_ends_with_status_one(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "trace_script", lambda *_, **__: Traced(None, "it needs a module of wonders"))
    done = _run("train.py", "-o", "json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["memory"]["peak_bytes"] is None
    assert "not known: the script could not be run abstractly: it needs a module of wonders" in _run("train.py").stdout


def words_of(process: psutil.Process) -> str:
    """Its command line; empty for one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.slow
def test_ctrl_c_ends_what_runs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """As a shell would: to the whole group, while the script runs."""
    (tmp_path / "sleeps.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    places = {name: tmp_path / name for name in ("home", "temporary")}
    for place in places.values():
        place.mkdir()
    command = [sys.executable, "-P", "-c", "from kopt.cli.main import app; app(prog_name='kopt')"]
    with (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(
            [*command, "estimate", "sleeps.py", "--timeout", "250", "-o", "json"],
            stdout=subprocess.PIPE,
            stderr=err,
            stdin=subprocess.DEVNULL,
            cwd=tmp_path,
            start_new_session=True,
            env=os.environ | {"KOPT_HOME": str(places["home"]), "TMPDIR": str(places["temporary"])},
        )
        family: list[psutil.Process] = []
        until = time.monotonic() + 200
        while not any("sleeps.py" in words_of(one) for one in family):
            assert process.poll() is None, (tmp_path / "err").read_text()
            assert time.monotonic() < until, "the script was not begun"
            time.sleep(0.2)
            family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=90)
    assert (process.returncode, out) == (130, b"")
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    assert not list(places["temporary"].iterdir())
    assert b"\x1b" not in (tmp_path / "err").read_bytes(), "no terminal, no drawing"


@pytest.mark.usefixtures("compiled_before")
def test_a_quoted_line_may_be_longer_than_any_path() -> None:
    options = " ".join(f"--option_{number} {number}" for number in range(40))
    line = f"python \\\n  -m kopt_no_such_module --model_name_or_path gpt2 {options}"
    found = _run("--sizing-model", "shipped", "--trainer", "hf", line)
    assert "File name too long" not in found.output
    assert not isinstance(found.exception, OSError)
    assert found.exit_code == 0, found.output
