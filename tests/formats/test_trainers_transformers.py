"""TrainingArguments, DeepSpeed, accelerate, LLaMA-Factory and axolotl as plans."""

from dataclasses import replace
from typing import Any

import pytest
from formats.trainers_files import plan

from kopt.core.workload.training_plan import OptimizerKind, Precision, Recompute, Sharding, TrainingPlan
from kopt.formats.entrypoint import what_runs
from kopt.formats.trainers import read_plan
from kopt.formats.trainers.transformers import Surroundings, hf_plan
from kopt.models.sizing.analytic import estimate_plan


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


def test_accelerate_s_file_shards() -> None:
    found = plan(
        "accelerate launch --num_processes 4 --config_file fsdp.yaml train.py --model_name_or_path gpt2-xl "
        "--per_device_train_batch_size 1 --bf16",
        trainer="hf",
    )
    assert (found.parallel.sharding, found.parallel.data) == (Sharding.PARAMETERS, 4)
    assert (found.weights, found.compute) == (Precision.FP32, Precision.BF16)
    assert any("length of sequences" in reason.message for reason in found.unknown)


def test_settings_in_the_script_count_less_than_arguments() -> None:
    found = plan(
        "python train.py --model_name_or_path gpt2",
        trainer="hf",
        settings={"per_device_train_batch_size": 3, "model_name_or_path": "gpt2-xl", "fp16": True},
    )
    assert (found.model.name, found.micro_batch, found.compute) == ("gpt2", 3, Precision.FP16)


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


def test_an_adapter_in_32_bits_keeps_copies_of_what_it_reads() -> None:
    given = {"model_name_or_path": "meta-llama/Llama-2-7b-hf", "lora_r": 8, "lora_dropout": 0, "max_seq_length": 512}
    plain = hf_plan({**given, "torch_dtype": "bf16", "target_modules": "q_proj,down_proj"}).adapter
    cast = hf_plan({**given, "bf16": True, "target_modules": "q_proj,down_proj"}).adapter
    assert plain is not None
    assert cast is not None
    assert plain.inputs == cast.inputs == 4096 + 11008
    assert (plain.copy_bytes, cast.copy_bytes) == (4.0, 2.0)


def test_a_switch_of_a_models_own_script_trains_adapters() -> None:
    options = "--model_name_or_path Qwen/Qwen-7B --data_path x.json --model_max_length 512 --bf16 True --output_dir o"
    whole, adapted, quantised = (
        plan(f"python finetune.py {options}{switches}") for switches in ("", " --use_lora", " --use_lora --q_lora")
    )
    assert whole.adapter is None
    assert adapted.adapter is not None
    assert (adapted.adapter.rank, adapted.adapter.targets) == (64, 7)
    assert any("rank of adapters" in reason.message for reason in adapted.unknown)
    assert (adapted.weights, quantised.weights) == (Precision.BF16, Precision.NF4)


@pytest.mark.parametrize(
    ("name", "state_bytes"),
    [
        ("adamw_torch", 8.0),
        ("ademamix", 12.0),
        ("grokadamw", 12.0),
        ("ademamix_8bit", 3 * (1 + 4 / 256)),
        ("rmsprop", 4.0),
        ("adagrad", 4.0),
        ("lomo", 0.0),
        ("adalomo", 0.08),
    ],
)
def test_optimizers_keep_what_their_papers_say(name: str, state_bytes: float) -> None:
    plan = hf_plan({"model_name_or_path": "gpt2", "optim": name})
    assert plan.optimizer.state_bytes(4.0) == pytest.approx(state_bytes)
    assert (plan.gradient_bytes == 0.0) == ("lomo" in name), "steps while gradients come"


@pytest.mark.parametrize(("model", "gpus"), [("huggyllama/llama-7b", 1), ("huggyllama/llama-65b", 8)])
def test_lomo_s_own_trainer_has_no_gradients_that_wait_for_a_step(model: str, gpus: int) -> None:
    # OpenLMLab/LOMO 45d4bac's config/args_lomo.yaml and ds_config.json; README.md: on one and eight RTX 3090.
    files: dict[str, dict[str, Any]] = {
        "args.yaml": {
            "model_name_or_path": model,
            "deepspeed": "ds.json",
            "output_dir": "out",
            "per_device_train_batch_size": 1,
            "data_max_length": 1024,
            "gradient_checkpointing": True,
        },
        "ds.json": {
            "fp16": {"enabled": True},
            "zero_optimization": {"stage": 3},
            "train_micro_batch_size_per_gpu": 1,
        },
    }
    entrypoint = what_runs(f"deepspeed --num_gpus {gpus} src/train_lomo.py args.yaml", lambda _: None)
    lomo = read_plan(entrypoint, files.get)
    assert (lomo.gradient_bytes, lomo.master_bytes, lomo.step_bytes, lomo.micro_batch) == (0.0, 0.0, 0.0, 1)
    assert (lomo.weights, lomo.parallel.shard_ranks) == (Precision.FP16, gpus)
    sized = estimate_plan(lomo)
    assert int(sized.worst.total) * sized.low_share < 24 << 30
    assert int(sized.worst.total) < 25 << 30
    files["ds.json"]["train_micro_batch_size_per_gpu"] = 2
    assert read_plan(entrypoint, files.get).micro_batch == 2, "the larger, whichever its loop takes"
    other = read_plan(replace(entrypoint, script="src/train.py"), files.get)
    assert int(estimate_plan(other).worst.total) > 2 * int(sized.worst.total)


def test_another_optimizer_that_is_stated_does_not_step_in_the_backward_pass() -> None:
    def lomo(words: str = "", file: dict[str, Any] | None = None) -> TrainingPlan:
        command = f"deepspeed train_lomo.py --model_name_or_path gpt2 --output_dir out --deepspeed ds.json {words}"
        zero = {"fp16": {"enabled": True}, "zero_optimization": {"stage": 3}, **(file or {})}
        return read_plan(what_runs(command, lambda _: None), {"ds.json": zero}.get)

    assert lomo().gradient_bytes == lomo().master_bytes == 0.0
    for other in (lomo("--optim adamw_torch"), lomo(file={"optimizer": {"type": "AdamW"}})):
        assert (other.gradient_bytes, other.master_bytes, other.optimizer) == (2.0, 4.0, OptimizerKind.ADAM)
    assert lomo(file={"optimizer": {"type": "AdaLomo"}}).gradient_bytes == 0.0
