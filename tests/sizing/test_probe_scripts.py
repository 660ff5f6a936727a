"""Scripts in the styles people use, run unmodified under the probe: what they allocate is what arithmetic says."""

from collections.abc import Callable

import pytest

from kopt.tracing.events import SUBJECT, A, Event, Pass, Role
from tests.sizing.probing import Run

pytestmark = [pytest.mark.trainers, pytest.mark.slow]
Probe = Callable[..., Run]

_CLASSIFIER = 549_386
_LAYERS, _WIDTH = 8, 1024
_ELASTIC_BYTES = 4 * _LAYERS * _WIDTH * _WIDTH


@pytest.mark.parametrize(("optimizer", "copies"), [("adam", 2), pytest.param("sgd", 1, marks=pytest.mark.long)])
def test_parameters_gradients_and_states_are_as_arithmetic_says(probe: Probe, optimizer: str, copies: int) -> None:
    """The script stops while the third step's gradients are alive: weights, as many gradients, Adam's two states."""
    run = probe("classify.py", "--optimizer", optimizer, "--epochs", "40")
    assert run.ended == "steady", run.output
    alive = run.alive()
    assert alive[Role.WEIGHTS] == alive[Role.GRADIENTS] == 4 * _CLASSIFIER
    assert alive[Role.OPTIMIZER] == copies * 4 * _CLASSIFIER
    assert run.trace.parameters is not None
    assert (run.trace.parameters.count, run.trace.parameters.trainable) == (_CLASSIFIER, _CLASSIFIER)
    assert run.phases() >= {"load", "forward", "backward", "optimizer", "eval"}


def test_mixed_precision_steps_and_prints_numbers(probe: Probe) -> None:
    run = probe("classify.py", "--amp")
    assert run.ended == "steady", run.output
    assert run.alive()[Role.OPTIMIZER] == 2 * 4 * _CLASSIFIER
    assert "loss 1.0000" in run.output
    assert "scale 65536.0" in run.output


@pytest.mark.long
def test_the_same_script_gives_the_same_events(probe: Probe) -> None:
    assert probe("classify.py", "--amp").stream == probe("classify.py", "--amp").stream


@pytest.mark.long
def test_convolutions_tell_their_sizes_and_passes(probe: Probe) -> None:
    """The first one's pictures need no gradient; its algorithms are searched for, as the script asks."""
    trace = probe("classify.py", "--amp").trace
    first, second = (one for one in trace.convolutions.values() if one.dtype == "float16" and one.source[0] == 64)
    assert (first.source, first.weight, first.padding) == ((64, 3, 32, 32), (32, 3, 3, 3), (1, 1))
    assert (second.source, second.weight, second.groups) == ((64, 32, 16, 16), (64, 32, 3, 3), 1)
    rows = trace.rows[trace.rows[:, 0] == Event.CONVOLUTION]
    numbers = {one: number for number, one in trace.convolutions.items()}
    both = Pass.INPUT_GRADIENT | Pass.WEIGHT_GRADIENT
    for one, backward in ((first, Pass.WEIGHT_GRADIENT), (second, both)):
        told = set(rows[rows[:, SUBJECT] == numbers[one], A].tolist())
        assert told == {int(Pass.FORWARD | Pass.SEARCHED), int(backward | Pass.SEARCHED)}


@pytest.mark.long
def test_checkpointing_trades_memory_for_operations(probe: Probe) -> None:
    plain, checkpointed = probe("language.py"), probe("language.py", "checkpoint")
    for run in (plain, checkpointed):
        assert run.ended == "steady", run.output
        assert "perplexity" in run.output
    assert checkpointed.peak() < plain.peak() - 80 * 2**20
    counts = [int((run.trace.rows[:, 0] == Event.OP).sum()) for run in (plain, checkpointed)]
    assert counts[1] > 1.15 * counts[0]


def test_operations_belong_to_modules_in_both_passes(probe: Probe) -> None:
    run = probe("language.py")
    rows, names = run.trace.rows, run.trace.names
    blocks = {number for number, text in names.items() if ".blocks.3.mlp" in text}
    phase, seen = "", set()
    for event, subject, module in rows[:, [0, 1, 4]].tolist():
        if event == Event.PHASE:
            phase = names[subject]
        elif event == Event.OP and module in blocks:
            seen.add(phase)
    assert {"forward", "backward"} <= seen


@pytest.mark.parametrize(
    ("how", "weights", "states", "buckets"),
    [
        ("ddp", 1, 2, 1),
        pytest.param("ddp-view", 1, 2, 0, marks=pytest.mark.long),
        ("fsdp1", 1 / 8, 2 / 8, 0),
        ("fsdp2", 1 / 8, 2 / 8, 0),
        ("zero", 1, 2 / 8, 0),
    ],
)
def test_one_rank_of_eight_holds_its_share(probe: Probe, how: str, weights: float, states: float, buckets: int) -> None:
    run = probe("elastic.py", how, world_size=8)
    assert run.ended == "steady", run.output
    alive = run.alive()
    assert alive[Role.WEIGHTS] == weights * _ELASTIC_BYTES
    assert alive[Role.OPTIMIZER] == states * _ELASTIC_BYTES
    if how.startswith("ddp"):
        bare = alive[Role.TEMPORARY] + alive[Role.ACTIVATIONS]
        assert bare == pytest.approx(buckets * _ELASTIC_BYTES, abs=2**20)


@pytest.mark.long
def test_the_trainer_of_hugging_face(probe: Probe) -> None:
    run = probe("finetune.py", "full")
    assert run.ended == "steady", run.output
    assert run.trace.parameters is not None
    assert run.trace.parameters.count == 134_515_008
    # The fused kernel keeps a counter of four bytes on the GPU for each of the 272 parameters.
    alive = run.alive()
    assert alive[Role.OPTIMIZER] - 2 * alive[Role.WEIGHTS] in (0, 4 * 272)
    assert any("data set wikitext" in one.what for one in run.trace.stand_ins)
    assert any("16 accumulated" in one for one in run.trace.assumptions)


@pytest.mark.long
def test_lora_trains_adapters_alone(probe: Probe) -> None:
    run = probe("finetune.py", "lora")
    assert run.ended == "steady", run.output
    assert run.trace.parameters is not None
    trainable = run.trace.parameters.trainable
    assert trainable == 30 * 8 * (576 + 576 + 576 + 192)
    assert run.alive()[Role.OPTIMIZER] - 2 * 4 * trainable in (0, 4 * 120)


@pytest.mark.parametrize("script", ["accelerated.py", "lit.py"])
@pytest.mark.long
def test_loops_of_accelerate_and_lightning(probe: Probe, script: str) -> None:
    run = probe(script)
    assert run.ended == "steady", run.output
    alive = run.alive()
    assert alive[Role.OPTIMIZER] == 2 * alive[Role.WEIGHTS] > 0


@pytest.mark.parametrize("model", ["resnet18", "vit_tiny_patch16_224"])
@pytest.mark.long
def test_a_timm_loop_over_images_that_are_not_there(probe: Probe, model: str) -> None:
    run = probe("images.py", model)
    assert run.ended == "steady", run.output
    whats = {one.what for one in run.trace.stand_ins}
    assert {"pretrained weights", "data set ImageFolder"} <= whats


@pytest.mark.long
def test_recurrent_networks_keep_a_reserve(probe: Probe) -> None:
    run = probe("speech.py")
    assert run.ended == "steady", run.output
    assert any("cuDNN keeps" in one for one in run.trace.assumptions)
    assert run.alive()[Role.OPTIMIZER] == run.alive()[Role.WEIGHTS]


@pytest.mark.long
def test_values_that_are_known_are_exact_and_others_are_assumed(probe: Probe) -> None:
    run = probe("selecting.py")
    assert run.ended.split()[0] in ("steady", "limit"), run.output + run.ended
    assert any("select every element" in one for one in run.trace.assumptions)


@pytest.mark.long
@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("adagrad", 1), ("adam", 2)])
def test_sparse_gradients_hold_rows_that_were_looked_up(probe: Probe, optimizer: str, states: int) -> None:
    """5,120 rows of 64 numbers and their indices, while the table has 100,000; states are dense."""
    run = probe("sparse.py", optimizer)
    assert run.ended == "steady", run.output + run.ended
    alive, table = run.alive(), 100_000 * 64 * 4
    assert alive[Role.WEIGHTS] == table
    assert alive[Role.OPTIMIZER] == states * table
    assert 0 < alive[Role.GRADIENTS] <= 5120 * (64 * 4 + 8)
