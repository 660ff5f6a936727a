"""GPT-NeoX' commands and configurations: files put together, names with dashes, splits, ZeRO, and what is refused."""

from collections.abc import Mapping
from typing import Any

import pytest

from kopt.core.workload.training_plan import Attention, PlanError, Precision, Recompute, Sharding, TrainingPlan
from kopt.formats.entrypoint import what_runs
from kopt.formats.trainers import read_plan

MODEL: Mapping[str, Any] = {
    "pipe-parallel-size": 1, "model-parallel-size": 1, "num-layers": 24, "hidden-size": 1024,
    "num-attention-heads": 16, "seq-length": 2048, "max-position-embeddings": 2048, "pos-emb": "rotary",
    "no-weight-tying": True, "train_micro_batch_size_per_gpu": 4, "checkpoint-activations": True, "precision": "fp16",
    "fp16": {"enabled": True}, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 1},
}  # fmt: skip
SETUP: Mapping[str, Any] = {"data-path": "data/enwik8", "attention-config": [[["flash"], 24]]}
FILES = {"configs/410M.yml": MODEL, "configs/local_setup.yml": SETUP}


def plan(command: str, world_size: int | None = None, **more: Any) -> TrainingPlan:
    files = FILES | {"configs/more.yml": more}
    return read_plan(what_runs(command, lambda _: None), files.get, world_size=world_size)


@pytest.mark.parametrize(
    "command",
    [
        "python ./deepy.py train.py -d configs 410M.yml local_setup.yml",
        "python deepy.py train.py configs/410M.yml configs/local_setup.yml",
        "./deepy.py train.py --conf_dir configs 410M.yml local_setup.yml",
        "./deepy.py train.py -d configs 410M local_setup",
    ],
)
def test_the_files_of_a_command_count_together(command: str) -> None:
    result = plan(command)
    assert result.framework == "gpt-neox"
    assert (result.model.layers, result.model.hidden, result.model.ffn, result.model.vocab) == (24, 1024, 4096, 50304)
    assert (result.micro_batch, result.sequence, result.weights) == (4, 2048, Precision.FP16)
    assert (result.recompute, result.attention) == (Recompute.FULL, Attention.FLASH)
    assert 400e6 < result.model.parameters() < 410e6, "as Pythia-410M, which has these sizes"


def test_splits_and_zero_are_those_of_the_files() -> None:
    split = {"pipe_parallel_size": 2, "model_parallel_size": 4, "zero_optimization": {"stage": 1, "cpu_offload": True}}
    command = "deepy.py train.py configs/410M.yml configs/more.yml"
    result = plan(command, 16, **split)
    of = result.parallel
    assert (of.data, of.tensor, of.pipeline, of.sharding, of.offload_optimizer) == (2, 4, 2, Sharding.OPTIMIZER, True)
    assert result.model.vocab % (128 * 4) == 0
    assert plan(command, **split).parallel.data == 1, "the fewest GPUs that these sizes need"
    assert plan(command, **split, num_gpus=8, num_nodes=4).parallel.data == 4
    with pytest.raises(PlanError, match="multiple of 8"):
        plan(command, 12, **split)


def test_gated_layers_and_shared_heads_are_counted() -> None:
    llama = {"mlp-type": "llama", "num-kv-heads": 4, "norm": "rmsnorm", "precision": "bfloat16", "pos_emb": "learned"}
    result = plan("deepy.py train.py configs/410M.yml configs/more.yml", **llama)
    assert (result.model.gated, result.model.kv_heads, result.model.ffn) == (True, 4, 2816)
    assert result.model.positions == 2048


def test_a_whole_batch_is_divided_among_the_ranks() -> None:
    whole = {key: value for key, value in MODEL.items() if key != "train_micro_batch_size_per_gpu"}
    files = {"m.yml": whole | {"train_batch_size": 64, "gradient_accumulation_steps": 2}}
    result = read_plan(what_runs("deepy.py train.py m.yml", lambda _: None), files.get, world_size=8)
    assert result.micro_batch == 4


@pytest.mark.parametrize(
    ("command", "more", "words"),
    [
        ("deepy.py train.py configs/absent.yml", {}, "configs/absent.yml cannot be read"),
        ("deepy.py train.py configs/local_setup.yml", {}, "is not given"),
        ("deepy.py generate.py configs/410M.yml", {}, "trains nothing"),
        ("deepy.py train.py configs/410M.yml configs/more.yml", {"precision": "fp4"}, "bfloat16"),
        ("deepy.py train.py configs/410M.yml configs/more.yml", {"moe_num_experts": 8}, "no formulas"),
        ("deepy.py train.py configs/410M.yml configs/more.yml", {"attention_config": [[["mamba"], 24]]}, "mamba"),
        ("deepy.py train.py configs/410M.yml configs/more.yml", {"zero_optimization": {"stage": 7}}, "0 to 3"),
    ],
)
def test_what_cannot_be_is_refused(command: str, more: Mapping[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan(command, **more)
