"""What lines say becomes where a job is: writes that begin, end, fail, overlap and go unsaid."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.checkpoint import JobState, LineLabel
from kopt.models.checkpoint.classified_line import LABELS, ClassifiedLine
from kopt.models.checkpoint.kill_safety import evaluate, is_safe
from kopt.models.checkpoint.state_machine import StateMachine
from kopt.models.checkpoint.write_statistics import WriteStatistics

B, P, E = LineLabel.CKPT_BEGIN, LineLabel.CKPT_PROGRESS, LineLabel.CKPT_END
STEP, EVAL, OTHER, OVER = LineLabel.TRAIN_STEP, LineLabel.EVAL, LineLabel.OTHER, LineLabel.END


def classified(
    number: int,
    label: LineLabel,
    text: str = "",
    at_s: float | None = None,
    *,
    sure: float = 0.95,
    writer: str = "",
    live: bool = False,
) -> ClassifiedLine:
    shares = [(1 - sure) / (len(LABELS) - 1)] * len(LABELS)
    shares[LABELS.index(label)] = sure
    return ClassifiedLine(number, shares, text, at_s, live, writer)


class Job:
    """A machine with its lines numbered; ``say`` returns the state after the line."""

    def __init__(self) -> None:
        self.machine, self._numbers = StateMachine(), count(1)

    def say(self, label: LineLabel, text: str = "", at_s: float | None = None, **more: object) -> JobState:
        self.machine.advance(classified(next(self._numbers), label, text, at_s, **more))  # type: ignore[arg-type]
        return self.machine.state

    def train(self, first: int, last: int, *, at_s: float | None = None, live: bool = False) -> None:
        for step in range(first, last + 1):
            at = None if at_s is None else at_s + step - first
            self.say(STEP, f"step {step} loss 0.5", at, live=live)

    @property
    def safe(self) -> bool:
        return is_safe(self.machine)


def test_nothing_is_safe_before_a_checkpoint_is_durable() -> None:
    job = Job()
    job.train(1, 50)
    assert job.machine.state is JobState.TRAIN
    assert not job.safe
    assert "No durable checkpoint" in evaluate(job.machine).reason


def test_a_told_write_is_held_to_its_end_and_names_its_step() -> None:
    job = Job()
    job.train(1, 10)
    assert job.say(B, "Saving checkpoint to out/checkpoint-10") is JobState.CKPT_WRITING
    assert job.say(P, "optimizer state saved in out/checkpoint-10/optimizer.bin") is JobState.CKPT_WRITING
    assert job.say(OTHER, '  "hidden_size": 64,') is JobState.CKPT_WRITING
    assert not job.safe
    assert job.say(E, "Saved checkpoint") is JobState.CKPT_WRITING
    assert job.say(STEP, "step 11 loss 0.2") is JobState.CKPT_DONE
    assert evaluate(job.machine, files=True).safe
    status = evaluate(job.machine)
    assert (status.last_durable_step, status.evidence, status.evidence_line) == (10, True, 15)
    job.train(12, 12)
    assert job.machine.state is JobState.TRAIN


def test_where_no_end_is_told_the_next_step_of_a_synchronous_saver_is_one() -> None:
    job = Job()
    job.train(1, 10)
    job.say(B, "Saving model to out/10.pt")
    assert job.say(STEP, "step 11 loss 0.4") is JobState.CKPT_DONE
    assert evaluate(job.machine).last_durable_step == 10


def test_what_counts_nothing_and_seems_to_be_an_evaluation_ends_no_write() -> None:
    job = Job()
    job.train(1, 10)
    job.say(B, "Saving model to out/10.pt")
    assert job.say(EVAL, '    "AnyForCausalLM"') is JobState.CKPT_WRITING
    assert job.say(EVAL, "Joined...", sure=0.99) is JobState.CKPT_WRITING
    assert not job.safe
    assert job.say(EVAL, "eval loss 0.4") is JobState.CKPT_DONE


def test_a_bar_drawn_again_is_no_next_step() -> None:
    job = Job()
    job.train(1, 10)
    job.say(B, "step 10 loss 0.5 Saving model to out/10.pt")
    assert job.say(STEP, "step 10 loss 0.5") is JobState.CKPT_WRITING


@pytest.mark.parametrize("text", ["Saving checkpoint (async)", "正在后台保存检查点", "Speichere im Hintergrund"])
def test_a_saver_that_says_it_works_aside_is_not_ended_by_steps(text: str) -> None:
    job = Job()
    job.train(1, 10)
    job.say(B, text)
    job.train(11, 60)
    assert job.machine.state is JobState.CKPT_WRITING
    job.say(E, "write finished")
    assert job.say(STEP, "step 61 loss 0.1") is JobState.CKPT_DONE
    assert evaluate(job.machine).last_durable_step == 10


def test_a_job_that_tells_ends_is_believed_in_nothing_else() -> None:
    job = Job()
    for first in (1, 11):
        job.train(first, first + 9)
        job.say(B, "saving checkpoint")
        job.say(E, "saved checkpoint")
    job.train(21, 30)
    job.say(B, "saving checkpoint")
    job.train(31, 40)
    assert job.machine.state is JobState.CKPT_WRITING


def test_an_end_after_steps_shows_that_writes_go_on_aside() -> None:
    job = Job()
    job.train(1, 10)
    job.say(B, "saving checkpoint 10")
    job.train(11, 13)
    job.say(E, "saved checkpoint 10")
    job.train(14, 20)
    job.say(B, "saving checkpoint 20")
    job.train(21, 30)
    assert job.machine.state is JobState.CKPT_WRITING


def test_a_write_that_met_an_error_is_no_checkpoint() -> None:
    job = Job()
    job.train(1, 10)
    job.say(B, "saving checkpoint 10")
    job.say(E, "saved checkpoint 10")
    job.train(11, 20)
    job.say(B, "saving checkpoint 20")
    assert job.say(LineLabel.ERROR, "failed to save: No space left on device") is JobState.CKPT_WRITING
    assert job.say(STEP, "step 21 loss 0.1") is JobState.CKPT_FAILED
    status = evaluate(job.machine, files=True)
    assert (status.last_durable_step, status.safe) == (10, True)


def test_every_rank_has_its_own_write() -> None:
    job = Job()
    for rank in ("rank0", "rank1"):
        job.say(STEP, "step 10 loss 0.5", writer=rank)
        job.say(B, "saving shard of step 10", writer=rank)
    assert job.say(E, "saved shard", writer="rank0") is JobState.CKPT_WRITING
    assert not job.safe
    job.say(E, "saved shard", writer="rank1")
    assert job.say(STEP, "step 11 loss 0.4", writer="rank0") is JobState.CKPT_WRITING
    assert job.say(STEP, "step 11 loss 0.4", writer="rank1") is JobState.CKPT_DONE


def test_a_step_speaks_for_processes_that_save_and_never_say_one() -> None:
    job = Job()
    for step in (10, 20):
        for writer in ("driver", "worker", "driver", "driver"):
            job.say(STEP if writer == "driver" else OTHER, f"step {step} loss 0.5", writer=writer)
        job.say(B, f"saving checkpoint of step {step}", writer="driver")
        job.say(P, "saving the shards", writer="worker")
        job.say(B, "saving the optimizer", writer="helper")
        job.say(E, f"saved checkpoint of step {step}", writer="driver")
        assert not job.safe
        job.say(STEP, f"step {step + 1} loss 0.4", writer="driver")
        assert not job.machine.writing
        assert evaluate(job.machine).last_durable_step == step
        for later in range(step + 2, step + 6):
            job.say(STEP, f"step {later} loss 0.4", writer="driver")
        # Nobody has seen yet that this job saves like this.
        assert job.safe == (step == 20), evaluate(job.machine).reason


def test_a_step_does_not_speak_for_a_process_that_saves_aside() -> None:
    job = Job()
    for first in (10, 40):
        for writer in ("driver", "worker"):
            job.say(STEP if writer == "driver" else OTHER, f"step {first} loss 0.5", writer=writer)
        job.say(B, "saving checkpoint in the background", writer="worker")
        for step in range(first + 1, first + 21):
            assert job.say(STEP, f"step {step} loss 0.4", writer="driver") is JobState.CKPT_WRITING
        job.say(E, f"saved checkpoint of step {first}", writer="worker")
        for _ in range(2):
            job.say(OTHER, "idle", writer="worker")
    job.say(STEP, "step 61 loss 0.4", writer="driver")
    assert job.safe


def test_what_was_the_last_word_on_two_writes_aside_is_the_end_of_the_third() -> None:
    job, safe = Job(), []
    job.train(1, 10)
    for save in range(1, 5):
        job.say(P, f"waiting for step {10 * save}")
        assert not job.safe
        job.say(B, f"saving checkpoint of step {10 * save} in the background")
        job.say(P, "staged in 0.5 s")
        job.train(10 * save + 1, 10 * save + 4)
        job.say(P, "renaming the folder")
        assert job.say(P, "told the others") is JobState.CKPT_WRITING
        job.train(10 * save + 5, 10 * save + 8)
        safe.append(job.safe)
        job.train(10 * save + 9, 10 * save + 10)
    assert safe == [False, False, True, True]
    assert evaluate(job.machine).last_durable_step == 40


@pytest.mark.parametrize("label", [B, E])
def test_an_end_that_is_told_aside_after_training_went_on_is_the_end_of_the_next_saves(label: LineLabel) -> None:
    """ "Saved" was said when the files were handed to another process, which says so itself when it is done."""
    job = Job()
    job.train(1, 12)
    for save in (1, 2, 3):
        step = 20 * save
        job.say(B, f"saving tmp/{step}.pt")
        job.say(E, f"saved tmp/{step}.pt")
        states = [job.say(STEP, f"step {step + n} loss 0.5") for n in (1, 2)]
        assert not job.safe
        assert save == 1 or states == [JobState.CKPT_WRITING] * 2
        job.say(label, f"async save {step} complete")
        job.train(step + 3, step + 15)
        assert job.machine.state is JobState.TRAIN
    assert job.safe


def test_a_bar_that_is_drawn_only_in_writes_ends_none() -> None:
    job = Job()
    for save in (1, 2):
        job.train(20 * save, 20 * save + 10)
        job.say(B, f"Saving checkpoint {save}")
        assert job.say(STEP, f"Saving weights: {10 * save}/100") is JobState.CKPT_WRITING
        assert not job.safe
        assert job.say(STEP, f"step {20 * save + 11} loss 0.5") is JobState.CKPT_DONE
    # Words that both are about training say nothing of the write.
    job.say(B, "Epoch 7: loss improved, saving model")
    assert job.say(STEP, "Epoch 8: 3/100") is JobState.CKPT_DONE


def test_what_is_staged_before_training_goes_on_never_becomes_an_end() -> None:
    job = Job()
    job.train(1, 10)
    for save in range(1, 6):
        job.say(B, f"saving checkpoint of step {10 * save} in the background")
        job.say(P, "staged in 0.5 s")
        job.train(10 * save + 1, 10 * save + 10)
        assert not job.safe


@pytest.mark.parametrize(
    "line", ["Epoch 3, batch {}, loss 0.4", "fps step: 21312 total: 15123 epoch: {}/500", "epoch 3 (batch {}): loss 1"]
)
def test_what_counts_on_is_no_bar_drawn_again(line: str) -> None:
    job = Job()
    for number in range(40, 50):
        job.say(STEP, line.format(number))
    job.say(B, "saving checkpoint")
    assert job.say(STEP, line.format(49)) is JobState.CKPT_WRITING
    assert job.say(STEP, line.format(50)) is JobState.CKPT_DONE


def test_a_last_word_on_the_epoch_that_was_saved_is_no_next_step() -> None:
    job = Job()
    for batch in range(100, 500, 100):
        job.say(STEP, f"Epoch 3, batch {batch}/400, loss 0.5")
    job.say(B, "saving checkpoint")
    assert job.say(STEP, "Epoch 3: mean loss 0.4") is JobState.CKPT_WRITING
    assert job.say(STEP, "Epoch 4, batch 100/400, loss 0.4") is JobState.CKPT_DONE


def test_before_training_a_write_that_nothing_more_is_said_of_is_forgotten() -> None:
    job = Job()
    job.say(B, "--save_model_at_end [SAVE_MODEL_AT_END]")
    for _ in range(8):
        assert job.say(OTHER, "--usage goes on") is JobState.CKPT_WRITING
    assert job.say(LineLabel.DATA, "loading data") is JobState.DATA
    assert not job.safe


def test_an_end_that_more_follows_was_a_parts() -> None:
    job = Job()
    job.train(1, 10)
    job.say(B, "saving checkpoint 10")
    job.say(E, "saved optimizer.pt")
    assert job.say(P, "saving model.pt") is JobState.CKPT_WRITING
    job.say(E, "saved model.pt")
    assert not job.safe
    assert job.say(STEP, "step 11 loss 0.3") is JobState.CKPT_DONE


def test_ends_that_were_ends_twice_are_believed_at_once() -> None:
    job = Job()
    for first in (1, 11):
        job.train(first, first + 9)
        job.say(B, "saving checkpoint")
        job.say(E, "saved checkpoint")
    job.train(21, 30)
    job.say(B, "saving checkpoint")
    assert job.say(E, "saved checkpoint") is JobState.CKPT_DONE


def test_silence_after_a_told_end_shows_that_it_was_one() -> None:
    job = Job()
    job.train(1, 10, at_s=100.0, live=True)
    job.say(B, "saving checkpoint", 110.0, live=True)
    job.say(E, "saved checkpoint", 112.0, live=True)
    job.machine.settle(112.5)
    assert job.machine.writing
    job.machine.settle(115.0)
    assert not job.machine.writing
    assert evaluate(job.machine).last_durable_step == 10


def test_a_doubtful_beginning_leaves_no_evidence() -> None:
    job = Job()
    job.train(1, 10)
    job.say(B, "saving something", sure=0.65)
    assert job.say(STEP, "step 11 loss 0.4") is JobState.TRAIN
    assert not evaluate(job.machine).evidence


def test_with_arrivals_a_first_write_is_believed_to_end_only_after_a_pause() -> None:
    for pause_s, ended in ((1.0, False), (30.0, True)):
        job = Job()
        job.train(1, 10, at_s=100.0, live=True)
        job.say(B, "saving checkpoint", 109.0, live=True)
        job.say(STEP, "step 11 loss 0.4", 109.0 + pause_s, live=True)
        assert (job.machine.state is JobState.CKPT_DONE) == ended


def test_a_held_write_is_believed_over_when_time_has_passed() -> None:
    job = Job()
    job.train(1, 10, at_s=100.0, live=True)
    job.say(B, "saving checkpoint", 109.0, live=True)
    job.train(11, 12, at_s=110.0, live=True)
    job.machine.settle(120.0)
    assert job.machine.writing
    job.machine.settle(400.0)
    assert not job.machine.writing
    assert evaluate(job.machine).last_durable_step == 10


def test_writes_without_a_visible_pause_are_held_no_longer_from_save_to_save() -> None:
    """What is held until time has passed must not teach that writes take so long."""
    job, held = Job(), []
    job.train(1, 600, at_s=0.0, live=True)
    for save in range(1, 5):
        at_s = 600.0 * save
        job.say(B, f"saving checkpoint at step {600 * save}", at_s, live=True)
        for second in range(1, 600):
            job.say(STEP, f"step {600 * save + second} loss 0.4", at_s + second, live=True)
            if not job.machine.writing:
                held.append(second)
                break
        job.train(600 * save + held[-1] + 1, 600 * save + 599, at_s=at_s + held[-1] + 1, live=True)
    assert len(held) == 4
    assert max(held) <= 70


def test_a_save_that_is_due_is_reckoned_with() -> None:
    job = Job()
    for first in (1, 11, 21):
        job.train(first, first + 9)
        job.say(E, "saved checkpoint")
    job.train(31, 39)
    assert job.safe
    job.train(40, 40)
    assert not job.safe
    assert "due at step 40" in evaluate(job.machine).reason
    job.train(41, 41)
    assert job.safe


def test_silence_of_a_job_that_tells_late_is_not_safe() -> None:
    job = Job()
    job.train(1, 40, at_s=60.0, live=True)
    job.say(E, "saved checkpoint", 100.0, live=True)
    job.train(41, 79, at_s=101.0, live=True)
    job.say(E, "saved checkpoint", 140.0, live=True)
    job.train(80, 83, at_s=141.0, live=True)
    assert evaluate(job.machine, 144.5, live=True).safe
    status = evaluate(job.machine, 160.0, live=True)
    assert not status.safe
    assert "Silent for 16 s" in status.reason
    assert evaluate(job.machine, 10_000.0, live=True).state is JobState.STALLED


def test_silence_of_a_job_that_tells_of_each_save_as_it_begins_is_not_safe_either() -> None:
    job = Job()
    job.train(1, 40, at_s=100.0, live=True)
    job.say(B, "saving checkpoint", 140.0, live=True)
    job.say(E, "saved checkpoint", 141.0, live=True)
    job.train(41, 44, at_s=142.0, live=True)
    assert evaluate(job.machine, 145.5, live=True, files=True).safe
    assert "Silent for 15 s" in evaluate(job.machine, 160.0, live=True, files=True).reason


def test_work_at_risk_grows_with_time_and_gpus_and_falls_with_a_checkpoint() -> None:
    job = Job()
    job.train(1, 11, at_s=100.0)
    before = evaluate(job.machine, gpus=8).work_at_risk_gpu_seconds
    job.say(B, "saving", 110.0)
    job.say(E, "saved", 112.0)
    job.say(OTHER, "", 112.0)
    after = evaluate(job.machine, gpus=8).work_at_risk_gpu_seconds
    assert before is not None
    assert after is not None
    assert after.value < before.value
    single = evaluate(job.machine, gpus=1).work_at_risk_gpu_seconds
    assert single is not None
    assert after.value == pytest.approx(8 * single.value)


def test_a_machine_goes_on_elsewhere_as_if_nothing_had_happened() -> None:
    job = Job()
    for first in (1, 11):
        job.train(first, first + 9, at_s=100.0 + first)
        job.say(B, "saving checkpoint", 120.0 + first, writer="rank1")
    copy = StateMachine.from_dict(job.machine.to_dict())
    assert copy.to_dict() == job.machine.to_dict()
    for machine in (copy, job.machine):
        machine.advance(classified(98, E, "saved", 160.0, writer="rank1"))
        machine = StateMachine.from_dict(machine.to_dict())
        machine.advance(classified(99, STEP, "step 21", 161.0, writer="rank1"))
    assert evaluate(copy) == evaluate(job.machine)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(LineLabel)),
            st.sampled_from(["", "step 3", "step 4", "9/10", "async", "epoch 2"]),
            st.sampled_from(["", "a", "b"]),
            st.one_of(st.none(), st.floats(0, 1e6)),
            st.floats(0.1, 1.0),
        ),
        max_size=60,
    )
)
def test_no_log_is_safe_with_an_open_write_or_without_a_checkpoint(lines: list[tuple[object, ...]]) -> None:
    machine = StateMachine()
    for number, (label, text, writer, at_s, sure) in enumerate(lines, 1):
        machine.advance(classified(number, label, text, at_s, sure=sure, writer=writer, live=at_s is not None))  # type: ignore[arg-type]
        status = evaluate(machine, at_s)  # type: ignore[arg-type]
        if status.safe:
            assert status.evidence
            assert not machine.open_writes
            assert status.state not in (JobState.UNKNOWN, JobState.CKPT_WRITING)
        assert (status.state is JobState.CKPT_WRITING) == machine.writing
        assert StateMachine.from_dict(machine.to_dict()).to_dict() == machine.to_dict()


def test_a_stored_machine_has_the_fields_of_earlier_releases() -> None:
    job = Job()
    job.train(1, 10, at_s=100.0, live=True)
    job.say(B, "saving checkpoint-10", 120.0, live=True)
    document = job.machine.to_dict()
    assert " ".join(sorted(document)) == (
        "_before _silence_s _stepped_at_s _stepped_since_end active_since_end began_at_s confidence durable epoch"
        " first_epoch first_step_at_s habits last_at_s line line_text lone open refrains several state step"
        " step_lines step_text steppers writers"
    )
    assert " ".join(sorted(document["habits"])) == (
        "aside bar_times durations_s early_ends end_template ends_alone implied_ends last_word last_words"
        " late_end pauses quiet_s saved_at_s saved_counts saved_steps spoken_s step_gaps_s"
        " step_times steps_seen told_ends ways"
    )
    assert " ".join(sorted(document["refrains"])) == ("gaps_s known last numbered pause_s recent_keys routine since")
    assert " ".join(sorted(document["open"][""])) == (
        "activity aside at_s begun certainty ending failed idle_lines last_step last_word line more_expected"
        " named pauses_after refrain step step_lines step_text text"
    )
    with pytest.raises(ValueError, match="another version"):
        StateMachine.from_dict({**document, "newer": 1})
    # Releases before 0.2 kept no ways of saving: what they stored goes on, and is not safe until two saves were alike.
    habits = {name: value for name, value in document["habits"].items() if name not in ("late_end", "ways")}
    refrains = {name: value for name, value in document["refrains"].items() if name not in ("recent_keys", "routine")}
    older_document = {name: value for name, value in document.items() if name != "first_epoch"}
    habits["lines_after_ends"] = 2
    older = StateMachine.from_dict({**older_document, "habits": habits, "refrains": refrains})
    assert older.open_writes == job.machine.open_writes


def test_times_in_the_future_are_moved_back() -> None:
    job = Job()
    job.train(1, 10, at_s=1000.0)
    job.say(B, "saving checkpoint-10", 1020.0)
    job.say(E, "saved checkpoint-10", 1030.0)
    job.say(STEP, "step 11", 1040.0)
    job.machine.clamp_clock(1015.0)
    status = evaluate(job.machine)
    assert (job.machine.last_at_s, job.machine.began_at_s, status.last_durable_at_s) == (1015.0, 1000.0, 1015.0)


def test_text_alone_is_believed_once_two_saves_were_alike() -> None:
    job, safe = Job(), []
    for save in range(1, 4):
        job.train(10 * save - 9, 10 * save)
        job.say(B, "saving checkpoint")
        job.say(E, "saved checkpoint")
        job.train(10 * save + 1, 10 * save + 4)
        safe.append(job.safe)
    assert safe == [False, True, True]
    job.train(31, 40)
    job.say(B, "exporting the best model")
    job.say(E, "saved the best model")
    job.train(41, 44)
    assert not job.safe, "another way of saving: what follows it is not known"
    assert "Text alone cannot tell" in evaluate(job.machine).reason


def test_a_look_at_the_files_or_an_annotation_needs_no_second_save() -> None:
    job = Job()
    job.train(1, 10)
    job.say(E, "saved checkpoint")
    job.train(11, 14)
    assert not job.safe
    assert evaluate(job.machine, files=True).safe
    job.machine.claim_durable(12, 100.0)
    assert job.safe


def test_a_line_that_is_not_one_of_training_is_waited_out() -> None:
    job = Job()
    for first in (1, 11, 21):
        job.train(first, first + 7)
        job.say(E, "saved checkpoint")
    job.train(31, 34)
    assert job.safe
    job.say(OTHER, "the reward is better than ever")
    assert not job.safe
    assert "not one that this job prints again and again" in evaluate(job.machine).reason
    job.train(35, 35)
    assert job.safe


def test_a_line_that_saves_have_followed_is_no_routine_however_often_it_comes() -> None:
    job = Job()
    for first in range(1, 100, 10):
        job.train(first, first + 8)
        job.say(EVAL, "validation loss 0.5")
        assert not job.safe
        job.say(B, "saving checkpoint")
        job.say(E, "saved checkpoint")


def test_the_parts_of_a_save_are_a_way_of_saving_together() -> None:
    job = Job()
    for first in (1, 11, 21):
        job.train(first, first + 8)
        for part in ("actor", "critic"):
            job.say(B, f"saving the {part}")
            job.say(E, f"saved the {part}")
            assert not job.safe, "with the actor, one of two parts is on disk"
        job.train(first + 9, first + 9)
        assert job.safe == (first > 1)


def test_a_save_that_log_and_files_show_is_one_save_and_the_next_one_is_expected_all_the_same() -> None:
    job = Job()
    job.train(1, 10, at_s=10.0, live=True)
    for step in (10, 20, 30):
        job.say(B, f"Saving checkpoint-{step}", 10.0 * step, live=True)
        job.say(E, f"Saved checkpoint-{step}", 10.0 * step + 1, live=True)
        job.train(step + 1, step + 9, at_s=10.0 * step + 2, live=True)
        job.machine.record_durable(f"checkpoint-{step}", step, 10.0 * step + 1, 10.0 * step + 1)
        assert evaluate(job.machine, files=True).safe
        job.train(step + 10, step + 10, at_s=10.0 * step + 11, live=True)
    assert "due at step 40" in evaluate(job.machine, files=True).reason
    assert job.machine.statistics.unannounced_ends == 0


def test_an_end_is_believed_once_the_training_goes_on() -> None:
    """The optimizer is written after the line that calls the model saved; no line tells of it."""
    job = Job()
    job.train(1, 10, at_s=10.0, live=True)
    for step in (10, 20, 30):
        job.say(E, f"Saved model-{step}", 10.0 * step + 1, live=True)
        assert not is_safe(job.machine, live=True)
        assert not evaluate(job.machine, 10.0 * step + 1.5, live=True).safe
        job.train(step + 1, step + 5, at_s=10.0 * step + 2, live=True)
        assert is_safe(job.machine, live=True) == (step > 10)
        job.train(step + 6, step + 10, at_s=10.0 * step + 7, live=True)


def test_a_save_whose_end_several_ranks_log_is_one_save() -> None:
    statistics = WriteStatistics()
    for step in (10, 20, 30):
        for rank in (0, 1):
            statistics.record_save(10.0 * step + rank, step)
    assert list(statistics.saved_steps) == [10, 20, 30]
    assert list(statistics.saved_at_s) == [100.0, 200.0, 300.0], "the next one is expected a hundred seconds later"


def saving_silently(steps: tuple[int, ...]) -> Job:
    """Files show a save at each of these steps, of which there is one a second; the log says nothing of them."""
    job = Job()
    for before, step in zip((0, *steps), steps, strict=False):
        job.train(before + 1, step, at_s=1000.0 + before + 1, live=True)
        job.machine.record_durable(f"checkpoint-{step}", step, 1000.0 + step, 1000.5 + step)
    job.train(steps[-1] + 1, steps[-1] + 40, at_s=1000.0 + steps[-1] + 1, live=True)
    return job


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((100, 200, 300, 400), "no write is open"),
        ((100, 230, 300, 500), "at no regular step or time"),
        ((100, 230, 300), "no write is open"),
    ],
)
def test_whoever_saves_unannounced_at_no_regular_moment_may_do_so_at_any(steps: tuple[int, ...], reason: str) -> None:
    job = saving_silently(steps)
    assert reason in evaluate(job.machine, 1040.4 + steps[-1], live=True, files=True).reason


def test_files_alone_replace_silence_and_an_unknown_state_and_nothing_else() -> None:
    job = Job()
    job.say(OTHER, "GPU available: True", 1000.0, live=True)
    job.machine.record_durable("last.ckpt", None, 1300.0, 1303.0)
    assert not evaluate(job.machine, 1400.0, live=True, files=True).safe
    status = evaluate(job.machine, 1400.0, live=True, files=True, alone=True)
    assert (status.safe, status.state) == (True, JobState.TRAIN)
    assert evaluate(job.machine, 90_000.0, live=True, files=True, alone=True).state is JobState.TRAIN
    job.say(OTHER, "updating the teacher", 1410.0, live=True)
    assert not evaluate(job.machine, 1412.0, live=True, files=True, alone=True).safe, "a save may begin with it"
    assert evaluate(job.machine, 1430.0, live=True, files=True, alone=True).safe, "files would show it"
    job.train(1, 9, at_s=1430.0, live=True)
    job.say(B, "Saving checkpoint", 1440.0, live=True)
    assert not evaluate(job.machine, 1470.0, live=True, files=True, alone=True).safe
