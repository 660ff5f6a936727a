"""Tables of runs: what is read, what is refused with its line, and what the endpoint keeps as a table."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from kopt.cli.training.command import TrainInputs, command_of
from kopt.core.settings import Settings
from kopt.core.workload.run_time import JobKind, JobRun
from kopt.data.jobs.openb import TraceError
from kopt.data.jobs.runs import read_runs, write_runs
from kopt.serving.base.database.opening import location
from kopt.serving.runtime.table import RunTable

KIND = JobKind("research", 8, "finetune", "ada")


def written(tmp_path: Path, text: str, name: str = "jobs.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_times_in_seconds_and_iso_with_ends_and_durations(tmp_path: Path) -> None:
    header = "job_id,start_time,end_time,gpus,queue,name,user"
    row = "a,2026-01-01T00:00:00Z,2026-01-01T01:00:00+00:00,8,research,finetune,ada"
    (run,) = read_runs(written(tmp_path, f"{header}\n{row}\n"))[""]
    assert run == JobRun("a", KIND, 1767225600.0, 1767229200.0)
    seconds = "submit_time,job_id,duration,gpus,vc\n10,a,5,1,v\n0,b,,2,v\n3,c,7,0,v\n"
    assert read_runs(written(tmp_path, seconds))[""] == (
        JobRun("b", JobKind("v", 2), 0.0),
        JobRun("a", JobKind("v", 1), 10.0, 15.0),
    )


def test_clusters_are_apart_and_packed_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress(b"job_id,start_time,duration,gpus,cluster\na,0,1,1,east\na,0,1,1,west\n"))
    assert {cluster: len(runs) for cluster, runs in read_runs(path).items()} == {"east": 1, "west": 1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no column job_id"),
        ("job_id,gpus,start_time\n", "no column end_time or duration"),
        ("job_id,gpus,start_time,duration\na,x,0,1\n", "line 2: gpus is 'x'"),
        ("job_id,gpus,start_time,duration\na,1.5,0,1\n", "line 2: gpus is '1.5'"),
        ("job_id,gpus,start_time,duration\na,1,0,-1\n", "line 2: duration"),
        ("job_id,gpus,start_time,duration\na,1,0,nan\nb,1,inf,1\n", "line 3: start_time"),
        ("job_id,gpus,start_time,end_time\na,1,9,8\n", "line 2: job 'a' ended at 8"),
        ("job_id,gpus,start_time,end_time\na,1,2026-13-01T00:00:00,8\n", "line 2: start_time is '2026-13-01"),
        ("job_id,gpus,start_time,duration\na,1,0,1\na,1,5,1\n", "line 3: job 'a' is there twice"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(TraceError, match=why):
        read_runs(written(tmp_path, text))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00job", b"\x1f\x8b\x08\x00torn", b"job_id,gpus\x00"])
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jobs.csv.gz" if content.startswith(b"\x1f") else tmp_path / "jobs.csv"
    path.write_bytes(content)
    with pytest.raises((TraceError, OSError)):
        read_runs(path)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    runs = (
        JobRun("a,1", KIND, 0.1, 7.25),
        JobRun("b", JobKind('q"', 1), 2.0),
        JobRun("c", KIND, 3.0, 4.0, interrupted=True),
    )
    assert write_runs(tmp_path / "runs.csv", {"east": runs, "west": runs[:1]}) == 4
    assert read_runs(tmp_path / "runs.csv") == {"east": runs, "west": runs[:1]}


def inputs(settings: Settings, **more: Any) -> TrainInputs:
    given = {"data": None, "python": None, "prometheus": None, "query": "", "label": "", "since": "", "step": ""}
    return TrainInputs(settings, **{**given, "from_cluster": True, **more})


def test_training_reads_what_the_endpoint_has_been_told(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    table = RunTable(location(settings, "runs"))
    runs = [JobRun(f"{at}", KIND, 60.0 * at, 60.0 * at + 30) for at in range(120)]
    table.keep("system:serviceaccount:kopt-system:kopt-runs", "east", runs, 1e9)
    table.keep("", "", runs[:10], 1e9)
    table.close()
    dataset = command_of("runtime").source(inputs(settings)).read()
    assert dataset.names == ("runs/kopt-runs/east",)
    assert dataset.excluded == {"runs/cluster": "only 10 runs that ended, of 100"}
    assert (tmp_path / "measured" / "runtime" / "runs.csv").is_file()


def test_training_from_an_endpoint_that_was_told_nothing_says_so(tmp_path: Path, capsys: Any) -> None:
    from kopt.cli.errors import Refused

    with pytest.raises(Refused, match="no run of a job"):
        command_of("runtime").source(inputs(Settings(home=tmp_path)))


def test_a_wait_and_a_pool_are_read_where_both_times_are_there_and_written_again(tmp_path: Path) -> None:
    text = "job_id,submit_time,start_time,duration,gpus,pool\na,10,30,60,8,h100\nb,,40,60,8,\n"
    runs = read_runs(written(tmp_path, text))[""]
    assert [(run.submitted_s, run.started_s, run.pool) for run in runs] == [(10.0, 30.0, "h100"), (None, 40.0, "")]
    write_runs(tmp_path / "again.csv", {"": runs})
    assert read_runs(tmp_path / "again.csv")[""] == runs
