"""A lock between processes of one machine."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path, *, wait_s: float = 60.0) -> Iterator[None]:
    """Hold the lock file ``path``; it is free again when the holder dies. Raises TimeoutError after ``wait_s``."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _acquire(file, path, time.monotonic() + wait_s)
        yield
    finally:
        os.close(file)


def _acquire(file: int, path: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} is held by another process") from error
            time.sleep(0.02)
        else:
            return
