"""One followed job: its session, which lines have arrived, and the history of its states."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from kopt.core.workload.checkpoint import Estimate, Evidence, JobState, JobStatus
from kopt.models.checkpoint.classifier.lines import LineClassifier
from kopt.models.checkpoint.files import FileFact, FolderWatch, Unit
from kopt.models.checkpoint.session import Session
from kopt.serving.checkpoint.epochs import JobEpochs
from kopt.serving.checkpoint.redaction import kept_text

_FORM = 3
MOST_CHANGES = 150
MOST_SOURCES = 4096
_MOST_LISTERS = 32
_MOST_OWN_FOLDERS = 16
_GONE_S = 600.0
"""After so long without a look a pod is taken to be gone, and others stand in its place."""
_SAME_SAVE_S = 30.0
"""How long after its files are written a save is reported at the latest."""
MAX_DOCUMENT = 1 << 20
"""Limit in characters for a stored job."""
_CHANGE_TEXT = 160
_TELLING = frozenset({JobState.CKPT_WRITING, JobState.CKPT_DONE, JobState.CKPT_FAILED, JobState.CRASHED, JobState.OOM})
_TELLING_WEIGHT = 50.0


@dataclass(frozen=True, slots=True)
class Change:
    """From ``at_s`` on the job was in this state; ``line`` and ``text`` said so."""

    at_s: float
    state: str
    safe: bool
    line: int | None
    text: str

    def to_dict(self) -> dict[str, Any]:
        return {"at": self.at_s, "state": self.state, "safe": self.safe, "line": self.line, "text": self.text}


class FollowedJob:
    """``next`` and ``missed`` count lines per source; ``gpus`` stop when the job is killed."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.gpus = 1.0
        self.next: dict[str, int] = {}
        self.missed: dict[str, int] = {}
        self.changes: list[Change] = []
        self.folders: dict[str, FolderWatch] = {}
        self.own_folders: list[str] = []
        self.epochs = JobEpochs()
        self._gap_line: int | None = None

    def read_lines(
        self, texts: Sequence[str], arrivals_s: Sequence[float | None], source: str, first: int | None, now_s: float
    ) -> int:
        """Read the lines that are new; returns how many there were.

        ``first``: the number of the first of them, None where they follow those before.
        """
        expected = self.next.get(source, 1)
        first = expected if first is None else first
        read_before = min(len(texts), max(0, expected - first))
        if read_before == len(texts):
            return 0
        if first > expected:
            self._miss(source, first - expected)
        self.next.pop(source, None)
        self.next[source] = first + len(texts)
        while len(self.next) > MOST_SOURCES:
            self.missed.pop(oldest := next(iter(self.next)), None)
            del self.next[oldest]
        # The sender's clock may be ahead: a time in the future would hide that the job is silent.
        times = [None if at is None else min(at, now_s) for at in arrivals_s[read_before:]]
        fresh = texts[read_before:]
        for text, time_s, _ in zip(fresh, times, self.session.read(fresh, times, source), strict=True):
            at_s = now_s if time_s is None else time_s
            self._record_state(at_s, self.session.machine.state)
            self.epochs.read(source, text, at_s)
        # Times in the lines may be of another time zone: no line that was read lies in the future.
        self.session.machine.clamp_clock(now_s)
        if len(self.changes) > MOST_CHANGES:
            self.changes = condensed(self.changes, MOST_CHANGES)
        return len(texts) - read_before

    def _miss(self, source: str, count: int) -> None:
        self.missed[source] = self.missed.get(source, 0) + count
        self._gap_line = self.session.lines

    @property
    def _doubt(self) -> str:
        """Why the state is uncertain: a write may have begun in lines that never arrived."""
        durable = self.session.machine.durable
        if self._gap_line is None or durable is None:
            return ""
        if durable.line is not None and durable.line > self._gap_line:
            return ""
        count = sum(self.missed.values())
        return (
            f"{count:,} lines are missing, the last before line {self._gap_line + 1}; a checkpoint may be in its write "
            "until another one is seen whole."
        )

    def list_folder(self, listing: Sequence[FileFact], at_s: float, by: str = "") -> None:
        """What lay in the job's checkpoint folders at ``at_s``; ``by`` whom they were looked at."""
        watch = self.folders.pop(by, None) or FolderWatch()
        self.folders[by] = watch
        while len(self.folders) > _MOST_LISTERS:
            del self.folders[next(iter(self.folders))]
        watch.observe(listing, at_s)

    def _check_folder(self, now_s: float) -> str:
        """Record complete checkpoints in the folders; returns why the job is not safe to kill, if so."""
        machine, writing, whole = self.session.machine, "", False
        for watch in self.folders.values():
            self._learn_folders(watch)
            folder = watch.view(now_s, self.own_folders)
            writing = writing or folder.writing
            if folder.durable is not None:
                unit = folder.durable
                machine.record_durable(unit.name, folder.step, unit.first_s, unit.last_s)
                whole = whole or (watch.recent(now_s) and self._shows_last_save(unit))
        self.session.files, self.session.alone = whole, whole and self._files_suffice(now_s)
        if writing:
            return f"The checkpoint folder shows that {writing} is being written."
        announced = not machine.statistics.unannounced_ends
        doubts = (watch.rhythm.doubt_beside_log(now_s, announced=announced) for watch in self._watched(now_s))
        return next(filter(None, doubts), "")

    def _watched(self, now_s: float) -> list[FolderWatch]:
        """The folders of pods that are still there, as far as anything lies in them."""
        return [
            watch for watch in self.folders.values() if watch.units and now_s - (watch.listed_at_s or now_s) < _GONE_S
        ]

    def _files_suffice(self, now_s: float) -> bool:
        """Whether files show without the log that the job may be stopped: those of every pod that has any."""
        doubts = [watch.doubt_alone(now_s) for watch in self._watched(now_s)]
        return bool(doubts) and not any(doubts)

    def _shows_last_save(self, unit: Unit) -> bool:
        """Whether the last save is this one: it may have gone elsewhere, where nobody looks."""
        durable = self.session.machine.durable
        return durable is None or durable.at_s is None or unit.last_s >= durable.at_s - _SAME_SAVE_S

    def _learn_folders(self, watch: FolderWatch) -> None:
        """A folder that nobody named is the job's once a checkpoint in it names the step that the job was at then.

        On a shared volume lie other jobs' checkpoints, too, and the model that this one began with. In a volume that no
        other job writes into, saves that were alike are its own, whatever they are called.
        """
        machine = self.session.machine
        for unit in watch.units.values():
            if not unit.folder or unit.folder in self.own_folders:
                continue
            saved = unit.name in watch.rhythm.saved_names
            if saved or (unit.step is not None and machine.was_at(unit.step, unit.first_s, unit.last_s)):
                self.own_folders = [*self.own_folders, unit.folder][-_MOST_OWN_FOLDERS:]

    def confirm_folder(self, at_s: float, by: str = "") -> None:
        """What was listed last still lay there at ``at_s``."""
        if (watch := self.folders.get(by)) is not None:
            watch.confirm(at_s)

    def record(self, step: int | None, at_s: float) -> bool:
        """A checkpoint that the job's pods report by annotation; returns whether it is newer than the last one."""
        return self.session.machine.claim_durable(step, at_s)

    def status(self, now_s: float) -> JobStatus:
        """The job's status now, with work at risk for all its GPUs and redacted text."""
        writing = self._check_folder(now_s)
        job_status = self.session.status(now_s if self.session.live else None)
        doubt = self._doubt or writing
        if doubt and job_status.safe:
            job_status = replace(job_status, safe=False, next_safe_seconds=None, reason=doubt)
        elif doubt and job_status.durable_evidence is Evidence.FILES:
            # That the log says nothing is no news.
            job_status = replace(job_status, reason=doubt)
        risk = job_status.work_at_risk_gpu_seconds
        return replace(
            job_status,
            work_at_risk_gpu_seconds=risk and _times(risk, self.gpus / max(1, self.session.gpus)),
            evidence_text=kept_text(job_status.evidence_text),
        )

    def pass_time(self, now_s: float) -> bool:
        """Record a state change caused by silence alone; returns whether there is one."""
        job_status = self.status(now_s)
        return bool(self.changes) and self._record_state(now_s, job_status.state, safe=job_status.safe)

    def _record_state(self, at_s: float, state: JobState, *, safe: bool | None = None) -> bool:
        safe = (self.session.safe and not self._doubt) if safe is None else safe
        last = self.changes[-1] if self.changes else None
        if last is not None and last.state == state and last.safe == safe:
            return False
        line, text = self.session.machine.evidence
        self.changes.append(Change(at_s, state.value, safe, line or None, kept_text(text, _CHANGE_TEXT)))
        if len(self.changes) > 4 * MOST_CHANGES:
            self.changes = condensed(self.changes, MOST_CHANGES)
        return True

    def to_dict(self) -> dict[str, Any]:
        """The job as JSON, for another replica to resume. Of the log it holds only truncated lines of evidence."""
        return {
            "form": _FORM,
            "session": self.session.to_dict(kept_text),
            "gpus": self.gpus,
            "next": self.next,
            "missed": self.missed,
            "folder": self.folders[""].to_dict() if "" in self.folders else None,
            "own_folders": self.own_folders,
            "folders": {by: watch.to_dict() for by, watch in self.folders.items() if by},
            "gap_line": self._gap_line,
            "epochs": self.epochs.to_dict(),
            "changes": [asdict(change) for change in self.changes],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], classifier: LineClassifier) -> "FollowedJob":
        """Raises ValueError for a document of another version, or one that ``to_dict`` did not write."""
        try:
            if document["form"] != _FORM:
                raise ValueError("a job of another version")
            job = cls(Session.from_dict(document["session"], classifier))
            job.gpus = float(document["gpus"])
            job.next = {str(source): int(number) for source, number in document["next"].items()}
            job.missed = {str(source): int(number) for source, number in document["missed"].items()}
            folders = {"": document["folder"], **document.get("folders", {})}
            job.own_folders = [str(folder) for folder in document.get("own_folders", ())]
            job.folders = {by: FolderWatch.from_dict(watch) for by, watch in folders.items() if watch is not None}
            job.epochs = JobEpochs.from_dict(document.get("epochs", {}))
            job._gap_line = None if document["gap_line"] is None else int(document["gap_line"])
            job.changes = [Change(**item) for item in document["changes"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no stored job ({error!r})") from error
        return job

    def begun_anew(self) -> "FollowedJob":
        """The job with its line counts but without state: not safe until a checkpoint is seen."""
        fresh = FollowedJob(Session(self.session.classifier))
        fresh.session.lines, fresh.session.live = self.session.lines, self.session.live
        fresh.gpus, fresh.next, fresh.missed = self.gpus, dict(self.next), dict(self.missed)
        fresh.changes = self.changes[-1:]
        fresh.epochs = self.epochs
        fresh.folders, fresh.own_folders, fresh._gap_line = self.folders, self.own_folders, self.session.lines
        return fresh


def condensed(changes: Sequence[Change], most: int) -> list[Change]:
    """The most informative changes: first and last, those around writes, and long-lasting states."""
    spans = [after.at_s - before.at_s for before, after in pairwise(changes)] + [math.inf]
    weights = [
        (1.0 + max(0.0, span)) * (_TELLING_WEIGHT if JobState(change.state) in _TELLING else 1.0)
        for change, span in zip(changes, spans, strict=True)
    ]
    weights[0] = math.inf
    best = sorted(sorted(range(len(changes)), key=lambda at: -weights[at])[:most])
    result: list[Change] = []
    for change in (changes[at] for at in best):
        if not result or (result[-1].state, result[-1].safe) != (change.state, change.safe):
            result.append(change)
    return result


def _times(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(estimate.value * factor, estimate.low * factor, estimate.high * factor)
