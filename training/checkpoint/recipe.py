"""How the checkpoint predictor is trained: labelled logs, grouped by framework, and synthetic jobs."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from kopt.core.settings import Settings
from kopt.data import joblogs
from kopt.data.joblogs.labelled import INDEXES, LabelledLog, LogDataError, family_of, read_logs
from kopt.models import checkpoint as models
from kopt.models.base import Predictor
from kopt.models.checkpoint.classifier.settings import FitSettings
from kopt.models.checkpoint.classifier.table import LogTable
from kopt.models.checkpoint.predictor import CheckpointPredictor
from kopt.models.registry.artifact import ModelCard, TrainedOn, library_versions
from kopt.training.checkpoint.scoring import Answer, CheckpointScoring, LogRun, score_log, summary
from kopt.training.pipeline.protocols import Part

MADE_JOBS = 1500


@dataclass(frozen=True)
class LogDataset:
    """Labelled logs that can be learned from; ``licences`` by log."""

    name: str
    logs: tuple[LabelledLog, ...]
    excluded: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(log.name for log in self.logs)

    @property
    def digest(self) -> str:
        """sha256 over lines and labels."""
        result = hashlib.sha256()
        for labelled_log in sorted(self.logs, key=lambda log: log.name):
            result.update(digest_of(labelled_log).encode())
        return result.hexdigest()

    @property
    def is_example(self) -> bool:
        return False

    def group(self, name: str) -> str:
        """Frameworks with the same log messages are left out together."""
        return next(family_of(log.framework) for log in self.logs if log.name == name)

    def size(self, name: str) -> int:
        return next(len(log.labels) for log in self.logs if log.name == name)

    def of(self, names: Sequence[str]) -> tuple[LabelledLog, ...]:
        wanted = set(names)
        return tuple(log for log in self.logs if log.name in wanted)


@dataclass(frozen=True)
class LogFolders:
    """Folders of labelled logs, or one folder with such folders in it."""

    folders: tuple[Path, ...]

    def read(self) -> LogDataset:
        """Raises LogDataError where nothing can be learned from."""
        labelled_logs_by_name: dict[str, LabelledLog] = {}
        excluded = {}
        for folder in _labelled(self.folders):
            for log in read_logs(folder):
                if not log.labels:
                    excluded[log.name] = "no line of it is labelled"
                elif log.name in labelled_logs_by_name:
                    excluded[log.name] = "another log has its name"
                else:
                    labelled_logs_by_name[log.name] = log
        if not labelled_logs_by_name:
            raise LogDataError(f"no labelled log in {', '.join(map(str, self.folders))}")
        return LogDataset(self.folders[0].name, tuple(labelled_logs_by_name.values()), excluded)


def _labelled(folders: Sequence[Path]) -> list[Path]:
    def holds(folder: Path) -> bool:
        return any((folder / name).exists() for name in INDEXES)

    return [
        path
        for folder in folders
        for path in ([folder] if holds(folder) else sorted(filter(holds, folder.iterdir())) or [folder])
    ]


def digest_of(log: LabelledLog) -> str:
    labels = sorted((number, label.value) for number, label in log.labels.items())
    return hashlib.sha256(repr((log.framework, log.lines, labels)).encode()).hexdigest()


class CheckpointRecipe:
    """A line classifier that has not seen a framework, and the machine behind it; see ``Recipe``."""

    predictor = "checkpoint"
    scoring = CheckpointScoring()
    defaults: Mapping[str, Any] = asdict(FitSettings())

    def modules(self) -> Sequence[ModuleType]:
        return (joblogs, models)

    def table(self, dataset: LogDataset, settings: Settings) -> LogTable:
        return LogTable(dataset.logs, MADE_JOBS)

    def suggest(self, trial: Any) -> dict[str, Any]:
        return {
            "width": trial.suggest_categorical("width", [16, 24, 32]),
            "epochs": trial.suggest_int("epochs", 4, 10),
            "learning_rate": trial.suggest_float("learning_rate", 0.003, 0.03, log=True),
            "words_dropped": trial.suggest_float("words_dropped", 0.0, 0.3),
        }

    def loss(self, table: LogTable, held_out: Sequence[str], parameters: Mapping[str, Any], threads: int) -> float:
        """One less macro-F1 on held-out logs."""
        out = set(held_out)
        rest = replace(table, logs=tuple(log for log in table.logs if log.name not in out))
        model = CheckpointPredictor(FitSettings(**parameters)).fit(rest)
        return 1.0 - summary("all", [run_of(model, log) for log in table.logs if log.name in out]).macro_f1

    def fit(
        self, dataset: LogDataset, table: LogTable, part: Part | None, parameters: Mapping[str, Any], threads: int
    ) -> Predictor:
        rows = table if part is None else replace(table, logs=dataset.of(part.fit))
        return CheckpointPredictor(FitSettings(**parameters)).fit(rows)

    def backtests(self, predictor: Predictor, dataset: LogDataset, names: Sequence[str]) -> list[LogRun]:
        assert isinstance(predictor, CheckpointPredictor)
        return [run_of(predictor, labelled_log) for labelled_log in dataset.of(names)]

    def peeks(self, predictor: Predictor, dataset: LogDataset, name: str, forecasts: LogRun) -> float:
        """The share of lines whose answer changes when the rest of the log is cut off."""
        assert isinstance(predictor, CheckpointPredictor)
        (log,) = dataset.of([name])
        half = len(log.lines) // 2
        whole, cut = answers_of(predictor, log)[:half], answers_of(predictor, log, most=half)
        return sum(item != other for item, other in zip(whole, cut, strict=True)) / max(1, half)

    def card(self, dataset: LogDataset, parameters: Mapping[str, Any]) -> ModelCard:
        trained_on = tuple(
            TrainedOn(labelled_log.name, digest_of(labelled_log))
            for labelled_log in sorted(dataset.logs, key=lambda log: log.name)
        )
        return ModelCard("checkpoint", dict(parameters), ("words", "pairs", "context"), trained_on, library_versions())


RECIPE = CheckpointRecipe()


def answers_of(predictor: CheckpointPredictor, log: LabelledLog, *, most: int | None = None) -> list[Answer]:
    """The answer after each line, as if the log were being written."""
    session = predictor.session()
    arrivals = log.arrivals_s[:most] or None
    return [(label, session.machine.state, session.safe) for label in session.read(log.lines[:most], arrivals)]


def run_of(predictor: CheckpointPredictor, log: LabelledLog) -> LogRun:
    """A log's scores."""
    return score_log(log, answers_of(predictor, log))
