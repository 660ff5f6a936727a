"""How the platform's process reports to ``kopt up`` what it does: one JSON object per line on its standard output.

Whatever libraries print goes to standard error, which is the process's log, so the lines stay clean.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import IO

from kopt.cli.errors import explain


@dataclass(frozen=True)
class Event:
    """``kind`` is begin, note, end or failed; ``key`` names the step; ``text`` is for people."""

    kind: str
    key: str
    text: str = ""


class Events:
    """The sender."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def send(self, kind: str, key: str, text: str = "") -> None:
        # A supervisor that is gone is noticed by the guard; the line is not worth an error.
        with contextlib.suppress(BrokenPipeError):
            self._out.write(json.dumps(asdict(Event(kind, key, text))) + "\n")
            self._out.flush()

    @contextlib.contextmanager
    def step(self, key: str, text: str) -> Iterator[Callable[[str], None]]:
        """A step; what is yielded sets its outcome. A failure is reported and raised again."""
        outcome: list[str] = []
        self.send("begin", key, text)
        try:
            yield outcome.append
        except Exception as error:
            self.send("failed", key, explain(error))
            raise
        self.send("end", key, outcome[-1] if outcome else "")

    def update(self, key: str, text: str) -> None:
        self.send("note", key, text)


def claim_standard_output() -> Events:
    """The sender on today's standard output; from now on everything printed goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return Events(out)


def parse(line: str) -> Event | None:
    """The event of a line, None for anything else."""
    try:
        return Event(**{name: str(value) for name, value in json.loads(line).items()})
    except (ValueError, TypeError, AttributeError):
        return None
