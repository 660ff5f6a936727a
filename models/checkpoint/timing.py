"""The times of a job's lines, and how far its training is."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class JobClock:
    """When the log began, when training began and when the last line came; None while not known.

    ``silence_s``: the time between the last two lines; ``stepped_at_s``: of the last line, if it was about a step.
    """

    began_at_s: float | None = None
    first_step_at_s: float | None = None
    last_at_s: float | None = None
    silence_s: float | None = None
    stepped_at_s: float | None = None

    def observe(self, at_s: float | None) -> None:
        """Records the time of the next line."""
        self.silence_s = None if at_s is None or self.last_at_s is None else at_s - self.last_at_s
        if at_s is None:
            return
        if self.began_at_s is None:
            self.began_at_s = at_s
        self.last_at_s = at_s

    def observe_step(self, at_s: float, *, after_write: bool) -> float | None:
        """Records a line about a step; returns the time since the last one if it followed directly."""
        if self.first_step_at_s is None:
            self.first_step_at_s = at_s
        before_s, self.stepped_at_s = self.stepped_at_s, at_s
        return None if before_s is None or after_write or at_s < before_s else at_s - before_s

    def clamp(self, now_s: float) -> None:
        """Moves times that lie after ``now_s`` back to it."""
        self.began_at_s = _earlier(self.began_at_s, now_s)
        self.first_step_at_s = _earlier(self.first_step_at_s, now_s)
        self.last_at_s = _earlier(self.last_at_s, now_s)


@dataclass(slots=True)
class TrainingProgress:
    """Where training is: its step, its epoch, and the lines about steps so far.

    ``steppers``: lines about steps by writer; ``stepped_since_end``: training has gone on since the last write ended;
    ``active_since_end``: or anything else that a job does between saves has begun.
    ``first_epoch``: by files, what the job's bar calls the first epoch; None where no bar counts batches of one.
    """

    step: int | None = None
    epoch: int | None = None
    step_text: str = ""
    step_lines: int = 0
    steppers: dict[str, int] = field(default_factory=dict)
    stepped_since_end: bool = True
    first_epoch: int | None = None
    active_since_end: bool = True


def _earlier(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else min(at_s, now_s)
