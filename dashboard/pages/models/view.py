"""The page of model health: who serves, who challenges, what the gate said, how both do on live demand."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.prediction import ModelVersion
from kopt.core.units import GIB
from kopt.dashboard.figures import MeasuredPoint
from kopt.dashboard.pages.models.data import Models
from kopt.models.registry.registry import CHALLENGER, CHAMPION, MetricRow, RegisteredModel
from kopt.serving.contract.model_answers import IntervalHealthOut, ModelHealthResponse, SeriesHealthOut

HORIZON = re.compile(r"(.+)_(\d{1,5})min")


@dataclass(frozen=True)
class Figure:
    """How a metric is worded, and whether less of it is better (None: neither)."""

    label: str
    less_is_better: bool | None


FIGURES: Mapping[str, Figure] = {
    "mase": Figure("MASE of the median", True),
    "mase_ratio": Figure("MASE, of the last value's", True),
    "violation_q95": Figure("above p95 (5 % promised)", None),
    "violation_q99": Figure("above p99 (1 % promised)", None),
    "calm_share": Figure("services above p99 ≤ 1.5 %", False),
    "eff99": Figure("lent, of the oracle's", False),
    "eff99_last": Figure("lent by the last value", None),
}
"""Metrics of training runs (``training.demand.evaluate.Summary.metrics``); others are shown by their name."""


@dataclass(frozen=True)
class Pair:
    """A metric of champion and challenger; ``better`` is ``champion``, ``challenger`` or empty."""

    champion: float | None = None
    challenger: float | None = None
    better: str = ""


@dataclass(frozen=True)
class MetricLine:
    """One metric of a slice, by horizon in minutes; 0 for metrics without one."""

    label: str
    pairs: Mapping[int, Pair]


@dataclass(frozen=True)
class Slice:
    """Metrics that share a prefix (``slice/metric_5min``)."""

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
class MeasuredPredictor:
    """A predictor whose answers were measured: its versions, and the comparisons of those that are compared now."""

    name: str
    unit: str
    versions: tuple[IntervalHealthOut, ...]
    points: tuple[MeasuredPoint, ...]


@dataclass(frozen=True)
class ModelPage:
    """All of the page. ``series`` are those that need an eye first."""

    champion: RegisteredModel | None
    challenger: RegisteredModel | None
    versions: tuple[RegisteredModel, ...]
    """Of all predictors; champion and challenger are those of demand."""
    serving: frozenset[tuple[str, str]]
    """Name and version of what the endpoint answers with."""
    unregistered: tuple[ModelVersion, ...]
    """What it answers with that the registry does not have: the package's default models."""
    slices: tuple[Slice, ...]
    minutes: tuple[int, ...]
    """Columns of the slices' table: horizons, 0 for metrics without one."""
    coverage: tuple[CoverageLine, ...]
    series: tuple[SeriesHealthOut, ...]
    shadow: tuple[SeriesHealthOut, ...]
    alarms: int
    measured: tuple[MeasuredPredictor, ...] = ()


def model_page(models: Models) -> ModelPage:
    """Puts the page together."""
    by_alias = {alias: model for model in models.versions for alias in model.aliases}
    registered = {
        (registered_model.name, registered_model.version) for registered_model in (*models.versions, *models.others)
    }
    health = models.health
    series = health.series if health else ()
    result = slices(models.metrics, models.compared)
    return ModelPage(
        champion=by_alias.get(CHAMPION),
        challenger=by_alias.get(CHALLENGER),
        versions=(*models.versions, *models.others),
        serving=frozenset((model_version.name, model_version.version) for model_version in models.serving),
        unregistered=tuple(
            model_version
            for model_version in models.serving
            if (model_version.name, model_version.version) not in registered
        ),
        slices=result,
        minutes=tuple(sorted({minutes for item in result for line in item.lines for minutes in line.pairs})),
        coverage=live_coverage(health) if health else (),
        series=tuple(
            sorted(
                series,
                key=lambda series_health: (not series_health.alarm, -(series_health.drift or 0.0), series_health.name),
            )
        ),
        shadow=health.shadow if health else (),
        alarms=sum(series_health.alarm for series_health in series),
        measured=tuple(
            measured_predictor([entry for entry in models.measured if entry.predictor == name])
            for name in dict.fromkeys(entry.predictor for entry in models.measured)
        ),
    )


def measured_predictor(versions: Sequence[IntervalHealthOut]) -> MeasuredPredictor:
    """Of the versions of one predictor, the newest of a role first. Bytes are shown in GiB."""
    of_bytes = versions[0].unit == "bytes"
    scale = 1 / GIB if of_bytes else 1.0
    newest_by_role = {entry.role: entry for entry in reversed(versions)}
    points = tuple(
        MeasuredPoint(
            role, each.subject, each.value * scale, each.low * scale, each.high * scale, each.measured * scale
        )
        for role, entry in sorted(newest_by_role.items())
        for each in entry.newest
    )
    return MeasuredPredictor(versions[0].predictor, "GiB" if of_bytes else versions[0].unit, tuple(versions), points)


def slices(rows: Sequence[MetricRow], compared: Sequence[RegisteredModel]) -> tuple[Slice, ...]:
    """Metrics grouped by slice, the one over all services first, in the order of ``FIGURES``."""
    roles = [next((a for a in (CHAMPION, CHALLENGER) if a in model.aliases), "") for model in compared]
    groups: dict[str, dict[str, dict[int, Pair]]] = {}
    for row in rows:
        prefix, _, name = row.metric.rpartition("/")
        match = HORIZON.fullmatch(name)
        metric, minutes = (match[1], int(match[2])) if match else (name, 0)
        values = dict(zip(roles, row.values, strict=False))
        pair = compared_pair(metric, values.get(CHAMPION), values.get(CHALLENGER))
        groups.setdefault(prefix, {}).setdefault(metric, {})[minutes] = pair
    order = [*FIGURES]
    return tuple(
        Slice(
            prefix,
            tuple(
                MetricLine(FIGURES[metric].label if metric in FIGURES else metric, pairs)
                for metric, pairs in sorted(
                    lines.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0])
                )
            ),
        )
        for prefix, lines in sorted(groups.items(), key=lambda group: (group[0] not in ("", "all"), group[0]))
    )


def compared_pair(metric: str, champion: float | None, challenger: float | None) -> Pair:
    """Marks the better side where the direction of the metric is known and the difference can be seen."""
    less = FIGURES[metric].less_is_better if metric in FIGURES else None
    if champion is None or challenger is None or less is None or math.isclose(champion, challenger, rel_tol=1e-3):
        return Pair(champion, challenger)
    return Pair(champion, challenger, CHAMPION if (champion < challenger) == less else CHALLENGER)


def live_coverage(health: ModelHealthResponse) -> tuple[CoverageLine, ...]:
    """Observed against nominal per role and quantile."""
    sums: dict[tuple[str, float], tuple[float, int]] = {}
    for role, entries in ((CHAMPION, health.series), (CHALLENGER, health.shadow)):
        for series_health in entries:
            if series_health.coverage is None or not series_health.matched:
                continue
            weighted, matched = sums.get((role, series_health.quantile), (0.0, 0))
            sums[role, series_health.quantile] = (
                weighted + series_health.coverage * series_health.matched,
                matched + series_health.matched,
            )
    return tuple(CoverageLine(role, q, weighted / n, n) for (role, q), (weighted, n) in sorted(sums.items()))
