"""Does the challenger replace the champion? A pure function of both models' scores on the same unseen rows.

Noise must not decide: every comparison is paired, and its standard error comes from resampling blocks of four hours
within services and, where there are enough of them, services (Efron & Tibshirani 1993, bootstrap of clusters). A
challenger passes when it is better beyond noise overall, in accuracy or in what it lends at the same violation, and
worse beyond noise nowhere.
"""

from collections.abc import Mapping, Sequence

from kopt.core.reason import Reason
from kopt.core.units import counted
from kopt.training.demand.evaluate import BLOCK_S, Score
from kopt.training.demand.resampling import ACCURACY, LENDING, SAFETY, Draws, Pair
from kopt.training.pipeline.protocols import Comparison, GateDecision, GateRules, refuse


def evaluate_gate(
    champion: Sequence[Score], challenger: Sequence[Score], rules: GateRules | None = None
) -> GateDecision:
    """Compare two models by the scores both have for the same service, horizon and days.

    Scores of one model only are left out; with too few shared days the challenger is refused.
    """
    rules = rules or GateRules()
    matched = _matched(champion, challenger, rules)
    too_little = _too_little(matched, rules)
    if too_little is not None:
        return too_little
    slices = sorted({label for pair in matched for label in pair.champion.slices})
    horizons = sorted({pair.champion.horizon_s for pair in matched})
    level = rules.level / max(1, 3 * len(horizons) * len(slices))
    comparisons: list[Comparison] = []
    for label in ("all", *slices):
        for horizon_s in horizons:
            members = [p for p in matched if p.horizon_s == horizon_s and label in ("all", *p.champion.slices)]
            if sum(pair.units for pair in members) >= rules.minimum_blocks:
                comparisons += _compare(label, horizon_s, members, rules, level)
    return _decide(tuple(comparisons), _overall(matched, rules), rules)


def _matched(champion: Sequence[Score], challenger: Sequence[Score], rules: GateRules) -> list[Pair]:
    """Scores of the same service, regime (slices) and horizon."""
    champion_scores = {(s.series, s.slices, s.horizon_s): s for s in champion}
    keyed = [((s.series, s.slices, s.horizon_s), s) for s in challenger]
    return [
        Pair.of(champion_scores[key], score, rules.resamples, rules.seed)
        for key, score in keyed
        if key in champion_scores
    ]


def _too_little(matched: Sequence[Pair], rules: GateRules) -> GateDecision | None:
    rows = sum(int(pair.champion.rows.sum()) for pair in matched)
    blocks: dict[int, int] = {}
    for pair in matched:
        blocks[pair.horizon_s] = blocks.get(pair.horizon_s, 0) + pair.units
    days = round(max(blocks.values(), default=0) * BLOCK_S / 86_400, 1)
    if rows >= rules.minimum_rows and days >= rules.minimum_days:
        return None
    return refuse(
        "TOO_LITTLE_DATA",
        f"Only {rows} forecasts over {days:g} service-days can be compared that neither model was trained on; the gate "
        f"needs {rules.minimum_rows} over {rules.minimum_days}. Train again when there is more history.",
        rows=rows,
        days=days,
    )


def _compare(label: str, horizon_s: int, matched: Sequence[Pair], rules: GateRules, level: float) -> list[Comparison]:
    draws = _draws(matched, rules)
    comparisons = []
    for metric, change in draws.changes().items():
        low, high = draws.interval(change, level)
        sides = draws.levels(metric)
        comparisons.append(Comparison(label, horizon_s, metric, *sides, float(change[0]), low, high, len(matched)))
    return comparisons


def _draws(matched: Sequence[Pair], rules: GateRules) -> Draws:
    return Draws.of(
        matched, clustered_from=rules.clustered_from, violation_limit=rules.violation_limit, seed=rules.seed
    )


def _overall(matched: Sequence[Pair], rules: GateRules) -> Mapping[str, tuple[float, float, float]]:
    """Change, lower and upper bound per metric over all horizons together (two comparisons: half the level each)."""
    draws = _draws(matched, rules)
    return {m: (float(c[0]), *draws.interval(c, rules.level / 2)) for m, c in draws.changes().items()}


def _decide(
    comparisons: tuple[Comparison, ...], overall: Mapping[str, tuple[float, float, float]], rules: GateRules
) -> GateDecision:
    tolerance = {ACCURACY: rules.accuracy_tolerance, LENDING: rules.lending_tolerance, SAFETY: 0.0}
    worse = [c for c in comparisons if c.high < 0 and -c.change > tolerance[c.metric]]
    if worse:
        worst = sorted(worse, key=lambda c: c.change / max(tolerance[c.metric], 0.01))
        return GateDecision(False, tuple(_worse(c) for c in worst), comparisons)
    better = [metric for metric in (ACCURACY, LENDING) if overall[metric][1] > 0]
    if not better:
        return GateDecision(False, (_no_better(overall),), comparisons)
    return GateDecision(True, (_better(overall, better),), comparisons)


_METRIC_TEXTS = {
    ACCURACY: "the median's error grows by {0:.1%}",
    LENDING: "it lends {0:.1%} of the oracle's GPU-time less at 1 % violation",
    SAFETY: "the p99 is violated {0:.1%} of the time more often than allowed",
}


def _worse(c: Comparison) -> Reason:
    what = _METRIC_TEXTS[c.metric].format(-c.change)
    text = (
        f"Worse on {c.slice} at {c.horizon_s // 60} min: {what} ({c.champion:.3f} → {c.challenger:.3f}, "
        f"{counted(c.services, 'service')}, change between {c.low:+.1%} and {c.high:+.1%})."
    )
    numbers: dict[str, float | int | str] = {
        "slice": c.slice,
        "horizon_s": c.horizon_s,
        "metric": c.metric,
        "champion": c.champion,
        "challenger": c.challenger,
        "change": c.change,
        "low": c.low,
        "high": c.high,
    }
    return Reason(f"WORSE_{c.metric.upper()}", text, numbers)


def _sentence(overall: Mapping[str, tuple[float, float, float]]) -> str:
    (accuracy, *a), (lending, *b) = overall[ACCURACY], overall[LENDING]
    return (
        f"accuracy {accuracy:+.1%} (between {a[0]:+.1%} and {a[1]:+.1%}), lending at 1 % violation {lending:+.1%} "
        f"(between {b[0]:+.1%} and {b[1]:+.1%})"
    )


def _no_better(overall: Mapping[str, tuple[float, float, float]]) -> Reason:
    numbers = {metric: change for metric, (change, _, _) in overall.items()}
    return Reason("NO_BETTER", f"Not better than the champion beyond noise: {_sentence(overall)}.", numbers)


def _better(overall: Mapping[str, tuple[float, float, float]], metrics: Sequence[str]) -> Reason:
    numbers = {metric: change for metric, (change, _, _) in overall.items()}
    return Reason("BETTER", f"Better in {' and '.join(metrics)}, worse nowhere: {_sentence(overall)}.", numbers)
