"""Lines of a journal, each with a checksum of its own, so that one that is torn or damaged counts for nothing."""

import json
import zlib
from collections.abc import Sequence
from typing import Any

from kopt.core.untrusted import decode


def checked_line(fields: Sequence[Any]) -> bytes:
    """One line, which ends with a newline."""
    text = json.dumps(fields).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def fields_of(line: bytes) -> list[Any] | None:
    """What ``checked_line`` was given; None for a line that is torn or damaged."""
    check, _, text = line.rstrip(b"\n").partition(b" ")
    try:
        if int(check, 16) != zlib.crc32(text):
            return None
        fields = decode(text.decode())
    except ValueError:
        return None
    return fields if isinstance(fields, list) else None
