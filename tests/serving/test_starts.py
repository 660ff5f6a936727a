"""``/v1/runtime/starts``: predicted starts are kept, compared with those that come, and correct the next ones; for all
replicas, after a restart, and whatever is sent twice, late or by others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.scheduling.diagnosis import PredictedStart, StartEstimate
from kopt.core.workload.run_time import JobKind, JobRun
from kopt.policies.diagnosis.start_calibration import LEAST, StartCalibration
from kopt.serving.client.transport import RequestRefused
from kopt.serving.runtime.service import RunTimeService
from kopt.serving.runtime.starts import StartTable
from tests.serving.test_runtime import Start, client, start

__all__ = ["start"]
NOW_S = 1.79e9
KIND = JobKind("research", 8, "finetune", "ada")


def predicted(job: str, at_s: float, p50_s: float = 600.0, p90_s: float = 1200.0, queue: str = "") -> PredictedStart:
    return PredictedStart(job, queue or KIND.queue, at_s, StartEstimate(p50_s, p90_s, 100))


def run(job: str, started_s: float) -> JobRun:
    return JobRun(f"{job}/{started_s:.0f}", KIND, started_s)


async def test_starts_that_come_later_than_predicted_correct_the_next_on_every_replica(start: Start) -> None:
    first, second = start(), start()
    async with client(first) as predicts, client(second) as tells:
        for number in range(2 * LEAST):
            at_s = NOW_S + 1e5 * number
            (answer,) = (await predicts.calibrated_starts([predicted(f"job-{number}", at_s)])).starts
            # Fewer than eight starts say nothing.
            assert (answer.p90_s > 1200.0) is (number >= LEAST)
            assert answer.compared == number
            # All come three times as late as half of the draws had it, and a little sooner each time.
            assert (await tells.send_runs([run(f"job-{number}", at_s + 1800.0 - number)])).kept == 1
        last = predicted("last", NOW_S + 1e7, 100.0, 200.0)
        (by_first,) = (await predicts.calibrated_starts([last])).starts
        (by_second,) = (await tells.calibrated_starts([last])).starts
        (other,) = (await tells.calibrated_starts([predicted("x", NOW_S, queue="vision")])).starts
        (queue,) = [item for item in (await tells.runtime_queues()).queues if item.queue == KIND.queue]
        second.service(RunTimeService).refresh()
        entries = (await tells.predictors_health()).predictors
    assert by_first == by_second
    # Sixteen waves against three: most of the way to three times as late.
    assert 240.0 < by_first.p50_s < 260.0
    assert 290.0 <= by_first.p90_s < 310.0
    # Each queue by itself.
    assert (other.p50_s, other.p90_s, other.compared) == (600.0, 1200.0, 0)
    (entry,) = [entry for entry in entries if entry.predictor == "start"]
    assert (entry.compared, entry.unit, entry.probability) == (2 * LEAST, "s", 0.9)
    assert queue.starts == 2 * LEAST
    # Those before the correction were missed, the others not.
    assert queue.start_coverage == entry.coverage == 0.5
    async with client(start()) as after_a_restart:
        assert (await after_a_restart.calibrated_starts([last])).starts == (by_first,)


@pytest.mark.parametrize(("p50_s", "p90_s", "field"), [(20.0, 10.0, "p90_s"), (-1.0, 10.0, "p50_s")])
async def test_a_start_that_cannot_be_is_refused(start: Start, p50_s: float, p90_s: float, field: str) -> None:
    async with client(start()) as asked:
        with pytest.raises(RequestRefused, match=field) as refused:
            await asked.calibrated_starts([predicted("a", NOW_S, p50_s, p90_s)])
    assert refused.value.status == 422


@pytest.fixture
def table(tmp_path: Path) -> Iterator[StartTable]:
    made = StartTable(tmp_path / "starts.db")
    yield made
    made.close()


def keep(table: StartTable, *starts: PredictedStart, now_s: float = NOW_S) -> None:
    table.keep("o", "", starts, {}, now_s)


def waits(table: StartTable, owner: str = "o", queue: str = KIND.queue) -> tuple[float, ...]:
    return table.calibration(owner, "", queue).p50_logs


def test_of_a_wait_the_first_prediction_counts_and_of_the_next_wait_again(table: StartTable) -> None:
    keep(table, predicted("a", NOW_S), predicted("a", NOW_S + 60, 1.0, 2.0))
    assert [wait.wait_s for wait in table.begun("o", "", [run("a", NOW_S + 600)], NOW_S)] == [600.0]
    assert waits(table) == (0.0,)
    # The cluster is read a little later than it changes: this is no new wait.
    keep(table, predicted("a", NOW_S + 599), predicted("a", NOW_S + 630))
    assert table.begun("o", "", [run("a", NOW_S + 600), run("a", NOW_S + 1e5)], NOW_S) == []
    # It was evicted, and waits again.
    keep(table, predicted("a", NOW_S + 2e5))
    assert table.begun("o", "", [run("a", NOW_S + 600)], NOW_S) == []
    assert [wait.wait_s for wait in table.begun("o", "", [run("a", NOW_S + 2e5 + 60)], NOW_S)] == [60.0]
    assert len(waits(table)) == 2
    assert waits(table, queue="vision") == waits(table, owner="p") == ()


def test_what_still_waits_beyond_twice_its_p90_counts_once(table: StartTable) -> None:
    keep(table, predicted("a", NOW_S))
    keep(table, predicted("a", NOW_S + 2400))
    assert waits(table) == ()
    for later_s in (2401, 9000):
        keep(table, predicted("a", NOW_S + later_s))
        assert waits(table) == (pytest.approx(1.3867, abs=1e-3),)
    assert table.begun("o", "", [run("a", NOW_S + 9999)], NOW_S) == []
    assert len(waits(table)) == 1
    assert table.coverage("o", "") == {KIND.queue: (1, 0.0)}


def test_rows_are_bounded_and_old_ones_go(tmp_path: Path) -> None:
    small = StartTable(tmp_path / "starts.db", most=5)
    for number in range(9):
        keep(small, predicted(f"a-{number}", NOW_S), now_s=NOW_S + number)
        small.begun("o", "", [run(f"a-{number}", NOW_S + 60)], NOW_S + number)
    assert len(waits(small)) == 5
    keep(small, predicted("b", NOW_S), now_s=NOW_S + 1e8)
    assert waits(small) == ()
    small.close()


STEP = st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 20), st.booleans())


@settings(max_examples=examples(40), deadline=None)
@given(steps=st.lists(STEP, max_size=25))
def test_two_replicas_know_what_one_would(steps: list[tuple[bool, int, int, bool]], tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("starts")
    alone = StartTable(folder / "alone.db")
    replicas = [StartTable(folder / "shared.db"), StartTable(folder / "shared.db")]
    for number, (predicts, job, minutes, which) in enumerate(steps):
        for table in (alone, replicas[which]):
            at_s = NOW_S + 60.0 * minutes
            if predicts:
                keep(table, predicted(f"job-{job}", at_s, 300.0, 400.0), now_s=NOW_S + number)
            else:
                table.begun("o", "", [run(f"job-{job}", at_s)], NOW_S + number)
    calibrations: list[StartCalibration] = [table.calibration("o", "", KIND.queue) for table in (alone, *replicas)]
    assert calibrations[0] == calibrations[1] == calibrations[2]
    for table in (alone, *replicas):
        table.close()
