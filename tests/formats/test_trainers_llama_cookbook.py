"""llama-cookbook's commands, as its documents give them."""

import pytest

from kopt.core.units import GIB
from kopt.core.workload.training_plan import PlanError, Precision, Recompute, Sharding, TrainingPlan
from kopt.formats.entrypoint import what_runs
from kopt.formats.trainers import processes_of, read_plan
from kopt.models.sizing.analytic import estimate_plan

EIGHT_B = "--model_name meta-llama/Llama-3.1-8B"
FULL = f"torchrun --nnodes 1 --nproc_per_node 8 finetuning.py --enable_fsdp {EIGHT_B} --fsdp_config.pure_bf16"
LORA = f"python -m llama_cookbook.finetuning --use_peft --peft_method lora {EIGHT_B}"


def plan_of(command: str) -> TrainingPlan:
    entrypoint = what_runs(command, lambda _: None)
    assert entrypoint.trainer == "llama-cookbook"
    return read_plan(entrypoint, lambda _: None, world_size=processes_of(entrypoint, lambda _: None))


def gib(plan: TrainingPlan) -> float:
    return int(estimate_plan(plan).worst.total) / GIB


def test_its_defaults() -> None:
    plan = plan_of(FULL)
    assert (plan.micro_batch, plan.sequence, plan.varying) == (4, 4096, False)
    assert (plan.weights, plan.compute, plan.state_bytes_each) == (Precision.BF16, Precision.BF16, 2.0)
    assert (plan.parallel.world, plan.parallel.sharding, plan.recompute) == (8, Sharding.PARAMETERS, Recompute.FULL)
    assert plan_of(f"{FULL} --batching_strategy padding").varying


@pytest.mark.parametrize(
    ("command", "gpu_gib"),
    [
        # "tested with BF16 on 8xA100, 40GB GPUs" and "on 16xA100, 80GB GPUs" (getting-started/finetuning, 0e00335)
        (FULL, 40),
        (
            "torchrun --nnodes 2 --nproc_per_node 8 finetuning.py --enable_fsdp --low_cpu_fsdp --fsdp_config.pure_bf16 "
            "--model_name meta-llama/Llama-3.1-70B --batch_size_training 1",
            80,
        ),
    ],
)
def test_what_its_documents_say_was_tested_is_not_above_the_gpu(command: str, gpu_gib: int) -> None:
    plan = plan_of(command)
    assert gib(plan) * estimate_plan(plan).low_share < gpu_gib


def test_adapters_and_quantised_weights() -> None:
    plan = plan_of(LORA)
    assert plan.adapter is not None
    assert (plan.parallel.world, plan.recompute, plan.adapter.rank) == (1, Recompute.NONE, 8)
    assert plan_of(f"{LORA} --lora_config.r 64").adapter != plan.adapter
    assert plan_of(f"{LORA} --quantization 8bit").weights is Precision.INT8
    four = plan_of(f"{LORA} --quantization 4bit --quantization_config.use_double_quant True")
    assert four.weights is Precision.NF4_DOUBLE
    assert estimate_plan(four).worst.weights < 0.5 * estimate_plan(plan).worst.weights


def test_sharding() -> None:
    whole, partly = plan_of(FULL), plan_of(f"{FULL} --fsdp_config.sharding_strategy SHARD_GRAD_OP")
    assert gib(whole) < gib(partly) < gib(whole) + 2.2 * whole.model.parameters() / GIB
    assert plan_of(f"{FULL} --sharding_strategy NO_SHARD").parallel.sharding is Sharding.NONE
    assert plan_of(f"{FULL} --hsdp --sharding_group_size 4 --sharding_strategy HYBRID_SHARD").parallel.shard_ranks == 4
    assert gib(plan_of(f"{FULL} --fsdp_config.fsdp_activation_checkpointing False")) > gib(whole) + 10
    assert plan_of(f"{FULL} --fsdp_config.fsdp_cpu_offload").parallel.offload_parameters


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--freeze_layers", "freeze_layers has no formula; give"),
        ("--use_peft --peft_method prefix", "'prefix' has no formula; give lora"),
        ("--quantization 3bit", "neither 4bit nor 8bit; give"),
        ("--fsdp_config.fsdp_cpu_offlod", "is no setting .* give fsdp_cpu_offload"),
        ("--batch_size_trainin 8", "give batch_size_training"),
        ("--quantization 8bit --use_peft", "FSDP, .* give --quantization 4bit"),
        ("--quantization 4bit", "give --use_peft"),
        ("--sharding_strategy HALF", "not known; give FULL_SHARD"),
    ],
)
def test_what_has_no_formula_is_refused(more: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan_of(f"{FULL} {more}".replace("finetuning.py", "-m llama_cookbook.finetuning"))


@pytest.mark.parametrize(
    "words",
    [
        "--enable_fsdp",
        "--peft_method lora --output_dir out",
        "--enable_fsdp --peft_method lora --my_own_batch 64",
        "--enable_fsdp --low_cpu_fsdp --per_device_train_batch_size 4",
    ],
)
def test_a_script_with_other_options_is_another_one(words: str) -> None:
    assert what_runs(f"torchrun --nproc_per_node 8 own.py {EIGHT_B} {words}", lambda _: None).trainer is None


@pytest.mark.parametrize("script", ["-m llama_recipes.finetuning", "llama_finetuning.py"])
def test_llama_recipes_loads_32_bits(script: str) -> None:
    old = FULL.replace("finetuning.py", script)
    assert plan_of(old).weights is Precision.BF16
    whole = plan_of(old.replace(" --fsdp_config.pure_bf16", ""))
    assert (whole.weights, whole.compute) == (Precision.FP32, Precision.BF16)
    alone = plan_of(f"python {script} --use_peft --peft_method lora {EIGHT_B}")
    assert (alone.weights, alone.compute) == (Precision.FP32, Precision.FP32)
    assert gib(alone) > 1.5 * gib(plan_of(LORA))


def test_hybrid_sharding_is_within_a_node() -> None:
    two = FULL.replace("--nnodes 1", "--nnodes 2") + " --sharding_strategy HYBRID_SHARD"
    assert plan_of(two).parallel.shard_ranks == 8
    entrypoint = what_runs(two, lambda _: None)
    with pytest.raises(PlanError, match="give --hsdp"):
        read_plan(entrypoint, lambda _: None, world_size=32)
