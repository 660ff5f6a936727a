"""How the sizing predictor is trained: measured runs, grouped by family and source."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from kopt.core.settings import Settings
from kopt.data import memory as data_memory
from kopt.data.memory import MemoryRun, read_memory_runs
from kopt.data.memory.commands import read_measured_commands
from kopt.models import sizing as models
from kopt.models.base import Predictor
from kopt.models.registry.artifact import ModelCard, TrainedOn, library_versions
from kopt.models.sizing.predictor import SizingPredictor
from kopt.models.sizing.residual import ResidualSettings
from kopt.models.sizing.table import INPUTS, OWN, MeasuredQuestion, SizingTable, sizing_table
from kopt.tracing.trace import TraceCache
from kopt.training.pipeline.protocols import Part
from kopt.training.sizing.runs import ImageTracer, NotAnswerable, measured_questions, question_of, sample_images
from kopt.training.sizing.scoring import SizedRun, SizingScoring

PYTHON_VARIABLE = "KOPT_TRAINER_PYTHON"
"""Names the interpreter that has torch, timm and torchvision, in which image models are run abstractly."""


@dataclass(frozen=True)
class SizingDataset:
    """Measured runs that can be learned from; ``licences`` by source."""

    name: str
    runs: tuple[MeasuredQuestion, ...]
    excluded: Mapping[str, str] = field(default_factory=dict)
    licences: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name_of(measured_question) for measured_question in self.runs))

    @property
    def digest(self) -> str:
        """sha256 over names, inputs and measurements."""
        return _digest(self.runs)

    @property
    def is_example(self) -> bool:
        return False

    def group(self, name: str) -> str:
        """A family of one source is left out whole; its name is the group."""
        return name

    def size(self, name: str) -> int:
        return sum(name_of(measured_question) == name for measured_question in self.runs)

    def of(self, names: Sequence[str]) -> list[MeasuredQuestion]:
        """The runs of some groups."""
        wanted = set(names)
        return [measured_question for measured_question in self.runs if name_of(measured_question) in wanted]


@dataclass(frozen=True)
class MemoryRuns:
    """Published tables in a folder. ``python`` runs the image models; without one their runs are left out.

    Of a table with thousands of image models at most ``images`` are run, dealt from its families; ``keep`` leaves runs
    out before anything is run for them. ``beside``: commands of one's own that are learned from as well.
    """

    folder: Path
    settings: Settings
    python: str | None = None
    images: int = 300
    keep: Callable[[MemoryRun], bool] = field(default=lambda _: True, compare=False)
    beside: "MeasuredCommands | None" = None

    def read(self) -> SizingDataset:
        """Raises MemoryDataError, ValueError where no run can be learned from."""
        table = read_memory_runs(self.folder).where(self.keep)
        sampled = set(map(id, sample_images(table.runs, self.images)))
        selected = [run for run in table.runs if not run.published or id(run) in sampled]
        python = self.python or os.environ.get(PYTHON_VARIABLE)
        cache = TraceCache(self.settings.home / "traces", most=5000)
        tracer = ImageTracer(python, self.settings.home, cache) if python else None
        runs, excluded = measured_questions(selected, tracer)
        if not runs:
            raise ValueError(f"no run in {self.folder} can be learned from: {'; '.join(list(excluded)[:3])}")
        licences = {run.source: run.licence for run in table.runs}
        reasons = {why: f"{count} runs" for why, count in excluded.items()}
        if self.beside is not None:
            own = self.beside.read()
            runs, reasons = [*runs, *own.runs], {**reasons, **own.excluded}
        return SizingDataset(self.folder.name, tuple(runs), reasons, licences)


@dataclass(frozen=True)
class MeasuredCommands:
    """Tables of commands that were measured (``kopt.data.memory.commands``). Their scripts run abstractly, confined, in
    ``python`` or an environment beside them; trainers are read by formulas."""

    tables: tuple[Path, ...]
    settings: Settings
    python: str | None = None

    def read(self) -> SizingDataset:
        """Raises MemoryDataError, ValueError where no command can be learned from."""
        commands = [command for table in self.tables for command in read_measured_commands(table)]
        runs, excluded = [], dict[str, str]()
        for number, command in enumerate(commands, 1):
            name = f"{number}: {command.command[:120]}"
            try:
                question = question_of(command, self.settings, self.python)
            except NotAnswerable as error:
                excluded[name] = str(error)
            else:
                runs.append(MeasuredQuestion(name, command.family, OWN, question, command.measured))
        if not runs:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(excluded.items())[:3])
            raise ValueError(f"no command of {self.tables[0].name} can be learned from ({reasons or 'there is none'})")
        return SizingDataset(self.tables[0].parent.resolve().name, tuple(runs), excluded)


class SizingRecipe:
    """A learned residual on the estimate from code; see ``Recipe``."""

    predictor = "sizing"
    scoring = SizingScoring()
    defaults: Mapping[str, Any] = {key: value for key, value in asdict(ResidualSettings()).items() if key != "threads"}

    def modules(self) -> Sequence[ModuleType]:
        return (data_memory, models)

    def table(self, dataset: SizingDataset, settings: Settings) -> SizingTable:
        return sizing_table(dataset.runs)

    def suggest(self, trial: Any) -> dict[str, Any]:
        return {
            "rounds": trial.suggest_int("rounds", 50, 400, log=True),
            "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.1, log=True),
            "leaves": trial.suggest_int("leaves", 4, 31, log=True),
            "rows_in_leaf": trial.suggest_int("rows_in_leaf", 3, 30, log=True),
        }

    def loss(self, table: SizingTable, held_out: Sequence[str], parameters: Mapping[str, Any], threads: int) -> float:
        """Mean absolute logarithm of the centre's error over held-out families, each weighing the same."""
        keys = np.char.add(np.char.add(table.sources, "/"), table.families)
        outside = np.isin(keys, list(held_out))
        model, tested = SizingPredictor(_settings(parameters, threads)).fit(table.where(~outside)), table.where(outside)
        centre = model.intervals(tested.questions)[:, 0]
        missed = np.abs(np.log(tested.measured / centre))
        return float(np.mean([missed[keys[outside] == key].mean() for key in np.unique(keys[outside])]))

    def fit(
        self, dataset: SizingDataset, table: SizingTable, part: Part | None, parameters: Mapping[str, Any], threads: int
    ) -> Predictor:
        rows = table if part is None else sizing_table(dataset.of(part.fit))
        return SizingPredictor(_settings(parameters, threads)).fit(rows)

    def backtests(self, predictor: Predictor, dataset: SizingDataset, names: Sequence[str]) -> list[SizedRun]:
        assert isinstance(predictor, SizingPredictor)
        backtests = []
        for measured_question in dataset.of(names):
            (prediction,) = predictor.predict(measured_question.question)
            if prediction.value is not None and prediction.low is not None and prediction.high is not None:
                sized = (float(measured_question.measured), prediction.value, prediction.low, prediction.high)
                backtests.append(
                    SizedRun(
                        name_of(measured_question), measured_question.name, measured_question.question.group, *sized
                    )
                )
        return backtests

    def peeks(self, predictor: Predictor, dataset: SizingDataset, name: str, forecasts: SizedRun) -> float:
        """A size is estimated from the code alone, so there is no future to leak."""
        return 0.0

    def card(self, dataset: SizingDataset, parameters: Mapping[str, Any]) -> ModelCard:
        trained_on = tuple(TrainedOn(name, _digest(dataset.of([name]))) for name in sorted(dataset.names))
        return ModelCard("sizing", dict(parameters), INPUTS, trained_on, library_versions())


RECIPE = SizingRecipe()


def name_of(run: MeasuredQuestion) -> str:
    """Source and family, the unit of folds."""
    return f"{run.source}/{run.family}"


def _settings(parameters: Mapping[str, Any], threads: int) -> ResidualSettings:
    return ResidualSettings(**parameters, threads=threads)


def _digest(runs: Sequence[MeasuredQuestion]) -> str:
    result = hashlib.sha256()
    for measured_question in sorted(
        runs,
        key=lambda measured_question: (measured_question.source, measured_question.name, measured_question.measured),
    ):
        question = measured_question.question
        fingerprint = (
            measured_question.source,
            measured_question.name,
            question.gpu,
            question.metric.value,
            int(measured_question.measured),
            int(question.amount),
        )
        result.update(repr(fingerprint).encode())
    return result.hexdigest()
