"""Megatron-LM's arguments as plans."""

from typing import Any

import pytest
from formats.trainers_files import plan

from kopt.core.workload.training_plan import Attention, PlanError, Precision, Recompute, Sharding
from kopt.formats.trainers.megatron.model import layout_stages
from kopt.formats.trainers.megatron.trainer import megatron_plan


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


SMALL = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "micro_batch_size": 1,
    "seq_length": 1024,
    "bf16": True,
    "vocab_size": 32000,
}


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


@pytest.mark.parametrize(
    ("layout", "stages"),
    [("Et*3|(tt|)*6tmL", 8), ("Et|(tt|)*6mL", 8), ("M-M|M-M", 2), ("M-M", 1), ("(t|)*9999(", 10_000), ("((t|)*2", 3)],
)
def test_a_layout_tells_how_many_chunks_a_pipeline_has(layout: str, stages: int) -> None:
    assert layout_stages(layout) == min(stages, 4097)


def test_chunks_of_a_hybrid_pattern_are_virtual_stages() -> None:
    four = {**SMALL, "hybrid_layer_pattern": "M-|M-|M-|M-", "pipeline_model_parallel_size": 2}
    assert megatron_plan(four, world_size=2).parallel.virtual_stages == 2
    assert megatron_plan({**four, "pipeline_model_parallel_size": 4}, world_size=4).parallel.virtual_stages == 1


def test_parts_that_are_computed_again_are_not_kept() -> None:
    given = {**SMALL, "num_layers": 2, "recompute_granularity": "selective"}
    found = megatron_plan({**given, "recompute_modules": "[layernorm mla_up_proj moe_act mlp]"}, world_size=1)
    assert found.again == {"norms", "latent", "activation", "mlp"}
    assert megatron_plan({**given, "recompute_granularity": "full"}, world_size=1).again == frozenset()


def test_distillation_holds_a_teacher_and_what_the_divergence_needs() -> None:
    given = {**SMALL, "num_layers": 2, "export_kd_teacher_load": "teacher"}
    whole, split = (megatron_plan({**given, "tensor_model_parallel_size": n}, world_size=2) for n in (1, 2))
    assert whole.beside_bytes == 2 * whole.model.parameters()
    assert split.beside_bytes == split.model.parameters()
    assert whole.logit_bytes < split.logit_bytes == 36
    assert any("teacher" in reason.message for reason in whole.unknown)


def test_eight_bit_products_keep_their_inputs_and_copies_of_weights_in_eight_bits() -> None:
    given = {**SMALL, "num_layers": 2, "fp8_format": "hybrid"}
    found = megatron_plan(given, world_size=1)
    layers = sum(found.model.layer_parameters(layer)[0] for layer in range(2))
    assert (found.input_bytes, found.beside_bytes) == (1.0, 2.0 * layers)
    assert megatron_plan({**given, "fp8_param_gather": True}, world_size=1).beside_bytes == 0


def test_scores_in_32_bits_need_no_copy() -> None:
    half, whole = (megatron_plan({**SMALL, "num_layers": 2, "bf16": bf16}, world_size=1) for bf16 in (True, False))
    assert (half.logit_bytes, whole.logit_bytes) == (6, 4)


def test_a_tiktoken_vocabulary_is_two_to_the_seventeen() -> None:
    given = {**SMALL, "num_layers": 2, "tokenizer_type": "TikTokenizer", "vocab_size": None}
    found = megatron_plan(given, world_size=1)
    assert found.model.vocab == 1 << 17
    assert not any("vocabulary" in reason.message for reason in found.unknown)
