"""The jobs that are followed: each with its sources, what the endpoint said last, and the pods to write that on."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.agents.logtail.following import Reading, Source
from kopt.agents.logtail.ledger import Ledger
from kopt.agents.logtail.notes import Annotator, NoteSettings, annotations_of, unknown
from kopt.agents.logtail.outbox import Answer, Outbox, OutboxSettings, Post, Room, Tally
from kopt.agents.logtail.pace import Pace, PaceSettings

_LOG = logging.getLogger(__name__)
_SAVE_S = 2.0
_TELL_SKIPPED_S = 60.0
_LAST_LINES = 100
"""What a job said last is sent, even when it is in a hurry."""


@dataclass(frozen=True)
class JobSettings:
    """How much is read, sent and written."""

    pace: PaceSettings = field(default_factory=PaceSettings)
    outbox: OutboxSettings = field(default_factory=OutboxSettings)
    notes: NoteSettings = field(default_factory=NoteSettings)


class Job:
    """One job; ``answer`` is the endpoint's last one and ``answered_at_s`` when it came (Unix seconds)."""

    def __init__(self, name: str, outbox: Outbox, pace: Pace) -> None:
        self.name, self.outbox, self.pace = name, outbox, pace
        self.answer: Answer = {}
        self.answered_at_s = time.time()
        self.sources: dict[str, asyncio.Task[None]] = {}
        self.annotators: dict[str, tuple[Annotator, asyncio.Task[None]]] = {}
        self.gpus: dict[str, float] = {}
        self.sender: asyncio.Task[None] | None = None
        self.skipped = 0
        self.told_at_s = float("-inf")

    @property
    def idle(self) -> bool:
        return not self.sources and not self.annotators and not self.gpus


class Jobs:
    """All of them. ``run`` keeps the ledger and notices when the endpoint is silent; all else goes by tasks of it."""

    def __init__(self, post: Post, ledger: Ledger, settings: JobSettings) -> None:
        self._post, self.ledger, self._settings = post, ledger, settings
        self.tally = Tally()
        self.room = Room(settings.outbox.all_bytes)
        self.jobs: dict[str, Job] = {}
        self._group: asyncio.TaskGroup | None = None
        self._started = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._started.set()
            try:
                while True:
                    await asyncio.sleep(_SAVE_S)
                    self.ledger.save()
                    self._notice_silence()
            finally:
                self._group = None

    async def started(self) -> None:
        await self._started.wait()

    def follow(self, job: str, source: Source) -> None:
        """Read the source until it ends."""
        one = self._job(job)
        task = self._task(self._follow(one, source))
        one.sources[source.key] = task
        task.add_done_callback(lambda _: self._source_ended(one, source.key))

    def annotate(self, job: str, uid: str, annotator: Annotator) -> None:
        """Write what is known of the job onto a pod, from now on."""
        one = self._job(job)
        if uid in one.annotators:
            return
        one.annotators[uid] = (annotator, self._task(annotator.run()))
        if one.answer:
            annotator.tell(annotations_of(one.answer, one.answered_at_s))
            annotator.tell_step(one.answer.get("step"))

    def set_gpus(self, job: str, uid: str, gpus: float) -> None:
        one = self._job(job)
        one.gpus[uid] = gpus
        one.outbox.gpus = max([sum(one.gpus.values()), *one.gpus.values()])

    def attach(self, job: str, extra: Mapping[str, Any]) -> None:
        """Send further evidence with the job's next request."""
        self._job(job).outbox.attach(extra)

    def leave(self, job: str, uid: str) -> None:
        """A pod is gone; its sources end by themselves."""
        self.stop_annotating(job, uid)
        if (one := self.jobs.get(job)) is not None:
            one.gpus.pop(uid, None)
            self._close_idle(one)

    def stop_annotating(self, job: str, uid: str) -> None:
        """Write nothing onto the pod any more."""
        one = self.jobs.get(job)
        if one is not None and (known := one.annotators.pop(uid, None)) is not None:
            known[1].cancel()

    async def drained(self) -> None:
        """Every source has ended and every line is acknowledged."""
        for one in list(self.jobs.values()):
            one.outbox.hurry = True
        while tasks := [task for one in self.jobs.values() for task in one.sources.values()]:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)
        for one in list(self.jobs.values()):
            await one.outbox.drained()

    def _job(self, name: str) -> Job:
        one = self.jobs.get(name)
        if one is None:
            settings = self._settings
            outbox = Outbox(name, self._post, self.room, settings.outbox, self.tally, keep=self.ledger.set,
                            answered=lambda answer: self._answered(one, answer))  # fmt: skip
            one = self.jobs[name] = Job(name, outbox, Pace(settings.pace, time.monotonic))
            one.sender = self._task(outbox.run())
            _LOG.info("%s: followed", name)
        return one

    def _task(self, work: Any) -> asyncio.Task[None]:
        assert self._group is not None
        return self._group.create_task(work)

    def _answered(self, job: Job | None, answer: Answer) -> None:
        if job is None:
            return
        if answer.get("state") != job.answer.get("state") or answer.get("safe") != job.answer.get("safe"):
            _LOG.info("%s: %s, %s (%s)", job.name, answer.get("state"), "safe" if answer.get("safe") else "not safe",
                      answer.get("reason") or "no reason given")  # fmt: skip
        job.answer, job.answered_at_s = answer, time.time()
        notes = annotations_of(answer, job.answered_at_s)
        if answer.get("fallback"):
            notes = unknown(job.answered_at_s, str(answer.get("reason") or "a fallback answered"))
        for annotator, _ in job.annotators.values():
            annotator.tell(notes)
            annotator.tell_step(answer.get("step"))

    def _notice_silence(self) -> None:
        now_s = time.time()
        for job in self.jobs.values():
            silent_s = now_s - job.answered_at_s
            if (
                job.annotators
                and job.answer.get("state") != "UNKNOWN"
                and silent_s > self._settings.notes.stale_after_s
            ):
                job.answer = {"state": "UNKNOWN"}
                for annotator, _ in job.annotators.values():
                    annotator.tell(unknown(now_s, "the prediction endpoint has not answered"))

    def _source_ended(self, job: Job, key: str) -> None:
        job.sources.pop(key, None)
        self._close_idle(job)

    def _close_idle(self, job: Job) -> None:
        if self._group is not None and job.idle and self.jobs.get(job.name) is job:
            self._task(self._close(job))

    async def _close(self, job: Job) -> None:
        await job.outbox.drained()
        if job.idle and self.jobs.get(job.name) is job and job.sender is not None:
            del self.jobs[job.name]
            job.sender.cancel()
            _LOG.info("%s: ended", job.name)

    async def _follow(self, job: Job, source: Source) -> None:
        try:
            await self._feed(job, source)
        except Exception:  # noqa: BLE001 - edge: what is wrong with one log must not cost all the others
            _LOG.exception("%s: %s is followed no longer", job.name, source.name)

    async def _feed(self, job: Job, source: Source) -> None:
        pace = Pace(self._settings.pace, time.monotonic, job.pace)
        outbox = job.outbox

        async def room() -> None:
            if outbox.full:
                await outbox.room()
                pace.anew()

        async with contextlib.aclosing(source.readings(room)) as readings:
            async for reading in readings:
                if reading.present:
                    pace.caught_up()
                    if source.fresh:
                        # Another agent, or this one before it lost its file, may have counted lines that are gone.
                        source.fresh = False
                        source.continue_at(await outbox.next_of(source.name))
                    continue
                if pace.hurried:
                    await self._pass_over(job, source, pace, reading)
                    continue
                await outbox.put(source.name, reading.first, reading.lines, source.key, reading.mark)
                await self._wait_for_pace(pace, source, len(reading.lines))
        await outbox.drained()

    async def _wait_for_pace(self, pace: Pace, source: Source, lines: int) -> None:
        """Lines that were read beyond the rate are followed by none for a while."""
        wait_s = pace.wait_s(lines)
        if wait_s <= 0:
            pace.anew()
            return
        pace.judge(source.behind)
        while wait_s > 0 and not pace.hurried:
            rest_s = min(wait_s, self._settings.pace.patience_s)
            await asyncio.sleep(rest_s)
            pace.judge(source.behind, rest_s)
            wait_s = pace.wait_s(0)

    async def _pass_over(self, job: Job, source: Source, pace: Pace, reading: Reading) -> None:
        """Send what tells of checkpoints, and at the end of what there is the last lines, whatever they tell."""
        outbox, lines = job.outbox, reading.lines
        at_end = source.behind() < 1
        kept = max(0, len(lines) - _LAST_LINES) if at_end else len(lines)
        chosen = pace.chosen(lines[:kept])
        for at in chosen:
            await outbox.put(source.name, reading.first + at, [lines[at]], source.key)
        await outbox.put(source.name, reading.first + kept, lines[kept:], source.key, reading.mark)
        if at_end:
            pace.caught_up()
        job.skipped += kept - len(chosen)
        self.tally.skipped += kept - len(chosen)
        now_s = time.monotonic()
        if now_s - job.told_at_s > _TELL_SKIPPED_S:
            job.told_at_s = now_s
            _LOG.warning("%s prints more than %g lines a second: %d lines passed over so far", job.name,
                         self._settings.pace.lines_per_second, job.skipped)  # fmt: skip
