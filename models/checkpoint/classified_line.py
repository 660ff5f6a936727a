"""One line of a log with the shares that the line classifier gave its labels."""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.workload.checkpoint import LineLabel

LABELS = tuple(LineLabel)
LineReference = tuple[int, str, float | None]
"""A line's number, text and time, where nothing else of it is needed."""


@dataclass(slots=True)
class ClassifiedLine:
    """One line: its number, the ``shares`` of the labels, its text, its time, and which process wrote it.

    ``template``: the text without what differs between lines of its kind, "" if it has not been computed.

    ``at_s`` is None if neither the log nor the transport has a time; ``live``: it is the time of arrival.
    """

    number: int
    shares: Sequence[float]
    text: str
    at_s: float | None = None
    live: bool = False
    writer: str = ""
    template: str = ""

    @property
    def reference(self) -> LineReference:
        return self.number, self.text, self.at_s
