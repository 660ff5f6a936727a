"""``kopt capacity what-if`` on jobs of a table, and on those that an endpoint was sent."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.workload.run_time import JobKind, JobRun
from kopt.data.jobs.runs import write_runs
from kopt.serving.client.blocking import PredictionClient
from kopt.simulator.what_if.jobs import PastJob
from kopt.simulator.what_if.replay import Order, Pool, replay
from tests.cli.endpoints import shipped_endpoint

DAY_S, FIRST_S = 86_400, 1_780_000_000.0
CHANGE = ["--gpus", "h100=8", "--add-gpus", "H100=8"]


def runs(days: int = 12, pool: str = "") -> list[JobRun]:
    """Each noon three jobs on all eight GPUs come at once; a night is enough for them."""
    jobs = [
        PastJob("research", "ada", pool, 8, FIRST_S + day * DAY_S + 43_200 + number, 7_200.0)
        for day in range(days)
        for number in range(3)
    ]
    # One more, so that the last day is whole.
    jobs.append(PastJob("other", "bob", pool, 1, FIRST_S + days * DAY_S, 60.0))
    starts = replay(jobs, Pool(8), Order.FIFO)
    listed = []
    for number, (job, start_s) in enumerate(zip(jobs, starts, strict=True)):
        assert start_s is not None
        kind, end_s = JobKind(job.queue, job.gpus, "train", job.user), start_s + job.seconds
        listed.append(JobRun(f"j{number}", kind, start_s, end_s, submitted_s=job.submitted_s, pool=pool))
    return listed


def table(tmp_path: Path, listed: Sequence[JobRun]) -> str:
    path = tmp_path / "jobs.csv"
    write_runs(path, {"": listed})
    return str(path)


def asked(*options: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["capacity", "what-if", *options], env={"COLUMNS": "160"})
    assert result.exit_code == code, result.output
    return " ".join((result.stdout if code == 0 else result.output).replace("│", "").split())


def test_twice_the_gpus_halve_the_queue_of_a_table(tmp_path: Path) -> None:
    document = json.loads(asked("--jobs", table(tmp_path, runs(16)), *CHANGE, "--price", "2", "-o", "json"))
    figures = {(figure["what"], figure["of"]): figure for figure in document["figures"]}
    wait = figures["mean wait", "all"]
    # Nothing, two hours and four hours; with twice the GPUs nothing, nothing and two hours.
    assert (wait["recorded"], wait["as_is"], wait["what_if"]) == pytest.approx((7_200, 7_200, 2_400), rel=0.01)
    assert wait["change"] == pytest.approx(-4_800, rel=0.01)
    assert wait["change_interval"][0] <= wait["change"] <= wait["change_interval"][1]
    assert figures["utilisation", "h100"]["as_is"] == pytest.approx(0.25, abs=0.01)
    assert figures["utilisation", "h100"]["what_if"] == pytest.approx(0.125, abs=0.01)
    assert figures["a month", "h100"]["change"] == pytest.approx(2 * 8 * 730)
    assert figures["never fit", "all"]["what_if"] == 0
    assert document["check"]["error"] == pytest.approx(0, abs=1e-6)
    # 28 of the jobs waited: two are missing.
    assert document["check"]["reason"]["code"] == "WHAT_IF_TOO_FEW_WAITS"
    trusted = json.loads(asked("--jobs", table(tmp_path, runs(24)), *CHANGE, "-o", "json"))
    assert trusted["check"]["trusted"] is True


def test_people_read_whether_to_trust_it_and_what_is_assumed(tmp_path: Path) -> None:
    text = asked("--jobs", table(tmp_path, runs(24)), *CHANGE)
    assert "The answer can be trusted: As the cluster is, replayed waits" in text
    assert "80 min" in text
    assert "nobody submits more or less because waits are other ones" in text
    text = asked("--jobs", table(tmp_path, runs(6)), *CHANGE)
    assert "DO NOT TRUST the changes of waits" in text


def test_a_trace_without_starts_is_answered_and_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["job_id", "submit_time", "duration", "gpus", "vc"])
        writer.writerows([run.job, run.submitted_s, 7_200, run.kind.gpus, run.kind.queue] for run in runs(24))
    document = json.loads(asked("--jobs", str(path), *CHANGE, "--order", "fifo", "-o", "json"))
    assert document["check"]["reason"]["code"] == "WHAT_IF_WAITS_UNKNOWN"
    wait = next(figure for figure in document["figures"] if figure["what"] == "mean wait")
    assert wait["recorded"] is None
    assert wait["as_is"] > wait["what_if"]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with shipped_endpoint(tmp_path_factory.mktemp("home")) as url:
        with PredictionClient(url, deadline_s=60.0) as client:
            assert client.send_runs(runs(24, "h100"), "east").kept == 73
        yield url


def test_jobs_that_an_endpoint_was_sent_are_replayed(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPT_URL", endpoint)
    document = json.loads(asked("--cluster", "east", *CHANGE, "-o", "json"))
    wait = next(figure for figure in document["figures"] if figure["what"] == "mean wait")
    assert (wait["recorded"], wait["what_if"]) == pytest.approx((7_200, 2_400), rel=0.01)
    assert document["check"]["trusted"] is True
    with PredictionClient(endpoint, deadline_s=60.0) as client:
        page = client.runs("east")
        assert [item.run for item in page.runs] == runs(24, "h100"), "as they were sent"
        assert client.runs("east", page.last).runs == ()
    assert "the endpoint has no jobs of cluster 'west'" in asked("--cluster", "west", *CHANGE, code=1)
    assert "there are h100" in asked("--cluster", "east", "--gpus", "l4=8", "--add-gpus", "l4=1", code=1)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no column job_id"),
        ("job_id,gpus,start_time,duration\n", "has no run on a GPU"),
        ("job_id,gpus,start_time,duration\na,eight,0,1\n", "line 2: gpus is 'eight'"),
        ("job_id,gpus,submit_time,start_time,duration\na,1,9,8,1\n", "line 2: job 'a' started at 8, before it was sub"),
        ("job_id,gpus,start_time,duration\na,1,0,60\n", "a day is the least"),
        ("\x00\x01", "no column job_id"),
    ],
)
def test_a_table_that_is_none_is_one_line(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(text, encoding="utf-8")
    output = asked("--jobs", str(path), *CHANGE, code=1)
    assert word in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("options", "word", "code"),
    [
        (["--gpus", "h100=8"], "say what would be another one", 2),
        (["--gpus", "h100", "--add-gpus", "h100=1"], "'h100' is not POOL=NUMBER", 2),
        (["--gpus", "h100=8", "--quota", "=4"], "'=4' is not QUEUE=NUMBER", 2),
        (["--gpus", "h100=8", "--move", "h100=h100"], "'h100=h100' is not POOL=POOL", 2),
        (["--gpus", "h100=8", "--add-gpus", "l4=1"], "there is no pool 'l4'; there are h100", 1),
        (["--gpus", "h100=8", "--remove-gpus", "h100=9"], "h100 has 8 GPUs, so 9 cannot go", 1),
        (["--gpus", "h100=8", "--add-gpus", "h100=1", "--order", "random"], "random", 2),
        (["--gpus", "h100=8", "--add-gpus", "h100=1", "--since", "soon"], "soon", 2),
    ],
)
def test_wrong_usage_names_what_is_meant(tmp_path: Path, options: list[str], word: str, code: int) -> None:
    assert word in asked("--jobs", table(tmp_path, runs(2)), *options, code=code)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    assert "cannot be read" in asked("--jobs", str(tmp_path / "none.csv"), *CHANGE, code=1)
