"""What every trainer does: its command is recognised, a small example has a plan, and a refusal says what to give."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from formats.trainers_files import FILES

from kopt.core.workload.training_plan import PlanError
from kopt.formats.entrypoint import what_runs
from kopt.formats.trainers import TRAINERS, read_plan
from kopt.formats.trainers.trainer import Trainer

SIZES = "--num-layers 2 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 1"


@dataclass(frozen=True)
class Example:
    """A command with a plan, the same command without what it needs, and what the refusal then names."""

    command: str
    without: str
    names: str
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: FILES)


EXAMPLES: Mapping[str, Example] = {
    "nemo": Example(
        "nemo llm finetune --factory llama3_8b", "nemo llm finetune trainer.max_steps=10", "--factory llama3_8b"
    ),
    "megatron": Example(
        f"python pretrain_gpt.py --hidden-size 64 --vocab-size 512 {SIZES}",
        f"python pretrain_gpt.py --vocab-size 512 {SIZES}",
        "hidden_size",
    ),
    "megatron-swift": Example("megatron sft --model gpt2", "megatron sft", "model_name_or_path"),
    "deepspeed-chat": Example(
        "deepspeed --num_gpus 2 main.py --actor_model_name_or_path gpt2 --critic_model_name_or_path gpt2",
        "deepspeed --num_gpus 2 main.py --critic_model_name_or_path gpt2",
        "actor_model_name_or_path",
    ),
    "deepspeed": Example(
        "deepspeed --num_gpus 2 train.py --model gpt2 --deepspeed zero3.json",
        "deepspeed --num_gpus 2 train.py --deepspeed zero3.json",
        "model_name_or_path",
    ),
    "torchtune": Example(
        "tune run lora_finetune_single_device --config llama3.yaml",
        "tune run lora_finetune_single_device --config absent.yaml",
        "absent.yaml",
    ),
    "torchtitan": Example(
        "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file titan.toml",
        "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file absent.toml",
        "absent.toml",
    ),
    "litgpt": Example("litgpt finetune_lora phi-2", "litgpt finetune_lora", "model"),
    "openrlhf": Example(
        "deepspeed --module openrlhf.cli.train_sft --model.model_name_or_path gpt2 --data.max_len 128",
        "deepspeed --module openrlhf.cli.train_sft --data.max_len 128",
        "model.model_name_or_path",
    ),
    "verl": Example(
        "torchrun --nproc_per_node 2 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=gpt2 data.max_length=128",
        "torchrun --nproc_per_node 2 -m verl.trainer.fsdp_sft_trainer data.max_length=128",
        "model.partial_pretrain",
    ),
    "llamafactory": Example("llamafactory-cli train factory.yaml", "llamafactory-cli train", "model_name_or_path"),
    "axolotl": Example("axolotl train axolotl.yml", "axolotl train", "model_name_or_path"),
    "ms-swift": Example("swift sft --model gpt2", "swift sft", "model_name_or_path"),
    "fsdp-qlora": Example(
        "python fsdp_qlora/train.py --train_type qlora --model_name gpt2",
        "python fsdp_qlora/train.py --train_type qlora",
        "model_name",
    ),
    "gpt-neox": Example("python deepy.py train.py neox.yml", "python deepy.py train.py absent.yml", "absent.yml"),
    "xtuner": Example("xtuner train xtuner.py --work-dir out", "xtuner train absent.py", "absent.py"),
    "nanotron": Example(
        "torchrun --nproc_per_node 4 run_train.py --config-file nanotron.yaml",
        "torchrun --nproc_per_node 4 run_train.py --config-file absent.yaml",
        "absent.yaml",
    ),
    "nanochat": Example(
        "torchrun --nproc_per_node=8 -m scripts.base_train -- --depth=2 --fp8",
        "torchrun --nproc_per_node=8 -m scripts.chat_sft -- --run=dummy",
        "--model-tag d24",
    ),
    "lingua": Example(
        "torchrun --nproc-per-node 8 -m apps.main.train config=lingua.yaml",
        "torchrun --nproc-per-node 8 -m apps.main.train data.batch_size=4",
        "config=FILE.yaml",
    ),
    "lit-llama": Example(
        "python lit-llama/finetune/lora.py --data_dir data", "python lit-llama/generate/lora.py", "finetune/lora.py"
    ),
    "olmo": Example(
        "torchrun --nproc_per_node 8 OLMo/scripts/train.py olmo.yaml",
        "torchrun --nproc_per_node 8 OLMo/scripts/train.py",
        "model.d_model",
    ),
    "llm-foundry": Example("llmfoundry train foundry.yaml", "llmfoundry train absent.yaml", "absent.yaml"),
    "llama-cookbook": Example(
        "torchrun --nproc_per_node 4 -m llama_cookbook.finetuning --enable_fsdp --model_name gpt2",
        "torchrun --nproc_per_node 4 -m llama_cookbook.finetuning --enable_fsdp",
        "model_name",
    ),
    "hf": Example("trl sft --model_name_or_path gpt2", "trl sft --learning_rate 1", "model_name_or_path"),
    "vllm": Example("vllm serve gpt2 --max-model-len 128", "vllm serve", "model"),
    "sglang": Example("python -m sglang.launch_server --model-path gpt2", "python -m sglang.launch_server", "model"),
    "tgi": Example("text-generation-launcher --model-id gpt2", "text-generation-launcher --num-shard 1", "model"),
}
every_trainer = pytest.mark.parametrize("trainer", TRAINERS, ids=[trainer.name for trainer in TRAINERS])


def test_names_and_commands_are_unique_and_every_trainer_has_an_example() -> None:
    assert list(EXAMPLES) == [trainer.name for trainer in TRAINERS]
    commands = [command for trainer in TRAINERS for command in trainer.commands]
    assert len(set(commands)) == len(commands)


@every_trainer
def test_its_command_is_recognised_and_has_a_plan(trainer: Trainer) -> None:
    example = EXAMPLES[trainer.name]
    entrypoint = what_runs(example.command, lambda path: None)
    assert entrypoint.trainer == trainer.name
    plan = read_plan(entrypoint, example.files.get)
    assert plan.framework == trainer.name
    assert plan.model.parameters() > 0


@every_trainer
def test_each_of_its_own_commands_modules_and_folders_is_recognised(trainer: Trainer) -> None:
    commands = [f"{command} run" for command in trainer.commands if command != "tune"]
    commands += [f"python -m {module.rstrip('.')}.main" for module in trainer.modules]
    commands += [f"python /src/{folder}/train.py" for folder in trainer.folders]
    for command in commands:
        assert what_runs(command, lambda path: None).trainer == trainer.name, command


@every_trainer
def test_a_refusal_names_what_to_give(trainer: Trainer) -> None:
    example = EXAMPLES[trainer.name]
    entrypoint = what_runs(example.without, lambda path: None)
    with pytest.raises(PlanError, match=r"give\b") as refused:
        read_plan(entrypoint, example.files.get, trainer=trainer.name)
    assert example.names in str(refused.value)
