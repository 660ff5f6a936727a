"""The plan that is being applied, and how far it is, in a file of this node that is on the disk before each step.

A line per event (``agents.runtime.checked_lines``): ``plan``, ``step`` before a step, ``undo`` before the first step
back, ``end``. A last line that is torn was never acted on. The file is rewritten as a plan begins; the highest sequence
that was ever begun is carried over.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kopt.agents.runtime.checked_lines import checked_line, fields_of
from kopt.core.node_plan.state import NodeState, document_of, state_of
from kopt.core.reason import Reason
from kopt.core.untrusted import UnreadableError

_FILE, _LOCK = "journal", "lock"
_MOST_BYTES = 1 << 20
_DRAFT = re.compile(r"\.[0-9a-f]{16}")


class JournalError(Exception):
    """A journal that cannot be trusted or written; nothing is changed on the node then."""


@dataclass(frozen=True)
class JournalPlan:
    """What the journal says of its plan. ``begun`` counts steps that began; ``undoing`` says why it is undone."""

    digest: str
    sequence: int
    envelope: Mapping[str, Any] = field(repr=False)
    before: NodeState
    begun: int = 0
    undoing: Reason | None = None
    phase: str = ""
    """Empty until it has ended."""
    outcome: Reason | None = None


class Journal:
    """Of one node; made by ``alone``. ``plan`` is the last one that began, None where there was none."""

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self.sequence = 0
        """The highest that was ever begun."""
        self.plan: JournalPlan | None = None
        self._file = self._opened(_FILE)
        self._load()

    @classmethod
    @contextlib.contextmanager
    def alone(cls, folder: Path) -> Iterator["Journal"]:
        """Raises JournalError where another process has it, or somebody else could have written it."""
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise JournalError(f"{folder} is no folder for a journal: {error.strerror}") from error
        with contextlib.ExitStack() as closing:
            closing.callback(os.close, opened)
            _require_own(os.fstat(opened), str(folder))
            lock = _open_in(opened, _LOCK)
            closing.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JournalError(f"another executor runs with the journal in {folder}") from None
            journal = cls(opened)
            closing.callback(journal._close)
            yield journal

    def begin(self, digest: str, sequence: int, envelope: Mapping[str, Any], before: NodeState) -> None:
        """A plan was accepted: from now on it ends as applied, undone or failed. Raises JournalError."""
        plan = ["plan", digest, sequence, dict(envelope), document_of(before)]
        name = f".{secrets.token_hex(8)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fresh = os.open(name, flags, 0o600, dir_fd=self._folder)
            _write(fresh, checked_line(plan))
            os.rename(name, _FILE, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            os.fsync(self._folder)
        except OSError as error:
            self._sweep()
            raise JournalError(f"the journal cannot be written: {error.strerror}") from error
        os.close(self._file)
        self._file = fresh
        self._enter(plan)

    def step(self, number: int) -> None:
        """Step ``number``, from 0 on, is about to begin. Raises JournalError."""
        self._add(["step", number])

    def undo(self, reason: Reason) -> None:
        """The state before is about to be restored. Raises JournalError."""
        self._add(["undo", reason.code, reason.message])

    def end(self, phase: str, reason: Reason) -> None:
        """Raises JournalError."""
        self._add(["end", phase, reason.code, reason.message])

    def _add(self, fields: list[Any]) -> None:
        size = os.fstat(self._file).st_size
        try:
            _write(self._file, checked_line(fields))
        except OSError as error:
            # The next line must not be glued to what was written of this one.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, size)
            raise JournalError(f"the journal cannot be written: {error.strerror}") from error
        self._enter(fields)

    def _sweep(self) -> None:
        """Drafts of journals that never took their name."""
        for name in os.listdir(self._folder):  # noqa: PTH208 - by its descriptor, which no path is
            if _DRAFT.fullmatch(name):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._folder)

    def _load(self) -> None:
        self._sweep()
        if os.fstat(self._file).st_size > _MOST_BYTES:
            raise JournalError("the journal is too long to be one of ours")
        lines = os.pread(self._file, _MOST_BYTES, 0).splitlines(keepends=True)
        whole = 0
        for number, line in enumerate(lines, start=1):
            fields = fields_of(line) if line.endswith(b"\n") else None
            if fields is None:
                if number < len(lines):
                    raise JournalError(f"line {number} of the journal is damaged")
                # Torn as it was written: it was not acted on, and the next line must not be glued to it.
                os.ftruncate(self._file, whole)
                break
            self._enter(fields)
            whole += len(line)

    def _enter(self, fields: list[Any]) -> None:
        plan = self.plan
        match fields:
            case ["plan", str(digest), int(sequence), dict(envelope), dict(before)]:
                try:
                    self.plan = JournalPlan(digest, sequence, envelope, state_of(before))
                except UnreadableError as error:
                    raise JournalError(f"the journal's plan cannot be read: {error}") from error
                self.sequence = max(self.sequence, sequence)
            case ["step", int(number)] if plan is not None:
                self.plan = _changed(plan, begun=number + 1)
            case ["undo", str(code), str(message)] if plan is not None:
                self.plan = _changed(plan, undoing=_recorded(code, message))
            case ["end", str(phase), str(code), str(message)] if plan is not None:
                self.plan = _changed(plan, phase=phase, outcome=_recorded(code, message))
            case _:
                raise JournalError(f"the journal has an event that is unknown here: {str(fields)[:60]}")

    def _opened(self, name: str) -> int:
        return _open_in(self._folder, name)

    def _close(self) -> None:
        os.close(self._file)


def _changed(plan: JournalPlan, **fields: Any) -> JournalPlan:
    return JournalPlan(**(vars(plan) | fields))


def _recorded(code: str, message: str) -> Reason:
    return Reason(code, message)


def _open_in(folder: int, name: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(name, flags, 0o600, dir_fd=folder)
    except OSError as error:
        raise JournalError(f"{name} cannot be opened without following links: {error.strerror}") from error
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise JournalError(f"{name} is no plain file of its own")
        _require_own(status, name)
    except JournalError:
        os.close(file)
        raise
    return file


def _require_own(status: os.stat_result, name: str) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise JournalError(f"{name} could have been written by others")


def _write(file: int, line: bytes) -> None:
    if os.write(file, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file)
