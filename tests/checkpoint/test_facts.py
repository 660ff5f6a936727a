"""What is read off messages without a model: at which step a checkpoint is, and where the saying begins."""

import pytest

from kopt.formats.joblog import read_message
from kopt.models.checkpoint.classifier.tokens import spoken
from kopt.models.checkpoint.line_facts import step_of_checkpoint


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("Saving model checkpoint to out/checkpoint-500", 500),
        ("saved out/w2v_epoch12.model", 12),
        ("Calling listeners before saving checkpoint 40...", 40),
        ("Steps:  53%|#### | 132/250 [00:10<00:10] INFO Saving current state to out/checkpoint-132", 132),
        ("rank 0 done saving checkpoint to out/ep3-ba160/rank0.pt", 160),
        ("epoch=5-step=192.ckpt", 192),
        ("Saving model checkpoint to /runs/w0/ep0-12/step1_sft/checkpoint-150", 150),
        ("Saved /data/batch0/model3/checkpoint-77/model-00001-of-00002.safetensors", 77),
        ("saved /out/global_step300/mp_rank_00_model_states.pt", 300),
        ("Saving model checkpoint to llama_lora_epoch25_1e-4/checkpoint-1000", 1000),
        ("Saving model checkpoint to ./qlora_step30/epoch25/checkpoint-1000", 1000),
        (r"Saving model checkpoint to C:\runs\lora_epoch25_1e-4\checkpoint-1000", 1000),
        ("saved x_epoch25/step_30/model.pt", 30),
        ("Saved 2.5 GB in 3.1 s", None),
        ("weights safe in llama2b.bin", None),
    ],
)
def test_the_step_of_a_checkpoint_is_the_one_that_its_message_names(text: str, step: int | None) -> None:
    assert step_of_checkpoint(text) == step


@pytest.mark.parametrize(
    "line",
    [
        "Steps:  53%|#####4    | 132/250 [00:10<00:10, 11.41it/s, loss=0.303]11/22/2026 07:39:18 - INFO - a.main - {}",
        " 10%|#         | 20/200 [00:01<00:18,  9.55it/s][INFO|trainer.py:4141] 2026-11-22 07:37:06,428 >> {}",
        "                                        \x1b[A[INFO|trainer.py:4141] 2026-11-22 07:37:06,428 >> {}",
        "2026-11-22 07:59:05,752: rank0[28240][MainThread]: DEBUG: composer.utils.checkpoint: {}",
    ],
)
def test_what_is_said_behind_a_bar_or_a_logger_is_what_counts(line: str) -> None:
    said = "Saving the model to out/checkpoint-20"
    assert spoken(read_message(line.format(said))) == said


@pytest.mark.parametrize("line", [" 73%|###  | 44/60 [00:15<00:04,  3.74it/s]", "        (self_attn): Attention("])
def test_a_bar_and_an_indented_line_stay_as_they_are(line: str) -> None:
    assert spoken(read_message(line)) == line
