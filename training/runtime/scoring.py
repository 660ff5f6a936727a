"""Scores of run-time answers: errors of log times and how often intervals held, trace by trace and month by month."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from kopt.core.reason import Reason
from kopt.core.workload.run_time import LEVELS
from kopt.models.runtime.cluster_runs import Outcome
from kopt.models.runtime.records import pinball
from kopt.training.pipeline.comparisons import PairedErrors, with_comparisons
from kopt.training.pipeline.gains import decide_by_gains
from kopt.training.pipeline.plot_page import new_figure, write_plot_page
from kopt.training.pipeline.protocols import KNOWN, Backtest, Champion, GateDecision, GateRules, Part, refuse
from kopt.training.pipeline.slices import RunScore, RunScoring

MONTH_S = 30 * 86_400.0
_LEAST_COVERAGE = 0.8
"""Of the interval from 5 to 95 %, for a first model."""
_LEAST_RUNS = 30
"""A month with fewer runs says nothing by itself."""


@dataclass(frozen=True)
class Month:
    """Runs of a trace that started in one month. Losses are mean pinballs, errors medians of |log(p50 / actual)|;
    ``recent`` is the same of the last 20 runs of a class alone."""

    number: int
    in_window: bool
    runs: int
    loss: float
    error: float
    recent_loss: float
    recent_error: float
    coverage: float
    over: float
    """Share of runs longer than p95."""


@dataclass(frozen=True)
class TraceRun:
    """One trace, answered as it happened."""

    series: str
    months: tuple[Month, ...]

    def __len__(self) -> int:
        return sum(month.runs for month in self.months)


def trace_run(name: str, outcomes: Sequence[Outcome], window_s: float) -> TraceRun:
    """Compares what was answered when each run started with what it took; runs without a predecessor are left out."""
    counted = [outcome for outcome in outcomes if outcome.recent is not None]
    by_month: dict[tuple[int, bool], list[Outcome]] = {}
    for outcome in counted:
        started_s = outcome.run.started_s
        by_month.setdefault((int(started_s // MONTH_S), started_s >= window_s), []).append(outcome)
    return TraceRun(name, tuple(_month(*key, part) for key, part in sorted(by_month.items())))


def _month(number: int, in_window: bool, outcomes: Sequence[Outcome]) -> Month:
    actual = np.array([outcome.log_seconds for outcome in outcomes])
    answered = np.array([outcome.answered for outcome in outcomes])
    recent = np.array([outcome.recent for outcome in outcomes])
    middle = len(LEVELS) // 2
    return Month(
        number,
        in_window,
        len(outcomes),
        float(pinball(answered, actual).mean()),
        float(np.median(np.abs(answered[:, middle] - actual))),
        float(pinball(recent, actual).mean()),
        float(np.median(np.abs(recent[:, middle] - actual))),
        float(np.mean((answered[:, 0] <= actual) & (actual <= answered[:, -1]))),
        float(np.mean(actual > answered[:, -1])),
    )


@dataclass(frozen=True)
class RunTimeSummary:
    """Figures of a slice, weighted by runs; ``services`` counts traces."""

    slice: str
    services: int
    runs: int
    loss: float
    recent_loss: float
    factor: float
    """e to the median error: half of all runs are within this factor of p50."""
    recent_factor: float
    coverage: float
    worst_month: float
    """The coverage of the month in which it is furthest from 90 %."""
    over: float

    def metrics(self) -> dict[str, float]:
        """Figures by name."""
        return {key: float(value) for key, value in asdict(self).items() if key not in ("slice", "services")}


def summary(label: str, runs: Sequence[TraceRun]) -> RunTimeSummary:
    """Raises ValueError without any run."""
    months = [month for run in runs for month in run.months]
    if not months:
        raise ValueError(f"no run in {label!r}")
    weights = np.array([month.runs for month in months], dtype=float)

    def mean(name: str) -> float:
        return float(np.average([getattr(month, name) for month in months], weights=weights))

    large = [month.coverage for month in months if month.runs >= _LEAST_RUNS]
    return RunTimeSummary(
        label,
        len(runs),
        int(weights.sum()),
        mean("loss"),
        mean("recent_loss"),
        float(np.exp(mean("error"))),
        float(np.exp(mean("recent_error"))),
        mean("coverage"),
        max(large, key=lambda coverage: abs(coverage - 0.9)) if large else mean("coverage"),
        mean("over"),
    )


class RunTimeScoring(RunScoring[TraceRun, RunTimeSummary]):
    """See ``Scoring``."""

    def summary(self, label: str, runs: Sequence[TraceRun]) -> RunTimeSummary:
        return summary(label, runs)

    def read_run(self, document: Mapping[str, Any]) -> TraceRun:
        names = {item.name for item in fields(Month)}
        months = tuple(Month(**{key: month[key] for key in names}) for month in document["months"])
        return TraceRun(document["series"], months)

    def scores(
        self, dataset: Any, parts: Sequence[Part], backtests: Mapping[str, Backtest]
    ) -> tuple[RunScore[TraceRun], ...]:
        """Whole traces where they were left out, only what came later where they were not."""
        result = []
        for part in parts:
            for forecast in backtests[part.name].forecasts:
                months = tuple(month for month in forecast.months if month.in_window or part.regime != KNOWN)
                if months:
                    result.append(RunScore(TraceRun(forecast.series, months), part.regime))
        return tuple(result)

    def decide(
        self,
        dataset: Any,
        parts: Sequence[Part],
        challenger: Sequence[RunScore[TraceRun]],
        backtests: Mapping[str, Backtest],
        champion: Champion | None,
        rules: GateRules,
    ) -> GateDecision:
        """Better than the last runs alone, with intervals that hold; and than the champion on runs that neither has
        seen, month by month."""
        if not challenger:
            return refuse("TOO_LITTLE_DATA", "There are no later runs to test the model on.")
        mine = summary("all", [score.run for score in challenger])
        if mine.loss >= mine.recent_loss:
            text = f"Its loss is {mine.loss:.3f}; the last 20 runs of a class alone have {mine.recent_loss:.3f}."
            return refuse("INACCURATE", text, loss=mine.loss, recent_loss=mine.recent_loss)
        if mine.coverage < _LEAST_COVERAGE:
            text = f"{mine.coverage:.0%} of runs lie within 5 to 95 %; at least {_LEAST_COVERAGE:.0%} have to."
            return refuse("INACCURATE", text, coverage=mine.coverage)
        if champion is None:
            text = f"First model; loss {mine.loss:.3f} beside {mine.recent_loss:.3f} of the last 20 runs of a class."
            return GateDecision(True, (Reason("BETTER", text, mine.metrics()),))
        return _compared(challenger, champion, rules)

    def draw(
        self,
        folder: Path,
        dataset: Any,
        parts: Sequence[Part],
        scores: Sequence[RunScore[TraceRun]],
        backtests: Mapping[str, Backtest],
    ) -> Sequence[Path]:
        """Losses and coverages of months."""
        loss = new_figure("Loss of log run times by month", "trace and month", "mean pinball loss", height_px=480)
        held = new_figure("Runs within 5 to 95 % by month", "trace and month", "share of runs", height_px=480)
        ordered = sorted(scores, key=lambda score: (score.regime, score.run.series))
        for regime in dict.fromkeys(score.regime for score in ordered):
            months = [(s.run.series, month) for s in ordered if s.regime == regime for month in s.run.months]
            labels = [f"{series} {month.number}" for series, month in months]
            loss.add_bar(name=regime, x=labels, y=[month.loss for _, month in months])
            loss.add_bar(name=f"{regime}: last 20 alone", x=labels, y=[month.recent_loss for _, month in months])
            held.add_bar(name=regime, x=labels, y=[month.coverage for _, month in months])
        held.add_hline(y=0.9)
        return (write_plot_page(folder, {"loss": loss, "coverage": held}),)


def _compared(challenger: Iterable[RunScore[TraceRun]], champion: Champion, rules: GateRules) -> GateDecision:
    trained = {trained_on.name for trained_on in champion.card.training_data}
    rows: list[PairedErrors] = []
    for score in challenger:
        theirs = champion.forecasts.get(score.run.series)
        if theirs is None or (score.run.series in trained and score.regime != KNOWN):
            continue
        by_month = {(month.number, month.in_window): month for month in theirs.months}
        for month in score.run.months:
            other = by_month.get((month.number, month.in_window))
            if other is not None and month.runs >= _LEAST_RUNS:
                errors = {"loss": (other.loss, month.loss)}
                rows.append(PairedErrors(score.slices, f"{score.run.series}/{month.number}", errors))
    gains = [float(np.log(champions / mine)) for champions, mine in (row.errors["loss"] for row in rows)]
    if len(gains) < 2:
        text = "There are no two months of runs that both models can be compared on. Train again when there are more."
        return refuse("TOO_LITTLE_DATA", text, months=len(gains))
    return with_comparisons(decide_by_gains(gains, rules, "loss", f"in {len(gains)} months"), rows, rules)
