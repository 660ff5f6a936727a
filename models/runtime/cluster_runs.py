"""What an endpoint keeps of one cluster's runs: their history, and per queue how answers have held."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from kopt.core.workload.run_time import LEVELS, JobKind, JobRun
from kopt.features.job_history import (
    Array,
    Described,
    EndedRuns,
    GroupState,
    JobHistory,
    Key,
    described,
    groups_of,
    in_order,
    named_key,
)
from kopt.features.run_rows import Calibration
from kopt.models.runtime.recent import recent_quantiles
from kopt.models.runtime.records import NameRecord, QueueRecord, pinball

_MOST_PENDING = 100_000


class Quantiles(Protocol):
    """A model: quantiles (n, 7) of the log time less its base, for features (n, F)."""

    def predict(self, features: Array) -> Array: ...


@dataclass(frozen=True, slots=True)
class _Pending:
    """Of a job that goes on, in log seconds: the model's quantiles before offsets, what was answered when it started,
    and what its last runs alone said."""

    model: Array
    answered: Array
    recent: Array | None
    is_named: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that ended: the quantiles (7,) that were answered when it started, and those of its last runs alone (None
    where there were none), beside what it took; in log seconds."""

    run: JobRun
    answered: Array
    recent: Array | None
    log_seconds: float


class ClusterRuns:
    """Fed in the order in which things became known. Not safe for several threads."""

    def __init__(self, model: Quantiles) -> None:
        self._model = model
        self.history = JobHistory()
        self.queues: dict[str, QueueRecord] = {}
        self._names: dict[JobKind, NameRecord] = {}
        self._pending: OrderedDict[str, _Pending] = OrderedDict()

    def answer_by(self, model: Quantiles) -> None:
        """From now on; how answers have held goes on being kept, and what goes on stays answered as it was."""
        self._model = model

    def observe(
        self,
        runs: Sequence[JobRun],
        *,
        answer_last: int | None = None,
        on_answer: Callable[[JobRun, Array, Array | None], None] | None = None,
    ) -> list[Outcome]:
        """Runs that started or ended, in any order; a run may come twice, first without its end. Returns how answers
        about those that ended have held. Only the ``answer_last`` of them that started last are answered (all by
        default): long histories are read in less time so. ``on_answer`` is called with each run that started, its
        quantiles (7,) in log seconds, and those of its last runs alone."""
        answered = runs if answer_last is None else sorted(runs, key=lambda run: run.started_s)[-answer_last:]
        answered_jobs = {run.job for run in answered}
        started: list[tuple[JobRun, Described, Array | None]] = []
        steps: list[tuple[JobRun, int | None]] = []
        for at_s, has_ended, run in in_order(runs):
            if has_ended:
                self.history.end(run)
                steps.append((run, None))
            elif not self.history.is_running(run.job):
                if run.job in answered_jobs:
                    steps.append((run, len(started)))
                    started.append((run, self.history.describe(run.kind, at_s), self._recent(run.kind)))
                self.history.start(run)
        models = self._answers([described for _, described, _ in started])
        outcomes = []
        for run, at in steps:
            if at is not None:
                self._started(run, models[at], *started[at][1:])
                if on_answer is not None:
                    pending = self._pending[run.job]
                    on_answer(run, pending.answered, pending.recent)
            elif (outcome := self._ended(run)) is not None:
                outcomes.append(outcome)
        while len(self._pending) > _MOST_PENDING:
            self._pending.popitem(last=False)
        return outcomes

    def quantiles(self, kind: JobKind, at_s: float, job: str = "") -> tuple[Array, Described, QueueRecord]:
        """Quantiles (7,) in log seconds of a job that starts then. Of a ``job`` whose start was seen: what was known
        at its start, as in training."""
        described = self.history.describe(kind, at_s)
        record = self.queues.get(kind.queue, _FRESH)
        pending = self._pending.get(job)
        if pending is None:
            pending = self._pending_of(kind, self._answers([described])[0], described, self._recent(kind))
        return self._answer(kind, pending), described, record

    def quantiles_of_all(self, starts: Sequence[tuple[JobKind, float, str]]) -> list[Array]:
        """Quantiles (7,) in log seconds of many jobs, each given as to ``quantiles``; the model is asked once about all
        whose start was not seen."""
        new = {(kind, at_s): kind for kind, at_s, job in starts if job not in self._pending}
        described = [self.history.describe(kind, at_s) for kind, at_s in new]
        pendings = {
            key: self._pending_of(kind, model, of_kind, self._recent(kind))
            for (key, kind), model, of_kind in zip(new.items(), self._answers(described), described, strict=True)
        }
        return [
            self._answer(kind, self._pending[job] if job in self._pending else pendings[kind, at_s])
            for kind, at_s, job in starts
        ]

    def ended(self, kind: JobKind) -> tuple[EndedRuns, ...]:
        """How long the last runs took that are like it, the nearest first."""
        return self.history.ended(kind)

    def has_drifted(self, kind: JobKind) -> bool:
        """Whether its queue is answered by the last runs alone."""
        return self.queues.get(kind.queue, _FRESH).has_drifted

    def calibrations(self, kinds: Iterable[JobKind] | None = None) -> dict[Key, Calibration]:
        """How answers have held, by queue and by name, of the queues and names of ``kinds`` or of all."""
        selected = None if kinds is None else set(kinds)
        queues = self.queues.keys() if selected is None else {kind.queue for kind in selected} & self.queues.keys()
        names = self._names.keys() if selected is None else selected & self._names.keys()
        held = {("queue", queue): self.queues[queue].calibration() for queue in queues}
        shares = {kind: self._names[kind].recent_share for kind in names}
        return held | {named_key(kind): Calibration(recent_share=share) for kind, share in shares.items()}

    def _recent(self, kind: JobKind) -> Array | None:
        values = self.history.recent_log_seconds(kind)
        return recent_quantiles(values) if values else None

    def _answers(self, described: Sequence[Described]) -> Array:
        if not described:
            return np.zeros((0, len(LEVELS)))
        features = np.array([item.features for item in described])
        result: Array = self._model.predict(features) + np.array([[item.base] for item in described])
        return result

    def _started(self, run: JobRun, model: Array, described: Described, recent: Array | None) -> None:
        self._pending[run.job] = self._pending_of(run.kind, model, described, recent)

    def _pending_of(self, kind: JobKind, model: Array, described: Described, recent: Array | None) -> _Pending:
        pending = _Pending(model, model, recent, described.level == "name")
        return replace(pending, answered=self._answer(kind, pending))

    def _answer(self, kind: JobKind, pending: _Pending) -> Array:
        """The model's quantiles with the queue's offsets, drawn to the last runs of the name, or these alone where the
        model has drifted in the queue."""
        record = self.queues.get(kind.queue, _FRESH)
        tracked = record.tracker.apply(pending.model)
        share = self._names.get(kind, _NEW_NAME).recent_share if pending.is_named else 0.0
        return combined(tracked, pending.recent, share, has_drifted=record.has_drifted)

    def _ended(self, run: JobRun) -> Outcome | None:
        pending = self._pending.pop(run.job, None)
        if pending is None or run.duration_seconds is None:
            return None
        log_seconds = float(np.log(max(1.0, run.duration_seconds)))
        record = self.queues.setdefault(run.kind.queue, QueueRecord())
        tracked = record.tracker.apply(pending.model)
        record.inside.append(bool(pending.answered[0] <= log_seconds <= pending.answered[-1]))
        if pending.recent is not None:
            losses = float(pinball(tracked, log_seconds)), float(pinball(pending.recent, log_seconds))
            record.compare(losses)
            if pending.is_named:
                self._names.setdefault(run.kind, NameRecord()).losses.append(losses)
        record.tracker.observe(pending.model, log_seconds)
        return Outcome(run, pending.answered, pending.recent, log_seconds)


class StoredRuns:
    """What the feature store has of one cluster's runs: enough for a question that names only the kind of the job.

    ``groups`` by key, and the ``calibrations`` of the model's own version by key; what is absent is as at the start.
    """

    def __init__(
        self, model: Quantiles, groups: Mapping[Key, GroupState], calibrations: Mapping[Key, Calibration]
    ) -> None:
        self._model, self._groups, self._calibrations = model, groups, calibrations

    def quantiles(self, kind: JobKind, at_s: float, job: str = "") -> tuple[Array, Described, QueueRecord]:
        """As ``ClusterRuns`` answers."""
        groups, level = groups_of(kind, self._groups, _NOTHING)
        about = described(kind, at_s, level, groups)
        record = QueueRecord.of(self._calibrations.get(("queue", kind.queue)))
        recent = recent_quantiles(groups[0].recent) if groups[0].recent else None
        share = 0.0
        if about.level == "name":
            held = self._calibrations.get(named_key(kind))
            share = _NEW_NAME.recent_share if held is None else held.recent_share
        tracked = record.tracker.apply(self._model.predict(about.features[None])[0] + about.base)
        return combined(tracked, recent, share, has_drifted=record.has_drifted), about, record

    def ended(self, kind: JobKind) -> tuple[EndedRuns, ...]:
        """As ``ClusterRuns`` has it."""
        groups, _ = groups_of(kind, self._groups, _NOTHING)
        return tuple(group.ended() for group in groups)


def combined(tracked: Array, recent: Array | None, share: float, *, has_drifted: bool) -> Array:
    """The model's quantiles (7,) drawn by a ``share`` to those of the last runs, or these alone where it has
    drifted."""
    if recent is None:
        return tracked
    if has_drifted:
        return recent
    if not share:
        return tracked
    result: Array = (1 - share) * tracked + share * recent
    return result


_FRESH, _NEW_NAME, _NOTHING = QueueRecord(), NameRecord(), GroupState()
