"""How the bandwidth predictor is trained: measured collectives, machine classes left out together."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from kopt.core.bandwidth import BandwidthError
from kopt.core.settings import Settings
from kopt.models import bandwidth as models
from kopt.models.artefact import ModelCard, TrainedOn, library_versions
from kopt.models.bandwidth.features import NAMES
from kopt.models.bandwidth.predictor import BandwidthPredictor, settings_of
from kopt.models.bandwidth.residual import KernelSettings
from kopt.models.bandwidth.rows import MeasuredRow, read_measured
from kopt.models.base import Predictor
from kopt.policies import bandwidth as policies
from kopt.training.bandwidth_scoring import BandwidthScoring, MachineRun, machine_run, summary
from kopt.training.recipe import Part

LICENCES: Mapping[str, str] = {
    "ai-dynamo/aiconfigurator": "Apache-2.0", "xxrjun/nccl-tests-cluster": "Apache-2.0",
    "ROCm/system-acceptance-docs": "MIT", "microsoft/superbenchmark": "MIT",
}  # fmt: skip
"""Repositories that measurements come from, as far as their licence is known."""
_ODD = "anomal"
_LEAST_ROWS = 3


@dataclass(frozen=True)
class BandwidthDataset:
    """Measured rows; what is left out together is a class of machines."""

    name: str
    rows: tuple[MeasuredRow, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({one.machine for one in self.rows}))

    @property
    def digest(self) -> str:
        """sha256 over all rows."""
        found = hashlib.sha256()
        for one in sorted(repr(row) for row in self.rows):
            found.update(one.encode())
        return found.hexdigest()

    def group(self, name: str) -> str:
        return next(one.machine_class for one in self.rows if one.machine == name)

    def size(self, name: str) -> int:
        """Questions of a machine, not their rows: one cluster must not outweigh all others."""
        return len({(one.asked.collective, one.asked.hardware) for one in self.rows if one.machine == name})

    def of(self, names: Sequence[str]) -> tuple[MeasuredRow, ...]:
        wanted = set(names)
        return tuple(one for one in self.rows if one.machine in wanted)


@dataclass(frozen=True)
class BandwidthTables:
    """CSV files (also .gz) of measured collectives in a folder."""

    folder: Path

    def read(self) -> BandwidthDataset:
        """Raises BandwidthError where nothing can be learned from."""
        files = [self.folder] if self.folder.is_file() else sorted(self.folder.glob("bandwidth*.csv*"))
        rows = [row for path in files for row in read_measured(path)]
        plain = [one for one in rows if _ODD not in one.asked.hardware.condition]
        odd = [one.machine for one in rows if _ODD in one.asked.hardware.condition]
        left_out = dict.fromkeys(odd, "its source calls the measurements anomalous")
        counts: dict[str, int] = {}
        for one in plain:
            counts[one.machine] = counts.get(one.machine, 0) + 1
        kept = tuple(one for one in plain if counts[one.machine] >= _LEAST_ROWS)
        left_out |= {name: f"only {n} rows" for name, n in counts.items() if n < _LEAST_ROWS}
        if not kept:
            raise BandwidthError(f"no measured collective in {self.folder}; files are named bandwidth*.csv")
        return BandwidthDataset(self.folder.name, kept, left_out)


def licensed_rows(found: BandwidthDataset) -> BandwidthDataset:
    """The rows that may be learned from for everybody's default model; the others go to ``left_out``."""
    kept = tuple(one for one in found.rows if repository_of(one.source) in LICENCES)
    gone = {repository_of(one.source) for one in found.rows} - set(LICENCES)
    return BandwidthDataset(found.name, kept, {**found.left_out, **dict.fromkeys(sorted(gone), "licence not known")})


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
        model = BandwidthPredictor(settings_of(parameters)).fit([one for one in table if one.machine not in out])
        rows = [one for one in table if one.machine in out]
        return summary("all", [run_of(model, name, rows) for name in sorted(out)]).median_error

    def fit(
        self, dataset: BandwidthDataset, table: Sequence[MeasuredRow], part: Part | None,
        parameters: Mapping[str, Any], threads: int,
    ) -> Predictor:  # fmt: skip
        rows = table if part is None else dataset.of(part.fit)
        return BandwidthPredictor(settings_of(parameters)).fit(rows)

    def backtests(self, predictor: Predictor, dataset: BandwidthDataset, names: Sequence[str]) -> list[MachineRun]:
        assert isinstance(predictor, BandwidthPredictor)
        return [run_of(predictor, name, dataset.rows) for name in names]

    def peeks(self, predictor: Predictor, dataset: BandwidthDataset, name: str, forecasts: MachineRun) -> float:
        """Answers know no time: nothing comes later that could be looked at."""
        return 0.0

    def card(self, dataset: BandwidthDataset, parameters: Mapping[str, Any]) -> ModelCard:
        seen = tuple(TrainedOn(name, _digest(dataset.of([name]))) for name in dataset.names)
        return ModelCard("bandwidth", dict(parameters), NAMES, seen, library_versions())


def _digest(rows: Sequence[MeasuredRow]) -> str:
    return hashlib.sha256(repr(sorted(map(repr, rows))).encode()).hexdigest()


def run_of(predictor: BandwidthPredictor, name: str, rows: Sequence[MeasuredRow]) -> MachineRun:
    """A machine's scores."""
    mine = [one for one in rows if one.machine == name]
    said = [predictor.estimate_set(one.asked.gpus(), one.asked.collective, one.asked.bytes) for one in mine]
    return machine_run(name, mine, said)
