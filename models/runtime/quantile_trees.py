"""Quantiles of log run times, relative to the base of each class: LightGBM, a booster per level and seed.

The target is scale-free, the logarithm less the median of the last runs of the class, so that what is learned of one
cluster holds on another. Runs that had not ended are not dropped, which would make every class look short: each stands
for three values beyond its age, drawn from what a first model answers (redistribution to the right, Efron 1967, as
Portnoy 2003 has it for quantile regression).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from kopt.core.workload.run_time import LEVELS
from kopt.features.job_history import FEATURES, Array
from kopt.models.lightgbm.trees import TreeGroup, Trees
from kopt.models.runtime.distribution import LogTimes, sorted_rows
from kopt.models.runtime.table import RunTimeTable

_OUTWARDS = np.array([-1.0, -0.5, 0.0, 0.0, 0.0, 0.5, 1.0])
_DRAWS = (1 / 6, 0.5, 5 / 6)
_MIDDLE = len(LEVELS) // 2
_FINISHED, _LOW, _HIGH = (FEATURES.index(f"class_{name}") for name in ("finished", "low_20", "high_20"))
_LEAST_NEAR = 10
_LEAST_ROWS, _BINS = 50, 63
_MOST_UNENDED = 0.002
"""Share of runs without an end up to which a first model is not worth its time."""


@dataclass(frozen=True)
class TreeSettings:
    """Chosen on the first 70 % of two traces, see ``benchmarks/runtime.py``."""

    rounds: int = 150
    learning_rate: float = 0.08
    leaves: int = 31
    least_in_leaf: int = 50
    feature_share: float = 0.4
    row_share: float = 0.5
    seeds: int = 2
    outer_margin: float = 0.6
    """Log units that 5 and 95 % are moved outwards by, half of it 10 and 90 %: what comes later, or from another
    cluster, scatters more than what was learned from."""
    recent_share: float = 0.6
    """Of the median that is the base, the median of the last runs: the trees' own is nearer in its loss, the base in
    its typical error, and this is nearly as good as either in both."""

    def booster(self, level: float, seed: int, threads: int) -> dict[str, Any]:
        """LightGBM's parameters."""
        return {
            "objective": "quantile",
            "alpha": level,
            "learning_rate": self.learning_rate,
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.least_in_leaf,
            "feature_fraction": self.feature_share,
            "bagging_fraction": self.row_share,
            "bagging_freq": 1,
            "max_bin": _BINS,
            "feature_pre_filter": False,
            "seed": seed + 1,
            "num_threads": threads,
            "deterministic": True,
            "force_col_wise": True,
            "verbose": -1,
        }


@dataclass(frozen=True)
class QuantileTrees:
    """``boosters[seed][level]``."""

    boosters: tuple[tuple[Trees, ...], ...]
    settings: TreeSettings

    @classmethod
    def fit(cls, table: RunTimeTable, settings: TreeSettings, threads: int = 1) -> Self:
        """Raises ValueError on a table with too few runs that ended."""
        ended = ~table.censored
        if ended.sum() < _LEAST_ROWS:
            raise ValueError(f"{int(ended.sum())} runs that ended; at least {_LEAST_ROWS} are needed to learn from")
        targets, weights = table.log_seconds - table.base, table.weights()
        seeds = range(settings.seeds)
        if table.censored.mean() <= _MOST_UNENDED:
            return cls(_fit(table.features[ended], targets[ended], weights[ended], settings, seeds, threads), settings)
        first = cls(_fit(table.features[ended], targets[ended], weights[ended], settings, range(1), threads), settings)
        without_end = table.features[table.censored]
        drawn = _beyond(first.predict(without_end), targets[table.censored])
        return cls(
            _fit(
                np.concatenate([table.features[ended], np.repeat(without_end, len(_DRAWS), axis=0)]),
                np.concatenate([targets[ended], drawn.ravel()]),
                np.concatenate([weights[ended], np.repeat(weights[table.censored] / len(_DRAWS), len(_DRAWS))]),
                settings,
                seeds,
                threads,
            ),
            settings,
        )

    def predict(self, features: Array) -> Array:
        """Quantiles (n, 7) of the log time less its base, for features (n, F)."""
        rows = np.asarray(features, dtype=np.float32).astype(float)
        by_seed = [by_level.T for by_level in np.split(self._together.predict(rows), len(self.boosters))]
        mean = np.mean(by_seed, axis=0)
        mean[:, _MIDDLE] *= 1 - self.settings.recent_share
        return _near_recent(sorted_rows(mean), rows) + self.settings.outer_margin * _OUTWARDS

    @cached_property
    def _together(self) -> TreeGroup:
        return TreeGroup([trees for levels in self.boosters for trees in levels])

    @cached_property
    def text_by_file(self) -> dict[str, str]:
        """File name → text, what ``save`` writes."""
        return {
            _file(seed, level): trees.text
            for seed, levels in enumerate(self.boosters)
            for level, trees in zip(LEVELS, levels, strict=True)
        }

    def save(self, folder: Path) -> None:
        for name, text in self.text_by_file.items():
            (folder / name).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, settings: TreeSettings) -> Self:
        """Raises ValueError with the file's name."""
        seeds = range(settings.seeds)
        boosters = tuple(tuple(Trees.load(folder / _file(seed, level)) for level in LEVELS) for seed in seeds)
        return cls(boosters, settings)


def _file(seed: int, level: float) -> str:
    return f"p{round(100 * level):02d}-{seed}.txt"


def _near_recent(quantiles: Array, features: Array) -> Array:
    """With the medians inside what eight of ten of the last runs of the class took, and their neighbours around them.

    In a class whose runs all take the same time to the second, what other clusters taught about such classes moves the
    median away from it. Where fewer than ``_LEAST_NEAR`` runs of the class have ended, nothing is moved.
    """
    enough = features[:, _FINISHED] >= np.log1p(_LEAST_NEAR) - 1e-6
    low, high = np.where(enough, features[:, _LOW], -np.inf), np.where(enough, features[:, _HIGH], np.inf)
    medians = np.clip(quantiles[:, _MIDDLE], low, high)[:, None]
    below, above = quantiles[:, :_MIDDLE], quantiles[:, _MIDDLE + 1 :]
    return np.hstack([np.minimum(below, medians), medians, np.maximum(above, medians)])


def _beyond(quantiles: Array, ages: Array) -> Array:
    """Values (n, 3) above ages (n,), by the distributions of quantiles (n, 7)."""
    rows = [
        LogTimes(tuple(row)).quantiles_after(float(age), _DRAWS)
        for row, age in zip(quantiles.tolist(), ages, strict=True)
    ]
    return np.array(rows)


def _fit(
    features: Array, targets: Array, weights: Array, settings: TreeSettings, seeds: Sequence[int], threads: int
) -> tuple[tuple[Trees, ...], ...]:
    import lightgbm

    data = lightgbm.Dataset(
        features,
        targets,
        weight=weights,
        feature_name=list(FEATURES),
        params={"max_bin": _BINS, "feature_pre_filter": False},
    )
    data.construct()
    return tuple(
        tuple(
            Trees(lightgbm.train(settings.booster(level, seed, threads), data, settings.rounds).model_to_string())
            for level in LEVELS
        )
        for seed in seeds
    )
