"""``kopt logs classify`` and ``kopt.classify_log``: one record per line of the log, offline, following what grows."""

import csv
import gzip
import io
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from secret_corpus import left_of, plain

from kopt.cli.logs.follow import Tail, followed
from kopt.cli.logs.view import LogPrinter
from kopt.cli.output import Format
from kopt.core.redaction import HIDDEN
from kopt.formats.joblog import LineSplitter
from kopt.sdk.classify_log import classify_log, load
from tests.cli.conftest import Done, Kopt

WITHIN_S = 90.0
START = "from kopt.cli.main import app; app(prog_name='kopt')"


def training(saves: int = 3) -> str:
    """A log of a minute with times: ten steps, a save with its end, and so on."""
    found, second = ["2026-01-31 12:00:00 Loading dataset from cache"], 0
    for save in range(1, saves + 1):
        for step in range((save - 1) * 10 + 1, save * 10 + 1):
            second += 1
            found.append(f"2026-01-31 12:{second // 60:02}:{second % 60:02} step {step}/400 loss 1.2 lr 0.0001")
        second += 1
        stamp = f"2026-01-31 12:{second // 60:02}:{second % 60:02}"
        found.append(f"{stamp} Saving checkpoint to /out/checkpoint-{save * 10} ...")
        found.append(f"{stamp} successfully saved checkpoint at iteration {save * 10}")
    found.append(f"2026-01-31 12:{second // 60:02}:{second % 60:02} step {saves * 10 + 1}/400 loss 1.2 lr 0.0001")
    return "\n".join(found) + "\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(training())
    return path


def records(done: Done) -> list[dict[str, Any]]:
    assert done.status == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_no_secret_of_a_log_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    secret = plain(random.Random(3))
    lines = [
        f"2026-01-31 12:00:00 connecting to redis://:{secret}@cache:6379",
        "2026-01-31 12:00:01 step 1/400 loss 1.2",
        f"2026-01-31 12:00:02 Saving checkpoint to s3://key:{secret}@bucket/checkpoint-1 ...",
        f"2026-01-31 12:00:03 successfully saved checkpoint at iteration 1 to s3://key:{secret}@bucket/checkpoint-1",
    ]
    log = classify_log(lines, model="shipped")
    for every in (False, True):
        with LogPrinter(Format.TABLE, every=every) as view:
            view.begin("train.log", "train.log")
            view.show(log)
            view.end(log.status)
    shown = capsys.readouterr().out
    assert HIDDEN in shown
    assert "evidence " in shown
    assert left_of(secret, shown) == []
    assert left_of(secret, log._repr_html_()) == []


def test_one_record_per_line_with_the_state_after_it(kopt: Kopt, log: Path) -> None:
    found = records(kopt("logs", "classify", "-o", "json", str(log), "--gpus", "8"))
    assert [one["line"] for one in found] == list(range(1, len(training().splitlines()) + 1))
    assert {one["file"] for one in found} == {"train.log"}
    assert {one["path"] for one in found} == {str(log)}
    wanted = {
        "label",
        "state",
        "safe",
        "evidence",
        "confidence",
        "step",
        "last_durable_step",
        "seconds_since_durable",
        "work_at_risk_gpu_seconds",
        "evidence_line",
        "reason",
    }
    assert wanted <= set(found[0])
    last = found[-1]
    assert (last["state"], last["safe"], last["last_durable_step"]) == ("TRAIN", True, 30)
    assert last["work_at_risk_gpu_seconds"] >= 8 * last["seconds_since_durable"]
    writing = found[-3]
    assert (writing["state"], writing["safe"]) == ("CKPT_WRITING", False)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"no end",
        b"10%\r20%\r\n30%\n\n\r\r\n",
        b"\xff\xfe\x00bytes\n" * 3,
        b"x" * (3 << 20) + b"\nshort",
        b"a\r" * 2500,
        "é".encode() * 9000 + b"\n",
    ],
)
def test_lines_are_counted_as_terminals_show_them(kopt: Kopt, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.log"
    path.write_bytes(content)
    splitter = LineSplitter()
    expected = len(list(splitter.feed(content))) + len(list(splitter.close()))
    assert len(records(kopt("logs", "classify", "-o", "json", str(path)))) == expected


def test_packed_files_and_several_are_read_each_as_a_job(kopt: Kopt, log: Path, tmp_path: Path) -> None:
    packed = tmp_path / "other.log.gz"
    packed.write_bytes(gzip.compress(training(4).encode()))
    found = records(kopt("logs", "classify", "-o", "json", str(log), str(packed)))
    other = [one for one in found if one["file"] == "other.log.gz"]
    assert other[0]["line"] == 1
    assert other[-1]["last_durable_step"] == 40
    packed.write_bytes(packed.read_bytes()[:-20])
    torn = kopt("logs", "classify", str(packed))
    assert torn.status == 1
    assert "damaged or cut off" in torn.err


def test_people_see_changes_of_state_and_what_holds_now(kopt: Kopt, log: Path) -> None:
    done = kopt("logs", "classify", str(log))
    assert done.status == 0, done.err
    assert done.out.count("CKPT_WRITING") == 3
    assert len(done.out.splitlines()) < len(training().splitlines())
    assert "safe to kill     yes" in done.out
    assert "last checkpoint  of step 30" in done.out
    assert "GPU-seconds" in done.out
    whole = kopt("logs", "classify", "--all", str(log))
    assert sum("step" in line and "loss" in line for line in whole.out.splitlines()) == 32, "and the evidence"


def test_csv_and_yaml_hold_the_same_records(kopt: Kopt, log: Path) -> None:
    expected = records(kopt("logs", "classify", "-o", "json", str(log)))
    rows = list(csv.DictReader(io.StringIO(kopt("logs", "classify", "-o", "csv", str(log)).out)))
    assert [row["state"] for row in rows] == [one["state"] for one in expected]
    assert yaml.safe_load(kopt("logs", "classify", "-o", "yaml", str(log)).out) == expected


def test_what_cannot_be_read_is_told_with_what_to_do(kopt: Kopt, tmp_path: Path, log: Path) -> None:
    folder = kopt("logs", "classify", str(tmp_path))
    assert (folder.status, folder.out) == (1, "")
    assert "is a folder" in folder.err
    gone = kopt("logs", "classify", str(log), str(tmp_path / "none.log"))
    assert (gone.status, gone.out) == (1, "")
    assert "no such file" in gone.err
    assert "--follow" in gone.err
    assert kopt("logs", "classify", "-", "-").status == 2
    assert kopt("logs", "classify").status == 2


def test_text_of_a_log_cannot_steer_the_terminal(kopt: Kopt, tmp_path: Path) -> None:
    path = tmp_path / "evil.log"
    path.write_bytes(b"\x1b]0;title\x07 [red]step 1[/red] \x1b[2J\n")
    done = kopt("logs", "classify", str(path))
    assert "\x1b" not in done.out
    assert "[red]" in done.out


def test_nothing_heavy_is_loaded_and_standard_input_is_read(log: Path, kopt_home: Path) -> None:
    code = (
        "import sys\nfrom kopt.cli.main import app\n"
        "app(['logs', 'classify', '-o', 'json', '-'], standalone_mode=False)\n"
        "print(sorted({'torch', 'ray', 'mlflow', 'feast', 'pandas', 'sklearn', 'lightgbm'} & set(sys.modules)), "
        "file=sys.stderr)"
    )
    environ = {**os.environ, "KOPT_HOME": str(kopt_home)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        input=log.read_text(),
        capture_output=True,
        text=True,
        check=True,
        env=environ,
        timeout=WITHIN_S,
    )
    assert done.stderr.strip() == "[]"
    assert len(done.stdout.splitlines()) == len(training().splitlines())
    assert not list(kopt_home.iterdir()), "the shipped model is asked without a trace"


def test_python_gives_the_same_as_the_command(kopt: Kopt, log: Path) -> None:
    import kopt as package

    expected = records(kopt("logs", "classify", "-o", "json", str(log)))
    for lines in (log, training(), training().splitlines(), io.StringIO(training())):
        found = package.classify_log(lines)
        assert [one.to_dict() for one in found] == [
            {key: value for key, value in one.items() if key not in ("file", "path")} for one in expected
        ]
    assert found.status.safe
    assert found.to_dict()["status"]["last_durable_step"] == 30
    assert [one.status.state for one in found.changes].count("CKPT_WRITING") == 3
    assert "&lt;b&gt;" in package.classify_log(["<b>step 1</b>"])._repr_html_()
    with pytest.raises(ValueError, match="arrivals"):
        package.classify_log(["a", "b"], arrivals_s=[1.0])


@pytest.fixture
def following(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Callable[[], list[dict[str, Any]]]]]:
    """Follows a file on a thread; what it gives waits for so many records and returns them."""
    stop, threads, seen = threading.Event(), list[threading.Thread](), ""

    def start(path: Path) -> Callable[[], list[dict[str, Any]]]:
        session, printer = load("shipped").session(), LogPrinter(Format.JSON)
        thread = threading.Thread(
            target=followed,
            args=([(path.name, path)], [session], printer),
            kwargs={"keep_going": lambda: not stop.is_set()},
        )
        thread.start()
        threads.append(thread)

        def so_far() -> list[dict[str, Any]]:
            nonlocal seen
            seen += capsys.readouterr().out
            return [json.loads(line) for line in seen.splitlines(keepends=True) if line.endswith("\n")]

        return so_far

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def until(so_far: Callable[[], list[dict[str, Any]]], count: int) -> list[dict[str, Any]]:
    end_s = time.monotonic() + WITHIN_S
    while len(found := so_far()) < count:
        assert time.monotonic() < end_s, f"{len(found)} of {count} records"
        time.sleep(0.05)
    return found


def test_a_log_that_grows_is_followed_through_rotation_and_truncation(
    log: Path, following: Callable[..., Callable[[], list[dict[str, Any]]]]
) -> None:
    so_far, count = following(log), len(training().splitlines())
    assert until(so_far, count)[-1]["last_durable_step"] == 30
    with log.open("a") as file:
        file.write("2026-01-31 12:05:00 step 31/400 loss 1.1\nnot yet")
    assert until(so_far, count + 1)[-1]["step"] == 31
    log.rename(log.with_suffix(".1"))
    log.write_text("2026-01-31 12:05:01 step 32/400 loss 1.1\n")
    found = until(so_far, count + 3)
    assert (found[-1]["line"], found[-1]["step"]) == (count + 3, 32), "the line that was cut off counts"
    log.write_text("new\n")
    assert until(so_far, count + 4)[-1]["line"] == count + 4


def test_a_file_that_is_not_there_yet_is_waited_for(
    tmp_path: Path, following: Callable[..., Callable[[], list[dict[str, Any]]]]
) -> None:
    path = tmp_path / "later.log"
    so_far = following(path)
    path.write_text("step 1/4 loss 1\n")
    assert until(so_far, 1)[0]["label"] == "train_step"


def test_a_file_that_is_only_gone_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\n")
    tail = Tail(path)
    with path.open("a") as file:
        assert tail.read() == ["one"]
        path.unlink()
        file.write("two\n")
        file.flush()
        assert tail.read() == ["two"]
    assert tail.close() == []


def test_ctrl_c_ends_following_with_the_summary(log: Path, kopt_home: Path) -> None:
    environ = {**os.environ, "KOPT_HOME": str(kopt_home)}
    running = subprocess.Popen(
        [sys.executable, "-P", "-c", START, "logs", "classify", "-f", str(log)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    )
    assert running.stdout is not None
    assert any("CKPT_DONE" in line for line in running.stdout), "what was there is shown"
    running.send_signal(2)
    out, err = running.communicate(timeout=WITHIN_S)
    assert running.returncode == 0, err
    assert "safe to kill" in out


def test_a_binary_file_is_no_log(kopt: Kopt, command: Callable[..., Done], tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_bytes(Path(sys.executable).resolve().read_bytes()[:5000])
    packed = tmp_path / "python.gz"
    packed.write_bytes(gzip.compress(program.read_bytes()))
    for words in ((str(program),), (str(packed),), ("--follow", str(program))):
        done = kopt("logs", "classify", *words)
        assert done.status == 1, done.out
        assert "is no log: it holds binary data" in done.err
        assert done.out == ""
