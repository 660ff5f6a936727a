"""Run times from a real MLflow server that a program logged to, and from a real Prometheus with exporters' series."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gpu_history import dcgm
from prometheus_server import RunningPrometheus
from typer.testing import CliRunner, Result

from kopt.cli.main import app
from kopt.core.workload.run_time import JobKind
from kopt.data.demand.prometheus import Server
from kopt.data.jobs.mlflow_runs import MlflowQuery, MlflowReader, MlflowRunsError
from kopt.data.jobs.prometheus_runs import read_gpu_runs
from tests.cli.endpoints import shipped_endpoint
from tests.models.team_mlflow_server import TeamMlflow

DAY_S = 86_400.0
SCRIPT = Path(__file__).with_name("logged_training.py")
STATUSES = ("FINISHED", "FINISHED", "FAILED", "KILLED", "NESTED", "RUNNING")


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamMlflow]:
    folder = tmp_path_factory.mktemp("mlflow")
    server = TeamMlflow(folder, (folder / "artefacts").as_uri())
    try:
        log(server, "notebooks:FINISHED:lr=0.1", *(f"llama:{status}:world_size=8" for status in STATUSES))
        yield server
    finally:
        server.stop()


def log(server: TeamMlflow, *runs: str) -> None:
    """The last one's process dies."""
    of_client = {"MLFLOW_TRACKING_TOKEN": server.secret, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    command = [sys.executable, "-P", str(SCRIPT), server.url, *runs]
    done = subprocess.run(command, env=os.environ | of_client, capture_output=True, text=True, timeout=300)
    assert done.returncode == 9, done.stderr[-2000:]


def test_finished_failed_killed_and_silent_runs_are_told_apart(mlflow: TeamMlflow) -> None:
    now_s = time.time()
    with MlflowReader(mlflow.url, token=mlflow.secret) as reader:
        found = reader.read(MlflowQuery(), now_s)
        later = reader.read(MlflowQuery(), now_s + 2 * DAY_S)
        counted = reader.read(MlflowQuery(default_gpus=1, default_queue="lab"), now_s)
        none = reader.read(MlflowQuery(since_s=now_s + DAY_S), now_s)
        two = reader.read(MlflowQuery(most=2), now_s)
    assert (found.without_gpus, found.nested, found.unreadable, found.cut) == (1, 2, 0, False)
    user = found.runs[0].kind.user
    assert user
    assert {run.kind for run in found.runs} == {JobKind("llama", 8, "llama:logged_training.py", user)}
    ways = [("on" if run.ended_s is None else "interrupted" if run.interrupted else "ended") for run in found.runs]
    assert ways == ["ended", "ended", "ended", "interrupted", "ended", "on"]
    assert all(0 < run.duration_seconds < 120 for run in found.runs if run.duration_seconds is not None)
    silent = later.runs[5]
    assert silent.interrupted, "its process died without a word: censored where it was last heard of"
    assert silent.started_s < (silent.ended_s or 0) < now_s
    assert {run.kind.queue for run in counted.runs} == {"lab"}
    assert {run.kind.gpus for run in counted.runs} == {1, 8}
    assert none.runs == ()
    assert two.cut


def test_nothing_is_written_and_a_wrong_token_is_said(mlflow: TeamMlflow) -> None:
    def everything() -> Any:
        headers = {"authorization": f"Bearer {mlflow.secret}"}
        body = {"experiment_ids": ["1", "2"], "max_results": 100}
        return httpx.post(f"{mlflow.url}/api/2.0/mlflow/runs/search", json=body, headers=headers).json()

    before = everything()
    with MlflowReader(mlflow.url, token=mlflow.secret) as reader:
        reader.read(MlflowQuery(), time.time())
    assert everything() == before
    with MlflowReader(mlflow.url, token="another") as reader, pytest.raises(MlflowRunsError, match="refuses") as raised:
        reader.read(MlflowQuery(), time.time())
    assert "another" not in str(raised.value)


def test_imported_runs_answer_how_long_the_next_one_takes(
    mlflow: TeamMlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(mlflow.secret + "\n")
    words = ["--mlflow", mlflow.url, "--token-file", str(tmp_path / "token"), "--queue", "research", "--cluster", "lab"]
    with shipped_endpoint(tmp_path / "endpoint") as url:
        monkeypatch.setenv("KOPT_URL", url)
        first = _run("import", *words)
        assert first.exit_code == 0, first.stderr
        assert "6 runs sent, 6 of them new" in first.stderr
        assert "1 runs left out" in first.stderr
        assert "6 runs sent, 0 of them new" in _run("import", *words).stderr
        asked = ("--queue", "research", "--gpus", "8", "--name", "llama:logged_training.py", "--cluster", "lab")
        answer = _run("estimate", *asked, "-o", "json")
        assert answer.exit_code == 0, answer.stderr
        assert '"p50"' in answer.stdout
        assert mlflow.secret not in first.stderr + first.stdout
    assert _run("import").exit_code == 2
    assert _run("import", "x.csv", "--mlflow", mlflow.url).exit_code == 2
    assert _run("import", "--mlflow", "file:///etc").exit_code == 1


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, ["runtime", *words])


@pytest.mark.parametrize(
    "answer",
    [
        (200, "<html>"),
        (200, '{"experiments": 7}'),
        (500, "{}"),
        (302, ""),
        (200, '{"experiments": [{"experiment_id": "1", "name": "x"}], "next_page_token": "again"}'),
    ],
)
def test_what_is_no_mlflow_is_an_error_or_empty_and_ends(answer: tuple[int, str]) -> None:
    status, text = answer
    reader = MlflowReader("http://127.0.0.1:1")
    reader._http = httpx.Client(
        base_url="http://127.0.0.1:1",
        transport=httpx.MockTransport(
            lambda _: httpx.Response(status, text=text, headers={"location": "http://elsewhere/"})
        ),
    )
    with reader:
        if answer == (200, '{"experiments": 7}'):
            assert reader.read(MlflowQuery(), 0.0).runs == ()
        else:
            with pytest.raises(MlflowRunsError):
                reader.read(MlflowQuery(), 0.0)


HOUR_S = 3600.0


def _spans(pod: str, gpus: int, *spans: tuple[float, float]) -> Iterator[str]:
    """A pod's GPUs, scraped every minute in spans of hours before now."""
    now_s = time.time()
    for gpu in range(gpus):
        labels = dcgm("research", pod, gpu)
        text = ",".join(f'{name}="{value}"' for name, value in labels.items())
        for began_h, ended_h in spans:
            for left_s in range(int(began_h * HOUR_S), int(ended_h * HOUR_S) - 1, -60):
                yield f"DCGM_FI_DEV_FB_USED{{{text}}} 8000 {now_s - left_s:.0f}"


def test_pods_with_gpus_become_runs_of_their_jobs(tmp_path: Path) -> None:
    lines = [
        *_spans("finetune-17-x7k2p", 4, (20, 18)),
        *_spans("finetune-18-b4c2d", 4, (10, 7)),
        *(line for pod in range(3) for line in _spans(f"pretrain-worker-{pod}", 1, (12, 4))),
        *_spans("probe-0", 1, (30, 29), (6, 5)),
        *_spans("now-zzzzz", 1, (2, 0)),
        *_spans("chat-6d4cf56db6-x7k2p", 1, (20, 0)),
        *_spans("old-x7k2p", 1, (45, 30)),
    ]
    text = "\n".join(["# TYPE DCGM_FI_DEV_FB_USED gauge", *lines, "# EOF", ""])
    server = RunningPrometheus(tmp_path, text)
    now_s = time.time()
    try:
        with Server(server.url) as asked:
            found = read_gpu_runs(asked, 40 * HOUR_S, now_s)
            same = read_gpu_runs(asked, 40 * HOUR_S - 600, now_s + 7.0)
    finally:
        server.stop()
    assert (found.services, found.begun_before) == (1, 1)
    assert {run.job for run in same.runs} == {run.job for run in found.runs}, "read again, they are other runs"
    lasted = [(run, run.duration_seconds) for run in found.runs]
    hours = {(run.kind.name, run.kind.gpus, took and round(took / HOUR_S, 1)) for run, took in lasted}
    pairs = {("finetune", 4, 2.0), ("finetune", 4, 3.0)}
    assert hours == pairs | {("pretrain", 3, 8.0), ("probe", 1, 1.0), ("now", 1, None)}
    assert len(found.runs) == 6, "of two runs under one name the pause is not part"
    assert {run.kind.queue for run in found.runs} == {"research"}
