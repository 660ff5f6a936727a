"""What a trainer truly did, in a file of its own that the product never reads: JSON lines, monotonic seconds."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


class Record:
    """``writing`` stands around what must not be cut off: from before the first byte until the last is durable."""

    def __init__(self) -> None:
        self._file = Path(os.environ["KOPT_RECORD"]).open("a", buffering=1)  # noqa: SIM115 - as long as the process
        self.note("start")

    def note(self, event: str, **facts: Any) -> None:
        self._file.write(json.dumps({"at": time.monotonic(), "event": event, **facts}) + "\n")

    @contextlib.contextmanager
    def writing(self, step: int) -> Iterator[None]:
        self.note("begin", step=step)
        yield
        self.note("durable", step=step)

    def resume(self, candidates: Iterable[Path], load: Callable[[Path], int]) -> int:
        """The step of the first of ``candidates`` that can be loaded, 0 for none; broken ones are noted."""
        for path in candidates:
            try:
                step = load(path)
            except Exception as error:  # noqa: BLE001 - a torn file fails in any way
                self.note("broken", name=path.name, error=repr(error)[:200])
                continue
            self.note("resumed", step=step)
            return step
        return 0


def step_in(path: Path) -> int:
    """The number in a checkpoint's name."""
    return int("".join(filter(str.isdigit, path.name.rpartition("step=")[2] or path.name)) or 0)


def newest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=step_in, reverse=True)
