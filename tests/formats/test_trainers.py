"""Trainers' arguments and files become plans: what they set arrives, what they leave open is said."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.training import (
    Attention,
    OptimizerKind,
    PlanError,
    Precision,
    Recompute,
    Sharding,
    TrainingPlan,
)
from kopt.formats.entrypoint import EntrypointError, what_runs
from kopt.formats.trainers import TRAINERS, read_plan
from kopt.formats.trainers.fields import of_words
from kopt.formats.trainers.finetuning import axolotl_plan, llamafactory_plan
from kopt.formats.trainers.litgpt import litgpt_plan
from kopt.formats.trainers.megatron import megatron_plan
from kopt.formats.trainers.torchtitan import torchtitan_plan
from kopt.formats.trainers.torchtune import torchtune_plan
from kopt.formats.trainers.transformers import Surroundings, hf_plan

FILES: dict[str, Mapping[str, Any]] = {
    "zero3.json": {
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 1e8},
    },
    "axolotl.yml": {
        "base_model": "NousResearch/Llama-2-7b-hf",
        "load_in_4bit": True,
        "adapter": "qlora",
        "lora_r": 32,
        "sequence_len": 4096,
        "lora_target_linear": True,
        "micro_batch_size": 2,
        "gradient_checkpointing": True,
        "optimizer": "paged_adamw_8bit",
    },
    "factory.yaml": {
        "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct",
        "finetuning_type": "full",
        "deepspeed": "zero3.json",
        "cutoff_len": 2048,
        "per_device_train_batch_size": 1,
        "bf16": True,
    },
    "llama3.yaml": {
        "model": {
            "_component_": "torchtune.models.llama3_1.lora_llama3_1_8b",
            "lora_attn_modules": ["q_proj", "v_proj"],
            "lora_rank": 16,
            "apply_lora_to_mlp": True,
        },
        "tokenizer": {"max_seq_len": 8192},
        "batch_size": 2,
        "dtype": "bf16",
        "enable_activation_checkpointing": True,
        "optimizer": {"_component_": "torch.optim.AdamW", "fused": True},
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
    },
    "titan.toml": {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"local_batch_size": 1, "seq_len": 8192, "compile": True},
        "activation_checkpoint": {"mode": "full"},
        "parallelism": {"tensor_parallel_degree": 2},
    },
    "fsdp.yaml": {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"},
    },
    "own/config.json": {
        "hidden_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 32000,
        "intermediate_size": 2816,
    },
}


def plan(command: str, **options: Any) -> TrainingPlan:
    return read_plan(what_runs(command, lambda path: None), FILES.get, **options)


def test_megatron_arguments_set_parallelism_precision_and_optimizer() -> None:
    found = plan(
        "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 "
        "--swiglu --seq-length 8192 "
        "--micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
        "--sequence-parallel --bf16 "
        "--use-distributed-optimizer --recompute-granularity selective --vocab-size 128256 --disable-bias-linear "
        "--untie-embeddings-and-output-weights --position-embedding-type rope --attention-backend flash"
    )
    assert (found.parallel.tensor, found.parallel.pipeline, found.parallel.data) == (2, 2, 4)
    assert (found.parallel.sharding, found.parallel.sequence_parallel) == (Sharding.OPTIMIZER, True)
    assert (found.weights, found.gradient_bytes, found.master_bytes) == (Precision.BF16, 4.0, 4.0)
    assert (found.recompute, found.attention, found.accumulation) == (Recompute.SELECTIVE, Attention.FLASH, 32)
    assert found.model.parameters() == pytest.approx(8.03e9, rel=0.01)
    assert found.unknown == ()


def test_deepspeed_s_file_sets_stage_and_offload_over_the_trainer_s() -> None:
    found = plan(
        "deepspeed --num_gpus 8 run_clm.py --deepspeed zero3.json "
        "--model_name_or_path meta-llama/Llama-3.1-8B "
        "--per_device_train_batch_size 2 --block_size 4096 --bf16 --gradient_checkpointing --output_dir x"
    )
    assert (found.parallel.sharding, found.parallel.offload_optimizer) == (Sharding.PARAMETERS, True)
    assert (found.micro_batch, found.sequence, found.recompute) == (2, 4096, Recompute.FULL)
    assert (found.parallel.data, found.gradient_bytes, found.master_bytes) == (8, 2.0, 4.0)


def test_axolotl_trains_an_adapter_on_quantised_weights() -> None:
    found = plan("accelerate launch -m axolotl.cli.train axolotl.yml")
    assert found.weights is Precision.NF4_DOUBLE
    assert found.adapter is not None
    # q, k, v, o: 8,192 in and out each; gate, up, down: 15,104: 32 layers of rank 32
    assert found.adapter.trainable == 32 * 32 * (4 * 8192 + 3 * 15104)
    assert (found.optimizer, found.recompute) == (OptimizerKind.ADAM_8BIT, Recompute.FULL)


def test_llama_factory_s_full_training_uses_its_deepspeed_file() -> None:
    found = plan("FORCE_TORCHRUN=1 llamafactory-cli train factory.yaml", world_size=4)
    assert found.adapter is None
    assert (found.parallel.sharding, found.parallel.data, found.recompute) == (Sharding.PARAMETERS, 4, Recompute.FULL)


def test_torchtune_s_components_name_model_and_adapter() -> None:
    found = plan("tune run --nproc_per_node 2 lora_finetune_distributed --config llama3.yaml batch_size=4")
    assert (found.model.name, found.micro_batch, found.sequence) == ("Llama-3.1-8B", 4, 8192)
    assert found.adapter is not None
    assert (found.adapter.rank, found.adapter.targets) == (16, 5)
    assert found.parallel.sharding is Sharding.PARAMETERS


def test_torchtitan_s_file_gives_degrees() -> None:
    found = plan("torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file titan.toml")
    assert (found.parallel.tensor, found.parallel.data, found.recompute) == (2, 4, Recompute.FULL)
    assert (found.weights, found.compute) == (Precision.FP32, Precision.BF16)


def test_torchtitan_keeps_every_second_product_unless_told() -> None:
    found = plan(
        "torchrun --nproc_per_node 8 -m torchtitan.train --model.name llama3 --model.flavor 8B "
        "--training.local_batch_size 2 --training.seq_len 8192"
    )
    assert (found.recompute, found.unknown) == (Recompute.PRODUCTS, ())


def test_torchtune_steps_inside_the_backward_pass() -> None:
    found = plan(
        "tune run full_finetune_single_device --config llama3.yaml optimizer_in_bwd=True "
        "optimizer=bitsandbytes.optim.PagedAdamW8bit"
    )
    assert (found.gradient_bytes, found.parallel.offload_optimizer) == (0.0, True)


def test_litgpt_reads_its_command() -> None:
    found = plan(
        "litgpt finetune_lora meta-llama/Llama-2-7b-hf --precision bf16-true --quantize bnb.nf4 "
        "--train.micro_batch_size 4 --train.max_seq_length 512 --lora_r 16"
    )
    assert (found.weights, found.micro_batch, found.sequence) == (Precision.NF4, 4, 512)
    assert found.adapter is not None
    assert found.adapter.trainable == 32 * 16 * 2 * 8192


def test_accelerate_s_file_shards() -> None:
    found = plan(
        "accelerate launch --num_processes 4 --config_file fsdp.yaml train.py --model_name_or_path gpt2-xl "
        "--per_device_train_batch_size 1 --bf16",
        trainer="hf",
    )
    assert (found.parallel.sharding, found.parallel.data) == (Sharding.PARAMETERS, 4)
    assert (found.weights, found.compute) == (Precision.FP32, Precision.BF16)
    assert any("length of sequences" in reason.message for reason in found.unknown)


@pytest.mark.parametrize(
    ("command", "share", "tensor", "held"),
    [
        (
            "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 --max-model-len 4096 --gpu-memory-utilization 0.8",
            0.8,
            4,
            "bf16",
        ),
        ("vllm serve Qwen/Qwen2.5-7B-Instruct-AWQ --max-model-len 4096", 0.9, 1, "int4"),
        ("python -m vllm.entrypoints.openai.api_server --model gpt2 --max-model-len 1024 --dtype half", 0.9, 1, "fp16"),
        ("python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --context-length 8192", 0.88, 2, "bf16"),
        (
            "text-generation-launcher --model-id Qwen/Qwen3-8B --num-shard 2 --max-total-tokens 4096 --quantize fp8",
            0.95,
            2,
            "fp8",
        ),
    ],
)
def test_servers_fill_a_share(command: str, share: float, tensor: int, held: str) -> None:
    found = plan(command)
    assert found.serving is not None
    assert found.serving.reserve_share == pytest.approx(share)
    assert (found.parallel.tensor, found.weights.value, found.unknown) == (tensor, held, ())


def test_a_model_in_a_folder_is_read_from_its_own_configuration() -> None:
    found = plan("vllm serve own --max-model-len 2048")
    assert (found.model.layers, found.model.hidden) == (4, 1024)


def test_settings_in_the_script_count_less_than_arguments() -> None:
    found = plan(
        "python train.py --model_name_or_path gpt2",
        trainer="hf",
        settings={"per_device_train_batch_size": 3, "model_name_or_path": "gpt2-xl", "fp16": True},
    )
    assert (found.model.name, found.micro_batch, found.compute) == ("gpt2", 3, Precision.FP16)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python train.py", "known trainers"),
        ("axolotl train absent.yml", "absent.yml cannot be read"),
        ("vllm serve our/unknown-model", r"config\.json"),
        ("vllm serve", "no model is named"),
        ("torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 2", "hidden_size"),
        ("litgpt chat gpt2", "does not train"),
        ("deepspeed train.py --deepspeed absent.json --model gpt2", "absent.json cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_give(command: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(command)


@pytest.mark.parametrize(
    "change",
    [
        {"--tensor-model-parallel-size": 3},
        {"--hidden-size": -4},
        {"--hidden-size": "large"},
        {"--num-layers": 10**12},
        {"--micro-batch-size": 0},
        {"--num-layers": True},
        {"--pipeline-model-parallel-size": 0},
        {"--seq-length": [1, "x"]},
        {"--model-provider": "llava"},
        {"--expert-model-parallel-size": 0},
        {"--moe-expert-capacity-factor": "nan"},
    ],
)
def test_impossible_megatron_settings_are_refused(change: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "--num-layers": 2,
        "--hidden-size": 64,
        "--num-attention-heads": 4,
        "--seq-length": 32,
        "--micro-batch-size": 1,
        "--num-experts": 4,
    }
    megatron_plan(good, world_size=8)
    with pytest.raises(PlanError):
        megatron_plan(good | change, world_size=8)


def test_words_become_settings() -> None:
    found = of_words(["serve", "model", "--lr=1", "--flag", "--list", "a", "b", "x.y=2", "-tp", "4", "--last"])
    assert found == {
        "": ["serve", "model"],
        "lr": "1",
        "flag": True,
        "list": ["a", "b"],
        "x.y": "2",
        "tp": "4",
        "last": True,
    }


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["gpt2", "4", "auto"])
)
documents = st.dictionaries(
    st.sampled_from(
        [
            "model_name_or_path",
            "base_model",
            "model",
            "per_device_train_batch_size",
            "micro_batch_size",
            "bf16",
            "cutoff_len",
            "sequence_len",
            "zero_optimization",
            "stage",
            "adapter",
            "lora_r",
            "lora_rank",
            "fsdp",
            "optim",
            "fsdp_config",
            "lora_target_modules",
            "load_in_4bit",
            "gradient_accumulation_steps",
            "torch_dtype",
            "num_layers",
            "hidden_size",
            "num_attention_heads",
            "seq_length",
            "num_experts",
            "moe_layer_freq",
        ]
    ),
    st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_size=10,
)


@given(documents, st.sampled_from([hf_plan, axolotl_plan, llamafactory_plan, megatron_plan]))
def test_any_settings_become_a_plan_or_a_refusal(document: dict[str, Any], reader: Any) -> None:
    try:
        assert isinstance(reader({"model_name_or_path": "gpt2", **document}), TrainingPlan)
    except PlanError as refusal:
        message = str(refusal)
        assert message.strip()


@given(documents)
def test_any_deepspeed_file_is_read_or_refused(document: dict[str, Any]) -> None:
    given_arguments = {"model_name_or_path": "gpt2", "max_length": 128, "bf16": True}
    for content in (document, {"zero_optimization": document}, {"zero_optimization": json.dumps(document)[:50]}):
        try:
            hf_plan(given_arguments, around=Surroundings(deepspeed=content), world_size=2)
        except PlanError as refusal:
            message = str(refusal)
            assert message.strip()


@given(
    st.sampled_from(TRAINERS),
    st.lists(st.text(max_size=12) | st.sampled_from(["--model", "gpt2", "--tp", "="]), max_size=8),
)
def test_any_arguments_become_a_plan_or_a_refusal(trainer: str, words: list[str]) -> None:
    try:
        read_plan(what_runs(["python", "train.py", *words], lambda path: None), FILES.get, trainer=trainer)
    except (PlanError, EntrypointError) as refusal:
        message = str(refusal)
        assert message.strip()


SMALL = {"hidden_size": 1024, "num_attention_heads": 16, "micro_batch_size": 1, "seq_length": 1024, "bf16": True,
         "vocab_size": 32000}  # fmt: skip


def test_a_hybrid_pattern_tells_each_layer() -> None:
    plan = megatron_plan({**SMALL, "hybrid_layer_pattern": "M-M*-|ME/X"}, world_size=1)
    assert plan.model.blocks == "M-M*-MEM"
    assert any("X" in reason.message for reason in plan.unknown)
    feed_forward = megatron_plan({**SMALL, "hybrid_layer_pattern": "--------"}, world_size=1)
    attention, mixers = (megatron_plan({**SMALL, "hybrid_layer_pattern": 8 * kind}, world_size=1) for kind in "*M")
    # 4 h² for attention, about 6 h² for a mixer with twice the width, 8 h² for feed-forward layers.
    sizes = [one.model.layer_parameters(0)[0] / 1024**2 for one in (attention, mixers, feed_forward)]
    assert sizes == pytest.approx([4, 8, 8], rel=0.05)


def test_attention_is_kept_where_other_modules_are_recomputed() -> None:
    selective = {**SMALL, "num_layers": 2, "recompute_granularity": "selective"}
    assert megatron_plan(selective, world_size=1).recompute is Recompute.SELECTIVE
    others = {**selective, "recompute_modules": "[layernorm moe_act]"}
    assert megatron_plan(others, world_size=1).recompute is Recompute.NONE
    moved = {"fine_grained_activation_offloading": True, "offload_modules": "[core_attn qkv_linear]"}
    assert megatron_plan({**others, **moved}, world_size=1).recompute is Recompute.SELECTIVE


def test_peft_casts_what_bitsandbytes_leaves_to_32_bits() -> None:
    given = {"model_name_or_path": "meta-llama/Llama-2-7b-hf", "lora_r": 8, "bf16": True, "max_seq_length": 512}
    assert hf_plan({**given, "load_in_4bit": True}).ends is Precision.FP32
    assert hf_plan({**given, "quantization_bit": 4, "quant_method": "gptq"}).ends is None
    assert hf_plan(given).ends is None


def test_batches_of_varying_length_leave_blocks_that_full_ones_reuse() -> None:
    given = {"model_name_or_path": "meta-llama/Llama-2-7b-hf", "lora_r": 8, "bf16": True, "max_seq_length": 512}
    varying, full = hf_plan(given), hf_plan({**given, "packing": True})
    assert varying.cached_loss > full.cached_loss == 0.0
    assert len(varying.unknown) > len(full.unknown)


def test_deepspeed_makes_its_buckets_whatever_is_trained() -> None:
    given = {"model_name_or_path": "meta-llama/Llama-2-7b-hf", "lora_r": 8, "bf16": True, "max_seq_length": 512}

    def buckets(**zero: Any) -> float:
        around = Surroundings(deepspeed={"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, **zero}})
        return hf_plan(given, around=around, world_size=2).buffer_bytes

    assert buckets() == 1e9  # 5e8 numbers of 16 bits
    assert buckets(overlap_comm=True, reduce_bucket_size=2e8) == 8e8
    assert buckets(reduce_bucket_size="auto") == 2 * 4096**2
    assert buckets(contiguous_gradients=False) == 0


def test_litgpts_second_adapter_trains_every_linear_layer() -> None:
    first, second = (
        litgpt_plan({"": [command, "Llama-2-7b-hf"]}) for command in ("finetune_adapter", "finetune_adapter_v2")
    )
    assert second.adapter is not None
    assert first.adapter is not None
    assert second.adapter.scales
    assert not first.adapter.scales
    assert second.adapter.trainable > first.adapter.trainable


def test_a_torchtitan_pipeline_takes_the_batch_in_parts_and_keeps_weights_gathered() -> None:
    given = {"model.name": "llama3", "model.flavor": "8B", "training.local_batch_size": 8, "training.seq_len": 2048}
    split = torchtitan_plan({**given, "parallelism.pipeline_parallel_degree": 2}, world_size=8)
    assert (split.micro_batch, split.accumulation) == (1, 8)
    assert split.gather_numbers > split.model.parameters()
    assert torchtitan_plan(given, world_size=8).micro_batch == 8


def test_torchtunes_settings_that_save_memory_arrive() -> None:
    given = {"model._component_": "torchtune.models.llama3_1.llama3_1_8b", "tokenizer.max_seq_len": 2048,
             "dataset.packed": True, "enable_activation_offloading": True, "compile": True,
             "optimizer._component_": "torchao.optim.AdamW4bit",
             "loss._component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"}  # fmt: skip
    plan = torchtune_plan(given)
    assert plan.offload_activations
    assert plan.optimizer is OptimizerKind.ADAM_4BIT
    assert (
        plan.logit_bytes
        < 14
        < torchtune_plan({**given, "loss._component_": "torch.nn.CrossEntropyLoss"}).logit_bytes + 1
    )
    assert plan.cached_loss == 0.0
    assert torchtune_plan({**given, "dataset.packed": False}).cached_loss > 0


def test_an_adapter_in_32_bits_keeps_copies_of_what_it_reads() -> None:
    given = {"model_name_or_path": "meta-llama/Llama-2-7b-hf", "lora_r": 8, "lora_dropout": 0, "max_seq_length": 512}
    plain = hf_plan({**given, "torch_dtype": "bf16", "target_modules": "q_proj,down_proj"}).adapter
    cast = hf_plan({**given, "bf16": True, "target_modules": "q_proj,down_proj"}).adapter
    assert plain is not None
    assert cast is not None
    assert plain.inputs == cast.inputs == 4096 + 11008
    assert (plain.copy_bytes, cast.copy_bytes) == (4.0, 2.0)
