"""The state that a job is in, what it goes back to after a write, and the line that shows it."""

from dataclasses import dataclass

from kopt.core.workload.checkpoint import JobState, LineLabel
from kopt.models.checkpoint.classified_line import ClassifiedLine

STATE_OF = {
    LineLabel.STARTUP: JobState.STARTING,
    LineLabel.DATA: JobState.DATA,
    LineLabel.CKPT_LOAD: JobState.LOADING,
    LineLabel.TRAIN_STEP: JobState.TRAIN,
    LineLabel.EVAL: JobState.EVAL,
    LineLabel.OOM: JobState.OOM,
    LineLabel.ERROR: JobState.CRASHED,
    LineLabel.END: JobState.FINISHED,
}
_CHECKPOINT_STATES = (JobState.CKPT_WRITING, JobState.CKPT_DONE, JobState.CKPT_FAILED)


@dataclass(slots=True)
class CurrentState:
    """``before``: what the job goes back to when the write is over; ``line``, ``line_text``: what the state rests on,
    0 and "" if nothing does; ``confidence``: how certain the label of the last line is."""

    state: JobState = JobState.UNKNOWN
    before: JobState = JobState.UNKNOWN
    line: int = 0
    line_text: str = ""
    confidence: float = 0.0

    def remember(self) -> None:
        """Keeps what the job does, before a state of a checkpoint is entered."""
        if self.state not in _CHECKPOINT_STATES:
            self.before = self.state

    def enter(self, state: JobState) -> None:
        """Enters a state of a checkpoint; what the job did before is kept."""
        self.remember()
        self.state = state

    def show(self, state: JobState, line: ClassifiedLine, *, writing: bool, keeps_evidence: bool = False) -> None:
        """Enters the state by this line, unless a write is open."""
        if writing:
            self.state = JobState.CKPT_WRITING
            return
        self.state = state
        if not keeps_evidence:
            self.line, self.line_text = line.number, line.text
