"""Trainers of language models as their own examples call them."""

import math
from typing import Any

import pytest

from kopt.core.workload.training_plan import OptimizerKind, PlanError, Precision, TrainingPlan
from kopt.formats.entrypoint import what_runs
from kopt.formats.trainers import processes_of, read_plan


def plan_of(command: str, files: dict[str, Any] | None = None, world_size: int | None = None) -> TrainingPlan:
    entrypoint = what_runs(command, lambda _: None)
    load = (files or {}).get
    return read_plan(entrypoint, load, world_size=world_size or processes_of(entrypoint, load))


SWIFT = "swift sft --model Qwen/Qwen2.5-7B-Instruct --torch_dtype bfloat16 --max_length 2048"


def test_litgpt_names_its_optimizer_by_class() -> None:
    config = {
        "checkpoint_dir": "checkpoints/microsoft/phi-2",
        "precision": "bf16-true",
        "devices": 1,
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
        "train": {"micro_batch_size": 4, "max_seq_length": 512},
    }
    plan = plan_of("litgpt finetune_full --config full.yaml", {"full.yaml": config})
    assert plan.optimizer is OptimizerKind.MOMENTUM
    assert (plan.micro_batch, plan.sequence) == (4, 512)
    without = {**config, "optimizer": {"init_args": {}}}
    assert plan_of("litgpt finetune_full --config full.yaml", {"full.yaml": without}).optimizer is OptimizerKind.ADAM


def test_litgpt_may_bring_a_model_of_its_own() -> None:
    dimensions = {
        "name": "stories15M",
        "n_layer": 6,
        "n_head": 6,
        "n_query_groups": 6,
        "n_embd": 288,
        "head_size": 48,
        "intermediate_size": 768,
        "padded_vocab_size": 32000,
        "mlp_class_name": "LLaMAMLP",
    }
    config = {"model_name": "stories15M", "model_config": dimensions, "train": {"max_seq_length": 256}}
    plan = plan_of("litgpt pretrain --config tiny.yaml --devices 1", {"tiny.yaml": config})
    assert plan.model.layers == 6
    assert plan.model.parameters() == pytest.approx(24.4e6, rel=0.02)
    assert plan.model.gated


@pytest.mark.parametrize("option", ["--tuner_type full", "--train_type full", "--sft_type full"])
def test_swift_trains_everything_where_it_is_told_to(option: str) -> None:
    assert plan_of(f"{SWIFT} {option}").adapter is None
    assert plan_of(SWIFT).adapter is not None


def test_swift_starts_as_many_processes_as_its_variables_say() -> None:
    assert plan_of(f"NPROC_PER_NODE=4 {SWIFT} --sequence_parallel_size 4").parallel.context == 4
    with pytest.raises(PlanError, match="context 4"):
        plan_of(f"{SWIFT} --sequence_parallel_size 4")
    plan = plan_of(f"NPROC_PER_NODE=8 NNODES=2 {SWIFT} --deepspeed zero2")
    assert plan.parallel.world == 16


def test_swift_spreads_layers_over_the_gpus_that_a_process_sees() -> None:
    plan = plan_of(f"CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 {SWIFT}")
    assert (plan.parallel.pipeline, plan.parallel.data) == (2, 2)
    assert plan_of(f"CUDA_VISIBLE_DEVICES=0 {SWIFT}").parallel.world == 1


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", Precision.INT4),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", Precision.INT4),
        ("unsloth/Qwen2.5-7B-bnb-4bit", Precision.NF4),
        ("Qwen/Qwen2.5-7B-Instruct", Precision.BF16),
    ],
)
def test_weights_that_are_published_as_integers_stay_so(name: str, precision: Precision) -> None:
    assert plan_of(SWIFT.replace("Qwen/Qwen2.5-7B-Instruct", name)).weights is precision


@pytest.mark.parametrize(
    "more",
    [
        {"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]},
        {"plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_fused_linear_cross_entropy": True},
        {"cut_cross_entropy": True},
        {"chunked_cross_entropy": True},
    ],
)
def test_axolotl_s_fused_losses_hold_no_logits(more: dict[str, Any]) -> None:
    config = {"base_model": "Qwen/Qwen3-8B", "sequence_len": 4096, "micro_batch_size": 2, "sample_packing": True}
    plain = plan_of("axolotl train a.yaml", {"a.yaml": config})
    assert plain.logit_bytes > 10 * plan_of("axolotl train a.yaml", {"a.yaml": {**config, **more}}).logit_bytes


def test_a_map_of_devices_is_no_reason_to_refuse() -> None:
    config = {"base_model": "Qwen/Qwen3-8B", "sequence_len": 512, "device_map": {"": 0}}
    assert plan_of("axolotl train a.yaml", {"a.yaml": config}).model.name == "Qwen3-8B"


@pytest.mark.parametrize("task", ["seq_cls", "embedding", "reranker"])
def test_a_small_head_takes_the_vocabulary_s_place(task: str) -> None:
    assert plan_of(f"{SWIFT} --task_type {task}").logit_bytes == 0


MEGATRON = "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-30B-A3B --max_length 8192 --packing true"


def test_megatron_swift_splits_as_its_degrees_say() -> None:
    degrees = "--tensor_model_parallel_size 2 --pipeline_model_parallel_size 2 --expert_model_parallel_size 4"
    plan = plan_of(f"{MEGATRON} {degrees}")
    parallel = plan.parallel
    assert (parallel.tensor, parallel.pipeline, parallel.data, parallel.expert, parallel.expert_tensor) == (
        2,
        2,
        2,
        4,
        1,
    )
    assert plan.adapter is None
    assert (plan.sequence, plan.varying) == (8192, False)
    assert plan_of(f"{MEGATRON} --tuner_type lora --lora_rank 16").adapter is not None


def test_megatron_swift_keeps_a_reference_beside_what_it_trains() -> None:
    dpo = MEGATRON.replace("megatron sft", "megatron rlhf --rlhf_type dpo")
    plan = plan_of(dpo)
    assert plan.beside_bytes == pytest.approx(2 * plan.model.parameters())
    assert plan.micro_batch == 2
    assert plan_of(f"{dpo} --tuner_type lora").beside_bytes == 0


def test_megatron_swift_exports_without_training() -> None:
    with pytest.raises(PlanError, match="does not train"):
        plan_of("megatron export --model Qwen/Qwen3-8B --to_hf true")


def test_of_a_trainer_s_commands_the_one_that_trains_is_sized() -> None:
    line = "swift export --model Qwen/Qwen3-8B --to_cached_dataset true"
    after = "swift infer --adapters output/checkpoint-100"
    plan = plan_of(f"{line}\n{SWIFT} --max_length 512\n{after}")
    assert (plan.model.name, plan.sequence) == ("Qwen2.5-7B", 512)


def test_batches_that_are_not_packed_may_be_shorter() -> None:
    assert plan_of(SWIFT).varying
    assert not plan_of(f"{SWIFT} --packing true").varying
    assert math.isfinite(plan_of(SWIFT).cached_loss)


RECIPE = {"model_name_or_path": "Qwen/Qwen3-8B", "per_device_train_batch_size": 2, "max_length": 4096, "bf16": True}
ZERO3 = {"distributed_type": "DEEPSPEED", "num_processes": 8, "deepspeed_config": {"zero_stage": 3}}


def test_a_scripts_own_file_tells_that_it_is_transformers_trainer() -> None:
    files = {"recipe.yaml": RECIPE, "zero3.yaml": ZERO3, "other.yaml": {"model": {"width": 3}}}
    plan = plan_of("accelerate launch --config_file zero3.yaml scripts/sft.py --config recipe.yaml", files)
    assert (plan.micro_batch, plan.sequence, plan.parallel.world) == (2, 4096, 8)
    assert plan_of("python sft.py recipe.yaml", files).sequence == 4096
    with pytest.raises(PlanError, match="no formulas"):
        plan_of("python sft.py --config other.yaml", files)


def test_accelerates_file_says_how_many_processes_unless_the_command_does() -> None:
    files = {"recipe.yaml": RECIPE, "zero3.yaml": ZERO3}
    launch = "accelerate launch --config_file zero3.yaml"
    assert plan_of(f"{launch} --num_processes 2 sft.py --config recipe.yaml", files).parallel.world == 2
    assert plan_of(f"{launch} --num_machines 1 sft.py --config recipe.yaml", files).parallel.world == 8


def test_a_data_set_is_no_configuration() -> None:
    command = "torchrun --nproc_per_node=4 train.py --model_name_or_path huggyllama/llama-7b --data_path data.json"
    plan = plan_of(f"{command} --per_device_train_batch_size 2 --output_dir out --bf16 True")
    assert (plan.micro_batch, plan.parallel.world) == (2, 4)
    config = {"base_model": "Qwen/Qwen3-8B", "micro_batch_size": 3}
    assert plan_of("axolotl train --debug config.yaml", {"config.yaml": config}).micro_batch == 3


def test_torchtitans_configurations_are_known_by_name() -> None:
    run = "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config"
    plan = plan_of(f"{run} llama3_8b")
    assert (plan.model.name, plan.micro_batch, plan.sequence) == ("Llama-3.1-8B", 1, 8192)
    assert plan_of(f"{run} graph_trainer_llama3_8b_mxfp8").model == plan.model
    longer = plan_of(f"{run} llama3_8b --training.num_tokens_per_microbatch_per_dp_rank 32768")
    assert longer.micro_batch == 4
    assert plan_of(f"{run} deepseek_v3_16b").parallel.expert == 8
    with pytest.raises(PlanError, match="cannot be read"):
        plan_of(f"{run} flux_schnell")


def test_experts_of_a_served_model_are_spread_over_all_its_gpus() -> None:
    serve = "vllm serve deepseek-ai/DeepSeek-V3 --data-parallel-size 8"
    assert plan_of(serve).parallel.expert == 1
    assert plan_of(f"{serve} --enable-expert-parallel").parallel.expert == 8
    assert plan_of("sglang serve --model-path Qwen/Qwen3-30B-A3B --tp 8 --ep 4").parallel.expert_tensor == 2


def test_an_engine_takes_its_share_for_a_model_that_nobody_knows() -> None:
    plan = plan_of("vllm serve someone/Unheard-Of --gpu-memory-utilization 0.8")
    assert plan.serving is not None
    assert plan.serving.reserve_share == 0.8
    assert any("does not start" in reason.message for reason in plan.unknown)
    for command, why in (
        ("vllm serve $MODEL", "does not say what .MODEL is"),
        ("sglang serve --model-path Wan-AI/Wan2.1-T2V-14B-Diffusers", "makes pictures"),
    ):
        with pytest.raises(PlanError, match=why):
            plan_of(command)


def test_gpus_that_do_not_divide_are_told_how_many_would() -> None:
    layout = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16"
    with pytest.raises(PlanError, match="a multiple of 128"):
        plan_of(
            f"torchrun --nproc_per_node 8 pretrain_gpt.py {layout} --num-layers 96 --hidden-size 12288 "
            "--num-attention-heads 96 --seq-length 2048 --micro-batch-size 1 --max-position-embeddings 2048"
        )


def test_what_a_document_leaves_open_is_named() -> None:
    command = "torchrun --nproc_per_node=4 --master_port=<your_random_port> train.py --model_name_or_path"
    rest = "--per_device_train_batch_size 4 --output_dir <out> --bf16 True"
    assert plan_of(f"{command} facebook/opt-6.7b {rest}").micro_batch == 4
    with pytest.raises(PlanError, match="does not say what <llama> is"):
        plan_of(f"{command} <llama> {rest}")
    with pytest.raises(PlanError, match=r"does not say what \$1 is"):
        plan_of(f"{command} $1 {rest}")


@pytest.mark.parametrize(
    ("command", "trainer"),
    [
        ("docker run --gpus all -p 8080:80 ghcr.io/huggingface/text-generation-inference:3.3 --model-id gpt2", "tgi"),
        ("docker run --gpus all --ipc=host vllm/vllm-openai:latest --model Qwen/Qwen3-0.6B", "vllm"),
        ("docker run --gpus all vllm/vllm-openai:latest vllm serve Qwen/Qwen3-0.6B", "vllm"),
    ],
)
def test_a_servers_image_runs_the_server(command: str, trainer: str) -> None:
    assert what_runs(command, lambda _: None).trainer == trainer
    assert plan_of(command).serving is not None


def test_a_prefix_that_is_not_set_is_no_word() -> None:
    assert what_runs("$VENV_PREFIX torchrun --nproc_per_node 8 train.py", lambda _: None).world_size == 8
