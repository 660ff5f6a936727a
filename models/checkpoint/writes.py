"""One line, a checkpoint that is being written, the last one that is durable, and what a job's saves have taught."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kopt.core.checkpoint import LineLabel

LABELS = tuple(LineLabel)
_KEPT = 32


@dataclass(slots=True)
class Said:
    """One line: its number, what it says (``shares`` of the labels), its text, when, and which process said it.

    ``template``: what lines of its kind share, "" where it has not been looked for.

    ``at_s`` is None where neither log nor transport tell; ``live``: it is the moment at which the line came.
    """

    number: int
    shares: Sequence[float]
    text: str
    at_s: float | None = None
    live: bool = False
    writer: str = ""
    template: str = ""


@dataclass(slots=True)
class OpenWrite:
    """A checkpoint being written by one writer.

    ``step_text``: the last line about a step before it; ``last_word``: the refrain of the last line about it that came
    after training had gone on, -1 if none did.
    """

    line: int
    text: str
    at_s: float | None
    step: int | None
    last_step: int | None
    aside: bool
    certainty: float
    step_lines: int = 0
    begun: bool = False
    failed: bool = False
    activity: int = 0
    idle_lines: int = 0
    ending: tuple[int, str, float | None] | None = None
    refrain: int = -1
    named: bool = False
    pauses_after: bool = False
    step_text: str = ""
    last_word: int = -1

    def name_step(self, step: int | None) -> None:
        """Takes the step that a line about the write names; what the job was at is a guess."""
        if step is not None and not self.named:
            self.step, self.named = step, True


@dataclass(slots=True)
class Durable:
    """The last durable checkpoint: its step, when it began (what came after is lost), and the line that said so."""

    step: int | None
    at_s: float | None
    line: int | None
    text: str = ""


@dataclass(slots=True)
class Habits:
    """What this job's saves so far have taught. Times in seconds."""

    told_ends: int = 0
    ends_alone: int = 0
    early_ends: int = 0
    implied_ends: int = 0
    aside: bool = False
    last_word: int = -1
    last_words: int = 0
    pauses: int = 0
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    spoken_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    step_gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    quiet_s: deque[float] = field(default_factory=lambda: deque(maxlen=4))
    saved_at_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    saved_steps: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))
    saved_counts: deque[int] = field(default_factory=lambda: deque(maxlen=4))
    steps_seen: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=8))

    def note_last_word(self, word: int) -> None:
        """Takes note of the refrain that was the last one said of a write whose end nothing told."""
        self.last_words = self.last_words + 1 if word == self.last_word >= 0 else 1
        self.last_word = word

    @property
    def tells_ends(self) -> bool:
        """Whether this job says when its writes have ended, and says it then."""
        return self.told_ends > self.implied_ends and not self.early_ends

    @property
    def longest_write_s(self) -> float | None:
        return max(self.durations_s, default=None)
