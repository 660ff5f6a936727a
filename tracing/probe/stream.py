"""The probe's end of the event stream: frames of a kind (u8), a length (u32, little-endian) and so many bytes.

Kind 0 is a message (JSON object), kind 1 a block of rows ``event, subject, a, b, module, op`` (int64, little-endian).
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
from array import array
from collections.abc import Iterator

ALLOC, FREE, OP, PHASE, ROLE, RECORD_STREAM, EMPTY_CACHE, WORKSPACE, RANK, CONVOLUTION = range(1, 11)
WEIGHTS, GRADIENTS, OPTIMIZER, BUFFERS, INPUTS, ACTIVATIONS = range(1, 7)

_ROWS_PER_BLOCK = 4096
_TEXT_LIMIT = 1900


class EventWriter:
    """Writes events in the order of the calls, from any thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rows = array("q")
        self._freed: list[int] = []
        self._names: dict[str, int] = {"": 0}
        self._sent: set[tuple[str, str]] = set()
        self._lock = threading.RLock()
        self.closed = fd < 0

    def row(self, event: int, subject: int, a: int = 0, b: int = 0, module: int = 0, op: int = 0) -> None:
        """One event; a full block is written out."""
        rows = self._rows
        if self._freed:
            self._write_freed()
        rows.extend((event, subject, a, b, module, op))
        if len(rows) >= 6 * _ROWS_PER_BLOCK:
            self.flush()

    def freed(self, storage: int) -> None:
        """A storage ended. Those that end together are written by number.

        PyTorch ends some of them (autocast's cache) in the order of their addresses, which change from run to run.
        """
        self._freed.append(storage)

    def _write_freed(self) -> None:
        freed, self._freed = sorted(self._freed), []
        for storage in freed:
            self._rows.extend((FREE, storage, 0, 0, 0, 0))

    def name(self, text: str) -> int:
        """The id of a module path, operation or phase; new ones are announced first."""
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = len(self._names)
            self.message({"name": [number, text[:_TEXT_LIMIT]]})
        return number

    def names(self) -> Iterator[tuple[str, int]]:
        """Every name with its id."""
        yield from self._names.items()

    def message(self, content: dict[str, object]) -> None:
        """One message, after the rows before it."""
        with self._lock:
            self.flush()
            self._frame(0, json.dumps(content).encode())

    def assumption(self, text: str) -> None:
        """What was taken for granted where the truth depends on data; each text once."""
        self._once("assumption", text)

    def warning(self, text: str) -> None:
        """What may make the figures wrong; each text once."""
        self._once("warning", text)

    def stand_in(self, what: str, why: str) -> None:
        """What was replaced, and why; each once."""
        if ("stand_in", what) not in self._sent:
            self._sent.add(("stand_in", what))
            self.message({"stand_in": {"what": what[:_TEXT_LIMIT], "why": why[:_TEXT_LIMIT]}})

    def end(self, reason: str, steps: int, error: str | None = None) -> None:
        """The last message; whatever is written afterwards is dropped."""
        with self._lock:
            if self.closed:
                return
            self.message({"end": {"reason": reason, "steps": steps, "error": error and _ending(error)}})
            self.closed = True

    def flush(self) -> None:
        """Writes the rows that wait."""
        with self._lock:
            self._write_freed()
            rows, self._rows = self._rows, array("q")
            if sys.byteorder == "big":
                rows.byteswap()
            if rows:
                self._frame(1, rows.tobytes())

    def _once(self, kind: str, text: str) -> None:
        if (kind, text) not in self._sent:
            self._sent.add((kind, text))
            self.message({kind: text[:_TEXT_LIMIT]})

    def _frame(self, kind: int, payload: bytes) -> None:
        if self.closed:
            return
        content = memoryview(struct.pack("<BI", kind, len(payload)) + payload)
        while content:
            content = content[os.write(self._fd, content) :]


def _ending(text: str) -> str:
    """The end of a long traceback, where the error stands."""
    return text if len(text) <= _TEXT_LIMIT else "…\n" + text[-_TEXT_LIMIT:].split("\n", 1)[-1]
