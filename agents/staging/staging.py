"""One run: list, compare with what is there, fetch what is missing, and say that it is complete."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kopt.agents.staging.checking import good_parts, unchanged
from kopt.agents.staging.fetching import Fetcher, Object, together
from kopt.agents.staging.folder import Folder
from kopt.agents.staging.journal import FinishedParts, Journal, finished_parts
from kopt.agents.staging.listing import listed
from kopt.agents.staging.origins import Origin, opened
from kopt.agents.staging.reporting import Listener, Report
from kopt.agents.staging.settings import StageSettings
from kopt.agents.staging.troubles import of_disk
from kopt.core.staging.manifest import Entry, Manifest, Phase, Source, StagingError, Trouble

_REPORT_S = 1.0


async def stage(
    source: Source, destination: Path, settings: StageSettings, listener: Listener = lambda progress: None
) -> Manifest:
    """A complete copy of ``source`` in ``destination``, whatever was there of it before.

    Raises StagingError; what was fetched is kept for the next run. The same copy again costs a listing.
    """
    files = (settings.progress,) if settings.progress else ()
    report = Report(str(source), files, listener)
    with _reporting(report, destination), Folder.alone(destination) as folder:
        report.files += (folder.progress,)
        # Report while this process alone may write the progress.
        with _reporting(report, destination):
            async with _beside(_tick(report)), opened(source, settings, folder.state) as origin:
                return await _run(origin, folder, settings, report)


@contextlib.contextmanager
def _reporting(report: Report, destination: Path) -> Iterator[None]:
    """Reports the error that ends the block, as a StagingError or the cancellation, once."""
    try:
        yield
    except StagingError as error:
        report.failed(error)
        raise
    except OSError as error:
        sentence = of_disk(error, destination)
        report.failed(sentence)
        raise sentence from error
    except asyncio.CancelledError:
        report.failed(StagingError("stopped; run again to go on from here", Trouble.STOPPED))
        raise


async def _run(origin: Origin, folder: Folder, settings: StageSettings, report: Report) -> Manifest:
    report.enter(Phase.LISTING)
    # First, as its text and a million entries need not be in memory together.
    before = folder.manifest()
    entries = await listed(origin, report.source, settings)
    counts = report.counts
    counts.objects, counts.bytes = len(entries), sum(entry.bytes for entry in entries)
    _refuse_other_copy(folder, before, report.source, settings)
    if before and folder.begun is None and _same(before, entries) and unchanged(folder, before.entries):
        counts.objects_done, counts.bytes_done, counts.bytes_kept = counts.objects, counts.bytes, counts.bytes
        report.enter(Phase.COMPLETE)
        return before
    earlier = finished_parts(folder.journal, iter(before.entries if before else ()))
    _refuse_strangers(folder, entries, earlier)
    folder.begin(report.source)
    for path in sorted(earlier.keys() - {entry.path for entry in entries}):
        folder.remove(path)
    report.enter(Phase.CHECKING)
    objects = await _objects(entries, earlier, folder, origin, settings, report)
    missing = [item for item in objects if not item.settled]
    folder.room(sum(item.missing_bytes() - item.allocated_bytes() for item in missing), len(missing))
    report.enter(Phase.FETCHING)
    with contextlib.closing(Journal(folder.journal)) as journal:
        async with _beside(journal.keep_synced()):
            folders = await Fetcher(origin, folder, journal, settings, counts).fetch(missing)
    manifest = Manifest(
        report.source, tuple(item.staged() for item in objects), time.time(), origin.revision, tuple(origin.remarks)
    )
    await asyncio.to_thread(folder.finish, manifest, [item for item in folders if item.is_dir()])
    report.enter(Phase.COMPLETE)
    return manifest


async def _tick(report: Report) -> None:
    while True:
        await asyncio.sleep(_REPORT_S)
        report.publish()


def _same(before: Manifest, entries: list[Entry]) -> bool:
    """Whether the manifest is of these very versions; what has no version is never the same."""
    kept = {entry.entry.path: entry.entry for entry in before.entries}
    return len(kept) == len(entries) and all(
        (own := kept.get(entry.path)) is not None
        and entry.version
        and (own.version, own.bytes, own.checksum) == (entry.version, entry.bytes, entry.checksum)
        for entry in entries
    )


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """``work`` goes on while the block runs; where it fails, that is raised once the block is done."""
    task = asyncio.create_task(work)
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])


def _refuse_other_copy(folder: Folder, before: Manifest | None, source: str, settings: StageSettings) -> None:
    previous = folder.begun or (before.source if before else source)
    if previous != source and not settings.replace:
        raise StagingError(
            f"{folder.root} holds a copy of {previous}; choose another folder, or --replace it", Trouble.DESTINATION
        )


def _refuse_strangers(folder: Folder, entries: list[Entry], earlier: dict[str, FinishedParts]) -> None:
    """Files of these names that no run of ours put there are not overwritten, nor is one of ours by another of ours."""
    begun = folder.begun is not None
    for entry in entries:
        path = folder.file(entry.path)
        if entry.path not in earlier and os.path.lexists(path):
            if begun and os.lstat(path).st_size == entry.bytes:
                # Of a run that has begun; of empty files the journal tells nothing, and of others not after a crash.
                continue
            raise StagingError(
                f"{path} is there and was not staged; choose an empty folder, or take it away", Trouble.DESTINATION
            )
    by_folded_name = dict[str, str]()
    for entry in entries if folder.folds_case else ():
        other = by_folded_name.setdefault(entry.path.casefold(), entry.path)
        if other != entry.path:
            raise StagingError(
                f"{other!r} and {entry.path!r} are one file on {folder.root}, which does not tell "
                "capitals from small letters; take another volume",
                Trouble.BAD_NAME,
            )


async def _objects(
    entries: list[Entry],
    earlier: dict[str, FinishedParts],
    folder: Folder,
    origin: Origin,
    settings: StageSettings,
    report: Report,
) -> list[Object]:
    """Every entry with the parts that are there already, each of them read again."""
    objects: list[Object | None] = [None] * len(entries)
    pending: Iterator[tuple[int, Entry]] = iter(enumerate(entries))

    async def work() -> None:
        for index, entry in pending:
            own = earlier.get(entry.path)
            part_bytes = max(entry.bytes, 1) if origin.whole else settings.part_bytes
            item = Object(entry, part_bytes, folder)
            if own and entry.version and (own.version, own.bytes) == (entry.version, entry.bytes):
                item = replace(item, part_bytes=own.part_bytes)
                await asyncio.to_thread(_keep, item, own, folder)
                kept = entry.bytes - item.missing_bytes()
                report.counts.bytes_kept += kept
                report.counts.bytes_done += kept
                report.counts.objects_done += item.settled
            objects[index] = item

    await together(work, max(2, settings.parallel // 2))
    return [item for item in objects if item is not None]


def _keep(item: Object, own: FinishedParts, folder: Folder) -> None:
    """What is whole under its name stays there; of anything else the good parts count."""
    entry = item.entry
    target, partial = folder.file(entry.path), folder.partial(entry.path)
    if not partial.exists() and target.is_file() and target.stat().st_size == entry.bytes:
        item.parts.update(good_parts(target, entry.bytes, own.part_bytes, own.parts))
        item.settled = item.whole and item.agrees(target)
        if item.whole and not item.settled:
            item.parts.clear()
        if item.parts and not item.settled:
            target.replace(partial)
    elif partial.exists():
        item.parts.update(good_parts(partial, entry.bytes, own.part_bytes, own.parts))
