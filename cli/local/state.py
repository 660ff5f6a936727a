"""What a running platform leaves in its home for other commands: a lock that says it runs, a file that says where."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kopt.cli.errors import Refused

LOCK, STATE = "run.lock", "run.json"


@dataclass(frozen=True)
class Running:
    """A started platform. ``pid`` is ``kopt up`` itself; ``ready`` says that all addresses have answered."""

    pid: int
    api: str
    pages: str
    mlflow: str
    ready: bool = False
    started_at_s: float = 0.0
    pids: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def addresses(self) -> dict[str, str]:
        return {"api": self.api, "pages": self.pages, "mlflow": self.mlflow}


def write(home: Path, running: Running) -> None:
    """Replace the state file in one step, readable by its owner only."""
    draft = home / f".{STATE}.{os.getpid()}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump({"schema": "kopt/v1", **asdict(running)}, file)
    draft.replace(home / STATE)


def read(home: Path) -> Running | None:
    """The platform that runs on this home; None when nothing holds the lock, whatever an old file says."""
    if not is_held(home):
        return None
    try:
        return _parse(json.loads((home / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _parse(fields: dict[str, Any]) -> Running:
    fields.pop("schema", None)
    return Running(**fields)


def is_held(home: Path) -> bool:
    """Does a living process hold the lock? The kernel drops it when its holder ends in whatever way."""
    try:
        with (home / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextlib.contextmanager
def hold(home: Path) -> Iterator[None]:
    """Be the one platform of this home. Raises Refused with the other's addresses when there is one already."""
    descriptor = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _try_lock(descriptor):
        os.close(descriptor)
        raise Refused(_already(home))
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            (home / STATE).unlink()
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Take the lock; a moment's patience, because whoever asks `is_held` holds it for an instant."""
    for _ in range(5):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.05)
    return False


def _already(home: Path) -> str:
    running = read(home)
    where = f" (process {running.pid}, pages at {running.pages})" if running else ""
    return f"the platform already runs on {home}{where}; `kopt status` shows it, `kopt down` stops it"
