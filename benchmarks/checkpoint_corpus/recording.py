"""Runs one trainer and notes, on one clock, when its lines arrived and what happened in its checkpoint folder."""

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from inotify_simple import INotify, flags

HERE = Path(__file__).resolve().parent
# The path of a failure that hits whatever is open then: the program was killed.
KILLED = "*"
_WATCHED = flags.CREATE | flags.MODIFY | flags.CLOSE_WRITE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE


class RecordingError(RuntimeError):
    """A program that failed or took too long; the message ends with what it printed last."""


class Happened(Enum):
    """What a file did."""

    WRITTEN = "written"
    CLOSED = "closed"
    MOVED_HERE = "moved here"
    GONE = "gone"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class FileEvent:
    """``path`` is relative to the checkpoint folder; ``at_s`` is seconds since the program started.

    ``was``: the name it had in that folder before it was moved here.
    """

    at_s: float
    path: str
    happened: Happened
    was: str = ""


@dataclass(frozen=True)
class Recording:
    """``pieces``: what was printed, as it arrived, each with the seconds since the program started.

    ``started_s``: that moment on the monotonic clock.
    """

    pieces: tuple[tuple[float, bytes], ...]
    events: tuple[FileEvent, ...]
    started_s: float = 0.0


@dataclass(frozen=True)
class Storage:
    """How slow the checkpoint folder is; it has no room for every ``full_every``-th file of a process, if not 0."""

    bytes_per_s: float = 2e6
    latency_ms: float = 15.0
    full_every: int = 0


class FolderWatch:
    """inotify on a folder and all that appears below it."""

    def __init__(self, root: Path) -> None:
        self._root, self._notify, self._folders = root, INotify(), dict[int, Path]()
        self._moving: dict[int, str] = {}
        self._add(root)

    def fileno(self) -> int:
        return int(self._notify.fileno())

    def close(self) -> None:
        self._notify.close()

    def _add(self, folder: Path) -> Iterator[Path]:
        """Watches a folder; what was in it by then is returned, for nobody told of it."""
        self._folders[self._notify.add_watch(folder, _WATCHED)] = folder
        return folder.iterdir()

    def read(self, now_s: float) -> Iterator[FileEvent]:
        """What has happened since the last call, in order."""
        for event in self._notify.read(timeout=0):
            folder = self._folders.get(event.wd)
            if folder is None or not event.name:
                continue
            path = folder / event.name
            if event.mask & flags.MOVED_FROM:
                self._moving[event.cookie] = self._name(path)
            was = self._moving.pop(event.cookie, "") if event.mask & flags.MOVED_TO else ""
            if not (event.mask & flags.ISDIR and event.mask & flags.CREATE):
                yield FileEvent(now_s, self._name(path), _happened(event.mask), was)
            if event.mask & flags.ISDIR and event.mask & (flags.CREATE | flags.MOVED_TO):
                for found in self._look_into(path, new=bool(event.mask & flags.CREATE)):
                    yield from (FileEvent(now_s, found, happened) for happened in (Happened.WRITTEN, Happened.CLOSED))

    def _look_into(self, folder: Path, new: bool) -> Iterator[str]:
        """Watches a folder and those in it; the files of a new one, for nobody told of them.

        Whether they are still being written shows in what they do next.
        """
        if not folder.is_dir():
            return
        for path in self._add(folder):
            if path.is_dir():
                yield from self._look_into(path, new)
            elif new:
                yield self._name(path)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))


def _happened(mask: int) -> Happened:
    if mask & flags.CLOSE_WRITE:
        return Happened.CLOSED
    if mask & flags.MOVED_TO:
        return Happened.MOVED_HERE
    return Happened.GONE if mask & (flags.DELETE | flags.MOVED_FROM) else Happened.WRITTEN


def build_slow_storage(folder: Path) -> Path:
    """The library that slows a folder down; needs a C compiler."""
    built = folder / "slow_storage.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", built, HERE / "slow_storage.c", "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return built


def record(command: Sequence[str], environment: Mapping[str, str], storage: Storage, timeout_s: float) -> Recording:
    """Runs ``command`` in an empty folder; ``{checkpoints}`` in an argument stands for the folder that is watched.

    Standard output and error come through one pipe, as a container's log does. Raises RecordingError.
    """
    # What is made elsewhere and moved here has to be copied, as it has to from a container's own disk.
    elsewhere = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="kopt-corpus-") as name,
        tempfile.TemporaryDirectory(prefix="kopt-corpus-", dir=elsewhere) as temporary,
    ):
        home = Path(name).resolve()
        checkpoints = home / "checkpoints"
        checkpoints.mkdir()
        surroundings = os.environ | {
            "LD_PRELOAD": str(build_slow_storage(home)),
            "KOPT_SLOW_FOLDER": str(checkpoints),
            "KOPT_SLOW_BYTES_PER_S": str(storage.bytes_per_s),
            "KOPT_SLOW_LATENCY_MS": str(storage.latency_ms),
            "KOPT_SLOW_FULL_EVERY": str(storage.full_every),
            "KOPT_SLOW_FAILURES": str(home / "failures"),
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "120",
            "TMPDIR": temporary,
            **environment,
        }
        (home / "work").mkdir()
        arguments = [one.replace("{checkpoints}", str(checkpoints)) for one in command]
        seen = _follow(arguments, surroundings, home / "work", FolderWatch(checkpoints), timeout_s)
        failures = _failures(home / "failures", checkpoints, seen.started_s)
        return replace(seen, events=tuple(sorted([*seen.events, *failures], key=lambda event: event.at_s)))


def _failures(told: Path, checkpoints: Path, started_s: float) -> Iterator[FileEvent]:
    """What the library, or a program that kills another, has told of: seconds of the monotonic clock and a path."""
    for line in told.read_text().splitlines() if told.exists() else []:
        at_s, _, path = line.partition(" ")
        name = path if path == KILLED else str(Path(path).relative_to(checkpoints))
        yield FileEvent(float(at_s) - started_s, name, Happened.FAILED)


def _follow(
    command: Sequence[str], environment: Mapping[str, str], work: Path, watch: FolderWatch, timeout_s: float
) -> Recording:
    pieces, events = list[tuple[float, bytes]](), list[FileEvent]()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=work,
        env=environment,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        output, started, ended = process.stdout.fileno(), time.monotonic(), False
        try:
            while not ended and time.monotonic() - started < timeout_s:
                ready, _, _ = select.select([watch, output], [], [], 1.0)
                now = time.monotonic() - started
                # The folder first: what a program says of a file, it says after the file has it.
                events += watch.read(now)
                if output in ready:
                    piece = os.read(output, 65_536)
                    ended = not piece
                    pieces += [(now, piece)] if piece else []
        finally:
            # With whatever it has started. A program that has ended has closed its output.
            if not ended:
                os.killpg(process.pid, signal.SIGKILL)
    watch.close()
    if process.returncode != 0:
        last = b"".join(piece for _, piece in pieces)[-1500:].decode(errors="replace")
        raise RecordingError(f"{' '.join(command[:3])} ended with {process.returncode}:\n{last}")
    return Recording(tuple(pieces), tuple(events), started)
