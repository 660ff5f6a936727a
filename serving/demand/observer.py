"""Compares predictions with actual demand in the background: one thread and a bounded queue per replica."""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from kopt.core.prediction import Prediction
from kopt.core.reason import Reason
from kopt.data.demand.table import DemandSeries
from kopt.models.registry.registry import CHALLENGER, CHAMPION
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.base.model_slot import DemandModel, ModelSlot
from kopt.serving.demand.health import PSI_NOTICE, alarm, population_stability
from kopt.serving.demand.lending_advice import Adviser
from kopt.serving.demand.monitoring import PredictionTable, Row, SeriesState
from kopt.serving.demand.service import Observation
from kopt.serving.http.metrics import EndpointMetrics
from kopt.serving.http.sharing import KeptByCaller, Shares

_LOG = logging.getLogger(__name__)
_QUEUE = 512
_MOST_SERIES = 20_000
_ALARMS_EVERY_S = 2.0
_PRUNE_EVERY_S = 600.0
_AGAIN_S = 2.0
"""After the database has failed."""
_MOST_ALARMS = 0.1
"""Share of series with a drift alarm from which on a challenger answers nobody."""
_SHARE = 0.2
"""Share of time in which this thread may work: it shares the interpreter with the requests."""


class TableObserver:
    """Writes answers to the PredictionTable, matches actuals, runs the challenger and tracks alarms.

    A series counts once per bucket, however often it is requested. When the queue is full, or a caller has used its
    share of it, observations are dropped and counted: callers never wait for the disk.
    """

    def __init__(
        self,
        table: PredictionTable,
        metrics: EndpointMetrics,
        *,
        champion: ModelSlot | None = None,
        challenger: ModelSlot | None = None,
        adviser: Adviser | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table, self._metrics, self._challenger, self._adviser = table, metrics, challenger, adviser
        self._champion, self._clock = champion, clock
        self.challenger_drift: Reason | None = None
        self._newest_ends: KeptByCaller[str, float] = KeptByCaller(_MOST_SERIES)
        self._alarms: KeptByCaller[str, Reason] = KeptByCaller(_MOST_SERIES)
        self._queued, self._lock = Shares(_QUEUE), threading.Lock()
        self._queue: queue.SimpleQueue[Observation | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def start(self) -> None:
        with contextlib.suppress(DatabaseError):
            self._read_alarms()
        self._thread = threading.Thread(target=self._work, name="observer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish what is queued, then end."""
        if self._thread is not None:
            self._ending.set()
            self._queue.put(None)
            self._thread.join(timeout=10.0)
            self._thread = None

    def distrusted(self, caller: str, name: str) -> Reason | None:
        return self._alarms.get(caller, name)

    def wants(self, caller: str, series: DemandSeries) -> bool:
        end_s = series.start_s + len(series) * series.step_s
        with self._lock:
            if self._newest_ends.get(caller, series.name) == end_s:
                return False
            self._newest_ends.put(caller, series.name, end_s)
        return True

    def observe(self, observation: Observation) -> None:
        with self._lock:
            fits = self._queued.acquire(observation.caller)
        if not fits:
            self._metrics.dropped.inc()
            return
        self._queue.put_nowait(observation)

    def _work(self) -> None:
        alarms_at = prune_at = time.monotonic()
        while True:
            try:
                observation = self._queue.get(timeout=_ALARMS_EVERY_S)
            except queue.Empty:
                observation = None
            else:
                if observation is None:
                    return
                with self._lock:
                    self._queued.release(observation.caller)
            began = time.monotonic()
            try:
                if observation is not None:
                    self._handle_once_kept(observation)
                if time.monotonic() >= alarms_at:
                    self._read_alarms()
                    alarms_at = time.monotonic() + _ALARMS_EVERY_S
                if time.monotonic() >= prune_at:
                    self._table.prune(self._clock())
                    prune_at = time.monotonic() + _PRUNE_EVERY_S
            except DatabaseError as error:
                _LOG.warning("the database does not take what is observed: %s", error)
            except Exception:  # noqa: BLE001 - edge of a thread: the table must never take the endpoint down
                _LOG.exception("an observation was lost")
            self._ending.wait((time.monotonic() - began) * (1 / _SHARE - 1))

    def _handle_once_kept(self, observation: Observation) -> None:
        """Again until the database takes it, or the end; meanwhile the queue fills, and then drops the newest."""
        while True:
            try:
                return self.handle(observation)
            except DatabaseError as error:
                _LOG.warning("predictions are compared later: %s", error)
                if self._ending.wait(_AGAIN_S):
                    raise

    def handle(self, observation: Observation) -> None:
        """Match, evaluate and record one observation (on the observer's thread; tests call it directly)."""
        self._table.match(observation.caller, observation.series)
        drift = population_stability(observation.series.value)
        champion = None if self._champion is None else self._champion.current
        challenger = None if self._challenger is None else self._challenger.current
        by_challenger = challenger is not None and any(
            each.model == challenger.version for each in observation.evaluated
        )
        self._evaluate(observation, CHAMPION, drift)
        evaluated = _unserved_answers(champion, observation) if by_challenger else observation.evaluated
        self._table.add(_rows(observation, CHAMPION, evaluated))
        if challenger is not None:
            self._evaluate(observation, CHALLENGER, None)
            evaluated = observation.evaluated if by_challenger else _unserved_answers(challenger, observation)
            self._table.add(_rows(observation, CHALLENGER, evaluated))
        if self._adviser is not None:
            self._adviser.observe(observation)

    def _evaluate(self, observation: Observation, role: str, drift: float | None) -> None:
        name = observation.entry.name
        matched = self._table.matched(observation.caller, name, role)
        alarmed, reasons = alarm(matched, role == CHAMPION and self.distrusted(observation.caller, name) is not None)
        if drift is not None and drift > PSI_NOTICE:
            text = f"Demand has moved: stability index {drift:.2f}, above {PSI_NOTICE:g}, against the days before."
            reasons = (*reasons, Reason("DRIFT", text, {"psi": drift}))
        state = SeriesState(
            observation.caller,
            name,
            role,
            len(matched),
            matched.coverage,
            matched.quantile,
            matched.error,
            matched.error_last_value,
            drift,
            alarmed,
            reasons,
            self._clock(),
        )
        self._table.put_state(state)
        if role == CHAMPION:
            self._set_alarm(state)

    def _set_alarm(self, state: SeriesState) -> None:
        if not state.alarm:
            self._alarms.pop(state.caller, state.series)
            return
        why = state.reasons[0].message if state.reasons else "Too few new actuals to trust the model again."
        text = f"The model is not trusted for this series now. {why}"
        self._alarms.put(state.caller, state.series, Reason("DRIFT_ALARM", text))

    def _read_alarms(self) -> None:
        """The alarms that other replicas have recorded."""
        states = self._table.states(limit=_MOST_SERIES)
        for state in states:
            if state.role == CHAMPION:
                self._set_alarm(state)
        self.challenger_drift = _drift([state for state in states if state.role == CHALLENGER and state.matched])


def _unserved_answers(model: DemandModel | None, observation: Observation) -> Sequence[Prediction]:
    """What a model that has not answered would have."""
    if model is None:
        return ()
    horizons = [horizon.horizon_s for horizon in observation.answer.horizons]
    return model.forecast(observation.series.resampled(), horizons, observation.quantiles)


def _drift(states: Sequence[SeriesState]) -> Reason | None:
    """Why the challenger cannot be trusted: it has alarms on too many of the series that it was compared on."""
    alarms = sum(state.alarm for state in states)
    if alarms <= _MOST_ALARMS * len(states):
        return None
    text = f"The challenger has a drift alarm on {alarms} of {len(states)} series."
    return Reason("DRIFT_ALARM", text, {"alarms": alarms, "series": len(states)})


def _rows(observation: Observation, role: str, predictions: Sequence[Prediction]) -> list[Row]:
    end_s = observation.series.start_s + len(observation.series) * observation.series.step_s
    bucket_s = observation.answer.bucket_s
    rows = []
    for prediction in predictions:
        median, upper_q = prediction.value, _upper(observation.quantiles)
        if median is None or prediction.horizon_s is None or upper_q not in prediction.quantiles:
            continue
        ahead = max(1, int(prediction.horizon_s // bucket_s))
        rows.append(
            Row(
                observation.caller,
                observation.entry.name,
                role,
                int(prediction.horizon_s),
                end_s + (ahead - 1) * bucket_s,
                observation.at_s,
                prediction.model.version,
                bucket_s,
                float(prediction.quantiles.get(0.5, median)),
                float(prediction.quantiles[upper_q]),
                upper_q,
                _last(observation),
            )
        )
    return rows


def _upper(quantiles: Sequence[float]) -> float:
    """The quantile whose coverage is watched: the one nearest 0.95."""
    return min(quantiles, key=lambda q: abs(q - 0.95))


def _last(observation: Observation) -> float:
    value = observation.series.resampled().value
    finite = value[value == value]
    return float(finite[-1]) if len(finite) else 0.0
