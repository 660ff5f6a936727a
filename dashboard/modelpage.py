"""The page of model health: who serves, who challenges, what the gate said, how both do on live demand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kopt.dashboard.sources import Models
from kopt.models.registry import CHALLENGER, CHAMPION, MetricRow, RegisteredModel
from kopt.serving.answers import ModelHealth, SeriesHealth

LOWER_IS_BETTER = ("mase", "error", "loss", "wape", "violation", "pinball", "seconds", "bytes")
HIGHER_IS_BETTER = ("lending", "share", "lent", "coverage")


@dataclass(frozen=True)
class MetricLine:
    """One metric of a slice for champion and challenger; ``better`` is ``champion``, ``challenger`` or empty."""

    metric: str
    champion: float | None
    challenger: float | None
    better: str


@dataclass(frozen=True)
class Slice:
    """Metrics that share a prefix (``slice/metric``); the overall ones have no prefix."""

    name: str
    lines: tuple[MetricLine, ...]


@dataclass(frozen=True)
class CoverageLine:
    """Live coverage of all series together, weighted by their matched forecasts."""

    role: str
    nominal: float
    observed: float
    matched: int


@dataclass(frozen=True)
class ModelPage:
    """All of the page. ``series`` are those that need an eye first."""

    champion: RegisteredModel | None
    challenger: RegisteredModel | None
    versions: tuple[RegisteredModel, ...]
    slices: tuple[Slice, ...]
    coverage: tuple[CoverageLine, ...]
    series: tuple[SeriesHealth, ...]
    shadow: tuple[SeriesHealth, ...]
    alarms: int


def model_page(models: Models) -> ModelPage:
    """Puts the page together."""
    by_alias = {alias: model for model in models.versions for alias in model.aliases}
    health = models.health
    series = health.series if health else ()
    return ModelPage(
        champion=by_alias.get(CHAMPION),
        challenger=by_alias.get(CHALLENGER),
        versions=models.versions,
        slices=slices(models.metrics, models.compared),
        coverage=live_coverage(health) if health else (),
        series=tuple(sorted(series, key=lambda one: (not one.alarm, -(one.drift or 0.0), one.name))),
        shadow=health.shadow if health else (),
        alarms=sum(one.alarm for one in series),
    )


def slices(rows: Sequence[MetricRow], compared: Sequence[RegisteredModel]) -> tuple[Slice, ...]:
    """Metrics grouped by slice, the overall ones first."""
    roles = [next((a for a in (CHAMPION, CHALLENGER) if a in model.aliases), "") for model in compared]
    groups: dict[str, list[MetricLine]] = {}
    for row in rows:
        prefix, _, metric = row.metric.rpartition("/")
        values = dict(zip(roles, row.values, strict=False))
        line = MetricLine(metric, values.get(CHAMPION), values.get(CHALLENGER), "")
        groups.setdefault(prefix, []).append(_judged(line))
    return tuple(Slice(name, tuple(lines)) for name, lines in sorted(groups.items()))


def _judged(line: MetricLine) -> MetricLine:
    """Marks the better side where the direction of the metric is known and the difference can be seen."""
    one, two = line.champion, line.challenger
    if one is None or two is None or math.isclose(one, two, rel_tol=1e-3):
        return line
    lower = any(word in line.metric for word in LOWER_IS_BETTER)
    if lower == any(word in line.metric for word in HIGHER_IS_BETTER):
        return line
    return MetricLine(line.metric, one, two, CHAMPION if (one < two) == lower else CHALLENGER)


def live_coverage(health: ModelHealth) -> tuple[CoverageLine, ...]:
    """Observed against nominal per role and quantile."""
    sums: dict[tuple[str, float], tuple[float, int]] = {}
    for role, entries in ((CHAMPION, health.series), (CHALLENGER, health.shadow)):
        for one in entries:
            if one.coverage is None or not one.matched:
                continue
            covered, matched = sums.get((role, one.quantile), (0.0, 0))
            sums[role, one.quantile] = covered + one.coverage * one.matched, matched + one.matched
    return tuple(CoverageLine(role, q, covered / n, n) for (role, q), (covered, n) in sorted(sums.items()))
