"""Numbers read off messages: at which step a checkpoint is."""

import pytest

from kopt.models.checkpoint.facts import step_of_checkpoint


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("Saving model checkpoint to out/checkpoint-500", 500),
        ("saved out/w2v_epoch12.model", 12),
        ("Calling listeners before saving checkpoint 40...", 40),
        ("Steps:  53%|#### | 132/250 [00:10<00:10] INFO Saving current state to out/checkpoint-132", 132),
        ("rank 0 done saving checkpoint to out/ep3-ba160/rank0.pt", 160),
        ("epoch=5-step=192.ckpt", 192),
        ("Saved 2.5 GB in 3.1 s", None),
        ("weights safe in llama2b.bin", None),
    ],
)
def test_the_step_of_a_checkpoint_is_the_one_that_its_message_names(text: str, step: int | None) -> None:
    assert step_of_checkpoint(text) == step
