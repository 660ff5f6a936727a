"""What a job's own earlier saves say about the lines of the next one."""

import pytest

from kopt.core.workload.checkpoint import JobState, LineLabel
from kopt.models.checkpoint.classified_line import LABELS, ClassifiedLine
from kopt.models.checkpoint.kill_safety import evaluate, is_safe
from kopt.models.checkpoint.line_facts import continues_aside
from kopt.models.checkpoint.state_machine import StateMachine
from kopt.models.checkpoint.write_statistics import SaveProgress, WriteStatistics

B, P, E, LOAD = LineLabel.CKPT_BEGIN, LineLabel.CKPT_PROGRESS, LineLabel.CKPT_END, LineLabel.CKPT_LOAD
STEP, EVAL, OTHER = LineLabel.TRAIN_STEP, LineLabel.EVAL, LineLabel.OTHER


class Job:
    """A machine whose lines are given by the shares of their labels; ``say`` returns the state after the line."""

    def __init__(self) -> None:
        self.machine, self._lines, self._step = StateMachine(), 0, 0

    def say(self, text: str, **labels: float) -> JobState:
        self._lines += 1
        shares = [labels.get(label.value, 0.0) for label in LABELS]
        self.machine.advance(ClassifiedLine(self._lines, shares, text))
        return self.machine.state

    def tell(self, label: LineLabel, text: str) -> JobState:
        return self.say(text, **{label.value: 0.9, OTHER.value: 0.1})

    def train(self, steps: int = 8) -> JobState:
        for _ in range(steps):
            self._step += 1
            state = self.tell(STEP, f"step {self._step} loss 0.{self._step}")
        return state

    def save(self, times: int = 1) -> None:
        """Trains and saves, with a line before each save and one after it."""
        for _ in range(times):
            self.train()
            self.tell(B, "saving the state")
            self.tell(E, "state saved")

    @property
    def safe(self) -> bool:
        return is_safe(self.machine)


def progress(*saves: tuple[int, ...]) -> SaveProgress:
    statistics = WriteStatistics()
    for number, templates in enumerate(saves):
        for each in templates:
            statistics.record_line(number, each)
    return statistics.save_progress


def test_a_save_is_complete_with_the_lines_of_an_earlier_one_in_any_order_of_ranks() -> None:
    assert progress((1, 2, 2)) is SaveProgress.UNKNOWN
    assert progress((1, 2, 2), (2, 1)) is SaveProgress.MORE
    assert progress((1, 2, 2), (2, 1, 2)) is SaveProgress.COMPLETE
    assert progress((1, 2, 2), (2, 1, 2, 3)) is SaveProgress.UNKNOWN
    assert progress((1,), (1, 2), (1,)) is SaveProgress.MORE, "a save that once went on may go on again"


def test_what_sounds_like_an_end_ends_nothing_where_more_came_after_it_before() -> None:
    job = Job()
    for save in (1, 2):
        job.train()
        job.tell(B, "saving the state")
        job.tell(E, "model saved")
        state = job.tell(OTHER, "gathering")
        assert state is (JobState.CKPT_DONE if save == 1 else JobState.CKPT_WRITING)
        job.tell(P, "optimizer being written")
    assert not job.safe


def test_a_message_that_ended_a_save_ends_the_next_one_if_its_words_are_half_understood() -> None:
    job = Job()
    for doubt in (0.0, 0.6):
        job.train()
        job.tell(B, "saving the state")
        job.say("state is on disk", ckpt_end=0.9 - doubt, ckpt_progress=doubt)
        state = job.train(1)
        assert state is JobState.CKPT_DONE
    assert job.machine.statistics.reported_ends == 2


def test_words_that_began_two_saves_begin_the_next_one_whatever_they_seem_to_mean() -> None:
    job = Job()
    for label in (B, B, LOAD):
        job.train()
        assert job.tell(label, "flushing the state dict") is JobState.CKPT_WRITING
        assert not job.safe


def test_a_line_about_loading_in_a_write_is_about_that_write() -> None:
    job = Job()
    job.train()
    job.tell(B, "saving the state")
    shares = [float(label is LOAD) for label in LABELS]
    assert job.machine.advance(ClassifiedLine(99, shares, "state dict flushed")) is P
    assert job.train(1) is JobState.CKPT_DONE
    assert job.machine.advance(ClassifiedLine(101, shares, "state dict flushed")) is LOAD


def test_no_end_is_safe_before_training_goes_on() -> None:
    job = Job()
    for save in range(4):
        job.train(3)
        assert job.safe == (save > 1)
        job.train(5)
        job.tell(B, "saving the state")
        job.tell(E, "state saved")
        assert not job.safe
        job.tell(OTHER, "creating a link")
        assert not job.safe
    job.train(3)
    assert job.safe
    assert StateMachine.from_dict(job.machine.to_dict()).to_dict() == job.machine.to_dict()


def test_saves_whose_files_have_other_names_are_alike() -> None:
    job = Job()
    for name in ("a/best", "'/b/last"):
        job.train()
        job.tell(B, f"Saving model to {name}.pt")
        job.tell(E, "done")
    job.train(3)
    assert job.safe


def test_from_the_second_save_on_a_step_with_another_loss_is_no_bar_that_is_drawn_again() -> None:
    job = Job()
    states = []
    for _ in range(2):
        job.train()
        job.tell(B, "saving the state")
        states.append(job.tell(STEP, f"step {job.machine.step} loss 0.987"))
        job.train(1)
    assert states == [JobState.CKPT_WRITING, JobState.CKPT_DONE]


def test_a_write_of_which_only_parts_were_named_ends_at_once_after_all_of_an_earlier_one() -> None:
    job = Job()
    steps_to_the_end = []
    for _ in range(2):
        job.train()
        job.tell(P, "weights to disk")
        steps_to_the_end.append(next(n for n in range(1, 9) if job.train(1) is JobState.CKPT_DONE))
    assert steps_to_the_end == [3, 1]
    assert evaluate(job.machine).last_durable_step == 19


def test_a_job_that_says_it_is_over_may_still_write_its_last_checkpoint() -> None:
    job = Job()
    job.save(times=3)
    job.train(3)
    assert job.safe
    job.tell(LineLabel.END, "Training completed.")
    assert job.machine.state is JobState.FINISHED
    assert not job.safe
    job.train(3)
    assert job.safe, "it was not the end"


@pytest.mark.parametrize("label", [LineLabel.STARTUP, LineLabel.DATA, LOAD])
def test_a_job_that_does_not_train_is_not_safe(label: LineLabel) -> None:
    job = Job()
    job.save(times=3)
    job.train(3)
    for _ in range(5):
        job.tell(label, "reading the rest")
        job.train(1)
        assert job.safe or job.machine.step % 8 == 0
        job.tell(label, "reading the rest")
        assert not job.safe


def test_an_end_that_speaks_of_a_save_aside_is_the_handover() -> None:
    job = Job()
    for save in range(3):
        job.train()
        job.tell(B, "saving the state")
        assert job.tell(E, "state saved to memory; writing it in the background") is JobState.CKPT_WRITING
        job.train(2)
        assert job.machine.writing
        assert not job.safe
        job.tell(E, "all is written")
        job.train(2)
        assert job.safe == (save > 0)


def test_asynchronously_is_not_synchronous() -> None:
    assert continues_aside("Checkpoint prepared. Saving asynchronously.")
    assert continues_aside("Asynchronous save of step 3")
    assert not continues_aside("async_save=True, falling back to a synchronous save")
    assert not continues_aside("Saving synchronously")
