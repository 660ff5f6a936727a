"""A day of a cluster that is played in minutes: everything that answers about it says the same, and what is true."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane

from kopt.data.jobs.training import read_jobs
from tests.day import answers
from tests.day.plan import DAY_S, planned
from tests.day.running import Day, Times, home_of, running_day

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.services, pytest.mark.timeout(1500)]
NODES, JOBS, SPAN_S = 20, 120, 360.0
MOMENTS = (0.5, 0.8, 1.0)
"""Of the day: while the pods of a lost node are there still, after an XID, and the end."""
SETTLED_S = 60.0


@pytest.fixture
def trace() -> Path:
    path = Path(os.environ.get("KOPT_DATA_DIR", "")) / "jobs" / "philly_first_half.csv.gz"
    if not path.exists():
        message = "KOPT_DATA_DIR does not name a folder with jobs/philly_first_half.csv.gz"
        if os.environ.get("KOPT_REQUIRE_DATA"):
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture
def day(
    control_plane: ControlPlane,
    kwok: Kwok,
    kube_state_metrics: Path,
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Day]:
    for name, value in home_of(tmp_path).items():
        monkeypatch.setenv(name, value)
    plan = planned(read_jobs(trace), NODES, most_jobs=JOBS)
    with running_day(control_plane, kwok, tmp_path, plan, Times(SPAN_S)) as day:
        yield day


def test_everything_that_answers_says_what_is_true(day: Day) -> None:
    is_wrong, tables = False, day.home / "tables.md"

    def write(heading: str, rows: list[answers.Row]) -> bool:
        with tables.open("a") as file:
            file.write(f"\n{heading}:\n\n{answers.written(rows)}\n")
        return any(row.wrong for row in rows)

    for moment in MOMENTS:
        day.player.until(moment * DAY_S)
        assert day.truth.allocated > 40, "there is something to disagree about"
        rows = answers.settled(lambda: answers.now(day), SETTLED_S)
        is_wrong |= write(f"At {moment:.0%} of the day", rows)
    rows = answers.settled(lambda: answers.so_far(day), SETTLED_S)
    is_wrong |= write("The day", rows)
    assert not is_wrong, tables.read_text()
    assert day.truth.closed_since_s
