"""Repositories, by the command ``git``, which knows credentials and proxies; commits come without their history."""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

from kopt.agents.staging.buckets import piece_bytes
from kopt.agents.staging.settings import StageSettings
from kopt.agents.staging.troubles import unsecret
from kopt.core.staging.manifest import Checksum, Entry, Source, StagingError, Trouble

_POINTER = "^version https://git-lfs.github.com/spec/"
_DENIED = re.compile(
    r"Authentication failed|could not read Username|Permission denied|returned error: 40[13]\b|terminal prompts", re.I
)
_ABSENT = re.compile(
    r"not found|couldn't find remote ref|does not exist|not a git repository|does not appear|not our ref", re.I
)


class Repository:
    """A branch, tag or commit of a repository. Each file comes whole, out of the pack that is fetched first."""

    whole = True

    def __init__(self, source: Source, settings: StageSettings, folder: Path) -> None:
        self.revision, self.remarks = "", list[str]()
        self._source, self._folder, self._piece = source, folder, piece_bytes(settings)

    async def entries(self) -> AsyncIterator[Entry]:
        # A fetch that was killed leaves locks, and nothing that the next one could go on with.
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        await self._git("init", "--quiet", "--bare", str(self._folder), at=None)
        wanted = self._source.revision or "HEAD"
        await self._git("fetch", "--quiet", "--depth=1", "--no-tags", "--", self._source.address, wanted)
        self.revision = (await self._git("rev-parse", "FETCH_HEAD^{commit}")).decode().strip()
        await self._refuse_pointers()
        listed = await self._git("ls-tree", "-r", "-z", "--long", "--full-tree", self.revision)
        for line in listed.split(b"\0"):
            if line and (entry := self._entry(*line.split(b"\t", 1))):
                yield entry

    async def read(self, entry: Entry, begin: int, end: int) -> AsyncGenerator[bytes]:
        blob = entry.version
        process = await asyncio.create_subprocess_exec(
            "git",
            "-C",
            str(self._folder),
            "cat-file",
            "blob",
            blob,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(),
        )
        assert process.stdout is not None
        try:
            while piece := await process.stdout.read(self._piece):
                yield piece
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def _entry(self, about: bytes, name: bytes) -> Entry | None:
        mode, kind, blob, size = about.split()
        path = name.decode(errors="surrogateescape")
        if kind != b"blob" or mode == b"120000":
            what = "a link" if kind == b"blob" else "another repository (a submodule)"
            self.remarks.append(f"{path.encode(errors='replace').decode()} is {what} and is left out")
            return None
        checksum = Checksum("git-sha1", blob.decode()) if len(blob) == 40 else None
        return Entry(path, int(size), blob.decode(), checksum, executable=mode == b"100755")

    async def _refuse_pointers(self) -> None:
        result = await self._git("grep", "-l", "-z", "-I", "-e", _POINTER, self.revision, fine=(0, 1))
        named = [chunk.decode(errors="replace").partition(":")[2] for chunk in result.split(b"\0") if chunk]
        if named:
            raise StagingError(
                f"{self._source}: {named[0]!r} ({len(named)} in all) is kept by Git LFS, which is not fetched; "
                "stage it from where its files can be had (hf://, s3://, https://)"
            )

    async def _git(self, *arguments: str, at: Path | None = Path(), fine: tuple[int, ...] = (0,)) -> bytes:
        options = [] if at is None else ["-C", str(self._folder)]
        try:
            process = await asyncio.create_subprocess_exec(
                "git",
                *options,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=_environment(),
            )
        except FileNotFoundError as error:
            raise StagingError("git is not installed; install it, or stage from another source") from error
        try:
            out, stderr = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            raise
        if process.returncode not in fine:
            raise self._error(unsecret(stderr.decode(errors="replace")))
        return out

    def _error(self, stderr: str) -> StagingError:
        summary = " ".join(stderr.split())[:300]
        if "No space left" in stderr or "Disk quota" in stderr:
            return StagingError(f"no room for the repository's pack in {self._folder}: {summary}", Trouble.NO_ROOM)
        if _DENIED.search(stderr):
            message = f"{self._source} may not be read; git's own credentials are used (git credential, ssh): {summary}"
            return StagingError(message, Trouble.DENIED)
        if _ABSENT.search(stderr):
            return StagingError(f"{self._source} is not there; check URL and ref: {summary}", Trouble.NOT_FOUND)
        return StagingError(f"{self._source} could not be fetched; run again: {summary}", Trouble.UNREACHABLE)


def _environment() -> dict[str, str]:
    """No questions, and no transports that run commands."""
    return {
        **os.environ,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "https:http:ssh:file",
        "LC_ALL": "C",
        "GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", "ssh -o BatchMode=yes"),
    }
