"""Requests to save, read from the file in which the downward API shows a pod's annotations."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from kopt.core.workload.checkpoint_request import REQUEST_ANNOTATION, SaveRequest

ANNOTATIONS_FILE = Path("/etc/podinfo/annotations")
"""Where the examples mount it."""
_MOST_BYTES = 4 << 20
"""Annotations have 256 KiB at most, and quoting makes at most ten of one."""
_AHEAD_S = 2.0
"""A request counts from the next whole second on; one that is further ahead comes from another clock."""
_ON_ITS_WAY_S = 120.0
"""A request may stand in the file so long after it was written."""
_LINE = re.compile(rf'^{re.escape(REQUEST_ANNOTATION)}="((?:[^"\\\n]|\\.)*)"$', re.MULTILINE)
_ESCAPE = re.compile(r"\\(?:([abfnrtv\\\"'])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class SaveRequests:
    """Looks for requests whenever it is asked; what cannot be read is no request, and is looked at again.

    A request that stood there before the program began counts until its time is over; one that comes later counts
    whatever the clock says.
    """

    def __init__(self, path: str | os.PathLike[str] = ANNOTATIONS_FILE, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = Path(path), clock
        self._signature: tuple[int, int, int] | None = None
        self._newest: SaveRequest | None = None
        self._read = False
        self._answered_at_s: float | None = None
        self._saved_at_s: float | None = None
        self.last: SaveRequest | None = None
        """The request that ``asked`` was true for."""

    def asked(self) -> bool:
        """Whether to save now: true once for each new request. Costs a ``stat`` as long as nothing changes."""
        self._refresh()
        newest, now_s = self._newest, self._clock()
        if newest is None or newest.at_s == self._answered_at_s:
            return False
        if 0 < newest.at_s - now_s <= _AHEAD_S:
            return False
        self._answered_at_s = newest.at_s
        if self._saved_at_s is not None and 0 <= self._saved_at_s - newest.at_s <= _ON_ITS_WAY_S:
            # A checkpoint of its own was complete after the request was written, which came here only now.
            return False
        self.last = newest
        return True

    def saved(self) -> None:
        """A checkpoint is complete, for whatever reason; a request that was on its way then needs no other."""
        self._saved_at_s = self._clock()

    def _refresh(self) -> None:
        try:
            result = self._path.stat()
            sign = (result.st_ino, result.st_mtime_ns, result.st_size)
            if sign == self._signature:
                return
            with self._path.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
        except OSError:
            return
        self._signature = sign
        request = None if len(content) > _MOST_BYTES else request_in(content.decode("utf-8", "replace"))
        if not self._read and request is not None and self._clock() >= request.until_s:
            self._answered_at_s = request.at_s
        self._read = True
        self._newest = request


def request_in(annotations: str) -> SaveRequest | None:
    """The request among lines of ``name="value"``, values quoted as Go does; None where there is none."""
    match = _LINE.search(annotations)
    return SaveRequest.from_text(_ESCAPE.sub(_unescaped, match[1])) if match else None


def _unescaped(match: re.Match[str]) -> str:
    letter, *numbers = match.groups()
    if letter:
        return _LETTERS.get(letter, letter)
    number = int(next(item for item in numbers if item), 16)
    return chr(number) if number < 0x110000 else "\N{REPLACEMENT CHARACTER}"
