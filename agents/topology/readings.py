"""The result of a collector: a tool's text, or why there is none."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

LONGEST_CHARS = 16 << 20
"""Of one text; tools are read to two MiB."""


class CollectorProblem(StrEnum):
    """Why a collector has no usable result. ABSENT: the tool or the hardware is not on this node."""

    ABSENT = "absent"
    FAILED = "failed"
    TIMEOUT = "timeout"
    STUCK = "stuck"
    TOO_LARGE = "too-large"
    UNREADABLE = "unreadable"


class CollectorError(Exception):
    """A collector has no text; ``problem`` is the kind of the message."""

    def __init__(self, problem: CollectorProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


@dataclass(frozen=True)
class Reading:
    """One collector's part of a scan; ``problem`` is None where ``text`` is what a tool printed."""

    name: str
    text: str = ""
    problem: CollectorProblem | None = None
    message: str = ""
    seconds: float = 0.0


class Collector(Protocol):
    """Something to ask. ``collect`` raises CollectorError and ends by itself, whatever the tool does."""

    @property
    def name(self) -> str: ...

    async def collect(self) -> str: ...
