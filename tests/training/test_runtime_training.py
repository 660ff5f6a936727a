"""The run-time predictor goes through the same pipeline: clusters left out, the later part of each, gate."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from empty_registry import with_empty_registry

from kopt.core.settings import Settings
from kopt.core.workload.run_time import JobKind, JobRun
from kopt.data.jobs.openb import TraceError
from kopt.models.registry import registry as registering
from kopt.models.registry.registry import Registry
from kopt.models.runtime.predictor import RunTimePredictor
from kopt.models.runtime.quantile_trees import TreeSettings
from kopt.models.runtime.table import Trace, table_of
from kopt.training.pipeline.run import TrainOptions, train
from kopt.training.pipeline.tasks import HereTasks
from kopt.training.runtime.recipe import RECIPE, RunDataset, RunTables, TableByTrace, window_start_s
from kopt.training.runtime.scoring import trace_run

SMALL = {"rounds": 30, "leaves": 7, "least_in_leaf": 10, "seeds": 1}
DAY_S = 86_400.0


def trace(name: str, seed: int, count: int = 500) -> Trace:
    """Runs that alternate between days of short and days of long ones: the last few runs say more than the last 20."""
    rng = random.Random(seed)
    runs, at_s = [], 0.0
    for number in range(count):
        at_s += rng.expovariate(1 / 3_000)
        typical = 300.0 if int(at_s // DAY_S) % 2 else 3_000.0
        took_s = typical * math.exp(rng.gauss(0, 0.4))
        runs.append(JobRun(f"{name}-{number}", JobKind(rng.choice("ab"), rng.choice((1, 8))), at_s, at_s + took_s))
    return Trace(name, tuple(runs), name)


def dataset() -> RunDataset:
    return RunDataset("made-up", tuple(trace(name, seed) for seed, name in enumerate(("east", "west", "north"))))


class Given:
    def __init__(self, runs: RunDataset) -> None:
        self.runs = runs

    def read(self) -> RunDataset:
        return self.runs


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(registering, "shipped_digests", dict)
    settings = Settings(home=with_empty_registry(tmp_path / "home"))
    registry = Registry(settings, trusted_digests=())
    options = TrainOptions(folds=3, parameters=SMALL)
    return lambda runs: train(
        "runtime", source=Given(runs), settings=settings, options=options, tasks=HereTasks(), registry=registry
    )


def test_a_first_model_is_measured_on_clusters_and_weeks_it_has_not_seen(trained: Any) -> None:
    outcome = trained(dataset())
    by_slice = {summary.slice: summary for summary in outcome.summaries}
    assert set(by_slice) == {"all", "regime new services", "regime known services"}
    assert by_slice["regime new services"].services == 3
    assert outcome.promoted, outcome.decision
    assert by_slice["all"].loss < by_slice["all"].recent_loss
    assert 0.8 < by_slice["all"].coverage <= 1


def test_one_cluster_is_tested_on_its_later_part_alone(trained: Any) -> None:
    alone = RunDataset("made-up", (trace("east", 1),))
    outcome = trained(alone)
    by_slice = {summary.slice: summary for summary in outcome.summaries}
    assert set(by_slice) == {"all", "regime known services"}
    assert by_slice["all"].runs <= 0.31 * 500


def test_a_model_that_is_no_better_than_the_last_runs_is_refused(trained: Any) -> None:
    """At first long and short runs follow each other in turn, which a model learns; later it is no longer so."""
    runs = []
    for at in range(400):
        is_long = at % 2 == 0 if at < 280 else at // 10 % 2 == 0
        took_s = 10_000.0 if is_long else 100.0
        runs.append(JobRun(f"{at}", JobKind("q", 1), 20_000.0 * at, 20_000.0 * at + took_s))
    outcome = trained(RunDataset("made-up", (Trace("reversed", tuple(runs), "reversed"),)))
    assert not outcome.promoted
    assert outcome.decision.reasons[0].code == "INACCURATE"


def test_a_model_of_the_past_knows_no_run_that_ended_later() -> None:
    """The part before the window is what was known when it began."""
    runs = dataset()
    table = RECIPE.table(runs, Settings(home=Path()))
    assert isinstance(table, TableByTrace)
    rows = table.of(["east"], before_window=True)
    start_s = window_start_s(table.rows["east"])
    assert (rows.known_s <= start_s).all()
    assert rows.censored.any(), "some ran across it"
    whole = {run.job: run for run in runs.of(["east"])[0].runs}
    for run, log_seconds, censored in zip(rows.runs, rows.log_seconds, rows.censored, strict=True):
        took_s = whole[run.job].duration_seconds or 0.0
        assert math.exp(log_seconds) <= max(1.0, took_s) + 1e-6 if censored else True


def test_no_answer_peeks_and_forecasts_survive_being_written(tmp_path: Path) -> None:
    east = trace("east", 3)
    model = RunTimePredictor(TreeSettings(**SMALL)).fit(table_of(east))  # type: ignore[arg-type]
    runs = RunDataset("made-up", (east,))
    (forecast,) = RECIPE.backtests(model, runs, ["east"])
    assert RECIPE.peeks(model, runs, "east", forecast) == 0.0
    RECIPE.scoring.write([forecast], tmp_path / "forecasts.json")
    assert RECIPE.scoring.read(tmp_path / "forecasts.json") == (forecast,)
    for torn in ("", "[", json.dumps([{"series": "x"}]), json.dumps({"a": 1})):
        (tmp_path / "torn.json").write_text(torn)
        with pytest.raises(ValueError, match=r"torn\.json"):
            RECIPE.scoring.read(tmp_path / "torn.json")


def test_runs_without_a_predecessor_are_left_out() -> None:
    model = RunTimePredictor(TreeSettings(**SMALL)).fit(table_of(trace("east", 3)))  # type: ignore[arg-type]
    first = Trace("first", (JobRun("a", JobKind("q", 1), 0.0, 10.0),))
    assert len(trace_run("first", model.cluster_runs().observe(first.runs), 0.0)) == 0


def test_tables_that_hold_too_little_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no table of jobs"):
        RunTables((tmp_path,)).read()
    (tmp_path / "few.csv").write_text("job_id,start_time,duration,gpus\na,0,1,1\n")
    with pytest.raises(TraceError, match="few: only 1 runs that ended"):
        RunTables((tmp_path,)).read()
