"""``kopt utilisation``: percentiles by pool and day from counts that outlive Prometheus' series."""

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from postgres_server import PostgresServer, postgres
from prometheus_server import RunningPrometheus
from typer.testing import CliRunner

from kopt.cli.local.pages.utilisation import RecordedUtilisation, utilisation_of
from kopt.cli.main import app
from kopt.cli.utilisation import commands
from kopt.cli.utilisation.commands import Every, answer
from kopt.cluster.client.prometheus import Prometheus
from kopt.controllers.meter.busy_hours import BusyHours, BusyRecorder, due_hours
from kopt.core.settings import Settings
from kopt.dashboard.data.utilisation import UtilisationError
from kopt.policies.efficiency.busy_counts import KEEP_S, STEPS, BusyCounts, added, by_pool, hours_until
from kopt.policies.efficiency.groups import GONE
from kopt.serving.base.database.interface import DatabaseError
from tests.attacks.api_in_memory import MemoryKube
from tests.gpu_history import Metric, history

__all__ = ["postgres"]
HOUR_S, DAY_S = 3600, 86_400
shares = st.lists(st.floats(0, 1), min_size=1, max_size=60)


def counts_of(values: list[float]) -> BusyCounts:
    steps = np.ceil(np.asarray(values) * STEPS).astype(int).tolist()
    return BusyCounts.of({step: steps.count(step) for step in set(steps)})


@given(shares, st.floats(0.01, 1))
def test_a_percentile_of_counts_is_right_to_a_step(values: list[float], level: float) -> None:
    exact = float(np.quantile(values, level, method="inverted_cdf"))
    assert counts_of(values).quantile(level) == pytest.approx(exact, abs=1 / STEPS + 1e-9)


@given(st.lists(shares, min_size=1, max_size=6))
def test_counts_of_hours_add_up_to_those_of_a_day(hours: list[list[float]]) -> None:
    day = added(("pool", counts_of(hour)) for hour in hours)["pool"]
    assert day == counts_of([value for hour in hours for value in hour])


def test_a_mean_of_percentiles_would_be_another() -> None:
    idle, busy = counts_of([0.0] * 99 + [1.0]), counts_of([1.0] * 100)
    of_both = (idle + busy).quantile(0.95)
    assert of_both == pytest.approx(1, abs=0.05)
    assert ((idle.quantile(0.95) or 0) + (busy.quantile(0.95) or 0)) / 2 < 0.51


def test_what_is_no_count_is_refused() -> None:
    assert BusyCounts().quantile(0.5) is None
    for wrong in ({STEPS + 1: 1}, {-1: 1}, {3: -1}):
        with pytest.raises(ValueError, match=r"step|negative"):
            BusyCounts.of(wrong)
    assert by_pool({"a": counts_of([0.5]), "gone": counts_of([1.0])}, {"a": "h100"}, "(gone)").keys() == {
        "h100",
        "(gone)",
    }


def test_an_hour_that_is_stored_again_counts_once_and_old_ones_go(tmp_path: Path) -> None:
    store = BusyHours(tmp_path / "busy.db")
    now_s = 2_000_000_000
    start_s = now_s // HOUR_S * HOUR_S - HOUR_S
    for _ in range(2):
        store.store(start_s, {"h100": counts_of([0.2, 0.4])}, now_s)
    assert [(pool, counts.total) for _, pool, counts in store.hours(0)] == [("h100", 2)]
    assert store.recorded(0) == {start_s}
    store.store(start_s + KEEP_S + HOUR_S, {"h100": counts_of([1.0])}, now_s + KEEP_S + HOUR_S)
    assert [start for start, _, _ in store.hours(0)] == [start_s + KEEP_S + HOUR_S]
    store.close()


@pytest.mark.parametrize("broken", ["{}", "[1, 2]", "3", "[", str(["1"] * 21).replace("'", '"')])
def test_a_row_that_is_no_counts_is_an_error_of_the_database(tmp_path: Path, broken: str) -> None:
    store = BusyHours(tmp_path / "busy.db")
    store.store(HOUR_S, {"h100": counts_of([0.2])}, HOUR_S)
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "busy.db")) as file, file:
        file.execute("UPDATE busy_hours SET counts = ?", (broken,))
    with contextlib.closing(BusyHours(tmp_path / "busy.db")) as store, pytest.raises(DatabaseError, match="no counts"):
        list(store.hours(0))


def test_hours_are_whole_and_settled() -> None:
    assert hours_until(10 * HOUR_S + 299, 2 * HOUR_S) == [7 * HOUR_S, 8 * HOUR_S]
    assert hours_until(10 * HOUR_S + 300, 2 * HOUR_S) == [8 * HOUR_S, 9 * HOUR_S]


@pytest.mark.parametrize("past_s", [0, 120, 299, 300, 3599])
def test_what_is_stored_is_not_due_whatever_the_minute(tmp_path: Path, past_s: int) -> None:
    store, now_s = BusyHours(tmp_path / "busy.db"), 500_000 * HOUR_S + past_s
    due = due_hours(store, now_s, 30 * HOUR_S)
    assert len(due) == 30
    for start_s in due[:-1]:
        store.store(start_s, {"h100": counts_of([0.5])}, now_s)
    assert due_hours(store, now_s, 30 * HOUR_S) == due[-1:]
    store.close()


def test_ninety_days_by_day_and_pool() -> None:
    begin = 20_000 * DAY_S
    hours = [
        (begin + day * DAY_S + hour * HOUR_S, pool, counts_of([level] * 12))
        for day in range(90)
        for hour in range(24)
        for pool, level in (("h100", 0.9 if hour < 2 else 0.3), ("a100", 0.5))
    ]
    rows = answer(hours, Every.DAY).rows
    assert len(rows) == 180
    (first,) = [row for row in rows[:2] if row.pool == "h100"]  # type: ignore[attr-defined]
    assert (first.gpus, first.hours) == (1.0, 24)  # type: ignore[attr-defined]
    # Two hours of 24 are 8 % of the day: the 95th percentile is theirs, and the median the others'.
    assert first.p95 == pytest.approx(0.9, abs=0.05)  # type: ignore[attr-defined]
    assert first.p50 == pytest.approx(0.3, abs=0.05)  # type: ignore[attr-defined]
    assert len(answer(hours, Every.WHOLE, "a100").rows) == 1


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two days of four GPUs: two of a node are busy for a tenth or for nine tenths, two of another are idle."""
    ratios = {("a", "0"): 0.1, ("a", "1"): 0.9, ("b", "0"): 0.0, ("b", "1"): 0.0}
    metrics = (
        Metric("kopt:gpu:busy_ratio", {"node": node, "gpu": gpu, "pod": gpu}, value)
        for (node, gpu), value in ratios.items()
    )
    server = RunningPrometheus(tmp_path_factory.mktemp("prometheus"), history(*metrics))
    yield server.url
    server.stop()


@pytest.mark.services
def test_hours_are_recorded_once_and_shown(prometheus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pools(*_: object) -> dict[str, str]:
        return {"a": "h100", "b": "a100"}

    monkeypatch.setattr(commands, "node_pools_of", pools)
    monkeypatch.setenv("KOPT_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("KOPT_DATABASE_URL", raising=False)
    asked = ["utilisation", "record", "--prometheus", prometheus, "--since", "30h"]
    first = CliRunner().invoke(app, asked)
    assert first.exit_code == 0, first.output
    assert "30 hours stored; nothing was recorded in 0 of 30" in first.output
    assert "0 hours stored; nothing was recorded in 0 of 0" in CliRunner().invoke(app, asked).output
    shown = CliRunner().invoke(app, ["utilisation", "show", "--every", "whole", "-o", "json"])
    a100, h100 = json.loads(shown.stdout)["rows"]
    assert (a100["pool"], a100["gpus"], a100["p99"]) == ("a100", 2.0, 0.0)
    assert (h100["gpus"], h100["hours"]) == (2.0, 30)
    assert h100["p95"] == pytest.approx(0.9, abs=0.05)
    assert h100["p25"] == pytest.approx(0.1, abs=0.05)
    refused = CliRunner().invoke(app, ["utilisation", "show", "--pool", "none"])
    assert refused.exit_code == 1
    assert "nothing is stored of pool 'none'; there are a100, h100" in refused.output


@pytest.mark.services
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def test_pages_read_what_is_stored_and_create_nothing(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where: Path | str = tmp_path / "busy.db"
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        where = server.new_database()
    pages = RecordedUtilisation(where)
    assert pages.days(0) == []
    assert pages.days(0) == []
    assert list(tmp_path.iterdir()) == []
    store = BusyHours(where)
    begin_s = 20_000 * DAY_S
    for hour in range(30):
        store.store(begin_s + hour * HOUR_S, {"h100": counts_of([0.3] * 24)}, begin_s)
    assert [(use.start_s, use.pool, use.hours, use.gpus) for use in pages.days(0)] == [
        (begin_s, "h100", 24, 2.0),
        (begin_s + DAY_S, "h100", 6, 2.0),
    ]
    store.close()


def test_a_database_that_is_away_is_a_sentence_for_the_reader(tmp_path: Path) -> None:
    with pytest.raises(UtilisationError, match="over months cannot be read: the database does not answer"):
        RecordedUtilisation("postgresql://127.0.0.1:9/kopt").days(0)
    assert utilisation_of({"KOPT_PAGES_EXAMPLE": "true"}, Settings(tmp_path)) is None


class CountingPrometheus(Prometheus):
    """Also counts what it is asked for."""

    queries = 0

    async def over(self, *words: Any) -> Any:
        self.queries += 1
        return await super().over(*words)


@pytest.mark.services
@pytest.mark.long
async def test_the_recorder_asks_for_old_gaps_once_and_tries_again_while_prometheus_is_away(
    prometheus: str, tmp_path: Path
) -> None:
    store, kube, now_s = BusyHours(tmp_path / "busy.db"), cast(Any, MemoryKube()), time.time()
    async with CountingPrometheus("http://127.0.0.1:9") as away:
        recorder = BusyRecorder(kube, store, away, lambda: now_s)
        assert (await recorder.step(), recorder.errors, away.queries) == (60.0, 1, 1)
    async with CountingPrometheus(prometheus) as server:
        recorder = BusyRecorder(kube, store, server, lambda: now_s)
        again_s = await recorder.step()
        assert server.queries == 15 * 24
        assert 47 <= len(store.recorded(0)) <= 49
        assert hours_until(now_s + again_s, HOUR_S)[0] == hours_until(now_s, HOUR_S)[0] + HOUR_S
        await recorder.step()
        assert (server.queries, recorder.errors) == (15 * 24, 0)
    # Without a node of the cluster that they are of.
    assert {pool for _, pool, _ in store.hours(0)} == {GONE}
    store.close()
