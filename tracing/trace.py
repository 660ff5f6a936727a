"""Runs a script under the probe, confined, and keeps what came of it: the same script is not run twice.

A stream is kept by the digest of the script's folder, its arguments, its interpreter's packages, the probe and the fake
device. Kept streams are read as carefully as fresh ones.
"""

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kopt.core.gpu import GpuModel
from kopt.tracing.devices import fake_gpu
from kopt.tracing.events import Trace, TraceError, read_events
from kopt.tracing.sandbox import ConfinementError, Limits, interpreter_folders, run_confined, visible_in

BESIDE_VARIABLE = "KOPT_PROBE_BESIDE"
"""Set for a source text from elsewhere that is to import what lies in the working folder."""
PROBE = Path(__file__).resolve().parent / "probe"
_PREPARING_S = 120.0
"""By the clock for what is done once for an environment, however short the script's own limit: machines are busy."""
_SOURCES = (".py", ".json", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".txt", ".ipynb", ".sh")
_MAX_SOURCES, _MAX_SOURCE_BYTES = 5000, 64 << 20
_MAX_EVENTS_BYTES = 512 << 20
_KEPT_BYTES = 4 << 30
_UNFINISHED_S = 3600.0
_MAX_DEVICE_BYTES, _DEVICES_EACH = 64 << 20, 4
_DEVICE_NAME = re.compile(rb"fake_device-[0-9a-f]{20}\.so")
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@dataclass(frozen=True)
class ScriptCall:
    """What is run: a script or ``-m module`` with its arguments, in a folder, by an interpreter.

    ``named`` are the words that the user gave; None: all. Only these make paths outside the folder visible: a
    manifest's or a shell script's words may come from someone else.
    """

    python: str
    arguments: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    world_size: int = 1
    named: frozenset[str] | None = None


@dataclass(frozen=True)
class Traced:
    """What came of it: a trace, or the reason why there is none; ``missing`` protections of the confinement."""

    trace: Trace | None
    problem: str = ""
    cached: bool = False
    seconds: float = 0.0
    missing: tuple[str, ...] = ()
    output_tail: str = ""


@dataclass(frozen=True)
class TraceCache:
    """Kept streams in a folder; the oldest go when they are more than ``most``. ``None`` keeps nothing."""

    folder: Path | None
    most: int = 500

    def read(self, digest: str) -> bytes | None:
        """A kept stream; one that cannot be unpacked within bounds counts as absent."""
        if self.folder is None:
            return None
        path = self.folder / f"{digest}.events.gz"
        try:
            with gzip.open(path) as file:
                content = file.read(_MAX_EVENTS_BYTES + 1)
            os.utime(path)
        except (OSError, EOFError):
            return None
        return content if len(content) <= _MAX_EVENTS_BYTES else None

    def write(self, digest: str, content: bytes) -> None:
        """Keep a stream, whole or not at all; a folder that cannot be written is no error."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
                file.write(gzip.compress(content, compresslevel=3))
            Path(file.name).replace(self.folder / f"{digest}.events.gz")
            self._trim()

    def _trim(self) -> None:
        assert self.folder is not None
        for path in self.folder.glob("tmp*"):
            # Of a run that was killed while it wrote.
            if path.stat().st_mtime < time.time() - _UNFINISHED_S:
                path.unlink(missing_ok=True)
        kept = sorted(self.folder.glob("*.events.gz"), key=lambda item: item.stat().st_mtime, reverse=True)
        size = 0
        for n, path in enumerate(kept):
            size += path.stat().st_size
            if n >= self.most or size > _KEPT_BYTES:
                path.unlink(missing_ok=True)


class _Buffer:
    """Collects the event stream up to a bound."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, data: bytes, /) -> object:
        if len(self.content) + len(data) > _MAX_EVENTS_BYTES:
            raise TraceError("the stream is larger than half a gibibyte", len(self.content))
        self.content += data
        return None


def trace_script(
    call: ScriptCall,
    gpu: GpuModel,
    *,
    limits: Limits,
    state: Path,
    cache: TraceCache | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Traced:
    """Run ``call`` on a fake ``gpu``. ``state`` keeps the compiled fake device. Never raises for what the script does.

    Raises ConfinementError where this machine cannot confine a script.
    """
    cache = cache or TraceCache(None)
    digest = call_digest(call, gpu)
    if (kept := cache.read(digest)) is not None:
        with contextlib.suppress(TraceError):
            return Traced(read_events(io.BytesIO(kept)), cached=True)
    progress("preparing the fake device")
    device = environment_cache(call.python, state / "fake-device")
    readable = interpreter_folders(call.python)
    named = _named_outside(call)
    problem = _prepare(call.python, device, readable, limits)
    if problem:
        return Traced(None, problem)
    progress("running the script on a fake device")
    buffer = _Buffer()
    environment = {
        **{key: os.environ[key] for key in _ALLOCATOR_VARIABLES if key in os.environ},
        **call.environment,
        "KOPT_PROBE_GPU": fake_gpu(gpu),
        "KOPT_PROBE_WORLD_SIZE": str(call.world_size),
        "KOPT_PROBE_CACHE": str(device),
        "HF_HUB_OFFLINE": "1",
    }
    outcome = None
    try:
        outcome = run_confined(
            [call.python, str(PROBE), *call.arguments],
            cwd=call.folder,
            env=environment,
            limits=limits,
            events=buffer,
            readable=(*readable, *named, PROBE, device),
        )
        trace = read_events(io.BytesIO(buffer.content))
    except TraceError as error:
        if outcome is not None and outcome.limit_hit:
            return Traced(None, _limit(outcome.limit_hit, limits))
        last_line = _last(outcome.output_tail) if outcome is not None else ""
        return Traced(None, f"{error}" + (f" ({last_line})" if last_line else ""))
    if trace.end is not None and trace.end.reason != "limit":
        cache.write(digest, bytes(buffer.content))
    return Traced(
        trace, _ended(trace, outcome.limit_hit, limits), False, outcome.seconds, outcome.missing, outcome.output_tail
    )


def call_digest(call: ScriptCall, gpu: GpuModel) -> str:
    """sha256 over everything that the run depends on; files by content, packages by name and version."""
    result = hashlib.sha256()
    request = [
        list(call.arguments),
        str(call.folder.resolve()),
        sorted(call.environment.items()),
        call.world_size,
        fake_gpu(gpu),
        [os.environ.get(key, "") for key in _ALLOCATOR_VARIABLES],
        _packages(call.python),
    ]
    result.update(json.dumps(request).encode())
    for folder in (PROBE, call.folder, *map(Path, _named_outside(call))):
        for path in _sources(folder):
            result.update(f"\0{path.relative_to(folder)}\0".encode() + path.read_bytes())
    for word in call.arguments:
        path = call.folder / word
        if len(word) < 4096 and path.is_file() and path.stat().st_size < _MAX_SOURCE_BYTES:
            result.update(path.read_bytes())
    return result.hexdigest()


def _named_outside(call: ScriptCall) -> list[str]:
    """What the user's command names outside its working folder, which is all that a script sees otherwise: the folder
    of the script, whose modules it imports, and files and folders among the arguments."""
    base, result = call.folder.resolve(), list[str]()
    for n, word in enumerate(call.arguments):
        if len(word) >= 4096 or "\0" in word or not (call.named is None or word in call.named):
            continue
        path = (base / word).resolve()
        if base in (path, *path.parents) or not path.exists():
            continue
        is_script = n == 0 and path.is_file()
        result += visible_in(path.parent if is_script else path) if is_script or path.is_dir() else [str(path)]
    return result


def _sources(folder: Path) -> Iterator[Path]:
    """Text files of a folder that a script may read, within bounds; hidden folders and environments are left out."""
    budget, count = _MAX_SOURCE_BYTES, 0
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(
            item
            for item in folders
            if not item.startswith((".", "__")) and not (Path(root) / item / "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            path = Path(root) / name
            if path.suffix not in _SOURCES or path.is_symlink() or not path.is_file():
                continue
            budget, count = budget - path.stat().st_size, count + 1
            if budget < 0 or count > _MAX_SOURCES:
                return
            yield path


def _packages(python: str) -> list[str]:
    """Distributions of the interpreter's environment by the names of their folders, which carry versions."""
    result = shutil.which(python) or python
    prefix = Path(result).absolute().parent.parent
    return [
        str(Path(result).absolute()),
        str(Path(result).resolve()),
        *sorted(path.name for path in prefix.glob("lib/python*/site-packages/*.dist-info")),
    ]


def _prepare(python: str, device: Path, readable: Sequence[str], limits: Limits) -> str:
    """Have the probe compile its fake device; "" on success, else the error.

    The interpreter is the user's, with all that its environment starts by itself: it writes nothing here, and what it
    hands over is loaded by the same environment alone, confined.
    """
    device.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = io.BytesIO()
    outcome = run_confined(
        [python, str(PROBE), "--prepare"],
        cwd=PROBE,
        env={"KOPT_PROBE_CACHE": str(device)},
        limits=replace(limits, event_bytes=_MAX_DEVICE_BYTES, wall_s=max(limits.wall_s, _PREPARING_S)),
        readable=(*readable, PROBE, device),
        events=made,
    )
    if outcome.exit_status == 0:
        keep_device(device, made.getvalue())
        return ""
    if outcome.limit_hit == "wall":
        return (
            f"{python} needed more than {max(limits.wall_s, _PREPARING_S):g} s to import torch; give a longer --timeout"
        )
    return _last(outcome.output_tail) or f"the fake device could not be prepared ({outcome.limit_hit or outcome.error})"


def environment_cache(python: str, state: Path) -> Path:
    """Where what an interpreter has compiled is kept for it: another environment never loads it."""
    program = Path(shutil.which(python) or python).absolute()
    identity = f"{program}\0{program.resolve()}"
    return state / hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:20]


def keep_device(device: Path, handed_over: bytes) -> None:
    """Keeps a compiled fake device, whole or not at all: a line with its file's name, then its bytes."""
    name, _, content = handed_over.partition(b"\n")
    if not content or not _DEVICE_NAME.fullmatch(name):
        return
    with tempfile.NamedTemporaryFile(dir=device, delete=False) as file:
        file.write(content)
    Path(file.name).replace(device / name.decode())
    kept = sorted(device.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[_DEVICES_EACH:]:
        path.unlink(missing_ok=True)


def _ended(trace: Trace, limit: str | None, limits: Limits) -> str:
    if trace.end is not None:
        return trace.end.error or "" if trace.end.reason == "unsupported" else ""
    return _limit(limit, limits) if limit else "it was ended before it had finished"


def _limit(hit: str, limits: Limits) -> str:
    """Which limit it met, and what to do about time."""
    most = {
        "wall": f"{limits.wall_s:g} s; --timeout gives it more",
        "cpu": f"{limits.cpu_s:g} s of processor time; --timeout gives it more",
        "memory": f"{limits.memory_bytes / (1 << 30):g} GiB of the host's memory",
        "processes": f"{limits.processes} processes",
        "files": f"{limits.written_bytes / (1 << 30):g} GiB of files",
        "events": "the events that are read of it",
    }
    return f"it was ended at its limit of {most.get(hit, hit)}"


def _last(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


__all__ = ["ConfinementError", "Limits", "ScriptCall", "TraceCache", "Traced", "call_digest", "trace_script"]
