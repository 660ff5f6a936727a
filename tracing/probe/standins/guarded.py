"""Who would be given an error that is raised here: scripts that expect one get it, others a stand-in."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

# What those catch that do without a file.
ABSENT = {"FileNotFoundError", "OSError", "IOError", "Exception", "BaseException"}
_PROBE = str(Path(__file__).parents[1])
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")


def expected(names: set[str], text: str = "", by_libraries: bool = False) -> bool:
    """Whether a caller handles exceptions at this place and its code speaks of one of ``names`` or of ``text``."""
    return any(
        _speaks(frame.f_code, names, text) and _guarded(frame.f_code, frame.f_lasti)
        for frame in _frames()
        if _counts(frame.f_code.co_filename, by_libraries)
    )


def _counts(file: str, by_libraries: bool) -> bool:
    return not file.startswith(_PROBE) and (by_libraries or not any(part in file for part in _LIBRARIES))


def _frames() -> Iterator[FrameType]:
    """From here outwards, and from where the script waits for a backward pass in a thread of its own."""
    main = threading.main_thread().ident
    starts = [sys._getframe(1)]
    if threading.get_ident() != main and main is not None:
        starts.append(sys._current_frames()[main])
    for start in starts:
        frame: FrameType | None = start
        while frame is not None:
            yield frame
            frame = frame.f_back


def _speaks(code: CodeType, names: set[str], text: str) -> bool:
    if not names.isdisjoint(code.co_names):
        return True
    return bool(text) and any(isinstance(co_const, str) and text in co_const.lower() for co_const in code.co_consts)


def _guarded(code: CodeType, offset: int) -> bool:
    """Whether the code handles an exception here; before Python 3.11 nothing tells."""
    parse: Any = getattr(dis, "_parse_exception_table", None)
    return parse is None or any(item.start <= offset < item.end for item in parse(code))
