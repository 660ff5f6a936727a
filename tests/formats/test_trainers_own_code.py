"""torchtune, torchtitan, litgpt and fsdp_qlora, which have model code of their own, as plans."""

import pytest
from formats.trainers_files import plan

from kopt.core.workload.training_plan import OptimizerKind, PlanError, Precision, Recompute, Sharding
from kopt.formats.trainers.fsdp_qlora import fsdp_qlora_plan
from kopt.formats.trainers.litgpt import litgpt_plan
from kopt.formats.trainers.torchtitan import torchtitan_plan
from kopt.formats.trainers.torchtune import configurations, torchtune_plan


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
    given = {
        "model._component_": "torchtune.models.llama3_1.llama3_1_8b",
        "tokenizer.max_seq_len": 2048,
        "dataset.packed": True,
        "enable_activation_offloading": True,
        "compile": True,
        "optimizer._component_": "torchao.optim.AdamW4bit",
        "loss._component_": "torchtune.modules.loss.CEWithChunkedOutputLoss",
    }
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


def test_litgpt_quantises_the_head_and_ties_none() -> None:
    plain, quantised = (litgpt_plan({"": ["finetune_lora", "falcon-7b"], "quantize": one}) for one in ("", "bnb.nf4"))
    assert (plain.quantised_head, quantised.quantised_head) == (False, True)
    assert not plain.model.tied
    assert quantised.joint_qkv


def test_fsdp_qlora_shards_four_bit_layers_and_leaves_their_scales() -> None:
    found = plan(
        "python train.py --train_type qlora --model_name meta-llama/Llama-2-70b-hf --context_length 2048 "
        "--batch_size 2 --lora_rank 32 --use_cpu_offload true --sharding_strategy full_shard",
        world_size=2,
    )
    assert (found.framework, found.weights, found.compute) == ("fsdp-qlora", Precision.NF4_DOUBLE, Precision.BF16)
    assert (found.parallel.sharding, found.parallel.shard_ranks) == (Sharding.PARAMETERS, 2)
    assert (found.parallel.offload_parameters, found.parallel.offload_optimizer) == (True, True)
    assert (found.micro_batch, found.sequence, found.recompute) == (2, 2048, Recompute.FULL)
    # Of 68.5 billion quantised numbers an 8-bit scale for 64, whose scales are 32 bits for 256: half is not sharded.
    assert found.beside_bytes == pytest.approx(68.45e9 * (1 / 64 + 4 / (64 * 256)) / 2, rel=0.001)
    assert found.adapter is not None
    assert (found.adapter.rank, found.adapter.targets, found.adapter.held_bytes) == (32, 7, 2.0)


def test_fsdp_qlora_without_quantisation_or_sharding() -> None:
    given = {"model_name": "meta-llama/Llama-2-7b-hf"}
    full = fsdp_qlora_plan({**given, "train_type": "full", "precision": "bf16_autocast"}, world_size=4)
    assert (full.adapter, full.weights, full.compute) == (None, Precision.FP32, Precision.BF16)
    alone = fsdp_qlora_plan({**given, "sharding_strategy": "ddp"}, world_size=4)
    assert (alone.beside_bytes, alone.parallel.sharding) == (0.0, Sharding.NONE)
    with pytest.raises(PlanError, match="no model is named"):
        fsdp_qlora_plan({"train_type": "qlora"})


def test_torchtunes_own_configurations_are_known_by_name() -> None:
    """Those of models whose dimensions are known; overrides and files count more."""
    by_name = plan("tune run lora_finetune_single_device --config llama3_1/8B_lora_single_device batch_size=4")
    assert (by_name.model.name, by_name.micro_batch) == ("Llama-3.1-8B", 4)
    assert by_name.adapter is not None
    unknown = []
    for name in configurations():
        try:
            plan(f"tune run any --config {name}")
        except PlanError as error:
            unknown.append((name, str(error)))
    assert {name.split("/")[0] for name, _ in unknown} <= {"dev", "llama3_2_vision"}
    assert all("dimensions" in why for _, why in unknown)
    with pytest.raises(PlanError, match="configuration llama9/8B cannot be read"):
        plan("tune run any --config llama9/8B")


def test_torchtitans_degrees_are_read_by_their_earlier_names_and_replicas_shard_alone() -> None:
    model = {"model.name": "llama3", "model.flavor": "8B", "training.seq_len": 4096}
    new = {"parallelism.tensor_parallel_degree": 4, "parallelism.pipeline_parallel_degree": 2}
    old = {"training.tensor_parallel_degree": 4, "experimental.pipeline_parallel_degree": 2}
    assert torchtitan_plan({**model, **new}, world_size=32) == torchtitan_plan({**model, **old}, world_size=32)
    whole = torchtitan_plan({**model, **new}, world_size=32).parallel
    assert (whole.tensor, whole.pipeline, whole.data, whole.shard_ranks) == (4, 2, 4, 4)
    for section in ("parallelism", "training"):
        replicas = {f"{section}.data_parallel_replicate_degree": 2}
        assert torchtitan_plan({**model, **old, **replicas}, world_size=32).parallel.shard_ranks == 2
