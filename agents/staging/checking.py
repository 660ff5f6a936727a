"""Whether what lies in a folder is what was fetched: parts of an earlier run, and complete copies."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from kopt.agents.staging.digests import file_digest, part_digest
from kopt.agents.staging.fetching import together
from kopt.agents.staging.folder import Folder
from kopt.core.staging.manifest import MARKER, Manifest, Staged, StagingError, Trouble, part_ranges


@dataclass(frozen=True)
class Damage:
    """A file that is not what the manifest says."""

    path: str
    problem: str


async def verify(
    destination: Path, parallel: int = 4, advance: Callable[[int], None] = lambda amount: None
) -> list[Damage]:
    """Reads a complete copy again and compares every part; ``advance`` gets the bytes of each file.

    Raises StagingError where there is no complete copy.
    """
    manifest = complete(destination)
    folder = Folder(destination)
    pending, damages = iter(manifest.entries), list[Damage]()

    async def work() -> None:
        for staged in pending:
            problem = await asyncio.to_thread(_problem, folder, staged)
            if problem:
                damages.append(Damage(staged.entry.path, problem))
            advance(staged.entry.bytes)

    await together(work, parallel)
    return sorted(damages, key=lambda damage: damage.path)


def complete(destination: Path) -> Manifest:
    """The manifest of a complete copy. Raises StagingError for anything else, with what it is."""
    folder = Folder(destination)
    if not destination.is_dir():
        raise StagingError(f"{destination} is no folder", Trouble.NOT_FOUND)
    manifest = folder.manifest()
    if (destination / MARKER).exists():
        raise StagingError(f"{destination} is not complete; run kopt stage with its source again", Trouble.CORRUPT)
    if manifest is None:
        raise StagingError(
            f"{destination} holds no manifest of staging that can be read; stage it first", Trouble.NOT_FOUND
        )
    return manifest


def distrust(destination: Path, manifest: Manifest) -> None:
    """The copy is complete no more: staging again reads it and fetches what is damaged. Raises StagingError."""
    with contextlib.suppress(OSError), Folder.alone(destination) as folder:
        folder.begin(manifest.source)


def unchanged(folder: Folder, entries: Iterable[Staged]) -> bool:
    """Whether all files are there in their sizes, which says nothing of their content."""
    try:
        return all(os.lstat(folder.file(entry.entry.path)).st_size == entry.entry.bytes for entry in entries)
    except (OSError, StagingError):
        return False


def good_parts(path: Path, size: int, part_bytes: int, parts: dict[int, str]) -> dict[int, str]:
    """Those of ``parts`` that the file holds as they were fetched."""
    ranges = list(part_ranges(size, part_bytes))
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        return {
            index: digest
            for index, digest in parts.items()
            if index < len(ranges) and part_digest(file, *ranges[index]) == digest
        }
    except OSError:
        return {}
    finally:
        os.close(file)


def _problem(folder: Folder, staged: Staged) -> str:
    try:
        path = folder.file(staged.entry.path)
        size = os.lstat(path).st_size
        if size != staged.entry.bytes:
            return f"{size:,} bytes in place of {staged.entry.bytes:,}"
        good = good_parts(path, staged.entry.bytes, staged.part_bytes, dict(enumerate(staged.parts)))
        if len(good) != len(staged.parts):
            return f"{len(staged.parts) - len(good)} of {len(staged.parts)} parts differ from what was fetched"
        checksum = staged.entry.checksum
        if checksum and file_digest(path, checksum.algorithm) != checksum.value:
            return f"its {checksum.algorithm} is another than the source's"
    except FileNotFoundError:
        return "is not there"
    except (OSError, StagingError) as error:
        return str(error)
    return ""
