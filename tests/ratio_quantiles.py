"""A small predictor of our own, so that the registry is tested without any real model."""

import json
from pathlib import Path
from typing import Any, Self

import numpy as np

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.models.base import Predictor


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
