"""What a job's own repetitions teach: which line counts steps, which is said before a save and which after one."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.checkpoint import JobState, LineLabel
from kopt.models.checkpoint.classified_line import LABELS, ClassifiedLine
from kopt.models.checkpoint.kill_safety import evaluate, is_safe
from kopt.models.checkpoint.state_machine import StateMachine
from kopt.models.checkpoint.templates import Hint, LineTemplates, hint

STEP_S, WRITE_S = 0.5, 9.0


class Follower:
    """A job followed live: its clock goes on with every line that it says."""

    def __init__(self) -> None:
        self.machine, self.now_s, self._numbers = StateMachine(), 1000.0, count(1)

    def say(self, text: str, shares: dict[LineLabel, float], after_s: float = STEP_S, writer: str = "") -> LineLabel:
        self.now_s += after_s
        rest = (1 - sum(shares.values())) / (len(LABELS) - len(shares))
        of = [shares.get(label, rest) for label in LABELS]
        return self.machine.advance(ClassifiedLine(next(self._numbers), of, text, self.now_s, live=True, writer=writer))

    def train(self, first: int, last: int, **sure: float) -> None:
        for step in range(first, last + 1):
            self.say(f"iter {step} loss 0.25", {LineLabel.TRAIN_STEP: sure.get("sure", 0.95)})

    @property
    def safe(self) -> bool:
        return is_safe(self.machine)

    @property
    def durable_step(self) -> int | None:
        return self.machine.durable.step if self.machine.durable else None


BEGINS = {LineLabel.CKPT_BEGIN: 0.6, LineLabel.CKPT_PROGRESS: 0.2}
ENDS = {LineLabel.CKPT_END: 0.9}


def test_a_line_that_comes_when_the_pause_is_over_is_an_end_whatever_its_words() -> None:
    job = Follower()
    labels = []
    for save in range(1, 6):
        job.train(10 * save - 9, 10 * save)
        labels.append(job.say(f"model-{10 * save}.bin", BEGINS, WRITE_S))
        job.train(10 * save + 1, 10 * save + 1)
    assert labels[0] is LineLabel.CKPT_BEGIN
    assert labels[2:] == [LineLabel.CKPT_END] * 3
    assert job.durable_step == 50
    assert "tells of saves only when they are over" in evaluate(job.machine, job.now_s + 4.5, live=True).reason


def test_an_end_that_is_said_before_the_pause_is_a_beginning() -> None:
    job = Follower()
    for save in range(1, 5):
        job.train(10 * save - 9, 10 * save)
        label = job.say(f"Saved model-{10 * save}.bin", ENDS)
        assert (label is LineLabel.CKPT_END) == (save <= 2)
        assert not job.safe
        job.say(f"iter {10 * save + 1} loss 0.25", {LineLabel.TRAIN_STEP: 0.95}, WRITE_S)
        job.train(10 * save + 2, 10 * save + 2)
    assert job.safe
    assert job.durable_step == 40


def test_an_end_with_another_pause_behind_it_is_held_until_the_next_line() -> None:
    job = Follower()
    for save in range(1, 6):
        job.train(10 * save - 9, 10 * save)
        job.say(f"Saved best-{10 * save}.bin", ENDS, WRITE_S)
        assert not job.safe
        assert not evaluate(job.machine, job.now_s + 8.5, live=True).safe
        job.say(f"iter {10 * save + 1} loss 0.25", {LineLabel.TRAIN_STEP: 0.95}, WRITE_S)
        assert job.durable_step == 10 * save
        job.train(10 * save + 2, 10 * save + 2)
        assert job.safe == (save >= 2)


def test_what_a_save_in_silence_follows_each_time_is_its_beginning() -> None:
    job = Follower()
    for save, step in enumerate((10, 30, 35, 70, 90)):
        job.train(step - 4 - 2 * (save % 3), step)
        assert save < 2 or job.safe
        job.say(f"The previous best of epoch {save} goes", {LineLabel.OTHER: 0.9})
        assert not job.safe
        job.say(f"Saved best-{step}.bin", ENDS, WRITE_S)
        job.train(step + 1, step + 2)
        assert job.safe == (save > 0)
        assert job.durable_step == step


def test_a_write_that_was_spoken_of_late_keeps_the_next_one_from_being_forgotten_early() -> None:
    job = Follower()
    job.train(1, 10)
    job.say("Saved model-10.bin", ENDS)
    for save in range(2, 12):
        job.train(100 * save, 100 * save)
        job.say(f"flushing {100 * save}", BEGINS)
        job.train(100 * save + 1, 100 * save + 80)
        job.say(f"flushed {100 * save}", {LineLabel.CKPT_PROGRESS: 0.9})
        job.train(100 * save + 81, 100 * save + 82)
    job.say("flushing 1200", BEGINS)
    job.train(1201, 1270)
    assert not job.safe


def test_parts_of_a_write_with_pauses_between_them_are_no_ends() -> None:
    job = Follower()
    for save in range(1, 6):
        job.train(10 * save - 9, 10 * save)
        for part in ("weights", "optimizer"):
            job.say(f"{part} stored in {10 * save}", BEGINS, WRITE_S)
            assert not job.safe
            job.say("", {LineLabel.OTHER: 0.9}, 0.0)
            assert not job.safe
        # The last part is written without a word.
        job.say(f"iter {10 * save + 1} loss 0.25", {LineLabel.TRAIN_STEP: 0.95}, WRITE_S)
        job.train(10 * save + 2, 10 * save + 2)


def test_words_that_seem_to_be_about_saves_count_steps_when_they_do_nothing_else() -> None:
    job = Follower()
    labels = [
        job.say(f"bwoc {n} matx 1.5", {LineLabel.CKPT_BEGIN: 0.45, LineLabel.CKPT_PROGRESS: 0.2}) for n in range(1, 40)
    ]
    assert labels[0] is not LineLabel.TRAIN_STEP
    assert labels[15:] == [LineLabel.TRAIN_STEP] * len(labels[15:])


def test_shards_that_are_clearly_shards_stay_parts_however_many_there_are() -> None:
    job = Follower()
    job.train(1, 10)
    for shard in range(1, 60):
        label = job.say(f"writing shard {shard} of 60", {LineLabel.CKPT_PROGRESS: 0.9, LineLabel.CKPT_BEGIN: 0.05})
        assert label is not LineLabel.TRAIN_STEP
        assert not job.safe


def test_the_number_in_front_of_a_line_is_a_rank_only_where_it_comes_again() -> None:
    job = Follower()
    for step in range(1, 30):
        job.say(f"{step}.5 avg", {LineLabel.TRAIN_STEP: 0.95}, writer=str(step))
    assert job.machine.processes == 1
    for step in range(30, 40):
        for rank in "0123":
            job.say(f"iter {step}", {LineLabel.TRAIN_STEP: 0.95}, writer=rank)
    assert job.machine.processes == 4


def test_a_job_of_one_process_is_one_writer_where_some_lines_name_it_and_others_do_not() -> None:
    job = Follower()
    job.train(1, 10)
    job.say("Saving state to out/10", BEGINS, writer="rank0")
    assert job.machine.state is JobState.CKPT_WRITING
    job.say("Saved state to out/10", ENDS, WRITE_S, writer="rank0")
    job.train(11, 11)
    assert (evaluate(job.machine, files=True).safe, job.durable_step) == (True, 10)


@pytest.mark.parametrize("opened", [False, True])
def test_a_line_heard_once_is_taken_by_its_words(opened: bool) -> None:
    found = LineTemplates().observe("a", "a 1", "", 5.0, write=True)
    assert hint(found, 0.5, 0.2, 0.9, opened=opened) is Hint.NOTHING


lines = st.lists(
    st.tuples(
        st.sampled_from(["iter 0", "save 0", "saved 0", "eval", ""]),
        st.integers(0, 10**6),
        st.floats(0, 100),
        st.sampled_from(["", "rank0", "rank1", "7"]),
        st.booleans(),
    ),
    max_size=200,
)


@given(lines)
def test_memory_is_bounded_and_survives_being_saved(said: list[tuple[str, int, float, str, bool]]) -> None:
    job = Follower()
    for number, (word, value, after_s, writer, write) in enumerate(said):
        job.say(f"{word} {value} {'x' * (number % 50)}", BEGINS if write else {}, after_s, writer)
    assert len(job.machine.to_dict()["refrains"]["known"]) <= 96
    assert StateMachine.from_dict(job.machine.to_dict()).to_dict() == job.machine.to_dict()
