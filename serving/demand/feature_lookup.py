"""Forecasts of services by name: their newest rows in the feature store, kept in the replica for a few seconds."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import COLUMN, HORIZONS_S
from kopt.features.rows import OnlineRows

KEEP_S = 5.0
_MOST = 5000
_MOST_ANSWERS = 500
_INTERVAL = (0.05, 0.95)
CONFIDENCE = 0.4
"""Lower than for an answer from the history itself: a row has no calibration from the series' own past."""


class RowModel(Protocol):
    """What is needed of a predictor to answer from feature rows."""

    version: ModelVersion

    def predict_rows(self, features: NDArray[np.float64], quantiles: Sequence[float]) -> NDArray[np.float64]: ...


class RowStore(Protocol):
    def online(self, names: Sequence[str]) -> OnlineRows: ...

    def put_online(self, series: Iterable[DemandSeries]) -> int: ...


@dataclass(frozen=True)
class Stored:
    """The predictions for one name, the bucket they are sums over, and the largest demand of the last half hour."""

    predictions: tuple[Prediction, ...]
    bucket_s: int
    recent_max: float | None


@dataclass(frozen=True)
class _Row:
    features: NDArray[np.float64]
    at_s: float
    problem: Reason | None
    read_at: float


class StoredFeatures:
    """Reads through to a feature store, which ``open_store`` connects to on first use (seconds, hundreds of MiB)."""

    def __init__(self, open_store: Callable[[], RowStore], clock: Callable[[], float] = time.monotonic) -> None:
        self._open, self._clock = open_store, clock
        self._store: RowStore | None = None
        self._rows: OrderedDict[str, _Row] = OrderedDict()
        self._lock = threading.Lock()
        # Rows are cached for KEEP_S, and with them the answers made from them.
        self._answers: dict[tuple[object, ...], tuple[tuple[float, ...], list[Stored]]] = {}

    def open(self) -> None:
        """Connects now rather than at the first request. Raises what the store raises; the next request tries again."""
        with self._lock:
            self._opened()

    def materialise(self, series: Sequence[DemandSeries]) -> None:
        """Makes the newest bucket of each series its row in the store (blocks). Raises what the store raises."""
        with self._lock:
            store = self._opened()
        # Outside of the lock: answers by name read rows meanwhile.
        store.put_online(series)

    def quick(self, names: Sequence[str]) -> bool:
        """Whether every name's row is cached, so that the store need not be queried."""
        return all(self._fresh(name) is not None for name in names)

    def forecast(
        self, model: RowModel, names: Sequence[str], horizons_s: Sequence[int], quantiles: Sequence[float], unit: str
    ) -> list[Stored]:
        """One result per name; refusals for names without a usable row. Raises FeatureStoreError."""
        rows = self._read(names)
        cache_key = (model.version, tuple(names), tuple(horizons_s), tuple(quantiles), unit)
        read_at = tuple(row.read_at for row in rows)
        before = self._answers.get(cache_key)
        if before is not None and before[0] == read_at:
            return before[1]
        storeds = self._forecast(model, rows, horizons_s, quantiles, unit)
        if len(self._answers) >= _MOST_ANSWERS:
            self._answers.clear()
        self._answers[cache_key] = (read_at, storeds)
        return storeds

    def _forecast(
        self, model: RowModel, rows: list[_Row], horizons_s: Sequence[int], quantiles: Sequence[float], unit: str
    ) -> list[Stored]:
        usable = [row for row in rows if row.problem is None]
        levels = sorted({0.5, *_INTERVAL, *quantiles})
        values = model.predict_rows(np.array([row.features for row in usable]), levels) if usable else np.empty(0)
        answers = iter(values)
        return [
            _refused(row.problem, model.version, horizons_s, unit)
            if row.problem is not None
            else _answered(row, next(answers), levels, model.version, horizons_s, quantiles, unit)
            for row in rows
        ]

    def _fresh(self, name: str) -> _Row | None:
        row = self._rows.get(name)
        return row if row is not None and self._clock() - row.read_at <= KEEP_S else None

    def _read(self, names: Sequence[str]) -> list[_Row]:
        rows_by_name = {name: row for name in names if (row := self._fresh(name)) is not None}
        missing = [name for name in names if name not in rows_by_name]
        if missing:
            rows_by_name |= self._from_store(missing)
        return [rows_by_name[name] for name in names]

    def _from_store(self, names: list[str]) -> dict[str, _Row]:
        with self._lock:
            online = self._opened().online(names)
            problems, now = online.problems(), self._clock()
            read = {
                name: _Row(online.features[i], float(online.observed_at_s[i]), problems.get(name), now)
                for i, name in enumerate(names)
            }
            self._rows.update(read)
            while len(self._rows) > _MOST:
                self._rows.popitem(last=False)
            return read

    def _opened(self) -> RowStore:
        if self._store is None:
            self._store = self._open()
        return self._store


def _refused(problem: Reason, version: ModelVersion, horizons_s: Sequence[int], unit: str) -> Stored:
    refusals = tuple(Prediction.refusal(problem, unit=unit, model=version, horizon_s=float(h)) for h in horizons_s)
    return Stored(refusals, 300, None)


def _answered(
    row: _Row,
    values: NDArray[np.float64],
    levels: list[float],
    version: ModelVersion,
    horizons_s: Sequence[int],
    quantiles: Sequence[float],
    unit: str,
) -> Stored:
    last, floor = float(row.features[COLUMN["last_value"]]), float(row.features[COLUMN["floor"]])
    step_s = int(row.features[COLUMN["step_s"]])
    rise = float(row.features[COLUMN["below_max_30m"]])
    recent_max = max(last, (last + floor) * float(np.exp(rise)) - floor) if np.isfinite(rise) else last
    text = f"From the feature store's newest row, last value {last:.4g} {unit}; send the history for a closer answer."
    why = Reason("STORED_FEATURES", text, {"last": last})
    predictions = tuple(_at(row, values, levels, version, h, quantiles, unit, why) for h in horizons_s)
    return Stored(predictions, step_s, recent_max)


def _at(
    row: _Row,
    values: NDArray[np.float64],
    levels: list[float],
    version: ModelVersion,
    horizon_s: int,
    quantiles: Sequence[float],
    unit: str,
    why: Reason,
) -> Prediction:
    if horizon_s > HORIZONS_S[-1]:
        text = f"Stored features reach {HORIZONS_S[-1]} s ahead; send the history for {horizon_s} s."
        return Prediction.refusal(Reason("HORIZON_TOO_FAR", text), unit=unit, model=version, horizon_s=float(horizon_s))
    by_level: dict[float, float] = {
        q: float(np.interp(horizon_s, HORIZONS_S, values[:, column])) for column, q in enumerate(levels)
    }
    return Prediction(
        by_level[0.5],
        by_level[_INTERVAL[0]],
        by_level[_INTERVAL[1]],
        _INTERVAL[1] - _INTERVAL[0],
        unit,
        CONFIDENCE,
        version,
        (why,),
        {q: by_level[q] for q in quantiles},
        row.at_s,
        float(horizon_s),
    )


def open_feature_store(settings: Any) -> Callable[[], RowStore]:
    """Connects to the store that the settings name; Feast is imported only then."""

    def connect() -> RowStore:
        from kopt.features.store import DemandFeatureStore

        store = DemandFeatureStore(settings)
        store.connect()
        return store

    return connect
