"""Why a workload waits, as an Event on it: where ``kubectl describe`` shows it to those who ask nobody else.

An Event is written when the diagnosis is another one than before: another cause, another smallest change, or a start
that moved back by half. It stays for as long as the API server keeps Events; nothing of the workload itself is written.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kopt.cluster.client.resources import KUEUE_WORKLOADS, Object
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.workloads.kinds import BY_KEY
from kopt.controllers.overview.diagnosis.words import start_sentence
from kopt.core.scheduling.diagnosis import Change, ChangeKind, Diagnosis
from kopt.core.scheduling.queued import Explanation, Queued, QueueState
from kopt.core.switches import Owner, Switches
from kopt.core.units import format_span

FEATURE = "diagnoses"
REASON, ACTION = "WaitsBecause", "Diagnosing"
MOST_EXPLAINED = 40
"""Workloads of those that wait, in their lines' order, that are diagnosed for Events."""
QUIET_S = 600.0
"""A workload gets no second Event within this time."""
_MOVED = math.log(1.5)
_KINDS = {kind.resource.kind: kind.resource for kind in BY_KEY.values()} | {"Workload": KUEUE_WORKLOADS}


class Recorder(Protocol):
    """``cluster.runtime.events.EventRecorder``."""

    def record(self, regarding: Object, reason: str, action: str, note: str, *, once: bool = False) -> None: ...


@dataclass(frozen=True)
class DiagnosisEvent:
    """``about`` is what has to stay the same for the diagnosis to be the same one."""

    about: tuple[str, ...]
    median_s: float | None
    text: str

    def differs(self, other: "DiagnosisEvent") -> bool:
        if self.about != other.about or (self.median_s is None) is not (other.median_s is None):
            return True
        if self.median_s is None or other.median_s is None:
            return False
        # A start that comes nearer as time passes is no news.
        return math.log(max(60.0, self.median_s) / max(60.0, other.median_s)) > _MOVED


@dataclass(frozen=True)
class _Written:
    event: DiagnosisEvent
    at_s: float


def event_of(diagnosis: Diagnosis, now_s: float) -> DiagnosisEvent | None:
    """Cause, since when, the smallest verified change and the start, in sentences; None where nothing binds."""
    if not diagnosis.causes:
        return None
    cause, change = diagnosis.causes[0], _smallest(diagnosis.changes)
    since = "" if cause.since_s is None else f" It waits for {format_span(max(0.0, now_s - cause.since_s))}."
    would = "" if change is None else f" It would run with this change, which was checked: {change.message}"
    start = start_sentence(diagnosis.start)
    sentences = f"{diagnosis.scheduler}: {cause.message}{since}{would}{' ' + start if start else ''}"
    about: tuple[str, ...] = (cause.code.value, cause.about)
    if change is not None:
        about = (*about, change.kind.value, change.pod_set, change.rule)
    return DiagnosisEvent(about, diagnosis.start.p50_s, sentences)


def _smallest(changes: Sequence[Change]) -> Change | None:
    """The one that costs its owner least; waiting is none, the start says when that ends."""
    return next((change for change in changes if change.verified and change.kind is not ChangeKind.WAIT), None)


class DiagnosisEvents:
    """Tells what waits in a queue's state why it does. ``switches`` are those of now; ``hide`` takes names of workloads
    of other namespaces than the one given out of an explanation."""

    def __init__(
        self,
        recorder: Recorder,
        switches: Callable[[], Switches],
        hide: Callable[[Explanation, str], Explanation],
    ) -> None:
        self._recorder, self._switches, self._hide = recorder, switches, hide
        self._written: dict[str, _Written] = {}

    def wanted(self, state: QueueState) -> list[Queued]:
        """What is to be explained, by the switch; nothing where that is off."""
        switches = self._switches()
        if not switches.percent(FEATURE):
            return []
        pending = [queued for queued in state.queued if queued.position is not None]
        return [queued for queued in pending if switches.includes(FEATURE, _owner(queued))][:MOST_EXPLAINED]

    def write(self, wanted: Sequence[Queued], explained: Mapping[str, Explanation], now_s: float) -> int:
        """How many Events were recorded. Nothing in the explanations makes this raise."""
        written = 0
        for queued in wanted:
            explanation = explained.get(queued.uid)
            if explanation is not None and explanation.diagnosis is not None:
                written += self._write(queued, explanation, now_s)
        names = {queued.uid for queued in wanted}
        self._written = {
            uid: item for uid, item in self._written.items() if uid in names or now_s - item.at_s < QUIET_S
        }
        return written

    def _write(self, queued: Queued, explanation: Explanation, now_s: float) -> bool:
        regarding = _regarding(explanation)
        diagnosis = self._hide(explanation, queued.namespace).diagnosis
        event = None if diagnosis is None else event_of(diagnosis, now_s)
        if regarding is None or event is None:
            return False
        before = self._written.get(queued.uid)
        if before is not None and (now_s - before.at_s < QUIET_S or not event.differs(before.event)):
            return False
        self._recorder.record(regarding, REASON, ACTION, event.text, once=True)
        self._written[queued.uid] = _Written(event, now_s)
        return True


def _owner(queued: Queued) -> Owner:
    resource = _KINDS.get(queued.kind)
    return Owner.of(resource.plural if resource is not None else queued.kind, queued.namespace, queued.name)


def _regarding(explanation: Explanation) -> Object | None:
    """The job, or what stands in the queue for it; None for kinds that are not known."""
    job = mapping(explanation.document, "job")
    resource = _KINDS.get(text(job, "kind"))
    if resource is None or not text(job, "name"):
        return None
    return resource.reference(text(job, "namespace"), text(job, "name"), text(job, "uid"))
