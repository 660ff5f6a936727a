"""Runs a hostile command: no network, no writing, no way out, an end in time, and nothing of it left.

The command sees the system, its interpreter and its working folder, can write only to private memory that vanishes
(its home, its temporary folder and a copy-on-write layer over the working folder) and inherits one pipe for events.
What a machine lacks is replaced by other means and reported in ``Outcome.missing``; if nothing can, the command is
refused (``confine.promises``). Linux on x86-64 or AArch64, as root or as anyone; ``confine`` has the parts.
"""

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from kopt.tracing.confine.settings import Confinement, Limits
from kopt.tracing.private_folders import private_folder
from kopt.tracing.python_folders import NoPythonError, program_folders, python_folders

__all__ = [
    "EVENTS_VARIABLE",
    "ConfinementError",
    "Limits",
    "Outcome",
    "interpreter_folders",
    "run_confined",
    "visible_in",
]

EVENTS_VARIABLE = "KOPT_EVENTS_FD"
_EVENTS_FD = 3
_GRACE_S = 10.0
_CHUNK_BYTES = 1 << 20
_KEPT_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CUDA_HOME",
    "CUDA_PATH",
    "ROCM_PATH",
    "CC",
    "CXX",
    "OMP_NUM_THREADS",
)
_SECRET = re.compile(
    r"(^|_)(TOKENS?|SECRETS?|PASS(WD|WORD|PHRASE)?S?|CREDENTIALS?|(API|ACCESS|PRIVATE|AUTH)_?KEY(_ID)?|KEY|COOKIE|DSN)($|_)",
    re.IGNORECASE,
)
WITHHELD = "withheld"


class ConfinementError(RuntimeError):
    """The command was not run: this machine cannot confine it. The message says what is missing."""


class EventSink(Protocol):
    """Where the bytes of the event pipe go: a file, a buffer. An exception it raises ends the command."""

    def write(self, data: bytes, /) -> object: ...


@dataclass(frozen=True)
class Outcome:
    """How a confined command ended.

    ``exit_status`` is negative for a signal and None where it was ended at a limit or never started; ``limit_hit`` is
    ``wall``, ``cpu``, ``memory``, ``files``, ``processes`` or ``events``; ``output_tail`` the end of its standard
    output and error; ``missing`` what this machine could not give; ``error`` why it did not start.
    """

    exit_status: int | None
    limit_hit: str | None
    output_tail: str
    seconds: float
    output_bytes: int = 0
    event_bytes: int = 0
    peak_resident_bytes: int = 0
    missing: tuple[str, ...] = ()
    error: str | None = None


@dataclass
class _Reading:
    """What has come back so far."""

    limits: Limits
    sink: EventSink | None
    tail: bytearray = field(default_factory=bytearray)
    status: bytearray = field(default_factory=bytearray)
    output_bytes: int = 0
    event_bytes: int = 0

    def output(self, data: bytes) -> None:
        self.output_bytes += len(data)
        self.tail += data
        if len(self.tail) > 4 * self.limits.tail_bytes:
            del self.tail[: -self.limits.tail_bytes]

    def events(self, data: bytes) -> None:
        self.event_bytes += len(data)
        if self.sink is not None and self.event_bytes <= self.limits.event_bytes:
            self.sink.write(data)

    def report(self, data: bytes) -> None:
        self.status += data


def run_confined(
    argv: Sequence[str],
    *,
    cwd: str | Path,
    env: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    events: EventSink | None = None,
    readable: Sequence[str | Path] = (),
    writable: Sequence[str | Path] = (),
    allow_unconfined: bool = False,
    without: Collection[str] = (),
) -> Outcome:
    """Runs ``argv`` confined, blocks until it and all it started have ended, and says how.

    ``env`` is added to a scrubbed environment; values of variables named like secrets are withheld. ``readable`` are
    folders besides the system's and the interpreter's own (see ``interpreter_folders``). ``writable`` folders keep
    what is written: give one only to trusted commands, such as a compiler run of ours, since a hostile script would
    leave there what the next run loads. ``events`` gets the bytes written to the descriptor named by KOPT_EVENTS_FD.
    ``without`` names protections not to use (``settings.PROTECTIONS``), as on machines that lack them.

    Raises:
        ConfinementError: not Linux, or a machine that cannot keep every promise and not ``allow_unconfined``.
        ValueError: an empty command, or folders that do not exist.
    """
    if not sys.platform.startswith("linux"):
        raise ConfinementError("confining a script needs Linux; here only arguments and configuration can be read")
    limits = limits or Limits()
    where = Path(cwd).resolve()
    folders = [str(Path(folder).resolve()) for folder in writable]
    if not argv or not all(folder.is_dir() for folder in (where, *map(Path, folders))):
        raise ValueError(f"nothing to run, or no such folder among {where} {' '.join(folders)}".rstrip())
    started = time.monotonic()
    with (
        private_folder("kopt-confined-", _scratch_parent(where)) as (base, in_use),
        _pipes(events is not None) as pipes,
    ):
        task = Confinement(
            argv=tuple(argv),
            cwd=str(where),
            env=_environment(env or {}, base, events is not None),
            limits=limits,
            readable=(
                *visible_in(where),
                *program_folders(argv[0]),
                *(str(Path(path).resolve()) for path in readable),
            ),
            writable=tuple(folders),
            base=str(base),
            copy_on_write=not _holds_home(where),
            status_fd=pipes["status"][1].fileno(),
            output_fd=pipes["output"][1].fileno(),
            events_fd=pipes["events"][1].fileno() if "events" in pipes else None,
            allow_unconfined=allow_unconfined,
            without=tuple(sorted(without)),
        )
        reading = _Reading(limits, events)
        _drive(task, pipes, reading, in_use)
        return _outcome(reading, time.monotonic() - started)


def interpreter_folders(python: str | Path) -> tuple[str, ...]:
    """The folders that a Python interpreter imports from: its prefixes, site-packages, editable installs.

    Read from its files: nothing of the environment is started.

    Raises:
        ConfinementError: no such program, or no Python.
    """
    try:
        return python_folders(python)
    except NoPythonError as error:
        raise ConfinementError(str(error)) from None


def _holds_home(folder: Path) -> bool:
    home = Path.home().resolve()
    return folder == home or folder in home.parents


def visible_in(cwd: Path) -> tuple[str, ...]:
    """What a script sees of a folder: all; of a home what is not hidden, as keys lie there; of one above, nothing."""
    if not _holds_home(cwd):
        return (str(cwd),)
    if cwd != Path.home().resolve():
        return ()
    return tuple(
        str(entry) for entry in sorted(cwd.iterdir()) if not entry.name.startswith(".") and not entry.is_symlink()
    )


def _scratch_parent(cwd: Path) -> Path:
    """Where, outside the working folder, an empty folder can be made over which private memory is mounted."""
    for parent in (tempfile.gettempdir(), "/var/tmp", "/dev/shm", str(Path.home())):
        parent_folder = Path(parent).resolve()
        outside = _holds_home(cwd) or (parent_folder != cwd and cwd not in parent_folder.parents)
        if outside and os.access(parent_folder, os.W_OK):
            return parent_folder
    raise ConfinementError("no temporary folder outside the script's own; set TMPDIR to one")


def _environment(extra: Mapping[str, str], base: Path, events: bool) -> dict[str, str]:
    """A few harmless variables of ours, the caller's, and homes in the private folder; secrets are withheld."""
    home = str(base / "home")
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    environment |= {name: WITHHELD if _SECRET.search(name) else value for name, value in extra.items()}
    environment |= {"HOME": home, "TMPDIR": home, "XDG_CACHE_HOME": f"{home}/.cache", "USER": "kopt", "LOGNAME": "kopt"}
    environment.setdefault("PYTHONUSERBASE", os.environ.get("PYTHONUSERBASE") or str(Path.home() / ".local"))
    if events:
        environment[EVENTS_VARIABLE] = str(_EVENTS_FD)
    return {name: value for name, value in environment.items() if "\0" not in name + value and "=" not in name and name}


_Pipe = tuple[FileIO, FileIO]
"""The end that is read and the end that is written. As files they may be closed twice: another thread may have the
number of a closed one by then."""


@contextlib.contextmanager
def _pipes(events: bool) -> Iterator[dict[str, _Pipe]]:
    with contextlib.ExitStack() as files:
        made = {}
        for name in ("status", "output", "events") if events else ("status", "output"):
            source, sink = os.pipe()
            made[name] = (files.enter_context(FileIO(source, "r")), files.enter_context(FileIO(sink, "w")))
        yield made


def _drive(task: Confinement, pipes: dict[str, _Pipe], reading: _Reading, in_use: int) -> None:
    """Starts the supervisor and reads until it has reported, or kills it when it is late."""
    root = str(Path(__file__).parents[2])
    start = f"import sys; sys.path.append({root!r}); from kopt.tracing.confine.supervisor import main; main()"
    supervisor = subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", start, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=pipes["output"][1],
        stderr=pipes["output"][1],
        env={"PATH": os.defpath},
        cwd="/",
        pass_fds=[in_use, *(sink.fileno() for _, sink in pipes.values())],
        start_new_session=True,
    )
    try:
        for _, sink in pipes.values():
            sink.close()
        assert supervisor.stdin is not None
        with contextlib.suppress(BrokenPipeError), supervisor.stdin:
            supervisor.stdin.write(task.to_json().encode())
        if _read_all({name: source.fileno() for name, (source, _) in pipes.items()}, reading, task.limits):
            with contextlib.suppress(subprocess.TimeoutExpired):
                supervisor.wait(_GRACE_S)
    finally:
        # Told to, it ends everything and then itself; killed, the kernel ends its children for it, a moment later.
        supervisor.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(_GRACE_S)
        supervisor.kill()
        supervisor.wait()


def _read_all(sources: dict[str, int], reading: _Reading, limits: Limits) -> bool:
    """Reads until all writers have ended; False when it is late or too much."""
    collected = {"status": reading.report, "output": reading.output, "events": reading.events}
    end_at = time.monotonic() + limits.wall_s + _GRACE_S
    with selectors.DefaultSelector() as selector:
        for name, source in sources.items():
            selector.register(source, selectors.EVENT_READ, collected[name])
        while selector.get_map() and time.monotonic() < end_at:
            for key, _ in selector.select(timeout=1.0):
                data = os.read(key.fd, _CHUNK_BYTES)
                if data:
                    key.data(data)
                else:
                    selector.unregister(key.fd)
            if reading.event_bytes > limits.event_bytes:
                return False
        return not selector.get_map()


def _outcome(reading: _Reading, seconds: float) -> Outcome:
    report: dict[str, Any] = {}
    for line in bytes(reading.status).splitlines():
        report |= {name: value for name, value in json.loads(line).items() if value is not None}
    error = report.get("error")
    if error and error.startswith("refused"):
        raise ConfinementError(f"{error}; missing: {'; '.join(report.get('missing', ()))}")
    status = os.waitstatus_to_exitcode(report["status"]) if "status" in report else None
    limit = report.get("limit")
    if reading.event_bytes > reading.limits.event_bytes:
        limit, status = "events", None
    elif status in (-signal.SIGXCPU, -signal.SIGKILL) and limit is None:
        limit = "cpu" if status == -signal.SIGXCPU or seconds >= reading.limits.cpu_s else None
    elif status is None and limit is None and error is None:
        limit = "wall"
    return Outcome(
        exit_status=None if error else status,
        limit_hit=limit,
        output_tail=bytes(reading.tail[-reading.limits.tail_bytes :]).decode("utf-8", "replace"),
        seconds=seconds,
        output_bytes=reading.output_bytes,
        event_bytes=reading.event_bytes,
        peak_resident_bytes=report.get("peak_bytes", 0),
        missing=(
            *report.get("missing", ()),
            *(["an end: some processes outlived it"] if report.get("left_over") else []),
        ),
        error=error,
    )
