"""A job's log, as commands read one from a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from kopt.cli.errors import Refused
from kopt.formats.joblog import is_binary

_HEAD_BYTES = 65_536


@contextmanager
def opened_log(path: Path) -> Iterator[TextIO]:
    """Its lines; the states of a progress bar are lines too. Raises Refused for what cannot be read or is no log."""
    try:
        with path.open("rb") as raw:
            refuse_binary(str(path), raw.read(_HEAD_BYTES))
        with path.open(encoding="utf-8", errors="replace", newline=None) as file:
            yield file
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror or error}") from error


def refuse_binary(name: str, head: bytes) -> None:
    """Raises Refused where a file that begins so holds no text."""
    if is_binary(head):
        raise Refused(f"{name} is no log: it holds binary data; name the text that the training prints")
