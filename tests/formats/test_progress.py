"""Step k of N and its time, as trainers write it; nothing where a log does not say how far the run is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.run_time import StepProgress
from kopt.formats.joblog.progress import ProgressReader, read_progress


def read(*lines: str, at_s: float | None = 100.0) -> StepProgress | None:
    return read_progress([(line, at_s) for line in lines])


@pytest.mark.parametrize(
    ("lines", "step", "steps", "seconds"),
    [
        # tqdm, seconds per iteration and iterations per second, with what was there before the carriage return.
        (["  1%|▏  | 5/500 [00:10<16:30,  2.00s/it]", " 2%|▏ | 10/500 [00:20<16:20,  2.00s/it]"], 10, 500, 2.0),
        (["10%|█ | 1,000/10,000 [1:40<15, 10.0it/s]\r11%|█ | 1,100/10,000 [1:50<14, 10.0it/s]"] * 2, 1100, 10000, 0.1),
        # Megatron-LM.
        (
            [
                " iteration      100/    2000 | samples: 800 | elapsed time per iteration (ms): 2900.5 | loss: 9",
                " iteration      200/    2000 | samples: 1600 | elapsed time per iteration (ms): 2899.5 | loss: 8",
            ],
            200,
            2000,
            2.9,
        ),
        (["global_step: 7 of 90, 500 ms/step", "global_step: 8 of 90, 500 ms/step"], 8, 90, 0.5),
        # Keras and Ultralytics: steps within epochs.
        (
            [f"Epoch {epoch}/4\nbatch {batch}/50 - 1.0s/step" for epoch in (1, 2) for batch in (25, 50)],
            100,
            200,
            1.0,
        ),
        (
            [f"      {epoch}/3  2.3G  1.1: {share}%|██| {batch}/56 [00:10<00:00, 2.00it/s]"
             for epoch in (1, 2) for share, batch in ((50, 28), (100, 56))],
            112,
            168,
            0.5,
        ),
    ],
)  # fmt: skip
def test_trainers_own_ways(lines: list[str], step: int, steps: int, seconds: float) -> None:
    progress = read(*(part for line in lines for part in line.split("\n")))
    assert progress is not None
    assert (progress.step, progress.steps) == (step, steps)
    assert sum(progress.step_seconds) / len(progress.step_seconds) == pytest.approx(seconds, rel=0.01)


def test_without_a_speed_the_times_of_lines_count() -> None:
    arrived = [(f"step {step}/100 loss 1.0", 1_000.0 + 3.0 * step) for step in range(1, 11)]
    progress = read_progress(arrived)
    assert progress == StepProgress(10, 100, 1_030.0, (3.0,) * 9)
    stamped = [(f"2026-01-01 00:00:{3 * step:02d} step {step}/100 loss 1.0", None) for step in range(1, 11)]
    own = read_progress(stamped)
    assert own is not None
    assert own.step_seconds == (3.0,) * 9


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["loss 0.5", "Saving model checkpoint to out/checkpoint-100"],
        ["step 100 loss 0.3", "step 200 loss 0.2"],
        ["Downloading 1/4 2.0s/it"],
        ["iteration 3/2 1.0s/it", "iteration 5/2 1.0s/it"],
        ["used 12/80 GB of step memory 1.0s/it", "used 13/80 GB"],
        # A bar that starts over again and again, and nothing that counts the rounds.
        [f"{share}%|█| {batch}/50 [00:10<00:00, 2.00it/s]" for _ in range(3) for share, batch in ((50, 25), (100, 50))],
    ],
)
def test_nothing_is_made_up(lines: list[str]) -> None:
    assert read(*lines) is None


def test_without_any_time_nothing_is_known_of_the_speed() -> None:
    assert read("step 1/100", "step 2/100", at_s=None) is None


@given(
    lines=st.lists(st.text(max_size=200)), bars=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=9)
)
def test_nothing_that_is_printed_makes_it_raise(lines: list[str], bars: list[tuple[int, int]]) -> None:
    reader = ProgressReader()
    for at, line in enumerate([*lines, *(f"step {step}/{total} 1.0s/it" for step, total in bars)]):
        reader.read(line, float(at))
    progress = reader.progress()
    assert progress is None or 0 <= progress.step <= progress.steps


def test_a_run_that_goes_on_from_its_checkpoint_goes_on_counting() -> None:
    """torchrun starts its workers again in the same log, when others join or leave."""
    reader = ProgressReader()
    for index, step in enumerate([*range(1, 48), *range(41, 60)]):
        reader.read(f"step {step}/1000", 100.0 + index)
    progress = reader.progress()
    assert progress is not None
    assert (progress.step, progress.steps) == (59, 1000)


@pytest.mark.parametrize("epoch", [range(50, 981, 10), range(50, 700, 10)])
def test_a_counter_that_begins_each_epoch_beyond_one_stride_is_no_single_run(epoch: range) -> None:
    reader = ProgressReader()
    for index, step in enumerate([*epoch, *epoch, *epoch]):
        reader.read(f"step {step}/1000", 100.0 + index)
    assert reader.progress() is None


@pytest.mark.parametrize("again", [[1, 2, 3], [50, 100, 150]])
def test_a_counter_that_starts_over_at_its_beginning_counts_within_epochs(again: list[int]) -> None:
    reader = ProgressReader()
    for index, step in enumerate([*range(again[0], 981, again[0]), *again]):
        reader.read(f"step {step}/1000", 100.0 + index)
    assert reader.progress() is None
