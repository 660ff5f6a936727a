"""A predictor that is fitted in milliseconds, with a recipe of its own, so that the pipeline is tested by itself."""

import json
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from empty_registry import with_empty_registry

from kopt.core.prediction import DEFAULT_QUANTILES, ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.settings import Settings
from kopt.data.demand.generator import generate
from kopt.data.demand.rolling import Forecasts
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import HORIZONS_S, fill_gaps
from kopt.models import predictors as catalogue
from kopt.models.base import Predictor
from kopt.models.demand.table import TrainingTable, training_table
from kopt.models.demand.training_overlap import fingerprint
from kopt.models.registry.artifact import ModelCard
from kopt.models.registry.registry import Registry
from kopt.training.demand.evaluate import scored_origins
from kopt.training.demand.recipe import _rows_of
from kopt.training.demand.scoring import DemandScoring
from kopt.training.demand.sources import DemandDataset, dataset
from kopt.training.pipeline import recipe
from kopt.training.pipeline.protocols import Part


class RatioPredictor(Predictor):
    """The last value times quantiles of past ratios; ``blend`` of the way to the same time yesterday."""

    name = "ratios"

    def __init__(self, blend: float = 0.0, bias: float = 1.0, peek: bool = False) -> None:
        self.blend, self.bias, self.peek = blend, bias, peek
        self.version = ModelVersion("ratios", "unregistered")
        self.ratios = np.ones((len(HORIZONS_S), len(DEFAULT_QUANTILES)))

    def fit(self, table: TrainingTable) -> Self:
        ratios = np.exp(np.nanquantile(table.log_ratios(), DEFAULT_QUANTILES, axis=0).T)
        # Wide above the median, so that tests turn on its accuracy (``bias``) alone.
        self.ratios = np.maximum.accumulate(ratios * [self.bias, 2, 4, 8], axis=1)
        return self

    def backtest(self, series: DemandSeries, origins: Any) -> Any:
        filled = fill_gaps(series.value)
        day = 86_400 // series.step_s
        last, before = filled[origins], filled[np.maximum(origins - day, 0)]
        middle = (1 - self.blend) * last + self.blend * before
        if self.peek:
            middle = filled[np.minimum(origins + 6, len(filled) - 1)]
        return middle[:, None, None] * self.ratios[None]

    def predict(self, request: Any) -> tuple[Prediction, ...]:
        return ()

    def explain(self, request: Any) -> tuple[Reason, ...]:
        return ()

    def save(self, folder: Path) -> None:
        facts = {"blend": self.blend, "bias": self.bias, "peek": self.peek, "ratios": self.ratios.tolist()}
        (folder / "ratios.json").write_text(json.dumps(facts))

    @classmethod
    def load(cls, folder: Path) -> Self:
        facts = json.loads((folder / "ratios.json").read_text())
        made = cls(facts["blend"], facts["bias"], facts["peek"])
        made.ratios = np.array(facts["ratios"])
        return made


class RatioRecipe:
    """Counts its fits in ``calls``."""

    predictor = "ratios"
    scoring = DemandScoring()
    defaults: Mapping[str, Any] = {"blend": 0.0, "bias": 1.0, "peek": False}
    calls: list[str] = []  # noqa: RUF012
    interrupt_at = ""

    def modules(self) -> list[types.ModuleType]:
        return [recipe]

    def table(self, data: DemandDataset, settings: Settings) -> TrainingTable:
        self.calls.append("table")
        return training_table(data.series, {one.name: data.group(one.name) for one in data.series})

    def suggest(self, trial: Any) -> dict[str, Any]:
        return {"blend": trial.suggest_float("blend", 0.0, 0.5)}

    def loss(self, table: TrainingTable, held_out: Any, parameters: Mapping[str, Any], threads: int) -> float:
        self.calls.append("loss")
        return float((parameters["blend"] - 0.3) ** 2)

    def fit(self, data: DemandDataset, table: Any, part: Part | None, parameters: Any, threads: int) -> Predictor:
        name = part.name if part else "final"
        if name == self.interrupt_at:
            raise KeyboardInterrupt
        self.calls.append(name)
        rows = table if part is None else table.where(_rows_of(data, table, part))
        return RatioPredictor(**parameters).fit(rows)

    def backtests(self, predictor: Any, data: DemandDataset, names: Sequence[str]) -> list[Forecasts]:
        chosen = [one for one in data.series if one.name in names]
        origins = [scored_origins(one, HORIZONS_S) for one in chosen]
        return [
            Forecasts(one.name, at, HORIZONS_S, DEFAULT_QUANTILES, predictor.backtest(one, at))
            for one, at in zip(chosen, origins, strict=True)
        ]

    def peeks(self, predictor: Any, data: DemandDataset, name: str, forecasts: Forecasts) -> float:
        series = next(one for one in data.series if one.name == name)
        origin = forecasts.origins[10:11]
        again = predictor.backtest(series.upto(int(origin[0])), origin)
        return float(np.abs(again - forecasts.value[10:11]).max() / (np.abs(again).max() + 1e-9))

    def card(self, data: DemandDataset, parameters: Mapping[str, Any]) -> ModelCard:
        return ModelCard("ratios", dict(parameters), training_data=tuple(fingerprint(one) for one in data.series))


class Generated:
    """Generated services of a few days as a source."""

    def __init__(self, seed: int, services: int = 4, days: float = 6.0) -> None:
        self.seed, self.services, self.days = seed, services, days

    def read(self) -> DemandDataset:
        made = generate(self.services, self.days, seed=self.seed)
        return dataset("generated", [replace(one, name=f"{one.name}-s{self.seed}") for one in made])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=with_empty_registry(tmp_path / "home"))


@pytest.fixture
def ratio_recipe(monkeypatch: pytest.MonkeyPatch) -> type[RatioRecipe]:
    """The recipe's class, known to the pipeline under the name ``ratios``."""
    module = types.ModuleType("ratio_recipe")
    module.RatioRecipe, module.RatioPredictor = RatioRecipe, RatioPredictor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ratio_recipe", module)
    module.RECIPE = RatioRecipe()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kopt.training.ratios.recipe", module)
    spec = catalogue.PredictorSpec("ratios", "ratio_recipe:RatioPredictor", "the next ratio")
    monkeypatch.setattr(catalogue, "PREDICTORS", (spec,))
    RatioRecipe.calls.clear()
    RatioRecipe.interrupt_at = ""
    return RatioRecipe


@pytest.fixture
def registry(settings: Settings, ratio_recipe: object) -> Registry:
    return Registry(settings, trusted_digests=())


@pytest.fixture
def generated() -> type[Generated]:
    return Generated


@pytest.fixture(scope="session")
def champion_source() -> Generated:
    """Services the champion was trained on."""
    return Generated(seed=21, services=4, days=6)


@pytest.fixture(scope="session")
def challenger_source() -> Generated:
    """Other services."""
    return Generated(seed=22, services=6, days=6)
