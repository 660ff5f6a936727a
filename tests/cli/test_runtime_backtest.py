"""``kopt runtime backtest``: a row per job, in the table's order."""

import csv
import random
from pathlib import Path

import pytest

from kopt.core.workload.run_time import JobKind, JobRun
from tests.cli.conftest import Kopt

_QUANTILES = ("q05", "q10", "q25", "q50", "q75", "q90", "q95")


def _runs(count: int) -> tuple[JobRun, ...]:
    draw = random.Random(3)
    starts_s = (600.0 * at for at in range(count))
    return tuple(
        JobRun(f"job-{at}", JobKind("research", draw.choice((1, 8))), s, s + draw.lognormvariate(8, 0.6))
        for at, s in enumerate(starts_s)
    )


def _write(path: Path, runs: tuple[JobRun, ...]) -> Path:
    lines = ["job_id,submit_time,duration,gpus,vc"]
    for run in runs:
        took = "" if run.duration_seconds is None else f"{run.duration_seconds:.0f}"
        lines.append(f"{run.job},{run.started_s:.0f},{took},{run.kind.gpus},{run.kind.queue}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_command_writes_a_row_per_job_on_gpus_in_the_order_of_the_table(kopt: Kopt, tmp_path: Path) -> None:
    runs = [*_runs(30), JobRun("goes-on", JobKind("research", 8), 30 * 600.0), JobRun("cpu", JobKind("q", 0), 5.0)]
    random.Random(4).shuffle(runs)
    table, out = _write(tmp_path / "jobs.csv", tuple(runs)), tmp_path / "answers.csv"
    done = kopt("runtime", "backtest", str(table), "--out", str(out), "--model", "shipped", "-o", "json")
    assert done.status == 0, done.err
    assert done.json["rows"] == 31
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == ("row", *_QUANTILES)
    assert [int(row["row"]) for row in rows] == [at for at, run in enumerate(runs) if run.kind.gpus]
    for row in rows:
        values = [float(row[name]) for name in _QUANTILES]
        assert values == sorted(values)
        assert values[0] >= 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("job_id,duration,gpus\na,1,1\n", "no column start_time or submit_time"),
        ("job_id,submit_time,duration,gpus\na,0,1,1\na,5,1,1\n", "line 3: job 'a' is there twice"),
        ("job_id,submit_time,duration,gpus\na,0,-1,1\n", "line 2: duration is -1"),
        ("job_id,submit_time,duration,gpus\n", "has no run on a GPU"),
    ],
)
def test_bad_tables_are_refused_and_nothing_is_written(
    kopt: Kopt,
    tmp_path: Path,
    text: str,
    message: str,
) -> None:
    (table := tmp_path / "jobs.csv").write_text(text, encoding="utf-8")
    done = kopt("runtime", "backtest", str(table), "--out", str(tmp_path / "out.csv"))
    assert done.status == 1
    assert message in done.err
    assert not (tmp_path / "out.csv").exists()
