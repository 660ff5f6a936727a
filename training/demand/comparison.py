"""From backtests to scores and a gate decision: both models on rows that neither was trained on."""

from collections.abc import Mapping, Sequence

from kopt.core.reason import Reason
from kopt.data.demand.rolling import Forecasts
from kopt.models.demand.training_overlap import trained_until
from kopt.training.demand.evaluate import Score, score
from kopt.training.demand.gate import evaluate_gate
from kopt.training.demand.sources import DemandDataset
from kopt.training.pipeline.protocols import Backtest, Champion, GateDecision, GateRules, Part, refuse

LEAK_TOLERANCE = 1e-3
"""Relative change of a forecast that rounding may cause when the future is cut off."""


def scores(
    dataset: DemandDataset,
    parts: Sequence[Part],
    backtests: Mapping[str, Backtest],
    *,
    unseen_from: Mapping[str, int] | None = None,
) -> tuple[Score, ...]:
    """The challenger's scores: each series as a new service (its group left out) and as a known one (later rows)."""
    forecasts = {
        (part.name, forecast.series): forecast for part in parts for forecast in backtests[part.name].forecasts
    }
    return _scores(dataset, parts, forecasts, unseen_from or {})


def _scores(
    dataset: DemandDataset,
    parts: Sequence[Part],
    forecasts: Mapping[tuple[str, str], Forecasts],
    unseen_from: Mapping[str, int],
) -> tuple[Score, ...]:
    series = {demand_series.name: demand_series for demand_series in dataset.series}
    return tuple(
        item
        for part in parts
        for name in part.test
        for item in score(
            series[name],
            forecasts[part.name, name],
            slices=(part.regime, *dataset.slices(name)),
            unseen_from=unseen_from.get(name, 0),
        )
    )


def evaluate_challenger(
    dataset: DemandDataset,
    parts: Sequence[Part],
    challenger: Sequence[Score],
    backtests: Mapping[str, Backtest],
    champion: Champion | None,
    rules: GateRules,
) -> GateDecision:
    """The gate's decision. Without a champion a challenger only has to beat the last value.

    A challenger whose forecasts change when the future is cut off is refused outright: it has seen what it predicts.
    """
    peeked = max((backtest.peeked for backtest in backtests.values()), default=0.0)
    if peeked > LEAK_TOLERANCE:
        return refuse(
            "LEAK",
            f"Its forecasts change by up to {peeked:.1%} when the future is cut off: a feature looks ahead. "
            "Correct the features and train again.",
            change=peeked,
        )
    if champion is None:
        return _beats_last_value(challenger)
    unseen = {demand_series.name: trained_until(champion.card, demand_series) for demand_series in dataset.series}
    mine = scores(dataset, parts, backtests, unseen_from=unseen)
    theirs = {(part.name, name): champion.forecasts[name] for part in parts for name in part.test}
    return evaluate_gate(_scores(dataset, parts, theirs, unseen), mine, rules)


def _beats_last_value(challenger: Sequence[Score]) -> GateDecision:
    if not challenger:
        return refuse("TOO_LITTLE_DATA", "There is no moment to test the model on; it needs series of at least 2 days.")
    error, last = sum(score.mase for score in challenger), sum(score.mase_last for score in challenger)
    if error < last:
        return GateDecision(
            True, (Reason("BETTER", f"First model; its error is {error / last:.1%} of the last value's."),)
        )
    return refuse("NO_BETTER", f"Its error is {error / last:.1%} of the last value's.", ratio=error / last)
