"""Does the challenger replace the champion? A pure function of both models' scores on the same unseen rows.

Noise must not decide: every comparison is paired, and its standard error comes from resampling blocks of four hours
within services and, where there are enough of them, services (Efron & Tibshirani 1993, bootstrap of clusters). A
challenger passes when it is better beyond noise overall, in accuracy or in what it lends at the same violation, and
worse beyond noise nowhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.reason import Reason
from kopt.core.units import counted
from kopt.training.evaluate import BLOCK_S, Score
from kopt.training.resampling import ACCURACY, LENDING, SAFETY, Draws, Pair

_SHOWN = 3


@dataclass(frozen=True)
class GateRules:
    """When a difference counts."""

    accuracy_tolerance: float = 0.03
    """A slice may lose this share of its accuracy (relative growth of the error) before noise is even asked."""
    lending_tolerance: float = 0.01
    """… and this much of the oracle's lending, at 1 % violation."""
    violation_limit: float = 0.015
    """Violations of the p99 up to here need no comparison with the champion's."""
    level: float = 0.05
    """Chance of an error that is accepted for the whole set of comparisons."""
    resamples: int = 300
    minimum_days: int = 2
    """Days (over all services) in which neither model has seen anything; with fewer there is no verdict."""
    minimum_rows: int = 200
    clustered_from: int = 5
    """Services from which on they are resampled too."""
    minimum_blocks: int = 12
    """A slice with fewer blocks of four hours is not judged by itself."""
    seed: int = 0


@dataclass(frozen=True)
class Comparison:
    """One metric of one slice at one horizon. ``change`` is positive where the challenger is better; ``low`` and
    ``high`` bound it at the level that several comparisons together call for. Accuracy changes are relative."""

    slice: str
    horizon_s: int
    metric: str
    champion: float
    challenger: float
    change: float
    low: float
    high: float
    services: int


@dataclass(frozen=True)
class Verdict:
    """Passed or refused, why, and every comparison behind it."""

    passed: bool
    reasons: tuple[Reason, ...]
    comparisons: tuple[Comparison, ...] = ()

    @property
    def summary(self) -> str:
        """The three weightiest reasons in words."""
        more = len(self.reasons) - _SHOWN
        told = [reason.message for reason in self.reasons[:_SHOWN]] + [f"And {more} more."] * (more > 0)
        return " ".join(told)


def refuse(code: str, message: str, **numbers: float | int | str) -> Verdict:
    """A refusal that rests on something else than a comparison."""
    return Verdict(False, (Reason(code, message, numbers),))


def judge(champion: Sequence[Score], challenger: Sequence[Score], rules: GateRules | None = None) -> Verdict:
    """Compare two models by the scores both have for the same service, horizon and days.

    Scores of one model only are left out; with too few shared days the challenger is refused.
    """
    rules = rules or GateRules()
    pairs = _pairs(champion, challenger, rules)
    too_little = _too_little(pairs, rules)
    if too_little is not None:
        return too_little
    slices = sorted({label for pair in pairs for label in pair.champion.slices})
    horizons = sorted({pair.champion.horizon_s for pair in pairs})
    level = rules.level / max(1, 3 * len(horizons) * len(slices))
    found: list[Comparison] = []
    for label in ("all", *slices):
        for horizon_s in horizons:
            members = [p for p in pairs if p.horizon_s == horizon_s and label in ("all", *p.champion.slices)]
            if sum(pair.units for pair in members) >= rules.minimum_blocks:
                found += _compare(label, horizon_s, members, rules, level)
    return _decide(tuple(found), _overall(pairs, rules), rules)


def _pairs(champion: Sequence[Score], challenger: Sequence[Score], rules: GateRules) -> list[Pair]:
    """Scores of the same service, regime (slices) and horizon."""
    known = {(s.series, s.slices, s.horizon_s): s for s in champion}
    keyed = [((s.series, s.slices, s.horizon_s), s) for s in challenger]
    return [Pair.of(known[key], score, rules.resamples, rules.seed) for key, score in keyed if key in known]


def _too_little(pairs: Sequence[Pair], rules: GateRules) -> Verdict | None:
    rows = sum(int(pair.champion.rows.sum()) for pair in pairs)
    blocks: dict[int, int] = {}
    for pair in pairs:
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


def _compare(label: str, horizon_s: int, pairs: Sequence[Pair], rules: GateRules, level: float) -> list[Comparison]:
    draws = _draws(pairs, rules)
    found = []
    for metric, change in draws.changes().items():
        low, high = draws.interval(change, level)
        sides = draws.levels(metric)
        found.append(Comparison(label, horizon_s, metric, *sides, float(change[0]), low, high, len(pairs)))
    return found


def _draws(pairs: Sequence[Pair], rules: GateRules) -> Draws:
    return Draws.of(pairs, clustered_from=rules.clustered_from, violation_limit=rules.violation_limit, seed=rules.seed)


def _overall(pairs: Sequence[Pair], rules: GateRules) -> Mapping[str, tuple[float, float, float]]:
    """Change, lower and upper bound per metric over all horizons together (two comparisons: half the level each)."""
    draws = _draws(pairs, rules)
    return {m: (float(c[0]), *draws.interval(c, rules.level / 2)) for m, c in draws.changes().items()}


def _decide(
    found: tuple[Comparison, ...], overall: Mapping[str, tuple[float, float, float]], rules: GateRules
) -> Verdict:
    tolerance = {ACCURACY: rules.accuracy_tolerance, LENDING: rules.lending_tolerance, SAFETY: 0.0}
    worse = [c for c in found if c.high < 0 and -c.change > tolerance[c.metric]]
    if worse:
        worst = sorted(worse, key=lambda c: c.change / max(tolerance[c.metric], 0.01))
        return Verdict(False, tuple(_worse(c) for c in worst), found)
    better = [metric for metric in (ACCURACY, LENDING) if overall[metric][1] > 0]
    if not better:
        return Verdict(False, (_no_better(overall),), found)
    return Verdict(True, (_better(overall, better),), found)


_WORDS = {
    ACCURACY: "the median's error grows by {0:.1%}",
    LENDING: "it lends {0:.1%} of the oracle's GPU-time less at 1 % violation",
    SAFETY: "the p99 is violated {0:.1%} of the time more often than allowed",
}


def _worse(c: Comparison) -> Reason:
    what = _WORDS[c.metric].format(-c.change)
    text = (
        f"Worse on {c.slice} at {c.horizon_s // 60} min: {what} ({c.champion:.3f} → {c.challenger:.3f}, "
        f"{counted(c.services, 'service')}, change between {c.low:+.1%} and {c.high:+.1%})."
    )
    numbers: dict[str, float | int | str] = {
        "slice": c.slice, "horizon_s": c.horizon_s, "metric": c.metric, "champion": c.champion,
        "challenger": c.challenger, "change": c.change, "low": c.low, "high": c.high,
    }  # fmt: skip
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
