"""How the demand predictor is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import ModuleType
from typing import Any

import numpy as np

from kopt.core.prediction import DEFAULT_QUANTILES
from kopt.core.settings import Settings
from kopt.data.demand import table as data_table
from kopt.data.demand.rolling import Forecasts, window_start
from kopt.data.demand.table import DemandSeries
from kopt.features import demand as features
from kopt.features.demand import DAY_S, FEATURES, HORIZONS_S
from kopt.features.store import DemandFeatureStore
from kopt.models import demand as models
from kopt.models.base import Predictor
from kopt.models.demand.global_model import GlobalSettings
from kopt.models.demand.predictor import DemandPredictor
from kopt.models.demand.table import TrainingTable
from kopt.models.demand.training_overlap import fingerprint
from kopt.models.registry.artifact import ModelCard, library_versions
from kopt.training.demand import evaluate
from kopt.training.demand.evaluate import Index, scored_origins
from kopt.training.demand.scoring import DemandScoring
from kopt.training.demand.sources import DemandDataset
from kopt.training.pipeline.protocols import Part

MAX_ROWS = 500_000
"""Rows of a training table (0.3 GiB); with more data each series gives fewer origins."""
RECENT_ROWS = 2000
_PROBES = 3
_AT_ONCE = 64
"""Series replayed together; a year of five-minute buckets of each takes 70 MiB."""


class DemandRecipe:
    """Global quantile models on feature rows of every service; see ``Recipe``."""

    predictor = "demand"
    scoring = DemandScoring()
    defaults: Mapping[str, Any] = {
        key: value for key, value in asdict(GlobalSettings()).items() if key not in ("threads",)
    }

    def modules(self) -> Sequence[ModuleType]:
        return (data_table, features, models, evaluate)

    def table(self, dataset: DemandDataset, settings: Settings) -> TrainingTable:
        """Rows from the offline feature store as of each origin, point-in-time joined."""
        store = DemandFeatureStore(settings)
        store.write(dataset.series)
        share = _share([len(demand_series) for demand_series in dataset.series])
        origins = {demand_series.name: _origins(demand_series, share) for demand_series in dataset.series}
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

    def backtests(self, predictor: Predictor, dataset: DemandDataset, names: Sequence[str]) -> list[Forecasts]:
        assert isinstance(predictor, DemandPredictor)
        backtests: list[Forecasts] = []
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            series = [
                next(demand_series for demand_series in dataset.series if demand_series.name == name) for name in some
            ]
            origins = [scored_origins(demand_series, HORIZONS_S) for demand_series in series]
            tested = predictor.backtests(series, origins, DEFAULT_QUANTILES)
            backtests += [
                Forecasts(demand_series.name, at, HORIZONS_S, DEFAULT_QUANTILES, test.values)
                for demand_series, at, test in zip(series, origins, tested, strict=True)
            ]
        return backtests

    def peeks(self, predictor: Predictor, dataset: DemandDataset, name: str, forecasts: Forecasts) -> float:
        assert isinstance(predictor, DemandPredictor)
        series = next(demand_series for demand_series in dataset.series if demand_series.name == name)
        probes = np.linspace(0, len(forecasts.origins) - 2, _PROBES).astype(int)
        origins = [forecasts.origins[index : index + 1] for index in probes]
        again = predictor.backtests([series.upto(int(origin[0])) for origin in origins], origins, DEFAULT_QUANTILES)
        before = forecasts.value[probes]
        changes = np.abs(np.array([test.values[0] for test in again]) - before).max((1, 2))
        return float((changes / (np.abs(before).max((1, 2)) + 1e-12)).max())

    def card(self, dataset: DemandDataset, parameters: Mapping[str, Any]) -> ModelCard:
        training_series = tuple(
            fingerprint(demand_series)
            for demand_series in sorted(dataset.series, key=lambda demand_series: demand_series.name)
        )
        return ModelCard("demand", dict(parameters), FEATURES, training_series, library_versions())


RECIPE = DemandRecipe()


def _settings(parameters: Mapping[str, Any], threads: int) -> GlobalSettings:
    return GlobalSettings(**parameters, threads=threads)


def _share(lengths: Sequence[int]) -> int:
    """Origins that each series may give: as many as it has, unless together they are too many."""
    return max(lengths) if sum(lengths) <= MAX_ROWS else max(2 * RECENT_ROWS, MAX_ROWS // len(lengths))


def _origins(series: DemandSeries, share: int) -> Index:
    """Observed origins past the first day that have a future; of too many, the recent ones and every n-th of the rest.

    The recent ones stay together because the predictor replays them to learn where its calibration starts.
    """
    observed = np.flatnonzero(np.isfinite(series.value))
    first = observed[0] + DAY_S // series.step_s if len(observed) else len(series)
    usable = observed[(observed >= first) & (observed < len(series) - 1)].astype(np.int64)
    if len(usable) <= share:
        return usable
    early, recent = usable[:-RECENT_ROWS], usable[-RECENT_ROWS:]
    return np.concatenate([early[:: -(-len(early) // max(1, share - RECENT_ROWS))], recent])


def _rows_of(dataset: DemandDataset, table: TrainingTable, part: Part) -> Any:
    """Rows of the part's series; where it says so, only those whose targets lie before the test window."""
    rows = np.isin(table.series, part.fit)
    if not part.before_window:
        return rows
    for demand_series in dataset.series:
        ends_s = demand_series.start_s + window_start(len(demand_series), demand_series.step_s) * demand_series.step_s
        rows &= (table.series != demand_series.name) | (
            table.origins_s + demand_series.step_s + HORIZONS_S[-1] <= ends_s
        )
    return rows
