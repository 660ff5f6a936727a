"""Trainers' arguments and files that are broken, hostile or contradict themselves: a plan or a clear refusal."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml
from formats.trainers_files import FILES, plan
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.language_models import find_language_model, shape_of_config
from kopt.core.workload.training_plan import MAX_LAYERS, ModelShape, Parallelism, PlanError, TrainingPlan
from kopt.formats.entrypoint import EntrypointError, what_runs
from kopt.formats.trainers import TRAINERS, read_plan
from kopt.formats.trainers.deepspeed import deepspeed_plan
from kopt.formats.trainers.fields import Fields, settings_of_arguments
from kopt.formats.trainers.finetuning import axolotl_plan, llamafactory_plan, swift_plan
from kopt.formats.trainers.fsdp_qlora import fsdp_qlora_plan
from kopt.formats.trainers.litgpt import litgpt_plan
from kopt.formats.trainers.megatron.trainer import megatron_plan
from kopt.formats.trainers.serving import generation_plan, sglang_plan, tgi_plan, vllm_plan
from kopt.formats.trainers.torchtitan import torchtitan_plan
from kopt.formats.trainers.torchtune import torchtune_plan
from kopt.formats.trainers.transformers import Surroundings, hf_plan


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python train.py", "known trainers"),
        ("axolotl train absent.yml", "absent.yml cannot be read"),
        ("vllm serve unknown-model", r"config\.json"),
        ("vllm serve", "no model is named"),
        ("torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 2", "hidden_size"),
        ("litgpt chat gpt2", "does not train"),
        ("deepspeed train.py --deepspeed absent.json --model gpt2", "absent.json cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_give(command: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(command)


def test_words_become_settings() -> None:
    found = settings_of_arguments(
        ["serve", "model", "--lr=1", "--flag", "--list", "a", "b", "x.y=2", "-tp", "4", "--last"]
    )
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
    st.sampled_from([trainer.name for trainer in TRAINERS]),
    st.lists(st.text(max_size=12) | st.sampled_from(["--model", "gpt2", "--tp", "="]), max_size=8),
)
def test_any_arguments_become_a_plan_or_a_refusal(trainer: str, words: list[str]) -> None:
    try:
        read_plan(what_runs(["python", "train.py", *words], lambda path: None), FILES.get, trainer=trainer)
    except (PlanError, EntrypointError) as refusal:
        message = str(refusal)
        assert message.strip()


Reader = Callable[[Mapping[str, Any]], TrainingPlan]

GOOD: dict[str, tuple[Reader, dict[str, Any]]] = {
    "hf": (hf_plan, {"model_name_or_path": "gpt2", "max_length": 128}),
    "llamafactory": (llamafactory_plan, {"model_name_or_path": "gpt2"}),
    "axolotl": (axolotl_plan, {"base_model": "gpt2"}),
    "ms-swift": (swift_plan, {"model": "gpt2"}),
    "deepspeed": (deepspeed_plan, {"model_name_or_path": "gpt2"}),
    "megatron": (
        megatron_plan,
        {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "micro_batch_size": 1},
    ),
    "torchtune": (torchtune_plan, {"model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"}}),
    "torchtitan": (torchtitan_plan, {"model": {"name": "llama3", "flavor": "8B"}}),
    "litgpt": (litgpt_plan, {"": ["finetune_lora", "phi-2"]}),
    "fsdp-qlora": (fsdp_qlora_plan, {"model_name": "gpt2"}),
    "vllm": (vllm_plan, {"model": "gpt2", "max_model_len": 128}),
    "sglang": (sglang_plan, {"model_path": "gpt2"}),
    "tgi": (tgi_plan, {"model_id": "gpt2"}),
    "generation": (generation_plan, {"model": "gpt2"}),
}
"""A reader of every trainer and the least it takes."""

OPTIONS = sorted(
    {
        "per_device_train_batch_size",
        "micro_batch_size",
        "batch_size",
        "bf16",
        "fp16",
        "cutoff_len",
        "sequence_len",
        "max_length",
        "lora_rank",
        "lora_r",
        "lora_target",
        "lora_target_modules",
        "target_modules",
        "lora_dropout",
        "load_in_4bit",
        "load_in_8bit",
        "quantization_bit",
        "quant_method",
        "gradient_checkpointing",
        "optim",
        "optimizer",
        "torch_dtype",
        "dtype",
        "fsdp",
        "fsdp_config",
        "deepspeed",
        "packing",
        "modules_to_save",
        "use_liger_kernel",
        "device_map",
        "sequence_parallel_size",
        "adapter",
        "finetuning_type",
        "rl",
        "stage",
        "rlhf_type",
        "trl_method",
        "num_generations",
        "max_completion_length",
        "max_prompt_length",
        "use_vllm",
        "vllm_mode",
        "vllm_gpu_memory_utilization",
        "beta",
        "teacher_model_name_or_path",
        "num_layers",
        "hidden_size",
        "num_attention_heads",
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "num_experts",
        "recompute_granularity",
        "recompute_modules",
        "pipeline_model_parallel_layout",
        "hybrid_layer_pattern",
        "fp8",
        "export_kd_cfg",
        "perform_rl_step",
        "multi_latent_attention",
        "tokenizer",
        "tokenizer.max_seq_len",
        "model",
        "loss",
        "training",
        "parallelism",
        "parallelism.pipeline_parallel_degree",
        "activation_checkpoint",
        "precision",
        "quantize",
        "train",
        "train.micro_batch_size",
        "devices",
        "train_type",
        "context_length",
        "sharding_strategy",
        "world_size",
        "tensor_parallel_size",
        "tp",
        "gpu_memory_utilization",
        "mem_fraction_static",
        "num_shard",
        "kv_cache_dtype",
        "quantization",
        "max_num_seqs",
        "prompt_tokens",
        "new_tokens",
        "zero_optimization",
        "",
    }
)
hostile = st.recursive(
    scalars
    | st.sampled_from(
        [
            10**400,
            -(10**400),
            float("inf"),
            "1e400",
            "9" * 60,
            "\0",
            "x" * 30_000,
            "dpo",
            "grpo",
            "gkd",
            "lora",
            "qlora",
            "colocate",
            "full_shard",
            "[a, b]",
            "{",
            "(tt|)*9999",
            "M|-|*",
            0,
            1,
            -1,
        ]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(OPTIONS), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(GOOD)), st.dictionaries(st.sampled_from(OPTIONS), hostile, max_size=6))
def test_any_value_of_any_option_becomes_a_plan_or_a_refusal(trainer: str, changed: dict[str, Any]) -> None:
    reader, good = GOOD[trainer]
    try:
        assert isinstance(reader({**good, **changed}), TrainingPlan)
    except PlanError as refusal:
        message = str(refusal)
        assert message.strip()
        assert len(message) < 1000


@pytest.mark.parametrize("trainer", sorted(GOOD))
def test_a_reader_without_any_settings_says_what_to_give(trainer: str) -> None:
    reader, good = GOOD[trainer]
    assert isinstance(reader(good), TrainingPlan)
    with pytest.raises(PlanError, match=r"give|not known"):
        reader({})


def aliases(depth: int) -> Any:
    """YAML whose few lines stand for 10^depth words."""
    lines = ["a0: &a0 word"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, depth + 1)]
    return yaml.safe_load("\n".join(lines))[f"a{depth}"]


@pytest.mark.parametrize("trainer", sorted(GOOD))
def test_aliases_that_stand_for_gigabytes_are_not_written_out(trainer: str) -> None:
    """Every option is given the bomb in turn; one that were written out would need 10^12 words."""
    reader, good = GOOD[trainer]
    bomb = aliases(12)
    for option in OPTIONS:
        for value in (bomb, {"a": bomb}, [{"b": bomb}]):
            try:
                assert isinstance(reader({**good, option: value}), TrainingPlan)
            except PlanError as refusal:
                message = str(refusal)
                assert len(message) < 1000


@pytest.mark.parametrize(
    ("trainer", "changed", "message"),
    [
        ("hf", {"bf16": True, "fp16": True}, "bf16 and fp16"),
        ("megatron", {"bf16": True, "fp16": True}, "bf16 and fp16"),
        ("hf", {"load_in_4bit": True, "load_in_8bit": True}, "load_in_4bit and load_in_8bit"),
        ("megatron", {"num_attention_heads": 6, "hidden_size": 60, "tensor_model_parallel_size": 4}, "attention heads"),
        ("fsdp-qlora", {"sharding_strategy": "twice"}, "sharding_strategy"),
        ("fsdp-qlora", {"train_type": "bnb_llama_pro"}, "train_type"),
        (
            "hf",
            {"trl_method": "grpo", "use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 1.5},
            "between 0 and 1",
        ),
        ("llamafactory", {"stage": "ppo"}, "more than one model"),
        ("hf", {"per_device_train_batch_size": 1 << 80}, "whole number"),
        ("hf", {"per_device_train_batch_size": 1 << 20_000}, "whole number"),
        ("hf", {"per_device_train_batch_size": [{"a": 1}]}, "one value"),
        ("hf", {"model_name_or_path": "a\0b"}, "NUL"),
        ("hf", {"model_name_or_path": "-hf" * 5_000}, "characters is no model"),
        ("hf", {"model_name_or_path": "x" * 30_000}, "30,000 characters"),
        ("hf", {"lora_r": 8, "target_modules": ["q_proj"] * 6_000}, "entries"),
    ],
)
def test_what_cannot_be_meant_is_refused(trainer: str, changed: dict[str, Any], message: str) -> None:
    reader, good = GOOD[trainer]
    with pytest.raises(PlanError, match=message):
        reader({**good, **changed})


def test_fsdp_and_deepspeed_exclude_each_other() -> None:
    given_arguments = {"model_name_or_path": "gpt2", "fsdp": "full_shard"}
    with pytest.raises(PlanError, match="fsdp and a DeepSpeed"):
        hf_plan(given_arguments, around=Surroundings(deepspeed={"zero_optimization": {"stage": 2}}), world_size=2)


@pytest.mark.parametrize("reader", [llamafactory_plan, axolotl_plan, swift_plan])
def test_asking_for_the_other_half_precision_is_no_contradiction_of_a_default(reader: Reader) -> None:
    model = {"model_name_or_path": "gpt2", "base_model": "gpt2", "model": "gpt2"}
    assert [reader({**model, **more}).compute.value for more in ({}, {"fp16": True})] == ["bf16", "fp16"]


def test_a_mapping_is_a_flag_that_is_set() -> None:
    fields = Fields({"gradient_checkpointing": {"use_reentrant": False}, "empty": {}, "deepspeed": [1]})
    assert [fields.flag(name) for name in ("gradient_checkpointing", "empty", "deepspeed")] == [True, False, True]


DIMENSIONS = (
    "hidden_size",
    "n_embd",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "intermediate_size",
    "num_key_value_heads",
    "head_dim",
    "num_experts",
    "kv_lora_rank",
    "q_lora_rank",
    "text_config",
    "model_type",
    "_name_or_path",
)


@given(st.dictionaries(st.sampled_from(DIMENSIONS), st.integers(-5, 70) | hostile))
def test_any_model_configuration_becomes_a_shape_or_a_refusal(document: dict[str, Any]) -> None:
    good = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    for config in (document, good | document):
        try:
            assert isinstance(shape_of_config(config), ModelShape)
        except PlanError as refusal:
            message = str(refusal)
            assert message.strip()
            assert len(message) < 1000


def test_more_layers_or_stages_than_any_model_has_are_refused_at_once() -> None:
    config = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100, "num_hidden_layers": MAX_LAYERS + 1}
    with pytest.raises(PlanError, match="more than any model"):
        shape_of_config(config)
    with pytest.raises(PlanError, match="pipeline stages"):
        Parallelism(pipeline=MAX_LAYERS + 1)


def test_a_model_of_several_kinds_of_input_keeps_its_language_model_apart() -> None:
    inner = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100, "num_hidden_layers": 3}
    assert shape_of_config({"text_config": inner, "vision_config": {}}).layers == 3


def test_a_deepseek_configuration_gives_latent_attention() -> None:
    known = find_language_model("DeepSeek-V2-Lite")
    config = {
        "hidden_size": known.hidden,
        "num_attention_heads": known.heads,
        "num_hidden_layers": known.layers,
        "vocab_size": known.vocab,
        "intermediate_size": known.ffn,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "moe_intermediate_size": 1408,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
    }
    assert shape_of_config(config).parameters() == pytest.approx(known.parameters(), rel=0.001)
