"""From the command line to the script's end."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from . import device
from .settings import Settings
from .stream import EventWriter

if TYPE_CHECKING:
    from .session import Session

_FRAMES, _MESSAGE = 12, 600
# Where fake tensors are made, which no author of a script knows.
_INTERNAL = (
    "/torch/_subclasses/",
    "/torch/_prims",
    "/torch/_refs",
    "/torch/_meta_registrations",
    "/torch/_decomp",
    "/torch/_ops.py",
    "/torch/utils/_stats.py",
    "/torch/utils/_python_dispatch.py",
    "/torch/__init__.py",
    "/torch/nn/modules/module.py",
    "/torch/_compile.py",
    "/torch/_dynamo/",
    "/torch/utils/_contextlib.py",
)


def main(arguments: list[str]) -> int:
    """``[-m MODULE | SCRIPT] ARGUMENTS``, or ``--prepare`` alone to compile the fake device for later."""
    settings = Settings.from_environment()
    if arguments == ["--prepare"]:
        return _prepare(settings)
    if not arguments or arguments == ["-m"]:
        print("usage: PYTHON probe [-m MODULE | SCRIPT] ARGUMENTS", file=sys.stderr)  # noqa: T201
        return 2
    writer = EventWriter(settings.events_fd)
    try:
        build = device.find_torch()
        library = device.load(build, settings.cache)
    except (device.NoFakeDevice, OSError) as error:
        writer.message({"hello": _hello(arguments, {})})
        writer.end("unsupported", 0, str(error))
        return 3
    with _quiet():
        # A CUDA build says on standard error that its own hooks are skipped.
        import torch  # noqa: F401
    from .session import Session

    session = Session(settings, writer, library, arguments)
    return _execute(session, arguments)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _prepare(settings: Settings) -> int:
    """Compiles the fake device where it is not kept yet, and hands it over: its name, a line's end, its bytes."""
    try:
        library = device.library(device.find_torch(), settings.cache)
        if settings.events_fd >= 0 and library.parent != settings.cache:
            with os.fdopen(settings.events_fd, "wb") as pipe:
                pipe.write(library.name.encode() + b"\n" + library.read_bytes())
    except (device.NoFakeDevice, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 3
    return 0


def _hello(arguments: list[str], torch_build: dict[str, object]) -> dict[str, object]:
    return {
        "torch": None,
        "cuda": None,
        "hip": None,
        **torch_build,
        "python": ".".join(map(str, sys.version_info[:3])),
        "probe": 1,
        "allocator_conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or "",
        "argv": arguments,
    }


def _execute(session: Session, arguments: list[str]) -> int:
    module = arguments[0] == "-m"
    beside = bool(os.environ.pop("KOPT_PROBE_BESIDE", ""))
    sys.argv = arguments[1:] if module else arguments
    sys.path.insert(0, str(Path.cwd() if module or beside else Path(arguments[0]).resolve().parent))
    try:
        with session:
            if module:
                runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            return session.failed(f"the script exited with {error.code!r}", None)
    except BaseException as error:  # noqa: BLE001
        return session.failed(report(error), error)
    session.finished()
    return 0


def report(error: BaseException) -> str:
    """The traceback as the script's author knows it, without the probe's own frames."""
    own = str(Path(__file__).parent)
    hidden = (own, "<frozen runpy>", runpy.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(hidden) and not any(part in frame.filename for part in _INTERNAL)
    ]
    message = "".join(traceback.format_exception_only(type(error), error))
    if len(message) > _MESSAGE:
        # PyTorch lists every backend that an operation has; the beginning says which is missing.
        message = message[:_MESSAGE] + "…\n"
    lines = [*traceback.format_list(frames[-_FRAMES:]), message]
    return "".join(["Traceback (most recent call last):\n", *lines])
