"""The jobs that are followed: each with its sources, the last answer of the endpoint, and the pods to annotate."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kopt.agents.logtail.annotator import (
    AnnotationSettings,
    Annotator,
    annotations_of,
    progress_annotations,
    unknown,
)
from kopt.agents.logtail.following import Reading, Source
from kopt.agents.logtail.offset_store import OffsetStore
from kopt.agents.logtail.rate_limit import Pace, PaceSettings
from kopt.agents.logtail.records import LogLine
from kopt.agents.logtail.sender import Answer, ByteBudget, Counters, Post, Sender, SenderSettings
from kopt.formats.joblog.progress import ProgressReader

_LOG = logging.getLogger(__name__)
_SAVE_S = 2.0
_REPORT_SKIPPED_S = 60.0
_LAST_LINES = 100
"""The last lines of a job are sent even while others are skipped."""
Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class JobSettings:
    """How much is read, sent and written."""

    pace: PaceSettings = field(default_factory=PaceSettings)
    sender: SenderSettings = field(default_factory=SenderSettings)
    annotations: AnnotationSettings = field(default_factory=AnnotationSettings)


class Job:
    """One job; ``answer`` is the endpoint's last one and ``answered_at_s`` when it came (Unix seconds)."""

    def __init__(self, name: str, sender: Sender, pace: Pace) -> None:
        self.name, self.sender, self.pace = name, sender, pace
        self.answer: Answer = {}
        self.answered_at_s = time.time()
        self.sources: dict[str, asyncio.Task[None]] = {}
        self.annotators: dict[str, tuple[Annotator, asyncio.Task[None]]] = {}
        self.watches: dict[str, asyncio.Task[None]] = {}
        self.gpus: dict[str, float] = {}
        self.sending: asyncio.Task[None] | None = None
        self.skipped = 0
        self.reported_at_s = float("-inf")
        self.progress: dict[str, ProgressReader] = {}
        """By source: of several processes one prints the steps."""

    def read_progress(self, source: str, lines: Iterable[LogLine]) -> None:
        """Lines of a source, as they come; what they show of steps goes onto the pods with the next answer."""
        reader = self.progress.setdefault(source, ProgressReader())
        for line in lines:
            reader.read(line.text, line.at_s)

    def progress_annotations(self) -> dict[str, str | None]:
        """Of the source that was at a step last; none where no log shows its steps."""
        reported = [progress for reader in self.progress.values() if (progress := reader.progress()) is not None]
        return progress_annotations(max(reported, key=lambda progress: progress.at_s)) if reported else {}

    @property
    def idle(self) -> bool:
        return not self.sources and not self.annotators and not self.gpus


class Jobs:
    """All of them. ``run`` saves the offsets and notices a silent endpoint; tasks that it starts do the rest."""

    def __init__(self, post: Post, offsets: OffsetStore, settings: JobSettings) -> None:
        self._post, self.offsets, self._settings = post, offsets, settings
        self.counters = Counters()
        self.budget = ByteBudget(settings.sender.all_bytes)
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
                    self.offsets.save()
                    self._notice_silence()
            finally:
                self._group = None

    async def started(self) -> None:
        await self._started.wait()

    def follow(self, job: str, source: Source) -> None:
        """Read the source until it ends."""
        item = self._job(job)
        task = self._task(self._contain(item, source.name, partial(self._feed, item, source)))
        item.sources[source.key] = task
        task.add_done_callback(lambda _: self._source_ended(item, source.key))

    def annotate(self, job: str, uid: str, annotator: Annotator) -> None:
        """Write what is known of the job onto a pod, from now on."""
        item = self._job(job)
        if uid in item.annotators:
            return
        item.annotators[uid] = (annotator, self._task(annotator.run()))
        if item.answer:
            annotator.update(annotations_of(item.answer, item.answered_at_s))
            annotator.update_step(item.answer.get("step"))

    def set_gpus(self, job: str, uid: str, gpus: float) -> None:
        item = self._job(job)
        item.gpus[uid] = gpus
        item.sender.gpus = max([sum(item.gpus.values()), *item.gpus.values()])

    def watch(self, job: str, uid: str, work: Work) -> None:
        """Have the work look at a pod's files, until the pod is left."""
        item = self._job(job)
        if uid not in item.watches:
            item.watches[uid] = self._task(self._contain(item, f"what pod {uid} writes", work))

    def attach(self, job: str, extra: Mapping[str, Any]) -> None:
        """Send further evidence with the job's next request."""
        self._job(job).sender.attach(extra)

    def leave(self, job: str, uid: str) -> None:
        """A pod is gone; its sources end by themselves."""
        self.stop_annotating(job, uid)
        self.stop_watching(job, uid)
        if (item := self.jobs.get(job)) is not None:
            item.gpus.pop(uid, None)
            self._close_idle(item)

    def stop_annotating(self, job: str, uid: str) -> None:
        """Write nothing onto the pod any more."""
        item = self.jobs.get(job)
        if item is not None and (annotator := item.annotators.pop(uid, None)) is not None:
            annotator[1].cancel()

    def stop_watching(self, job: str, uid: str) -> None:
        """Look at the pod's files no longer."""
        if (item := self.jobs.get(job)) is not None and (task := item.watches.pop(uid, None)) is not None:
            task.cancel()

    async def drained(self) -> None:
        """Every source has ended and every line is acknowledged."""
        for job in list(self.jobs.values()):
            job.sender.hurry = True
        while tasks := [task for job in self.jobs.values() for task in job.sources.values()]:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)
        for job in list(self.jobs.values()):
            await job.sender.drained()

    def _job(self, name: str) -> Job:
        job = self.jobs.get(name)
        if job is None:
            settings = self._settings
            sender = Sender(
                name,
                self._post,
                self.budget,
                settings.sender,
                self.counters,
                keep=self.offsets.set,
                answered=lambda answer: self._answered(job, answer),
            )
            job = self.jobs[name] = Job(name, sender, Pace(settings.pace, time.monotonic))
            job.sending = self._task(sender.run())
            _LOG.info("%s: followed", name)
        return job

    def _task(self, work: Any) -> asyncio.Task[None]:
        assert self._group is not None
        return self._group.create_task(work)

    def _answered(self, job: Job | None, answer: Answer) -> None:
        if job is None:
            return
        if answer.get("state") != job.answer.get("state") or answer.get("safe") != job.answer.get("safe"):
            _LOG.info(
                "%s: %s, %s (%s)",
                job.name,
                answer.get("state"),
                "safe" if answer.get("safe") else "not safe",
                answer.get("reason") or "no reason given",
            )
        job.answer, job.answered_at_s = answer, time.time()
        annotations = annotations_of(answer, job.answered_at_s)
        if answer.get("fallback"):
            annotations = unknown(job.answered_at_s, str(answer.get("reason") or "a fallback answered"))
        annotations |= job.progress_annotations()
        for annotator, _ in job.annotators.values():
            annotator.update(annotations)
            annotator.update_step(answer.get("step"))

    def _notice_silence(self) -> None:
        now_s = time.time()
        for job in self.jobs.values():
            silent_s = now_s - job.answered_at_s
            if (
                job.annotators
                and job.answer.get("state") != "UNKNOWN"
                and silent_s > self._settings.annotations.stale_after_s
            ):
                job.answer = {"state": "UNKNOWN"}
                for annotator, _ in job.annotators.values():
                    annotator.update(unknown(now_s, "the prediction endpoint has not answered"))

    def _source_ended(self, job: Job, key: str) -> None:
        job.sources.pop(key, None)
        self._close_idle(job)

    def _close_idle(self, job: Job) -> None:
        if self._group is not None and job.idle and self.jobs.get(job.name) is job:
            self._task(self._close(job))

    async def _close(self, job: Job) -> None:
        await job.sender.drained()
        if job.idle and self.jobs.get(job.name) is job and job.sending is not None:
            del self.jobs[job.name]
            job.sending.cancel()
            _LOG.info("%s: ended", job.name)

    async def _contain(self, job: Job, name: str, work: Work) -> None:
        try:
            await work()
        except Exception:  # noqa: BLE001 - edge: what is wrong with one log must not cost all the others
            _LOG.exception("%s: %s is followed no longer", job.name, name)

    async def _feed(self, job: Job, source: Source) -> None:
        pace = Pace(self._settings.pace, time.monotonic, job.pace)
        sender = job.sender

        async def wait_for_space() -> None:
            if sender.full:
                await sender.wait_for_space()
                pace.anew()

        async with contextlib.aclosing(source.readings(wait_for_space)) as readings:
            async for reading in readings:
                if reading.present:
                    pace.caught_up()
                    if source.fresh:
                        # Another agent, or this one before it lost its file, may have counted lines that are gone.
                        source.fresh = False
                        source.continue_at(await sender.next_of(source.name))
                    continue
                job.read_progress(source.key, reading.lines)
                if pace.hurried:
                    await self._pass_over(job, source, pace, reading)
                    continue
                await sender.put(source.name, reading.first, reading.lines, source.key, reading.position)
                await self._wait_for_pace(pace, source, len(reading.lines))
        await sender.drained()

    async def _wait_for_pace(self, pace: Pace, source: Source, lines: int) -> None:
        """Lines that were read beyond the rate are followed by none for a while."""
        wait_s = pace.wait_s(lines)
        if wait_s <= 0:
            pace.anew()
            return
        pace.evaluate(source.behind)
        while wait_s > 0 and not pace.hurried:
            rest_s = min(wait_s, self._settings.pace.patience_s)
            await asyncio.sleep(rest_s)
            pace.evaluate(source.behind, rest_s)
            wait_s = pace.wait_s(0)

    async def _pass_over(self, job: Job, source: Source, pace: Pace, reading: Reading) -> None:
        """Send what tells of checkpoints, and at the end of what there is the last lines, whatever they tell."""
        sender, lines = job.sender, reading.lines
        at_end = source.behind() < 1
        kept = max(0, len(lines) - _LAST_LINES) if at_end else len(lines)
        selected = pace.select(lines[:kept])
        for at in selected:
            await sender.put(source.name, reading.first + at, [lines[at]], source.key)
        await sender.put(source.name, reading.first + kept, lines[kept:], source.key, reading.position)
        if at_end:
            pace.caught_up()
        job.skipped += kept - len(selected)
        self.counters.skipped += kept - len(selected)
        now_s = time.monotonic()
        if now_s - job.reported_at_s > _REPORT_SKIPPED_S:
            job.reported_at_s = now_s
            _LOG.warning(
                "%s prints more than %g lines a second: %d lines passed over so far",
                job.name,
                self._settings.pace.lines_per_second,
                job.skipped,
            )
