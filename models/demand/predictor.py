"""The demand predictor: the global model, corrected per series by what the series itself has shown."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from kopt.core.prediction import DEFAULT_QUANTILES, ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.features.demand import COLUMN, DAY_S, HORIZONS_S, transform
from kopt.models.base import Predictor
from kopt.models.demand import answers, explanation, holdout
from kopt.models.demand.calibration import DEFAULT_THRESHOLDS, LEVELS, between
from kopt.models.demand.global_model import GlobalModel, GlobalSettings
from kopt.models.demand.memory import SeriesMemory, remember
from kopt.models.demand.online import trees_outlook
from kopt.models.demand.replay import Run, Track, replay
from kopt.models.demand.table import TrainingTable
from kopt.models.registry.model_files import read_json

Array = NDArray[np.float64]
Index = NDArray[np.int64]

UNREGISTERED = ModelVersion("demand", "unregistered")


@dataclass(frozen=True)
class DemandRequest:
    """What ``predict`` and ``explain`` are asked: a history and how far ahead."""

    series: DemandSeries
    horizons_s: tuple[float, ...] = HORIZONS_S
    quantiles: tuple[float, ...] = DEFAULT_QUANTILES
    now_s: float | None = None


@dataclass(frozen=True)
class Backtest:
    """Rolling forecasts of one series: ``origins`` (n,) bucket indexes, ``values`` (n, H, Q) sums over a bucket."""

    series: DemandSeries
    origins: Index
    quantiles: tuple[float, ...]
    values: Array


class DemandPredictor(Predictor):
    """Quantiles of the demand of any service, minutes to an hour ahead.

    The global model (trees and a small network, ``global_model``) needs no history of the service; the online mixture
    and calibration (``online``, ``calibration``) learn it as buckets arrive. Values are sums over a bucket of the
    series' step, finer series being summed to five minutes first. Below a day of history the last value with pooled
    spreads answers, on stale data the level of the past week; both are marked as fallbacks.
    """

    name: ClassVar[str] = "demand"

    def __init__(self, settings: GlobalSettings | None = None) -> None:
        self.settings = settings or GlobalSettings()
        self.version = UNREGISTERED
        self.model: GlobalModel | None = None
        self.thresholds: Array = DEFAULT_THRESHOLDS
        self.early: Array = answers.DEFAULT_EARLY

    def fit(self, table: TrainingTable) -> Self:
        """Fit on all rows; the calibration's start comes from fits on one half of the groups judged on the other.

        Raises ValueError on a table without a usable row.
        """
        self.early = answers.early_ratios(table)
        self.thresholds = holdout.thresholds(table, self.settings)
        self.model = GlobalModel.fit(table, self.settings)
        return self

    def predict(self, request: DemandRequest) -> tuple[Prediction, ...]:
        """One prediction per horizon from the history alone."""
        return self.forecast(request.series, request.horizons_s, request.quantiles, now_s=request.now_s)

    def memory(self) -> SeriesMemory:
        """An empty memory for one series, to be handed to ``forecast`` again and again."""
        return SeriesMemory()

    def memories(self, series: Sequence[DemandSeries]) -> list[SeriesMemory]:
        """A memory for each series as its first forecast would leave it, in a third of the time for many together."""
        on_grid = [each.resampled(GRID_S) for each in series]
        return remember(on_grid, self._fitted.predict, self.thresholds)

    def forecast(
        self,
        series: DemandSeries,
        horizons_s: Sequence[float] = HORIZONS_S,
        quantiles: Sequence[float] = DEFAULT_QUANTILES,
        *,
        calibration: SeriesMemory | None = None,
        now_s: float | None = None,
    ) -> tuple[Prediction, ...]:
        """Quantiles per horizon after the last bucket of ``series``; refusals carry the reason.

        ``calibration`` is the memory of this series; it is brought up to date, and what it knows already is not
        computed again. ``now_s`` is the caller's Unix time where the series' is known, to notice stale data.
        """
        series = series.resampled(GRID_S)
        question = answers.Question(series, tuple(horizons_s), tuple(quantiles), now_s, self.version)
        if (refused := answers.refuse(question)) is not None:
            return refused
        if (age_s := answers.staleness_s(question)) is not None:
            return answers.static(question, age_s)
        if answers.history_s(series) < DAY_S:
            return answers.early(question, self.early)
        late = calibration is None or calibration.is_ahead_of(series)
        memory = self.memory() if late or calibration is None else calibration
        memory.catch_up(series, self._fitted.predict, self.thresholds)
        return answers.answer(question, memory)

    def predict_rows(self, features: Array, quantiles: Sequence[float] = DEFAULT_QUANTILES) -> Array:
        """Quantiles (n, H, Q) in bucket sums from feature rows (n, F) alone, without a series' own corrections."""
        trees, network = self._fitted.predict(features)
        centre, width = trees_outlook(features, trees, network)
        values = centre[..., None] + width[..., None] * between(self.thresholds, quantiles)
        return answers.bounded(values, features[:, COLUMN["max_7d"]][:, None], quantiles)

    def backtest(
        self, series: DemandSeries, origins: Index | None = None, quantiles: Sequence[float] = DEFAULT_QUANTILES
    ) -> Backtest:
        """Forecasts at ``origins`` (indexes on the grid; default every one past the first day), as serving makes them.

        The series is replayed once from its first known bucket; a forecast uses nothing after its origin.
        """
        return self.backtests([series], None if origins is None else [origins], quantiles)[0]

    def backtests(
        self,
        series: Sequence[DemandSeries],
        origins: Sequence[Index] | None = None,
        quantiles: Sequence[float] = DEFAULT_QUANTILES,
    ) -> list[Backtest]:
        """As ``backtest``, for many series in about the time of the longest: they are replayed in step."""
        on_grid = [demand_series.resampled(GRID_S) for demand_series in series]
        backtests_by_index: dict[int, Backtest] = {}
        for step_s in {demand_series.step_s for demand_series in on_grid}:
            places = [i for i, demand_series in enumerate(on_grid) if demand_series.step_s == step_s]
            runs = replay([self._track(on_grid[i]) for i in places], step_s, self.thresholds)
            for i, run in zip(places, runs, strict=True):
                wanted = None if origins is None else np.asarray(origins[i], dtype=np.int64)
                backtests_by_index[i] = self._quantiles_at(on_grid[i], run, wanted, quantiles)
        return [backtests_by_index[i] for i in range(len(on_grid))]

    def _track(self, series: DemandSeries) -> Track:
        finite = np.flatnonzero(np.isfinite(series.value))
        if not len(finite):
            raise ValueError(f"series {series.name!r} has no known value")
        rows = transform(series, np.arange(finite[0], len(series)))
        return Track(series.value[finite[0] :], rows, *self._fitted.predict(rows))

    def _quantiles_at(
        self, series: DemandSeries, run: Run, origins: Index | None, quantiles: Sequence[float]
    ) -> Backtest:
        """The quantiles of a run at ``origins`` (default: every origin after the first day)."""
        first = len(series) - len(run.centre)
        day = DAY_S // series.step_s
        wanted = np.arange(first + day, len(series)) if origins is None else origins
        values = np.full((len(wanted), len(HORIZONS_S), len(quantiles)), np.nan)
        inside = (wanted >= first) & (wanted < len(series))
        at = wanted[inside] - first
        values[inside] = run.centre[at, :, None] + run.width[at, :, None] * between(run.thresholds[at], quantiles)
        peak = answers.trailing_max(series)[np.clip(wanted, 0, len(series) - 1)]
        values = answers.bounded(values, peak[:, None], quantiles)
        early = wanted < first + day - 1
        values[early] = answers.early_values(series, wanted[early], self.early, quantiles)
        return Backtest(series, wanted, tuple(quantiles), values)

    def explain(self, request: DemandRequest) -> tuple[Reason, ...]:
        """What moved the forecast of the first horizon: mixture, inputs, change points, tenants; in words."""
        predictions = self.predict(request)
        if predictions[0].refused or predictions[0].fallback:
            return predictions[0].reasons
        memory = self.memory()
        series = request.series.resampled(GRID_S)
        memory.catch_up(series, self._fitted.predict, self.thresholds)
        column = int(np.argmin(np.abs(np.array(HORIZONS_S) - request.horizons_s[0])))
        return (*predictions[0].reasons, *explanation.reasons(series, memory, self._fitted, column))

    def save(self, folder: Path) -> None:
        self._fitted.save(folder)
        document: dict[str, Any] = {
            "settings": vars(self.settings),
            "thresholds": self.thresholds.tolist(),
            "levels": list(LEVELS),
            "early": self.early.tolist(),
        }
        (folder / "demand.json").write_text(json.dumps(document, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        path = folder / "demand.json"
        try:
            document = read_json(path)
            loaded = cls(GlobalSettings(**document["settings"]))
            loaded.thresholds, loaded.early = np.array(document["thresholds"]), np.array(document["early"])
            levels = tuple(document["levels"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not a saved demand predictor ({error})") from error
        if levels != LEVELS or loaded.thresholds.shape != DEFAULT_THRESHOLDS.shape:
            raise ValueError(f"{path}: calibrated for other levels; train the model again")
        loaded.model = GlobalModel.load(folder)
        return loaded

    @property
    def _fitted(self) -> GlobalModel:
        if self.model is None:
            raise ValueError("the demand predictor has not been fitted; call fit or load first")
        return self.model
