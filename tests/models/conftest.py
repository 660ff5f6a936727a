"""A small fitted predictor of our own, so that the registry is tested without any real model."""

import json
import sys
import types
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.settings import Settings
from kopt.models.artefact import ModelCard, save_model
from kopt.models.base import Predictor
from kopt.models.registry import Registry
from kopt.models.signing import sign_folder, signing_key


class RatioQuantiles(Predictor):
    """Quantiles of the ratio of the next value to the last one."""

    name = "ratios"
    version = ModelVersion("ratios", "unregistered")

    def __init__(self, quantiles: tuple[float, ...] = (0.5, 0.9)) -> None:
        self.quantiles = quantiles
        self.ratios: list[float] = []

    def fit(self, table: Any) -> Self:
        self.ratios = [float(q) for q in np.quantile(table[1:] / table[:-1], self.quantiles)]
        return self

    def predict(self, request: Any) -> tuple[Prediction, ...]:
        low, high = (request * ratio for ratio in self.ratios)
        return (Prediction(low, low, high, 0.8, "requests", 1.0, self.version),)

    def explain(self, request: Any) -> tuple[Reason, ...]:
        return (Reason("LAST_VALUE", f"the last value was {request}"),)

    def save(self, folder: Path) -> None:
        (folder / "ratios.json").write_text(json.dumps(self.ratios))

    @classmethod
    def load(cls, folder: Path) -> Self:
        made = cls()
        made.ratios = json.loads((folder / "ratios.json").read_text())
        return made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture
def registry(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Registry:
    module = types.ModuleType("ratio_quantiles")
    module.RatioQuantiles = RatioQuantiles  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ratio_quantiles", module)
    return Registry(settings, predictors={"ratios": "ratio_quantiles:RatioQuantiles"}, known_digests=())


@pytest.fixture
def signed_model(settings: Settings, tmp_path: Path) -> Any:
    """Returns a function: growth of the training values → signed folder of a model fitted on them."""

    def make(growth: float) -> Path:
        folder = tmp_path / f"fitted-{growth}"
        predictor = RatioQuantiles().fit(np.array([1.0, growth, growth**2, growth**3]))
        save_model(predictor, folder, ModelCard("ratios"))
        sign_folder(folder, signing_key(settings.keys))
        return folder

    return make
