"""Trainers whose settings are a file: nanotron, OLMo, LLM Foundry, EasyR1; DeepSpeed's where only its name is known."""

from collections.abc import Mapping
from typing import Any

import pytest
from formats.trainers_files import FILES

from kopt.core.workload.training_plan import OptimizerKind, PlanError, Precision, Recompute, Sharding, TrainingPlan
from kopt.formats.entrypoint import what_runs
from kopt.formats.trainers import processes_of, read_plan
from kopt.models.sizing.analytic import estimate_plan

EASY: Mapping[str, Any] = {
    "data": {"max_prompt_length": 1024, "max_response_length": 2048},
    "algorithm": {"adv_estimator": "grpo", "disable_kl": False},
    "worker": {
        "actor": {
            "micro_batch_size_per_device_for_update": 2,
            "model": {"model_path": "Qwen/Qwen2.5-7B-Instruct", "lora": {"rank": 0}},
            "fsdp": {"enable_cpu_offload": False},
        },
        "rollout": {"gpu_memory_utilization": 0.5, "tensor_parallel_size": 2},
    },
    "trainer": {"n_gpus_per_node": 8},
}


def plan(command: str, **more: Mapping[str, Any]) -> TrainingPlan:
    files = {
        **FILES,
        "easy.yaml": EASY,
        **{f"{name}.yaml": {**FILES[f"{name}.yaml"], **own} for name, own in more.items()},
    }
    entrypoint = what_runs(command, lambda _: None)
    return read_plan(entrypoint, files.get, world_size=processes_of(entrypoint, files.get))


def test_nanotron_splits_as_its_file_says() -> None:
    result = plan("torchrun --nproc_per_node 4 run_train.py --config-file nanotron.yaml")
    of = result.parallel
    assert (of.data, of.tensor, of.sequence_parallel, of.sharding) == (2, 2, True, Sharding.OPTIMIZER)
    assert (result.micro_batch, result.accumulation, result.gradient_bytes, result.master_bytes) == (4, 2, 4.0, 4.0)
    recomputed = {"parallelism": {"dp": 1, "tp": 4, "recompute_layer": True}}
    assert plan("python run_train.py --config-file nanotron.yaml", nanotron=recomputed).recompute is Recompute.FULL


def gib(result: TrainingPlan) -> float:
    return int(estimate_plan(result, gpu_bytes=80 << 30).worst.total) / (1 << 30)


def test_nanotron_s_defaults_hold_more() -> None:
    command = "torchrun --nproc_per_node 4 run_train.py --config-file nanotron.yaml"

    def sized(**own: Any) -> float:
        return gib(plan(command, nanotron={"parallelism": {"dp": 1, "tp": 4, "pp": 1, **own}}))

    scattered, reduced = sized(tp_mode="reduce_scatter", pp_engine="1f1b"), sized(pp_engine="1f1b")
    assert reduced == sized(tp_mode="ALL_REDUCE", pp_engine="1f1b") > scattered + 2
    assert sized() == sized(pp_engine="afab") > 1.5 * reduced - 3, "both micro-batches wait for their backward pass"
    staged = {"parallelism": {"dp": 1, "tp": 2, "pp": 2}, "tokens": {**FILES["nanotron.yaml"]["tokens"]}}
    staged["tokens"]["batch_accumulation_per_replica"] = 16
    alternating = {**staged, "parallelism": {**staged["parallelism"], "pp_engine": "1f1b"}}
    assert gib(plan(command, nanotron=staged)) > 4 * gib(plan(command, nanotron=alternating))
    with pytest.raises(PlanError, match=r"pp_engine 'ZB' is neither AFAB nor 1F1B; give"):
        sized(pp_engine="zb")


@pytest.mark.parametrize("command", ["scripts/train.py olmo.yaml --run_name x", "OLMo/scripts/train.py olmo.yaml"])
def test_a_script_of_any_name_is_known_by_its_file(command: str) -> None:
    result = plan(f"torchrun --nproc_per_node 8 {command}")
    assert (result.framework, result.micro_batch, result.sequence, result.model.ffn) == ("olmo", 4, 4096, 8192)
    assert (result.weights, result.compute, result.parallel.sharding) == (
        Precision.FP32,
        Precision.BF16,
        Sharding.PARAMETERS,
    )
    assert result.gather_numbers == result.model.parameters(), "SHARD_GRAD_OP"
    assert result.model.parameters() == pytest.approx(1.48e9, rel=0.01), "OLMo 2 1B"


def test_llm_foundry_takes_references_and_checkpoints() -> None:
    result = plan("composer train/train.py foundry.yaml")
    assert (result.framework, result.micro_batch, result.sequence) == ("llm-foundry", 8, 2048)
    assert result.recompute is Recompute.FULL
    assert result.model.parameters() == pytest.approx(1.31e9, rel=0.02)
    hub = {"model": {"name": "hf_causal_lm", "pretrained_model_name_or_path": "gpt2", "peft_config": {"r": 8}}}
    low_rank = plan("llmfoundry train foundry.yaml", foundry=hub)
    assert (low_rank.model.name, low_rank.adapter is not None) == ("gpt2", True)


OLMO = "torchrun --nnodes 32 --nproc_per_node 8 scripts/train.py olmo.yaml"
FOUNDRY = "composer --world_size 256 train/train.py foundry.yaml"


def fsdp(**own: Any) -> Mapping[str, Any]:
    return {"fsdp": {"wrapping_strategy": "by_block", **own}}


def test_sharded_gradients_keep_casts_of_all_weights_and_not_the_weights() -> None:
    whole, partly = plan(OLMO, olmo=fsdp()), plan(OLMO, olmo=fsdp(sharding_strategy="SHARD_GRAD_OP"))
    numbers = partly.model.parameters() / (1 << 30)
    assert estimate_plan(partly).worst.weights < 0.1 * 4 * numbers * (1 << 30)
    assert gib(whole) < gib(partly) < gib(whole) + 1.1 * 2 * numbers


def test_hybrid_sharding_goes_over_a_part_of_the_gpus() -> None:
    everywhere, hybrid = plan(OLMO, olmo=fsdp()), plan(OLMO, olmo=fsdp(sharding_strategy="HYBRID_SHARD"))
    assert (everywhere.parallel.shard_ranks, hybrid.parallel.shard_ranks) == (256, 8)
    assert "number is not given: 8" in hybrid.unknown[-1].message
    copies = fsdp(sharding_strategy="HYBRID_SHARD", hybrid_sharding_num_model_replicas=2)
    assert (plan(OLMO, olmo=copies).parallel.shard_ranks, plan(OLMO, olmo=copies).unknown) == (128, ())
    numbers = hybrid.model.parameters()
    assert gib(hybrid) - gib(everywhere) > 0.9 * 8 * numbers / 8 / (1 << 30), "weights and moments over 8, not 256"


@pytest.mark.parametrize(
    ("own", "ranks"),
    [
        ({"data_parallel_shard_degree": 16}, 16),
        ({"sharding_strategy": "HYBRID_SHARD", "data_parallel_replicate_degree": 8}, 32),
        ({"sharding_strategy": "HYBRID_SHARD"}, 8),
        ({"sharding_strategy": "HYBRID_SHARD", "device_mesh": [64, 4]}, 4),
        ({"data_parallel_shard_degree": -1}, 256),
    ],
)
def test_foundry_shards_over_as_many_as_it_is_told(own: dict[str, Any], ranks: int) -> None:
    assert plan(FOUNDRY, foundry={"fsdp_config": own}).parallel.shard_ranks == ranks


def test_olmo_s_defaults_are_its_own() -> None:
    whole, blocks = plan(OLMO, olmo={"fsdp": {}}), plan(OLMO, olmo=fsdp())
    numbers = blocks.model.parameters()
    assert gib(whole) - gib(blocks) > 0.8 * 4 * numbers / (1 << 30), "all weights and gradients in 16 bits at once"
    half = plan(OLMO, olmo=fsdp(wrapping_strategy="one_in_two"))
    assert gib(blocks) < gib(half) < gib(whole)
    assert "is not known" in plan(OLMO, olmo=fsdp(wrapping_strategy="other")).unknown[-1].message
    assert blocks.model.bias
    assert blocks.optimizer is OptimizerKind.LION
    assert plan(OLMO, olmo={"activation_checkpointing": True}).recompute is Recompute.FULL
    assert plan(OLMO, olmo={"activation_checkpointing": False}).recompute is Recompute.NONE


def test_foundry_s_precisions_attention_and_batches() -> None:
    def sized(**own: Any) -> float:
        return gib(plan(FOUNDRY, foundry={"fsdp_config": own}))

    assert sized() == sized(mixed_precision="DEFAULT") > sized(mixed_precision="PURE")
    assert sized(mixed_precision="FULL") > sized() + 2
    assert sized(auto_wrap=False) > sized() + 4
    assert "taken as DEFAULT" in plan(FOUNDRY, foundry={"fsdp_config": {"mixed_precision": {}}}).unknown[0].message
    few = {"model": {**FILES["foundry.yaml"]["model"], "attn_config": {"attn_type": "multiquery_attention"}}}
    assert plan(FOUNDRY, foundry=few).model.kv_heads == 1
    with pytest.raises(PlanError, match="is auto, which fills whatever GPU there is; give"):
        plan(FOUNDRY, foundry={"device_train_microbatch_size": "auto"})
    with pytest.raises(PlanError, match="cpu_offload is refused by Composer; give"):
        sized(cpu_offload=True)


def test_easy_r1_is_verl_in_other_words() -> None:
    command = "python3 -m verl.trainer.main config=easy.yaml worker.actor.micro_batch_size_per_device_for_update=4"
    result = plan(f"{command} trainer.n_gpus_per_node=4")
    assert (result.framework, result.model.name, result.micro_batch, result.sequence) == ("verl", "Qwen2.5-7B", 4, 3072)
    assert (result.parallel.world, result.engine_share, result.engine_split) == (4, 0.5, 2)
    low_rank = plan(f"{command} worker.actor.model.lora.rank=64")
    assert low_rank.adapter is not None
    # verl/workers/fsdp_workers.py casts what is frozen, and keeps the adapter as the weights would have been.
    assert (result.weights, low_rank.weights, low_rank.adapter.held_bytes) == (Precision.FP32, Precision.BF16, 4.0)
    short = plan(f"{command} worker.actor.model.lora.rank=64 worker.actor.fsdp.torch_dtype=bf16")
    assert short.adapter is not None
    assert short.adapter.held_bytes == 2.0
    with pytest.raises(PlanError, match=r"absent\.yaml cannot be read; give"):
        plan("python3 -m verl.trainer.main config=absent.yaml")


def test_easy_r1_keeps_32_bits_and_what_its_sums_lose() -> None:
    # A small engine, so that training is what needs most.
    command = "python3 -m verl.trainer.main config=easy.yaml worker.rollout.gpu_memory_utilization=0.1"
    usual, own = plan(command), plan(f"{command} worker.actor.optim.strategy=adamw_bf16")
    assert (own.weights, own.state_bytes_each) == (Precision.FP32, 3.0)
    numbers = own.model.parameters() / own.parallel.world
    assert gib(usual) - gib(own) < 3 * numbers / (1 << 30), "two bytes of eight per number, and as much less unused"
    short = plan(f"{command} worker.actor.optim.strategy=adamw_bf16 worker.actor.fsdp.torch_dtype=bf16")
    assert short.weights is Precision.BF16
    whole = plan(f"{command} worker.actor.fsdp.enable_full_shard=false")
    assert gib(whole) > gib(usual) + 10, "all weights stay gathered in 16 bits"


def test_programs_on_top_of_verl_are_known_by_its_words() -> None:
    result = plan("python3 recipe/main_dapo.py actor_rollout_ref.model.path=gpt2 trainer.n_gpus_per_node=2")
    assert (result.framework, result.parallel.world) == ("verl", 2)


@pytest.mark.parametrize(
    ("name", "sharding", "offloads"),
    [
        ("ds_config_zero2.json", Sharding.GRADIENTS, False),
        ("ds_zero2_no_offload.json", Sharding.GRADIENTS, False),
        ("deepspeed_z3_config_bf16.json", Sharding.PARAMETERS, False),
        ("stage3_offload.json", Sharding.PARAMETERS, True),
    ],
)
def test_a_stage_in_the_name_of_an_absent_file_is_taken_and_said(name: str, sharding: Sharding, offloads: bool) -> None:
    command = f"deepspeed --num_gpus 4 t.py --model_name_or_path gpt2 --output_dir o --deepspeed configs/{name}"
    result = plan(command)
    assert (result.parallel.sharding, result.parallel.offload_optimizer) == (sharding, offloads)
    assert any(name in reason.message and "as its name says" in reason.message for reason in result.unknown)


def test_a_name_without_a_stage_says_nothing() -> None:
    with pytest.raises(PlanError, match=r"ds_config\.json cannot be read; give"):
        plan("deepspeed t.py --model_name_or_path gpt2 --deepspeed ds_config.json")


def test_a_script_s_own_settings_count_beside_deepspeed_s() -> None:
    result = plan("torchrun --nproc_per_node 2 train.py factory.yaml --deepspeed=zero3.json")
    assert (result.model.name, result.parallel.sharding) == ("Qwen2.5-7B", Sharding.PARAMETERS)
