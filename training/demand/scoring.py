"""Scores of demand forecasts, as the pipeline asks for them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from kopt.data.demand.rolling import Forecasts
from kopt.training.demand import comparison
from kopt.training.demand.evaluate import Score, Summary, summarise
from kopt.training.demand.forecast_io import read_forecasts, write_forecasts
from kopt.training.demand.plots import write_plots
from kopt.training.demand.sources import DemandDataset
from kopt.training.pipeline.protocols import Backtest, Champion, GateDecision, GateRules, Part
from kopt.training.pipeline.slices import named_figures


class DemandScoring:
    """See ``Scoring``: MASE, violations and lending by block of four hours."""

    def key(self, forecast: Forecasts) -> str:
        return forecast.series

    def scores(
        self, dataset: DemandDataset, parts: Sequence[Part], backtests: Mapping[str, Backtest]
    ) -> tuple[Score, ...]:
        return comparison.scores(dataset, parts, backtests)

    def summarise(self, scores: Sequence[Score]) -> tuple[Summary, ...]:
        return summarise(scores)

    def metrics(self, summaries: Sequence[Summary]) -> Mapping[str, float]:
        by_slice = defaultdict[str, dict[str, float]](dict)
        for each in summaries:
            by_slice[each.slice] |= {
                f"{name}_{each.horizon_s // 60}min": value for name, value in each.metrics().items()
            }
        return named_figures(by_slice.items())

    def decide(
        self,
        dataset: DemandDataset,
        parts: Sequence[Part],
        challenger: Sequence[Score],
        backtests: Mapping[str, Backtest],
        champion: Champion | None,
        rules: GateRules,
    ) -> GateDecision:
        return comparison.evaluate_challenger(dataset, parts, challenger, backtests, champion, rules)

    def draw(
        self,
        folder: Path,
        dataset: DemandDataset,
        parts: Sequence[Part],
        scores: Sequence[Score],
        backtests: Mapping[str, Backtest],
    ) -> Sequence[Path]:
        regime = parts[-1].regime
        displayed = [forecast for part in parts if part.regime == regime for forecast in backtests[part.name].forecasts]
        return write_plots(folder, [score for score in scores if regime in score.slices], dataset.series, displayed)

    def write(self, forecasts: Sequence[Forecasts], path: Path) -> None:
        write_forecasts(forecasts, path)

    def read(self, path: Path) -> tuple[Forecasts, ...]:
        return read_forecasts(path)
