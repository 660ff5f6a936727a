"""How the demand predictor is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import ModuleType
from typing import Any

import numpy as np

from kopt.core.settings import Settings
from kopt.data.demand import table as data_table
from kopt.data.demand.table import DemandSeries
from kopt.features import demand as features
from kopt.features.demand import DAY_S, FEATURES, HORIZONS_S
from kopt.features.store import DemandFeatureStore
from kopt.models import demand as models
from kopt.models.artefact import ModelCard, library_versions
from kopt.models.base import Predictor
from kopt.models.demand.global_model import GlobalSettings
from kopt.models.demand.predictor import DemandPredictor
from kopt.models.demand.table import TrainingTable
from kopt.models.seen import fingerprint
from kopt.training import evaluate
from kopt.training.evaluate import Forecasts, Index, scored_origins, window_start
from kopt.training.recipe import Part
from kopt.training.sources import DemandDataset

QUANTILES = (0.5, 0.9, 0.95, 0.99)
MAX_ROWS = 500_000
"""Rows of a training table (0.3 GiB); with more data each series gives fewer origins."""
RECENT_ROWS = 2000
_PROBES = 3


class DemandRecipe:
    """Global quantile models on feature rows of every service; see ``Recipe``."""

    predictor = "demand"
    defaults: Mapping[str, Any] = {
        key: value for key, value in asdict(GlobalSettings()).items() if key not in ("threads",)
    }

    def modules(self) -> Sequence[ModuleType]:
        return (data_table, features, models, evaluate)

    def table(self, dataset: DemandDataset, settings: Settings) -> TrainingTable:
        """Rows from the offline feature store as of each origin, point-in-time joined."""
        store = DemandFeatureStore(settings)
        store.write(dataset.series)
        share = _share([len(one) for one in dataset.series])
        origins = {one.name: _origins(one, share) for one in dataset.series}
        joined = store.training_table(dataset.series, HORIZONS_S, origins)
        groups = np.array([dataset.group(name) for name in joined.series.tolist()])
        table = TrainingTable(joined.features, joined.targets, joined.series, groups, joined.origins_s)
        return table.where(np.isfinite(table.features[:, 0]) & np.isfinite(table.targets).any(1))

    def suggest(self, trial: Any) -> dict[str, Any]:
        return {
            "rounds": trial.suggest_int("rounds", 80, 400, log=True),
            "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.1, log=True),
            "leaves": trial.suggest_int("leaves", 7, 63, log=True),
            "rows_in_leaf": trial.suggest_int("rows_in_leaf", 50, 1000, log=True),
        }

    def loss(self, table: TrainingTable, held_out: Sequence[str], parameters: Mapping[str, Any], threads: int) -> float:
        """Pinball loss of the trees' log-ratios on the held-out series, mean over series, horizons and levels."""
        from kopt.models.demand.global_model import LEVELS, GlobalModel

        outside = np.isin(table.series, held_out)
        settings = _settings({**parameters, "network_epochs": 0}, threads)
        model = GlobalModel.fit(table.where(~outside), settings)
        tested = table.where(outside & np.isfinite(table.targets).all(1))
        got, _ = model.predict(tested.features, threads)
        miss = tested.log_ratios()[:, :, None] - got
        levels = np.array(LEVELS)
        pinball = np.maximum(levels * miss, (levels - 1) * miss).mean((1, 2))
        return float(np.mean([pinball[tested.series == name].mean() for name in np.unique(tested.series)]))

    def fit(
        self,
        dataset: DemandDataset,
        table: TrainingTable,
        part: Part | None,
        parameters: Mapping[str, Any],
        threads: int,
    ) -> Predictor:
        rows = table if part is None else table.where(_rows_of(dataset, table, part))
        return DemandPredictor(_settings(parameters, threads)).fit(rows)

    def backtest(self, predictor: Predictor, dataset: DemandDataset, name: str) -> Forecasts:
        assert isinstance(predictor, DemandPredictor)
        series = next(one for one in dataset.series if one.name == name)
        origins = scored_origins(series, HORIZONS_S)
        return Forecasts(name, origins, HORIZONS_S, QUANTILES, predictor.backtest(series, origins, QUANTILES).values)

    def peeks(self, predictor: Predictor, dataset: DemandDataset, name: str, forecasts: Forecasts) -> float:
        assert isinstance(predictor, DemandPredictor)
        series = next(one for one in dataset.series if one.name == name)
        chosen = np.linspace(0, len(forecasts.origins) - 2, _PROBES).astype(int)
        worst = 0.0
        for place in chosen:
            origin = forecasts.origins[place : place + 1]
            again = predictor.backtest(series.upto(int(origin[0])), origin, QUANTILES).values[0]
            before = forecasts.value[place]
            worst = max(worst, float(np.abs(again - before).max() / (np.abs(before).max() + 1e-12)))
        return worst

    def card(self, dataset: DemandDataset, parameters: Mapping[str, Any]) -> ModelCard:
        seen = tuple(fingerprint(one) for one in sorted(dataset.series, key=lambda one: one.name))
        return ModelCard("demand", dict(parameters), FEATURES, seen, library_versions())


def _settings(parameters: Mapping[str, Any], threads: int) -> GlobalSettings:
    return GlobalSettings(**parameters, threads=threads)


def _share(lengths: Sequence[int]) -> int:
    """Origins that each series may give: as many as it has, unless together they are too many."""
    return max(lengths) if sum(lengths) <= MAX_ROWS else max(2 * RECENT_ROWS, MAX_ROWS // len(lengths))


def _origins(series: DemandSeries, share: int) -> Index:
    """Observed origins past the first day that have a future; of too many, the recent ones and every n-th of the rest.

    The recent ones stay together because the predictor replays them to learn where its calibration starts.
    """
    known = np.flatnonzero(np.isfinite(series.value))
    first = known[0] + DAY_S // series.step_s if len(known) else len(series)
    usable = known[(known >= first) & (known < len(series) - 1)].astype(np.int64)
    if len(usable) <= share:
        return usable
    early, recent = usable[:-RECENT_ROWS], usable[-RECENT_ROWS:]
    return np.concatenate([early[:: -(-len(early) // max(1, share - RECENT_ROWS))], recent])


def _rows_of(dataset: DemandDataset, table: TrainingTable, part: Part) -> Any:
    """Rows of the part's series; where it says so, only those whose targets lie before the test window."""
    rows = np.isin(table.series, part.fit)
    if not part.before_window:
        return rows
    for one in dataset.series:
        ends_s = one.start_s + window_start(len(one), one.step_s) * one.step_s
        rows &= (table.series != one.name) | (table.origins_s + one.step_s + HORIZONS_S[-1] <= ends_s)
    return rows
