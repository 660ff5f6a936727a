"""NeMo's commands: recipes by name with overrides, Hydra's files and references, adapters, and what is refused."""

from collections.abc import Mapping
from typing import Any

import pytest

from kopt.core.workload.training_plan import PlanError, Precision, Recompute, Sharding, TrainingPlan
from kopt.formats.entrypoint import what_runs
from kopt.formats.trainers import processes_of, read_plan
from kopt.models.sizing.analytic import estimate_plan

GPT: Mapping[str, Any] = {
    "trainer": {"devices": 8, "num_nodes": 2, "precision": "bf16"},
    "model": {
        "micro_batch_size": 4, "global_batch_size": "${multiply:8, ${.micro_batch_size}}", "encoder_seq_length": 2048,
        "max_position_embeddings": "${.encoder_seq_length}", "num_layers": 24, "hidden_size": 2048,
        "ffn_hidden_size": "${multiply:4, ${.hidden_size}}", "num_attention_heads": 16, "activation": "gelu",
        "restore_from_path": None, "optim": {"name": "distributed_fused_adam"}, "tokenizer": {"library": "megatron"},
        "activations_checkpoint_granularity": "full", "hidden_dropout": 0.1, "tensor_model_parallel_size": 2,
    },
}  # fmt: skip
TUNE: Mapping[str, Any] = {
    "trainer": {"devices": 1, "precision": "bf16"},
    "model": {"restore_from_path": "???", "data": {"train_ds": {"micro_batch_size": 2, "max_seq_length": 1024}}},
}
FILES: Mapping[str, Mapping[str, Any]] = {
    "nlp/conf/megatron_gpt_config.yaml": GPT,
    "conf/mine.yaml": GPT,
    "nlp/conf/gpt_sft.yaml": TUNE,
    "nlp/conf/gpt_dpo.yaml": TUNE,
}


def plan(command: str) -> TrainingPlan:
    entrypoint = what_runs(command, lambda _: None)
    return read_plan(entrypoint, FILES.get, world_size=processes_of(entrypoint, FILES.get))


def test_a_recipe_has_its_own_degrees_batch_and_gpus() -> None:
    result = plan("nemo llm pretrain --factory llama3_8b")
    assert (result.framework, result.model.name, result.sequence) == ("nemo", "Llama-3-8B", 8192)
    assert (result.parallel.world, result.parallel.context, result.parallel.data) == (8, 2, 4)
    assert (result.parallel.sharding, result.weights, result.gradient_bytes) == (
        Sharding.OPTIMIZER,
        Precision.BF16,
        4.0,
    )
    assert result.adapter is None


def test_arguments_and_settings_win_over_the_recipe() -> None:
    result = plan(
        'nemo llm pretrain --factory "llama3_70b(num_nodes=4, performance_mode=True)" trainer.devices=8 '
        "trainer.strategy.tensor_model_parallel_size=8 trainer.strategy.pipeline_model_parallel_size=2 "
        "trainer.strategy.virtual_pipeline_model_parallel_size=2 trainer.strategy.context_parallel_size=1 "
        "data.micro_batch_size=2 model.config.recompute_granularity=full"
    )
    of = result.parallel
    assert (of.world, of.tensor, of.pipeline, of.context, of.virtual_stages) == (32, 8, 2, 1, 2)
    assert (result.micro_batch, result.recompute, result.gradient_bytes) == (2, Recompute.FULL, 2.0)


def test_fine_tuning_trains_adapters_unless_told_otherwise() -> None:
    low_rank = plan("nemo llm finetune --factory llama3_8b peft.dim=16")
    assert low_rank.adapter is not None
    assert (low_rank.adapter.rank, low_rank.adapter.targets) == (16, 4)
    for command in ("llama3_8b peft=none", "\"llama3_8b(peft_scheme='none')\""):
        whole = plan(f"nemo llm finetune --factory {command}")
        assert (whole.adapter, whole.parallel.tensor) == (None, 2)


def test_mixtures_and_models_that_only_nemo_names_have_plans() -> None:
    mixture = plan("nemo llm pretrain --factory mixtral_8x7b")
    assert (mixture.parallel.expert, mixture.model.experts is not None) == (8, True)
    assert plan("nemo llm pretrain --factory nemotron4_15b").model.parameters() == pytest.approx(15.6e9, rel=0.02)


def test_a_setting_that_is_not_understood_is_named_with_the_nearest() -> None:
    result = plan("nemo llm pretrain --factory llama3_8b trainer.strategy.tensor_parallel_size=8 optim.config.lr=1e-4")
    messages = [reason.message for reason in result.unknown]
    assert any(
        "tensor_parallel_size is not understood" in text and "tensor_model_parallel_size" in text for text in messages
    )
    assert not any("lr " in text for text in messages)


def test_arguments_of_a_recipe_count_or_are_named() -> None:
    arguments = "tensor_parallelism=8, micro_batch_size=16, pipeline_parallelism=1, precision='16-mixed', name='x'"
    result = plan(f'nemo llm pretrain --factory "nemotron3_8b({arguments})"')
    assert (result.parallel.tensor, result.micro_batch, result.unknown) == (8, 16, ())
    result = plan('nemo llm pretrain --factory "llama3_8b(nope=8, tensor_paralellism=2, micro_batch_size=2*8)"')
    assert [reason.message for reason in result.unknown] == [
        "nope of the recipe is not understood and left out",
        "tensor_paralellism of the recipe is not understood and left out (nearest: tensor_parallelism, "
        "expert_parallelism)",
        "micro_batch_size of the recipe is no number or word and left out",
    ]
    assert "argument 1" in plan('nemo llm pretrain --factory "llama3_8b(8)"').unknown[0].message


def test_weights_stay_in_32_bits_unless_o2_is_set() -> None:
    low_rank = "python nlp/train_gpt_sft.py model.restore_from_path=llama-2-7b model.peft.peft_scheme=lora"
    usual, half = plan(low_rank), plan(f"{low_rank} model.megatron_amp_O2=True")
    assert (usual.weights, usual.compute, half.weights) == (Precision.FP32, Precision.BF16, Precision.BF16)
    assert sized(usual) - sized(half) > 2 * 6.7e9
    whole = plan("python nlp/megatron_gpt_pretraining.py model.megatron_amp_O2=False")
    assert (whole.weights, whole.gradient_bytes) == (Precision.FP32, 4.0)
    assert plan("python nlp/megatron_gpt_pretraining.py trainer.precision=32").buffer_bytes == 0
    preferences = plan("python nlp/train_gpt_dpo.py model.restore_from_path=llama-3-8b model.encoder_seq_length=1024")
    assert preferences.weights is Precision.BF16, "its own file sets O2"


def sized(result: TrainingPlan) -> int:
    return int(estimate_plan(result).worst.total)


@pytest.mark.parametrize(
    "command",
    [
        "python nlp/megatron_gpt_pretraining.py",
        "python x/megatron_gpt_pretraining.py --config-path=conf --config-name=mine",
    ],
)
def test_a_hydra_file_is_found_and_its_references_followed(command: str) -> None:
    result = plan(f"{command} model.micro_batch_size=2 model.sequence_parallel=True")
    assert (result.micro_batch, result.model.ffn, result.model.positions) == (2, 8192, 2048)
    assert (result.parallel.world, result.parallel.tensor, result.parallel.sequence_parallel) == (16, 2, True)
    assert (result.recompute, result.parallel.sharding, result.dropout) == (Recompute.FULL, Sharding.OPTIMIZER, True)
    assert result.accumulation == 1


def test_a_checkpoint_s_name_says_the_model() -> None:
    command = "python nlp/train_gpt_sft.py model.restore_from_path=/models/llama-3-8b.nemo model.peft.peft_scheme=lora"
    result = plan(command)
    assert (result.model.name, result.micro_batch, result.sequence) == ("Llama-3-8B", 2, 1024)
    assert result.adapter is not None
    pairs = plan("python nlp/train_gpt_dpo.py pretrained_checkpoint.restore_from_path=/models/llama-3-8b.nemo")
    assert pairs.micro_batch == 4, "an example is two sequences"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("nemo llm pretrain", "no recipe is named; give --factory"),
        ("nemo llm pretrain --factory lama3_8b", "no recipe of NeMo that is known here .nearest: llama3_8b"),
        ("nemo llm pretrain --factory mamba2_8b", "has no formulas"),
        ("nemo llm export --factory llama3_8b", "does not train; give"),
        ("nemo llm pretrain --factory '__import__(\"os\").abort()'", "no name with arguments; give"),
        (f"nemo llm pretrain --factory '{'(' * 3000}'", "no name with arguments; give"),
        ("nemo llm pretrain --factory llama31_405b", "multiple of 256"),
        ("python nlp/train_gpt_sft.py", "checkpoint that is not named; give"),
        (
            "python nlp/train_gpt_sft.py model.restore_from_path=/x/ours.nemo",
            "name says no model that is known here; give",
        ),
        ("python nlp/train_gpt_ppo_actor.py", "more than one model at once"),
        ("python nlp/megatron_gpt_pretraining.py --config-name=absent", "absent.yaml cannot be read; give"),
        (
            "python nlp/train_gpt_sft.py model.restore_from_path=llama-3-8b model.peft.peft_scheme=ia3",
            "no formulas; give",
        ),
        ("python nlp/megatron_gpt_pretraining.py trainer.devices=-1", "as many as the machine has; give"),
        ("python nlp/megatron_gpt_pretraining.py model.hidden_size=${model.hidden_size}", "hidden_size"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_give(command: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(command)
