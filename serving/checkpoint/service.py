"""Derives a job's state from the lines of its log; behind ``/v1/checkpoint``. One session per caller and job.

One thread per replica reads all jobs, as a classifier's cache is not shared between threads. Accepted lines are read
even when their sender has given up waiting; lines that cannot be accepted are refused (429, 503), so that the sender
knows to send them again. Replicas share the table with optimistic locking: a replica that loses a race reloads the job
and reads its lines again. Where replicas of several machines share it, lines are accepted once they are in it.
"""

import asyncio
import functools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.core.workload.checkpoint import JobState, JobStatus
from kopt.formats.joblog.lines import KEPT_BYTES
from kopt.models.checkpoint.files import FileFact
from kopt.models.checkpoint.predictor import CheckpointPredictor
from kopt.models.checkpoint.session import Session
from kopt.models.registry.aliases import CHALLENGER, SHIPPED
from kopt.models.registry.loading import load_predictor
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.base.model_slot import ModelSource, Slot
from kopt.serving.base.service import PredictorService
from kopt.serving.checkpoint.ends import ReadEnds
from kopt.serving.checkpoint.epochs import SourceEpoch
from kopt.serving.checkpoint.job import MAX_DOCUMENT, FollowedJob
from kopt.serving.checkpoint.metrics import CheckpointMetrics
from kopt.serving.checkpoint.recording import Listing, RecordingTable
from kopt.serving.checkpoint.table import JobTable, Row
from kopt.serving.contract.checkpoint_schemas import CheckpointRequest, FileIn, LineIn
from kopt.serving.contract.common import SCHEMA
from kopt.serving.http.deadline import Deadline
from kopt.serving.http.metrics import EndpointMetrics
from kopt.serving.http.problems import Problem
from kopt.serving.http.sharing import KeptByCaller, Shares

_LOG = logging.getLogger(__name__)
NO_ANSWER = ModelVersion("hold", "1")
"""The model version of fallback answers, which are never safe."""
MOST_HELD = 1000
"""Jobs in memory."""
MAX_QUEUED = 128
"""Requests whose lines are still to be read."""
MOST_ROWS = 200
RECENT_S = 86_400.0
_ATTEMPTS = 20
_LAST_TIME, _LAST_STEP = "kaiwo.ai/last-checkpoint-time", "kaiwo.ai/last-checkpoint-step"
_AHEAD_S = 60.0
"""A recorded checkpoint may be this far in the future: clocks differ."""


def checkpoint_slot(
    source: ModelSource, default: Callable[[], CheckpointPredictor] | None = None
) -> Slot[CheckpointPredictor]:
    """The registry's champion; the shipped model, verified, while there is none."""
    return Slot(source, "checkpoint", "champion", warm_up=_warm_up, default=default or _shipped)


def challenger_slot(source: ModelSource) -> Slot[CheckpointPredictor]:
    """The version on trial: it answers only the share of jobs that was signed for it."""
    return Slot(source, "checkpoint", CHALLENGER, warm_up=_warm_up)


def _shipped() -> CheckpointPredictor:
    predictor = load_predictor("checkpoint", SHIPPED)
    assert isinstance(predictor, CheckpointPredictor)
    return predictor


def _warm_up(model: CheckpointPredictor) -> None:
    """A short log, so that a model that cannot read one never serves. Raises ValueError."""
    session = model.session()
    read = len(list(session.read(["epoch 0 step 1 loss 2.3", "Saving model checkpoint to out/checkpoint-1"])))
    if read != 2 or session.status().safe:
        raise ValueError("it calls a log safe that has no whole checkpoint")


@dataclass
class _Held:
    """A job in memory, as the table's ``stamp`` has it (None: not in it yet), read by ``model``."""

    stamp: str | None
    model: ModelVersion
    job: FollowedJob


class CheckpointService(PredictorService[CheckpointPredictor]):
    """Follows jobs with the model in ``slot``. One per replica; ``clock`` tells Unix time."""

    def __init__(
        self,
        slot: Slot[CheckpointPredictor],
        metrics: EndpointMetrics,
        table: JobTable,
        *,
        clock: Callable[[], float] = time.time,
        most_held: int = MOST_HELD,
        challenger: Slot[CheckpointPredictor] | None = None,
        recording: RecordingTable | None = None,
        ends: ReadEnds | None = None,
    ) -> None:
        self._counters = CheckpointMetrics(metrics)
        super().__init__(slot, metrics, self._counters, challenger)
        self.table, self._clock, self._recording, self._ends = table, clock, recording, ends
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._held: KeptByCaller[str, _Held] = KeptByCaller(most_held)
        self._queued = Shares(MAX_QUEUED)

    @property
    def compared(self) -> ReadEnds | None:
        return self._ends

    def close(self) -> None:
        """Finishes queued requests."""
        self._thread.shutdown(wait=True)
        super().close()
        self.table.close()
        if self._recording is not None:
            self._recording.close()

    async def follow(self, request: CheckpointRequest, deadline: Deadline, caller: str = "") -> dict[str, Any]:
        """The job's state after the request's lines; the marked fallback past the deadline or without a model.

        Raises Problem 429 or 503 for lines that are not accepted now.
        """
        model = self.model_for(lambda: f"{caller}/{request.job}")
        return await self._follow(model, request, deadline, caller)

    async def _follow(
        self, model: CheckpointPredictor | None, request: CheckpointRequest, deadline: Deadline, caller: str
    ) -> dict[str, Any]:
        if model is None:
            why = self.slot.error or Reason("NO_MODEL", "No checkpoint model is loaded yet.")
            if request.lines:
                raise Problem(503, f"{why.message} Send these lines again.", headers={"retry-after": "5"})
            return self._fallback(request, why)
        try:
            answer = await self._on_thread(caller, deadline, self._read_lines, model, request, caller)
            self.canary.answered(model)
            return answer
        except TimeoutError:
            accepted = " The lines are read all the same; ask again." if request.lines else ""
            why = deadline.reason
            return self._fallback(request, Reason(why.code, why.message + accepted, why.numbers))
        except Problem:
            raise
        except DatabaseError as error:
            why = Reason("STATE_UNAVAILABLE", f"What is known of jobs cannot be reached: {error}.")
            if request.lines:
                text = f"{why.message} No line was read; send these lines again."
                raise Problem(503, text, headers={"retry-after": "2"}) from error
            return self._fallback(request, why)
        except Exception as error:  # noqa: BLE001 - edge: a model's bug must not become the caller's outage
            _LOG.exception("%s cannot be followed", request.job)
            if self.canary.failed(model):
                return await self._follow(self.slot.current, request, deadline, caller)
            why = Reason("MODEL_ERROR", f"The model failed ({type(error).__name__}); nothing is known of the job.")
            return self._fallback(request, why)

    async def jobs(self, deadline: Deadline, owner: str | None, job: str | None = None) -> dict[str, Any]:
        """Jobs with recent lines, of one caller or of all. Raises Problem 503 past the deadline."""
        model = self.slot.current
        if model is None:
            raise Problem(503, "No checkpoint model is loaded yet.", headers={"retry-after": "5"})
        try:
            return await self._on_thread(owner or "", deadline, self._list, model, owner, job)
        except TimeoutError:
            raise Problem(503, deadline.reason.message, headers={"retry-after": "2"}) from None

    async def _on_thread(
        self, caller: str, deadline: Deadline, work: Callable[..., dict[str, Any]], *args: Any
    ) -> dict[str, Any]:
        if self._queued.total >= MAX_QUEUED or not self._queued.acquire(caller):
            text = f"Lines of {self._queued.total} requests wait to be read already; try again in a second."
            raise Problem(429, text, headers={"retry-after": "1"})
        running = asyncio.get_running_loop().run_in_executor(self._thread, work, *args)
        running.add_done_callback(functools.partial(self._done, caller))
        async with asyncio.timeout(deadline.remaining_s()):
            return await asyncio.shield(running)

    def _done(self, caller: str, running: "asyncio.Future[dict[str, Any]]") -> None:
        self._queued.release(caller)
        if not running.cancelled() and (error := running.exception()) is not None:
            # The caller may have disconnected already.
            _LOG.debug("reading lines ended with %r", error)

    def _read_lines(self, model: CheckpointPredictor, request: CheckpointRequest, owner: str) -> dict[str, Any]:
        """Apply the lines to the job as stored; retried when another replica stored first."""
        key = (owner, request.job)
        for _ in range(_ATTEMPTS):
            held, now_s, remarks = self._current(model, key), self._clock(), list[str]()
            self._held.pop(*key)
            read = self._read(held.job, request, now_s, remarks)
            if read is None or self._store(key, held, now_s):
                self._hold(key, held)
                self._counters.lines.inc(read or 0)
                if self._recording is not None and held.job.folders:
                    self._record(self._recording, key, request, read or 0, now_s)
                if self._ends is not None and self.challenger is not None and held.model == self.challenger.version:
                    self._ends.record(*key, held.job, held.model, now_s)
                return _answer(request.job, held, now_s, remarks)
        raise RuntimeError(f"{request.job}: other replicas were quicker {_ATTEMPTS} times")

    def _read(self, job: FollowedJob, request: CheckpointRequest, now_s: float, remarks: list[str]) -> int | None:
        """How many lines were new; None where the request changed nothing."""
        texts = [_cut(line.text if isinstance(line, LineIn) else line) for line in request.lines]
        arrivals = [line.at if isinstance(line, LineIn) else now_s for line in request.lines]
        read = job.read_lines(texts, arrivals, request.source, request.first, now_s)
        changed = read > 0
        if request.gpus is not None and request.gpus != job.gpus:
            job.gpus, changed = request.gpus, changed or bool(job.session.lines)
        if request.annotations is not None:
            changed = _record(job, request.annotations, now_s, remarks) or changed
        for by, files, at_s in _listings(request):
            _list(job, by, files, now_s if at_s is None else min(at_s, now_s))
            changed = True
        changed = job.pass_time(now_s) or changed
        return read if changed else None

    def _current(self, model: CheckpointPredictor, key: tuple[str, str]) -> _Held:
        """The job as the table has it now, from memory where that is the same."""
        held = self._held.get(*key)
        try:
            stamp = self.table.stamp(*key)
            if held is not None and held.stamp == stamp and held.model == model.version:
                return held
            result = self.table.load(*key)
        except DatabaseError as error:
            _LOG.warning("what is known of jobs cannot be read: %s", error)
            if self.table.shared:
                raise
            return held or _Held(None, model.version, FollowedJob(Session(model.classifier)))
        return _restored(result, model)

    def _store(self, key: tuple[str, str], held: _Held, now_s: float) -> bool:
        """False where another replica has stored the job meanwhile."""
        document = _document(held.job)
        if len(document) > MAX_DOCUMENT:
            _LOG.warning("%s cannot be kept small; what is known of it is forgotten", key[1])
            held.job = held.job.begun_anew()
            document = _document(held.job)
        try:
            fresh = self.table.store(*key, held.stamp, now_s, document, held.job.epochs.changed())
        except DatabaseError as error:
            _LOG.warning("%s was not kept: %s", key[1], error)
            if self.table.shared:
                # Another replica may get the next lines: these were not accepted.
                raise
            # Followed in memory until the disk works again.
            return True
        if fresh is None:
            return False
        held.stamp = fresh
        held.job.epochs.stored()
        return True

    def _record(
        self, recording: RecordingTable, key: tuple[str, str], request: CheckpointRequest, read: int, now_s: float
    ) -> None:
        """Keep the ``read`` lines that were new, and what lay in the folders. Nobody's answer depends on it."""
        lines = [
            (now_s, line) if isinstance(line, str) else (now_s if line.at is None else min(line.at, now_s), line.text)
            for line in request.lines[len(request.lines) - read :]
        ]
        listings = [
            Listing(by, now_s if at_s is None else min(at_s, now_s), tuple(_entries(files)))
            for by, files, at_s in _listings(request)
            if files is not None
        ]
        try:
            recording.add(*key, lines, listings, now_s)
        except DatabaseError as error:
            _LOG.warning("%s was not recorded: %s", key[1], error)

    def _hold(self, key: tuple[str, str], held: _Held) -> None:
        if held.job.session.lines or held.stamp is not None:
            self._held.put(*key, held)

    def _list(self, model: CheckpointPredictor, owner: str | None, job: str | None) -> dict[str, Any]:
        now_s = self._clock()
        rows = self.table.rows(owner, now_s - RECENT_S, MOST_ROWS, job)
        result = [self._job_document(model, row, now_s) for row in rows]
        epochs = [] if job is None else [_epoch_document(item) for item in self.table.epochs(owner, job)]
        return {
            "schema": SCHEMA,
            "jobs": [item for item in result if item is not None],
            "now": now_s,
            "epochs": epochs,
        }

    def _job_document(self, model: CheckpointPredictor, row: Row, now_s: float) -> dict[str, Any] | None:
        key = (row.owner, row.job)
        held = self._held.get(*key)
        if held is None or held.stamp != row.stamp:
            held = _restored(self.table.load(*key), model)
            self._hold(key, held)
        job = held.job
        return {
            "job": row.job,
            "heard_at": row.at_s,
            "gpus": job.gpus,
            "lines": job.session.lines,
            **job.status(now_s).to_dict(),
            "missed": job.missed,
            "changes": [change.to_dict() for change in job.changes],
        }

    def _fallback(self, request: CheckpointRequest, why: Reason) -> dict[str, Any]:
        self._counters.fallbacks.labels(why.code).inc()
        status = JobStatus(JobState.UNKNOWN, reason=why.message)
        return {
            "schema": SCHEMA,
            "job": request.job,
            **status.to_dict(),
            "lines": 0,
            "next": {},
            "missed": {},
            "notes": [],
            "model": NO_ANSWER.to_dict(),
            "fallback": True,
        }


def _answer(name: str, held: _Held, now_s: float, remarks: list[str]) -> dict[str, Any]:
    job = held.job
    return {
        "schema": SCHEMA,
        "job": name,
        **job.status(now_s).to_dict(),
        "lines": job.session.lines,
        "next": dict(job.next),
        "missed": dict(job.missed),
        "notes": remarks,
        "model": held.model.to_dict(),
        "fallback": False,
    }


def _epoch_document(item: SourceEpoch) -> dict[str, Any]:
    epoch = item.epoch
    return {
        "source": item.source,
        "number": epoch.number,
        "started_at": epoch.start_s,
        "ended_at": epoch.end_s,
        "steps": epoch.steps,
        "samples_per_second": epoch.samples_per_s,
        "tokens_per_second": epoch.tokens_per_s,
    }


def _restored(result: tuple[str, str] | None, model: CheckpointPredictor) -> _Held:
    """The job of a row. A document of an unreadable older version starts afresh, as a job that is not safe."""
    if result is None:
        return _Held(None, model.version, FollowedJob(Session(model.classifier)))
    stamp, document = result
    try:
        job = FollowedJob.from_dict(json.loads(document), model.classifier)
    except (ValueError, RecursionError) as error:
        _LOG.warning("a stored job cannot be read: %s", error)
        job = FollowedJob(Session(model.classifier))
    return _Held(stamp, model.version, job)


def _document(job: FollowedJob) -> str:
    """The job as JSON; the context of the oldest writers is dropped where it is too large."""
    result = job.to_dict()
    text = json.dumps(result, separators=(",", ":"))
    context = result["session"]["context"]
    while len(text) > MAX_DOCUMENT and context:
        for writer in list(context)[: len(context) // 2 + 1]:
            del context[writer]
        text = json.dumps(result, separators=(",", ":"))
    return text


def _cut(text: str) -> str:
    """Both ends of a line that is too long, as ``LineSplitter`` keeps them."""
    return text if len(text) <= 2 * KEPT_BYTES else text[:KEPT_BYTES] + text[-KEPT_BYTES:]


def _list(job: FollowedJob, by: str, files: Sequence[FileIn] | None, at_s: float) -> None:
    if files is None:
        job.confirm_folder(at_s, by)
        return
    job.list_folder(_entries(files), at_s, by)


def _listings(request: CheckpointRequest) -> list[tuple[str, Sequence[FileIn] | None, float | None]]:
    """Who looked, what lay there (None: as before), and when."""
    result = [(item.by, item.files, item.at) for item in request.listings]
    if request.files is not None or request.files_at is not None:
        result.append(("", request.files, request.files_at))
    return list(result)


def _entries(files: Sequence[FileIn]) -> list[FileFact]:
    return [
        FileFact(file.path, file.bytes, file.modified_at, file.is_folder, file.folder, file.ephemeral, file.exclusive)
        for file in files
    ]


def _record(job: FollowedJob, annotations: Mapping[str, str], now_s: float, remarks: list[str]) -> bool:
    """Record a checkpoint from the job's annotations. Unusable values become remarks, not errors."""
    reported = annotations.get(_LAST_TIME)
    if reported is None:
        return False
    at_s = _unix_seconds(reported)
    if at_s is None or not 0 < at_s <= now_s + _AHEAD_S:
        remarks.append(f"{_LAST_TIME} is no time that has been: write it like 2026-01-31T12:00:00Z.")
        return False
    step = annotations.get(_LAST_STEP, "").strip()
    if step and not (step.isascii() and step.isdigit() and len(step) <= 15):
        remarks.append(f"{_LAST_STEP} is no number of a step.")
        step = ""
    return job.record(int(step) if step else None, min(at_s, now_s))


def _unix_seconds(text: str) -> float | None:
    """Unix seconds of an RFC 3339 time with its zone, or of a number of seconds; None for anything else."""
    text = text.strip()
    try:
        if text.replace(".", "", 1).isdigit():
            return float(text)
        result = datetime.fromisoformat(text)
        return result.timestamp() if result.tzinfo is not None else None
    except (ValueError, OverflowError, OSError):
        return None
