"""What one predictor's answers are compared with, and how its intervals are widened while they miss.

An alarm counts for its owner alone: what one caller measures, or makes up, changes no other caller's answers. Replicas
read the same table, so they agree within a refresh.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import Gauge

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.models.registry.registry import CHAMPION
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.base.owners import namespace_of
from kopt.serving.http.metrics import EndpointMetrics
from kopt.serving.measured.health import Comparison, IntervalHealth, evaluate
from kopt.serving.measured.table import ComparisonTable

_LOG = logging.getLogger(__name__)
_MOST_NEWEST = 200
"""Comparisons of a version that a report lists."""


@dataclass(frozen=True)
class Interval:
    """An answer to be compared, in the unit of the measurement."""

    model: ModelVersion
    value: float
    low: float
    high: float
    probability: float

    @classmethod
    def of(cls, prediction: Prediction) -> "Interval | None":
        """None for a refusal."""
        if prediction.value is None or prediction.low is None or prediction.high is None:
            return None
        return cls(prediction.model, prediction.value, prediction.low, prediction.high, prediction.probability)


@dataclass(frozen=True)
class Widening:
    """By how much an owner's intervals are widened, and why; 1 where they hold."""

    factor: float = 1.0
    reasons: tuple[Reason, ...] = ()

    def applied(self, prediction: Prediction) -> Prediction:
        if self.factor <= 1.0 or prediction.low is None or prediction.high is None:
            return prediction
        return replace(
            prediction,
            low=prediction.low / self.factor,
            high=prediction.high * self.factor,
            confidence=prediction.confidence / self.factor,
            reasons=(*prediction.reasons, *self.reasons),
        )


HOLDS = Widening()


class Comparisons:
    """Of one predictor. Thread-safe; ``record`` and ``refresh`` block on the database, the others do not."""

    def __init__(
        self,
        table: ComparisonTable,
        predictor: str,
        metrics: EndpointMetrics | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table, self._predictor, self._clock = table, predictor, clock
        self._kept: Sequence[Comparison] = ()
        self._widened: Mapping[tuple[str, str], Widening] = {}
        self._drifts: Mapping[str, Reason] = {}
        self._gauges = None if metrics is None else _Gauges(metrics, predictor)

    def close(self) -> None:
        self._table.close()

    def record(self, owner: str, subject: str, unit: str, measured: float, answers: Mapping[str, Interval]) -> None:
        """Keep what each role's model answered beside the measurement. What cannot be compared is left out."""
        comparisons = []
        for role, interval in answers.items():
            figures = (interval.value, interval.low, interval.high, interval.probability, measured)
            try:
                comparisons.append(
                    Comparison(owner, subject, role, interval.model.version, self._clock(), unit, *figures)
                )
            except ValueError:
                _LOG.debug("%s of %s has no interval to compare", self._predictor, subject)
        if not comparisons:
            return
        try:
            self._table.add(comparisons, self._clock())
        except DatabaseError as error:
            _LOG.warning("a measurement is not compared with what was predicted: %s", error)

    def refresh(self) -> None:
        """Read what all replicas have recorded, and decide again whose intervals are widened."""
        try:
            self._kept = self._table.newest()
        except DatabaseError as error:
            _LOG.warning("comparisons with measurements cannot be read: %s", error)
            return
        by_owner: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
        for comparison in self._kept:
            if comparison.role == CHAMPION:
                by_owner[comparison.owner, comparison.version].append(comparison)
        health = {key: evaluate(comparisons) for key, comparisons in by_owner.items()}
        self._widened = {key: _widening(each) for key, each in health.items() if each.alarm}
        self._drifts = _drifts(self._kept)
        if self._gauges is not None:
            self._gauges.show(self._kept, len({owner for owner, _ in self._widened}))

    def widening(self, owner: str, model: ModelVersion) -> Widening:
        """Of the answers of this version to this owner."""
        return self._widened.get((owner, model.version), HOLDS)

    def drift(self, role: str) -> Reason | None:
        """Why the newest version of a role cannot be trusted: somebody's measurements miss its intervals too often."""
        return self._drifts.get(role)

    def report(self, owner: str | None) -> list[dict[str, Any]]:
        """One entry per role and version that was compared, of one owner or of all (None); the newest version first."""
        versions: dict[tuple[str, str], list[Comparison]] = {}
        for comparison in self._kept:
            if owner in (None, comparison.owner):
                key = (comparison.role, comparison.version)
                # Reinserted, so that the version with the newest comparison comes last.
                versions[key] = versions.pop(key, [])
                versions[key].append(comparison)
        return [
            self._entry(role, version, comparisons, owner)
            for (role, version), comparisons in reversed(versions.items())
        ]

    def _entry(self, role: str, version: str, comparisons: list[Comparison], owner: str | None) -> dict[str, Any]:
        health = evaluate(comparisons)
        alarmed = {each for each, of in self._widened if role == CHAMPION and of == version and owner in (None, each)}
        return {
            "predictor": self._predictor,
            "role": role,
            "version": version,
            "unit": comparisons[-1].unit,
            "compared": health.compared,
            "probability": health.probability,
            "coverage": health.coverage,
            "error": health.error,
            "bias": health.bias,
            "alarm": health.alarm,
            "widened_for": len(alarmed),
            "reasons": [reason.to_dict() for reason in health.reasons],
            "newest": [_document(each) for each in reversed(comparisons[-_MOST_NEWEST:])],
        }


class SeveralComparisons:
    """Those of a service that is compared in more than one way; the first says whether its model has drifted."""

    def __init__(self, several: Sequence[Comparisons]) -> None:
        self._several = several

    def refresh(self) -> None:
        for each in self._several:
            each.refresh()

    def report(self, owner: str | None) -> list[dict[str, Any]]:
        return [entry for each in self._several for entry in each.report(owner)]

    def drift(self, role: str) -> Reason | None:
        return self._several[0].drift(role)

    def close(self) -> None:
        for each in self._several:
            each.close()


def _drifts(kept: Sequence[Comparison]) -> dict[str, Reason]:
    """By role, of its version that was compared last."""
    newest = {comparison.role: comparison.version for comparison in kept}
    by_owner: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    for comparison in kept:
        if comparison.version == newest[comparison.role]:
            by_owner[comparison.role, comparison.owner].append(comparison)
    health = {key: evaluate(comparisons) for key, comparisons in by_owner.items()}
    return {role: each.reasons[0] for (role, _), each in health.items() if each.alarm}


def _document(comparison: Comparison) -> dict[str, Any]:
    return {
        "subject": comparison.subject,
        "namespace": namespace_of(comparison.owner),
        "at_s": comparison.at_s,
        "value": comparison.value,
        "low": comparison.low,
        "high": comparison.high,
        "measured": comparison.measured,
    }


def _widening(health: IntervalHealth) -> Widening:
    text = (
        f"The interval is {health.widening:.2f} times as wide to either side as the model gave it. "
        + health.reasons[0].message
    )
    return Widening(health.widening, (Reason("INTERVALS_WIDENED", text, {"factor": health.widening}),))


class _Gauges:
    def __init__(self, metrics: EndpointMetrics, predictor: str) -> None:
        def gauge(name: str, text: str) -> Gauge:
            name = f"kopt_{predictor}_{name}"
            return Gauge(name, text, ["role", "version"], registry=metrics.registry, multiprocess_mode="livemostrecent")

        self._coverage = gauge("interval_coverage", "Share of measurements in the predicted interval.")
        self._compared = gauge("compared", "Measurements that the coverage rests on.")
        self._widened = Gauge(
            f"kopt_{predictor}_widened_owners",
            "Callers and namespaces whose intervals are widened.",
            registry=metrics.registry,
            multiprocess_mode="livemax",
        )

    def show(self, comparisons: Sequence[Comparison], widened: int) -> None:
        by_version: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
        for comparison in comparisons:
            by_version[comparison.role, comparison.version].append(comparison)
        for labels, each in by_version.items():
            health = evaluate(each)
            self._coverage.labels(*labels).set(health.coverage or 0.0)
            self._compared.labels(*labels).set(health.compared)
        self._widened.set(widened)
