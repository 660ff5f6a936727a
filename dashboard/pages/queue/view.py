"""The page of queues: what runs and waits in each, and why what waits does."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kopt.core.scheduling.diagnosis import ChangeKind, Diagnosis, StartEstimate
from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.queued import Explanation, Queued, QueueState, State
from kopt.core.units import format_gpus
from kopt.dashboard.formatting import span

MOST_QUEUES = 20
MOST_RUNNING = 10
"""Of each queue."""
MOST_PENDING = 40
"""Of all queues together: each is explained."""
LONGEST_NAME = 507
"""Of a namespace, a slash and a name."""
_KUEUE = "workloads.kueue.x-k8s.io"
_SCHEDULERS = {
    _KUEUE: "Kueue",
    "podgroups.scheduling.run.ai": "KAI",
    "podgroups.scheduling.volcano.sh": "Volcano",
}
_PART = re.compile(r"[^\s/]+")
_BADGES = {State.RUNNING: "ok", State.STARTING: "fallback", State.EVICTING: "stale", State.STOPPED: "refused"}


@dataclass(frozen=True)
class QueueChoice:
    """What the reader asked for: a ``text`` in namespace/name, and one ``job``, None where it is not written so."""

    text: str = ""
    job: tuple[str, str] | None = None
    problem: str = ""

    @classmethod
    def parse(cls, text: str, job: str) -> "QueueChoice":
        if not job:
            return cls(text)
        parts = job[:LONGEST_NAME].split("/")
        if len(job) > LONGEST_NAME or len(parts) != 2 or not all(map(_PART.fullmatch, parts)):
            return cls(text, None, "This address names no workload: it has to end in job=NAMESPACE/NAME.")
        return cls(text, (parts[0], parts[1]))

    def takes(self, queued: Queued) -> bool:
        return self.text.casefold() in queued.full_name.casefold()


@dataclass(frozen=True)
class Start:
    """When it starts, in words: half of the draws by ``p50``, nine of ten by ``p90``; ``note``: what is not known."""

    p50: str = ""
    p90: str = ""
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A workload in words. ``why`` is the most important sentence, ``more`` how many others there are. Of what waits:
    ``code`` of what binds, the smallest ``change`` with which it would run, and its ``start``."""

    queued: Queued
    gpus: str
    badge: str
    age: str
    command: str
    why: str = ""
    more: int = 0
    next: str = ""
    code: str = ""
    change: str = ""
    start: Start | None = None


@dataclass(frozen=True)
class QueueCard:
    """A queue. ``pending`` and ``running`` are how many are in it, of ``omitted`` there are no rows."""

    name: str
    rows: tuple[Row, ...]
    running: int
    pending: int
    used: str
    wanted: str
    omitted: int


@dataclass(frozen=True)
class Selected:
    """The workload that the address names. ``rows`` is empty where none has the name."""

    name: str
    command: str
    explained: tuple[tuple[Row, Explanation], ...] = ()


@dataclass(frozen=True)
class QueuePage:
    """Of ``matching`` workloads among ``total``; ``omitted_queues`` have no card.

    ``absent``: queueing systems that are not installed.
    """

    state: QueueState
    cards: tuple[QueueCard, ...]
    selected: Selected | None
    matching: int
    total: int
    running: int
    pending: int
    used: str
    wanted: str
    omitted_queues: int
    absent: tuple[str, ...]


def queue_page(state: QueueState, choice: QueueChoice | None = None) -> QueuePage:
    """Everything that the page says. It takes as long as its explanations: call it in a thread."""
    wanted = choice or QueueChoice()
    matching = [queued for queued in state.queued if wanted.takes(queued)]
    queues = [(name, list(several)) for name, several in groupby(matching, lambda queued: queued.queue)]
    # Queues in which something waits are what the page is read for.
    queues.sort(key=lambda item: all(queued.has_gpus for queued in item[1]))
    displayed = queues[:MOST_QUEUES]
    pending = [queued for _, several in displayed for queued in several if not queued.has_gpus][:MOST_PENDING]
    selected = [queued for queued in state.queued if (queued.namespace, queued.name) == wanted.job][:MOST_PENDING]
    reasons = state.explain([*pending, *selected]) if pending or selected else {}
    explained = {queued.uid for queued in pending}
    run, wait = _split(state.queued)
    return QueuePage(
        state,
        tuple(_card(name, several, explained, reasons, state.now_s) for name, several in displayed),
        _selected(wanted.job, selected, reasons, state.now_s),
        len(matching),
        len(state.queued),
        len(run),
        len(wait),
        _gpus(run),
        _gpus(wait),
        len(queues) - len(displayed),
        tuple(name for kind, name in _SCHEDULERS.items() if kind in state.missing),
    )


def _split(several: Iterable[Queued]) -> tuple[list[Queued], list[Queued]]:
    """What has GPUs, and what waits for them."""
    run: list[Queued] = []
    wait: list[Queued] = []
    for queued in several:
        (run if queued.has_gpus else wait).append(queued)
    return run, wait


def _gpus(several: Iterable[Queued]) -> str:
    return format_gpus(sum(queued.gpus for queued in several))


def _card(
    name: str, several: Sequence[Queued], explained: set[str], reasons: Mapping[str, Explanation], now_s: float
) -> QueueCard:
    run, wait = _split(several)
    rows = [*(queued for queued in wait if queued.uid in explained), *run[:MOST_RUNNING]]
    return QueueCard(
        name,
        tuple(_row(queued, reasons.get(queued.uid), now_s) for queued in rows),
        len(run),
        len(wait),
        _gpus(run),
        _gpus(wait),
        len(several) - len(rows),
    )


def _row(queued: Queued, reason: Explanation | None, now_s: float) -> Row:
    sentences = reason.sentences if reason else ()
    row = Row(
        queued,
        format_gpus(max(0, queued.gpus)),
        _BADGES.get(queued.state, "pending"),
        "" if queued.since_s is None else span(max(0.0, now_s - queued.since_s)),
        _command(queued.namespace, queued.name),
        _why(queued, sentences),
        max(0, len(sentences) - 1),
        reason.next if reason else "",
    )
    diagnosis = reason.diagnosis if reason else None
    if queued.has_gpus or diagnosis is None:
        return row
    if diagnosis.causes:
        cause = diagnosis.causes[0]
        row = replace(row, code=cause.code.value, why=cause.message, more=len(sentences))
    return replace(row, change=_change(diagnosis), start=_start(diagnosis.start))


def _why(queued: Queued, sentences: Sequence[str]) -> str:
    if not queued.has_gpus:
        return sentences[0] if sentences else queued.message
    own = "On GPUs of its queue." if queued.system is System.KUEUE else "–"
    return f"On GPUs that LendingPool {queued.pool} lends." if queued.pool else queued.message or own


def _change(diagnosis: Diagnosis) -> str:
    """What its owner can do; only where there is nothing, what it has to wait for."""
    changes = sorted(diagnosis.changes, key=lambda change: change.kind is ChangeKind.WAIT)
    if not changes:
        return ""
    message = changes[0].message
    return message if changes[0].kind is ChangeKind.WAIT else f"It would run with this change: {message}"


def _start(estimate: StartEstimate) -> Start | None:
    note = estimate.reason.message if estimate.reason is not None else ""
    if estimate.p50_s is None:
        return Start(note=note) if note else None
    return Start(span(estimate.p50_s), "" if estimate.p90_s is None else span(estimate.p90_s), note)


def _selected(
    job: tuple[str, str] | None, selected: Sequence[Queued], reasons: Mapping[str, Explanation], now_s: float
) -> Selected | None:
    if job is None:
        return None
    rows = ((_row(queued, reasons.get(queued.uid), now_s), reasons.get(queued.uid)) for queued in selected)
    return Selected("/".join(job), _command(*job), tuple((row, reason) for row, reason in rows if reason is not None))


def _command(namespace: str, name: str) -> str:
    """Quoted: whoever writes an object chooses what its readers paste."""
    return f"kopt why {shlex.quote(f'{namespace}/{name}')}"
