"""Scores of demand forecasts, as the pipeline asks for them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kopt.data.demand.rolling import Forecasts
from kopt.training import judging
from kopt.training.evaluate import Score, Summary, summarise
from kopt.training.gate import GateRules, Verdict
from kopt.training.judging import Champion
from kopt.training.logbook import metric_names
from kopt.training.plots import write_plots
from kopt.training.recipe import Part
from kopt.training.sources import DemandDataset
from kopt.training.storage import read_forecasts, write_forecasts
from kopt.training.work import Backtest


class DemandScoring:
    """See ``Scoring``: MASE, violations and lending by block of four hours."""

    def key(self, forecast: Forecasts) -> str:
        return forecast.series

    def scores(
        self, dataset: DemandDataset, parts: Sequence[Part], backtests: Mapping[str, Backtest]
    ) -> tuple[Score, ...]:
        return judging.scores(dataset, parts, backtests)

    def summarise(self, scores: Sequence[Score]) -> tuple[Summary, ...]:
        return summarise(scores)

    def metrics(self, summaries: Sequence[Summary]) -> Mapping[str, float]:
        return metric_names(summaries)

    def verdict(
        self, dataset: DemandDataset, parts: Sequence[Part], challenger: Sequence[Score],
        backtests: Mapping[str, Backtest], champion: Champion | None, rules: GateRules,
    ) -> Verdict:  # fmt: skip
        return judging.verdict(dataset, parts, challenger, backtests, champion, rules)

    def draw(
        self, folder: Path, dataset: DemandDataset, parts: Sequence[Part], scores: Sequence[Score],
        backtests: Mapping[str, Backtest],
    ) -> Sequence[Path]:  # fmt: skip
        regime = parts[-1].regime
        shown = [one for part in parts if part.regime == regime for one in backtests[part.name].forecasts]
        return write_plots(folder, [one for one in scores if regime in one.slices], dataset.series, shown)

    def write(self, forecasts: Sequence[Forecasts], path: Path) -> None:
        write_forecasts(forecasts, path)

    def read(self, path: Path) -> tuple[Forecasts, ...]:
        return read_forecasts(path)
