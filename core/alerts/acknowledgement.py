"""What somebody said of an alert that fires."""

from dataclasses import dataclass

LONGEST_NOTE = 400


@dataclass(frozen=True)
class Acknowledgement:
    """``identity`` is the alert's, with its labels (``episodes.Episode.identity``); it counts until the alert is
    resolved. ``at_s`` is Unix time."""

    identity: str
    at_s: float
    who: str
    note: str = ""


def is_printable_note(note: str) -> bool:
    """Whether a note can be kept: one line of at most ``LONGEST_NOTE`` characters."""
    return len(note) <= LONGEST_NOTE and note.isprintable()
