"""Progress reports of a training run."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """``done`` of ``total`` parts of ``step`` are finished; ``kept`` of them were there from an earlier run."""

    step: str
    done: int
    total: int
    message: str = ""
    kept: int = 0


Progress = Callable[[Event], None]


def silent(_: Event) -> None:
    """Reports nothing."""
