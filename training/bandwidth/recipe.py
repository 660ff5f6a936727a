"""How the bandwidth predictor is trained: measured collectives, machine classes left out together."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from kopt import topology as policies
from kopt.core.hardware.bandwidth import BandwidthError
from kopt.core.settings import Settings
from kopt.models import bandwidth as models
from kopt.models.bandwidth.features import NAMES
from kopt.models.bandwidth.predictor import BandwidthPredictor, settings_of
from kopt.models.bandwidth.residual import KernelSettings
from kopt.models.bandwidth.rows import MeasuredRow, read_measured
from kopt.models.base import Predictor
from kopt.models.registry.artifact import ModelCard, TrainedOn, library_versions
from kopt.training.bandwidth.scoring import BandwidthScoring, MachineRun, machine_run, summary
from kopt.training.pipeline.protocols import Part

LICENCES: Mapping[str, str] = {
    "ai-dynamo/aiconfigurator": "Apache-2.0",
    "xxrjun/nccl-tests-cluster": "Apache-2.0",
    "ROCm/system-acceptance-docs": "MIT",
    "microsoft/superbenchmark": "MIT",
}
"""Repositories that measurements come from, as far as their licence is known."""
_ODD = "anomal"
_LEAST_ROWS = 3


@dataclass(frozen=True)
class BandwidthDataset:
    """Measured rows; what is left out together is a class of machines."""

    name: str
    rows: tuple[MeasuredRow, ...]
    excluded: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({row.machine for row in self.rows}))

    @property
    def digest(self) -> str:
        """sha256 over all rows."""
        result = hashlib.sha256()
        for name in sorted(repr(row) for row in self.rows):
            result.update(name.encode())
        return result.hexdigest()

    @property
    def is_example(self) -> bool:
        return False

    def group(self, name: str) -> str:
        return next(row.machine_class for row in self.rows if row.machine == name)

    def size(self, name: str) -> int:
        """Distinct questions of a machine, not rows: one cluster must not outweigh all others."""
        return len({(row.query.collective, row.query.hardware) for row in self.rows if row.machine == name})

    def of(self, names: Sequence[str]) -> tuple[MeasuredRow, ...]:
        wanted = set(names)
        return tuple(row for row in self.rows if row.machine in wanted)


@dataclass(frozen=True)
class BandwidthTables:
    """CSV files (also .gz) of measured collectives in a folder, or one, and tables that are learned from beside."""

    folder: Path
    beside: tuple[Path, ...] = ()

    def read(self) -> BandwidthDataset:
        """Raises BandwidthError where nothing can be learned from."""
        files = [self.folder] if self.folder.is_file() else sorted(self.folder.glob("bandwidth*.csv*"))
        rows = [row for path in (*files, *self.beside) for row in read_measured(path)]
        plain = [measured_row for measured_row in rows if _ODD not in measured_row.query.hardware.condition]
        odd = [measured_row.machine for measured_row in rows if _ODD in measured_row.query.hardware.condition]
        excluded = dict.fromkeys(odd, "its source calls the measurements anomalous")
        counts: dict[str, int] = {}
        for measured_row in plain:
            counts[measured_row.machine] = counts.get(measured_row.machine, 0) + 1
        kept = tuple(measured_row for measured_row in plain if counts[measured_row.machine] >= _LEAST_ROWS)
        excluded |= {name: f"only {n} rows" for name, n in counts.items() if n < _LEAST_ROWS}
        if not kept:
            raise BandwidthError(f"no measured collective in {self.folder}; files are named bandwidth*.csv")
        return BandwidthDataset(self.folder.name, kept, excluded)


def licensed_rows(bandwidth_dataset: BandwidthDataset) -> BandwidthDataset:
    """The rows that may be learned from for everybody's default model; the others go to ``excluded``."""
    kept = tuple(row for row in bandwidth_dataset.rows if repository_of(row.source) in LICENCES)
    unlicensed = {repository_of(row.source) for row in bandwidth_dataset.rows} - set(LICENCES)
    return BandwidthDataset(
        bandwidth_dataset.name,
        kept,
        {**bandwidth_dataset.excluded, **dict.fromkeys(sorted(unlicensed), "licence not known")},
    )


def described_rows(bandwidth_dataset: BandwidthDataset) -> BandwidthDataset:
    """The rows without those between nodes of a network whose speed nobody tells: what that one cluster reached says
    nothing of the next of the same words. Its own users learn from them all the same (``kopt train bandwidth``)."""
    kept = tuple(row for row in bandwidth_dataset.rows if not _undescribed(row))
    machines = {row.machine for row in bandwidth_dataset.rows if _undescribed(row)}
    reasons = {f"{name}, between nodes": "its network is not described" for name in sorted(machines)}
    return BandwidthDataset(bandwidth_dataset.name, kept, {**bandwidth_dataset.excluded, **reasons})


def _undescribed(row: MeasuredRow) -> bool:
    gpus = row.query.gpus()
    return gpus.network is not None and not gpus.network.known


def repository_of(source: str) -> str:
    return source.partition(":")[0]


class BandwidthRecipe:
    """Physics and a residual that has not seen a class of machines; see ``Recipe``."""

    predictor = "bandwidth"
    scoring = BandwidthScoring()
    defaults: Mapping[str, Any] = asdict(KernelSettings())

    def modules(self) -> Sequence[ModuleType]:
        return (models, policies)

    def table(self, dataset: BandwidthDataset, settings: Settings) -> tuple[MeasuredRow, ...]:
        return dataset.rows

    def suggest(self, trial: Any) -> dict[str, Any]:
        return {
            "broad_length": trial.suggest_float("broad_length", 0.7, 2.0),
            "hardware_length": trial.suggest_float("hardware_length", 0.5, 1.2),
            "noise": trial.suggest_float("noise", 0.02, 0.1),
        }

    def loss(
        self, table: Sequence[MeasuredRow], held_out: Sequence[str], parameters: Mapping[str, Any], threads: int
    ) -> float:
        """The median error on machines that were left out."""
        out = set(held_out)
        model = BandwidthPredictor(settings_of(parameters)).fit(
            [measured_row for measured_row in table if measured_row.machine not in out]
        )
        rows = [measured_row for measured_row in table if measured_row.machine in out]
        return summary("all", [run_of(model, name, rows) for name in sorted(out)]).median_error

    def fit(
        self,
        dataset: BandwidthDataset,
        table: Sequence[MeasuredRow],
        part: Part | None,
        parameters: Mapping[str, Any],
        threads: int,
    ) -> Predictor:
        rows = table if part is None else dataset.of(part.fit)
        return BandwidthPredictor(settings_of(parameters)).fit(rows)

    def backtests(self, predictor: Predictor, dataset: BandwidthDataset, names: Sequence[str]) -> list[MachineRun]:
        assert isinstance(predictor, BandwidthPredictor)
        return [run_of(predictor, name, dataset.rows) for name in names]

    def peeks(self, predictor: Predictor, dataset: BandwidthDataset, name: str, forecasts: MachineRun) -> float:
        """Estimates do not depend on time, so there is no future to leak."""
        return 0.0

    def card(self, dataset: BandwidthDataset, parameters: Mapping[str, Any]) -> ModelCard:
        trained_on = tuple(TrainedOn(name, _digest(dataset.of([name]))) for name in dataset.names)
        return ModelCard("bandwidth", dict(parameters), NAMES, trained_on, library_versions())


RECIPE = BandwidthRecipe()


def _digest(rows: Sequence[MeasuredRow]) -> str:
    return hashlib.sha256(repr(sorted(map(repr, rows))).encode()).hexdigest()


def run_of(predictor: BandwidthPredictor, name: str, rows: Sequence[MeasuredRow]) -> MachineRun:
    """A machine's scores."""
    mine = [row for row in rows if row.machine == name]
    estimates = [
        predictor.estimate_set(measured_row.query.gpus(), measured_row.query.collective, measured_row.query.bytes)
        for measured_row in mine
    ]
    return machine_run(name, mine, estimates)
