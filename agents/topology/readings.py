"""What a collector brings: a tool's text, or why there is none."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Trouble(StrEnum):
    """Why a collector brought nothing that is of use. ABSENT: the tool or the hardware is not on this node."""

    ABSENT = "absent"
    FAILED = "failed"
    TIMEOUT = "timeout"
    STUCK = "stuck"
    TOO_LARGE = "too-large"
    UNREADABLE = "unreadable"


class CollectorError(Exception):
    """A collector has no text to give; ``trouble`` says of what kind the message is."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble


@dataclass(frozen=True)
class Reading:
    """One collector's part of a scan; ``trouble`` is None where ``text`` is what a tool printed."""

    name: str
    text: str = ""
    trouble: Trouble | None = None
    message: str = ""
    seconds: float = 0.0


class Collector(Protocol):
    """Something to ask. ``collect`` raises CollectorError and ends by itself, whatever the tool does."""

    @property
    def name(self) -> str: ...

    async def collect(self) -> str: ...
