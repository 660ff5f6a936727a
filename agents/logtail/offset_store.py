"""Where each log was read up to, in one small file: written beside it and renamed, so that it is whole or old.

A file that is damaged nevertheless counts as none: everything is read again, and the endpoint knows the numbers.
"""

import contextlib
import json
import logging
import os
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_LOG = logging.getLogger(__name__)
_SCHEMA = "kopt-logtail/1"
_LARGEST_BYTES = 64 << 20
_KEPT_S = 7 * 86400.0
"""A log that was not read for so long is forgotten."""


class OffsetStore:
    """Marks by the source's key. ``path`` None: nothing is kept beyond this process."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._positions = {} if path is None else _load(path, clock() - _KEPT_S)
        self._dirty = False
        self._reported = ""

    def position(self, key: str) -> Mapping[str, Any] | None:
        return self._positions.get(key)

    def set(self, key: str, position: Mapping[str, Any]) -> None:
        self._positions[key] = {**position, "at": round(self._clock(), 1)}
        self._dirty = True

    def forget(self, key: str) -> None:
        self._dirty = self._positions.pop(key, None) is not None or self._dirty

    def save(self) -> None:
        """Write what has changed. A folder that cannot be written to is logged once, not raised: reading goes on."""
        if self._path is None or not self._dirty:
            return
        body = json.dumps(self._positions, separators=(",", ":")).encode()
        head = json.dumps({"schema": _SCHEMA, "crc32": zlib.crc32(body)}).encode()
        beside = self._path.with_name(f".{self._path.name}.new")
        try:
            with beside.open("wb") as file:
                file.write(head + b"\n" + body)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            if str(error) != self._reported:
                _LOG.warning("places cannot be kept in %s: %s", self._path, error)
                self._reported = str(error)
            with contextlib.suppress(OSError):
                beside.unlink()
            return
        self._dirty, self._reported = False, ""


def _load(path: Path, oldest_s: float) -> dict[str, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            head, _, body = file.read(_LARGEST_BYTES).partition(b"\n")
    except FileNotFoundError:
        return {}
    except OSError as error:
        _LOG.warning("%s cannot be read, every log is read again: %s", path, error)
        return {}
    try:
        header, result = json.loads(head), json.loads(body)
        if header["schema"] != _SCHEMA or header["crc32"] != zlib.crc32(body) or not isinstance(result, dict):
            raise ValueError("the checksum is another")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        _LOG.warning("%s is damaged, every log is read again: %s", path, error)
        return {}
    return {
        key: position
        for key, position in result.items()
        if isinstance(position, dict) and isinstance(at := position.get("at"), int | float) and at >= oldest_s
    }
