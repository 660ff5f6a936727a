"""How the run-time predictor is trained: traces of clusters, left out whole, and the last part of each in time."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from kopt.core.settings import Settings
from kopt.data.jobs.openb import TraceError
from kopt.data.jobs.runs import read_runs
from kopt.features import job_history
from kopt.features.job_history import FEATURES
from kopt.models import runtime as models
from kopt.models.base import Predictor
from kopt.models.registry.artifact import ModelCard, TrainedOn, library_versions
from kopt.models.runtime.predictor import RunTimePredictor
from kopt.models.runtime.quantile_trees import TreeSettings
from kopt.models.runtime.records import pinball
from kopt.models.runtime.table import RunTimeTable, Trace, digest, joined, run_as_of, table_of
from kopt.training.pipeline.protocols import Part
from kopt.training.runtime.scoring import RunTimeScoring, TraceRun, trace_run

WINDOW = 0.3
"""Share of a trace's runs, the last to start, that a model of the same cluster is tested on."""
_LEAST_RUNS = 100
_SUFFIXES = (".csv", ".csv.gz")


@dataclass(frozen=True)
class RunDataset:
    """Traces of clusters; the parts of one file are left out together only where they are of one cluster."""

    name: str
    traces: tuple[Trace, ...]
    excluded: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(trace.name for trace in self.traces))

    @property
    def digest(self) -> str:
        """sha256 over all runs."""
        return hashlib.sha256("".join(digest(trace.runs) for trace in self.of(self.names)).encode()).hexdigest()

    @property
    def is_example(self) -> bool:
        return False

    def group(self, name: str) -> str:
        return self.of([name])[0].group or name

    def size(self, name: str) -> int:
        return len(self.of([name])[0].runs)

    def of(self, names: Sequence[str]) -> tuple[Trace, ...]:
        by_name = {trace.name: trace for trace in self.traces}
        return tuple(by_name[name] for name in names)


@dataclass(frozen=True)
class RunTables:
    """Tables of jobs: files, or folders of ``*.csv`` and ``*.csv.gz``."""

    paths: tuple[Path, ...]

    def read(self) -> RunDataset:
        """Raises TraceError where nothing can be learned from."""
        files = [file for path in self.paths for file in _files(path)]
        if not files:
            raise TraceError(
                f"no table of jobs in {', '.join(map(str, self.paths))}; files are named *.csv or *.csv.gz"
            )
        traces, excluded = [], {}
        for file in files:
            stem = file.name.partition(".")[0]
            for cluster, runs in read_runs(file).items():
                name = f"{stem}/{cluster}" if cluster else stem
                ended = sum(run.ended_s is not None for run in runs)
                if ended < _LEAST_RUNS:
                    excluded[name] = f"only {ended} runs that ended, of {_LEAST_RUNS}"
                else:
                    traces.append(Trace(name, runs, name))
        if not traces:
            reasons = "; ".join(f"{name}: {why}" for name, why in sorted(excluded.items()))
            raise TraceError(f"no trace to learn from: {reasons or 'the tables are empty'}")
        return RunDataset(self.paths[0].name, tuple(traces), excluded)


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.glob("*") if file.name.endswith(_SUFFIXES))


@dataclass(frozen=True)
class TableByTrace:
    """Each trace's rows: made once, and cut for each part."""

    rows: Mapping[str, RunTimeTable]

    def __len__(self) -> int:
        """Runs of all traces."""
        return sum(map(len, self.rows.values()))

    def of(self, names: Sequence[str], *, before_window: bool) -> RunTimeTable:
        parts = [self.rows[name] for name in names]
        return joined([part.as_of(window_start_s(part)) if before_window else part for part in parts])


def window_start_s(table: RunTimeTable) -> float:
    """From when on a trace's runs are tested on, in its own seconds."""
    return float(np.quantile(table.started_s, 1 - WINDOW))


class RunTimeRecipe:
    """Quantile trees that have not seen a cluster, and that have seen only its past; see ``Recipe``."""

    predictor = "runtime"
    scoring = RunTimeScoring()
    defaults: Mapping[str, Any] = asdict(TreeSettings())

    def modules(self) -> Sequence[ModuleType]:
        return (job_history, models)

    def table(self, dataset: RunDataset, settings: Settings) -> TableByTrace:
        return TableByTrace({trace.name: table_of(trace) for trace in dataset.traces})

    def suggest(self, trial: Any) -> dict[str, Any]:
        return {
            "rounds": trial.suggest_int("rounds", 80, 300),
            "learning_rate": trial.suggest_float("learning_rate", 0.03, 0.12, log=True),
            "leaves": trial.suggest_int("leaves", 15, 63),
            "least_in_leaf": trial.suggest_int("least_in_leaf", 20, 200, log=True),
            "feature_share": trial.suggest_float("feature_share", 0.2, 0.8),
        }

    def loss(self, table: TableByTrace, held_out: Sequence[str], parameters: Mapping[str, Any], threads: int) -> float:
        """The mean pinball loss of log times on traces that were left out."""
        rest = [name for name in table.rows if name not in set(held_out)]
        model = RunTimePredictor(TreeSettings(**parameters), threads).fit(table.of(rest, before_window=False))
        rows = table.of(held_out, before_window=False)
        ended = rows.where(~rows.censored)
        quantiles = model.trees.predict(ended.features) + ended.base[:, None]
        return float(np.mean(pinball(quantiles, ended.log_seconds)))

    def fit(
        self, dataset: RunDataset, table: TableByTrace, part: Part | None, parameters: Mapping[str, Any], threads: int
    ) -> Predictor:
        names = dataset.names if part is None else part.fit
        rows = table.of(names, before_window=part is not None and part.before_window)
        return RunTimePredictor(TreeSettings(**parameters), threads).fit(rows)

    def backtests(self, predictor: Predictor, dataset: RunDataset, names: Sequence[str]) -> list[TraceRun]:
        assert isinstance(predictor, RunTimePredictor)
        return [_run_of(predictor, trace) for trace in dataset.of(names)]

    def peeks(self, predictor: Predictor, dataset: RunDataset, name: str, forecasts: TraceRun) -> float:
        """How far answers to starts of the first half change when what ended later is cut off (log seconds)."""
        assert isinstance(predictor, RunTimePredictor)
        (trace,) = dataset.of([name])
        middle_s = float(np.median([run.started_s for run in trace.runs]))
        runs = [run_as_of(run, middle_s) for run in trace.runs if run.started_s <= middle_s]
        whole, cut = table_of(trace), table_of(Trace(name, tuple(runs)))
        before = whole.features[: len(cut)]
        same = np.isclose(before, cut.features, equal_nan=True)
        return 0.0 if same.all() else float(np.nanmax(np.abs(before - cut.features)))

    def card(self, dataset: RunDataset, parameters: Mapping[str, Any]) -> ModelCard:
        trained_on = tuple(TrainedOn(trace.name, digest(trace.runs)) for trace in dataset.of(dataset.names))
        return ModelCard("runtime", dict(parameters), FEATURES, trained_on, library_versions())


RECIPE = RunTimeRecipe()


def _run_of(predictor: RunTimePredictor, trace: Trace) -> TraceRun:
    starts_s = [run.started_s for run in trace.runs]
    window_s = float(np.quantile(starts_s, 1 - WINDOW))
    return trace_run(trace.name, predictor.cluster_runs().observe(trace.runs), window_s)
