"""Tells files that are no logs from logs, by their first bytes."""

_TEXT_CONTROLS = frozenset(b"\b\t\n\f\r\x1b")
_CONTROLS = bytes(sorted({*range(32), 127} - _TEXT_CONTROLS))
_MOST_SHARE = 0.03
"""Bytes of a packed file are control characters one time in ten; those of a log hardly ever."""
_LEAST = 8


def is_binary(head: bytes) -> bool:
    """Is this the beginning of a program, an archive, a checkpoint? A few stray bytes do not make a log one.

    Zeros at the beginning do not count: a log that is truncated while it is written has a hole there.
    """
    head = head.lstrip(b"\0")
    controls = len(head) - len(head.translate(None, _CONTROLS))
    return controls >= _LEAST and controls > _MOST_SHARE * len(head)
