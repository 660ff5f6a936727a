"""The global model: quantiles of the log-ratio to the last value, for any service at any scale.

LightGBM with the pinball loss (Koenker & Bassett 1978) gives the median and the 95 % quantile per horizon; a small
network trained on the same rows gives a second opinion. Series weigh alike whatever their length, and groups are
damped, so that no data set dominates.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kopt.features.demand import CARRIERS, HORIZONS_S, INPUTS
from kopt.models.demand.network import Network
from kopt.models.demand.table import TrainingTable
from kopt.models.lightgbm.booster import load_booster
from kopt.models.registry.model_files import read_json

if TYPE_CHECKING:
    import lightgbm

Array = NDArray[np.float64]
LEVELS = (0.5, 0.95)
"""Quantiles the global model is fitted for; the online layer makes the others."""


@dataclass(frozen=True)
class GlobalSettings:
    """How the global model is fitted. Defaults were chosen by group-wise cross-validation."""

    rounds: int = 200
    learning_rate: float = 0.05
    leaves: int = 31
    rows_in_leaf: int = 200
    rows_per_series: int = 4000
    threads: int = 1
    seed: int = 0
    network_epochs: int = 6

    def booster(self, level: float) -> dict[str, Any]:
        return {
            "objective": "quantile",
            "alpha": level,
            "learning_rate": self.learning_rate,
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.rows_in_leaf,
            "feature_fraction": 0.5,
            "bagging_fraction": 0.5,
            "bagging_freq": 1,
            "lambda_l2": 5.0,
            "num_threads": self.threads,
            "seed": self.seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbose": -1,
        }


@dataclass(frozen=True)
class GlobalModel:
    """Fitted boosters (one per horizon and level) and the network."""

    boosters: "tuple[tuple[lightgbm.Booster, ...], ...]"
    network: Network

    @classmethod
    def fit(cls, table: TrainingTable, settings: GlobalSettings) -> "GlobalModel":
        """Raises ValueError on a table without a usable row."""
        rows = sample(table, settings)
        weights, inputs, targets = weigh(rows), rows.features[:, len(CARRIERS) :], rows.log_ratios()
        boosters = tuple(
            tuple(_fit_booster(inputs, targets[:, column], weights, settings, level) for level in LEVELS)
            for column in range(len(HORIZONS_S))
        )
        return cls(boosters, Network.fit(rows.features, targets, weights, settings.network_epochs, settings.seed))

    def predict(self, features: Array, threads: int = 1) -> tuple[Array, Array]:
        """Log-ratios (n, H, 2) of LightGBM at ``LEVELS``, sorted, and (n, H) of the network's median."""
        inputs = np.ascontiguousarray(features[:, len(CARRIERS) :])
        trees = np.empty((len(inputs), len(HORIZONS_S), len(LEVELS)))
        for column, levels in enumerate(self.boosters):
            for level, booster in enumerate(levels):
                trees[:, column, level] = booster.predict(inputs, num_threads=threads)
        return np.sort(trees, axis=2), self.network.predict(features)

    def contributions(self, features: Array, column: int) -> Array:
        """What each input adds to the median at one horizon (SHAP values of the trees), shape (n, inputs)."""
        inputs = np.ascontiguousarray(features[:, len(CARRIERS) :])
        values: Array = np.asarray(self.boosters[column][0].predict(inputs, pred_contrib=True))
        return values[:, :-1]

    def save(self, folder: Path) -> None:
        for column, levels in enumerate(self.boosters):
            for level, booster in zip(LEVELS, levels, strict=True):
                booster.save_model(str(folder / _file(column, level)))
        self.network.save(folder / "network.safetensors")
        (folder / "inputs.json").write_text(json.dumps(list(INPUTS)), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "GlobalModel":
        path = folder / "inputs.json"
        try:
            inputs = read_json(path)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: not the names of a model's inputs ({error})") from error
        if inputs != list(INPUTS):
            raise ValueError(f"{path}: the model was fitted on other features; train it again")
        files = [[folder / _file(column, level) for level in LEVELS] for column in range(len(HORIZONS_S))]
        boosters = tuple(tuple(load_booster(path) for path in row) for row in files)
        return cls(boosters, Network.load(folder / "network.safetensors"))


def sample(table: TrainingTable, settings: GlobalSettings) -> TrainingTable:
    """At most ``rows_per_series`` random rows of each series, with a known target at every horizon."""
    rng = np.random.default_rng(settings.seed)
    whole = np.flatnonzero(np.isfinite(table.targets).all(1) & np.isfinite(table.features[:, 0]))
    if not len(whole):
        raise ValueError("no row has a known value at every horizon")
    keep = np.zeros(len(table), dtype=bool)
    for name in np.unique(table.series[whole]):
        mine = whole[table.series[whole] == name]
        keep[rng.permutation(mine)[: settings.rows_per_series]] = True
    return table.where(keep)


def weigh(table: TrainingTable) -> Array:
    """Row weights with mean 1: every series alike, groups damped by the root of their number of series."""
    _, series_index, count = np.unique(table.series, return_inverse=True, return_counts=True)
    group_series = np.unique(np.column_stack([table.groups, table.series]), axis=0)
    names, sizes = np.unique(group_series[:, 0], return_counts=True)
    members = sizes[np.searchsorted(names, table.groups)]
    weights = 1.0 / count[series_index] / np.sqrt(members)
    result: Array = weights / weights.mean()
    return result


def _fit_booster(
    inputs: Array, target: Array, weights: Array, settings: GlobalSettings, level: float
) -> "lightgbm.Booster":
    import lightgbm

    data = lightgbm.Dataset(inputs, target, weight=weights)
    return lightgbm.train(settings.booster(level), data, num_boost_round=settings.rounds)


def _file(column: int, level: float) -> str:
    return f"trees_{HORIZONS_S[column]}s_q{round(level * 100)}.txt"
