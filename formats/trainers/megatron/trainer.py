"""Megatron-LM's arguments (megatron/training/arguments.py) as a plan."""

import math
import re
from collections.abc import Mapping
from typing import Any

from kopt.core.workload.training_plan import (
    Attention,
    ModelShape,
    OptimizerKind,
    Parallelism,
    PlanError,
    Precision,
    Recompute,
    Sharding,
    Style,
    TrainingPlan,
)
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.megatron.model import distils, layout_stages, megatron_model
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_OPTIONS = {"--num-layers", "--hidden-size", "--micro-batch-size", "--tensor-model-parallel-size"}
_TORCH_WORKSPACES, _ENGINE_WORKSPACE = 64 << 20, 32 << 20
"""cuBLAS workspaces of the forward and the backward thread, 32 MiB each, and Transformer Engine's own (Hopper)."""
_GROUPED_STREAMS = 4
"""Transformer Engine multiplies experts' matrices on four streams, each with a workspace of its own."""
_POLICY_COPIES = 5.0
"""Logits, their log-softmax, and in the backward pass the gradients of both and of the row that was taken."""
_SHARDING = {"optim": Sharding.OPTIMIZER, "optim_grads": Sharding.GRADIENTS, "optim_grads_params": Sharding.PARAMETERS}


def megatron_plan(
    settings: Mapping[str, Any], *, model: ModelShape | None = None, world_size: int | None = None
) -> TrainingPlan:
    """The plan of one Megatron-LM job; ``settings`` by argument names, with or without dashes.

    ``model`` is given where a tool on top of Megatron names one instead of its dimensions.

    Raises:
        PlanError: a dimension is missing, or sizes do not divide each other.
    """
    fields = Fields(settings)
    tensor = fields.whole("tensor_model_parallel_size", default=1)
    pipeline = fields.whole("pipeline_model_parallel_size", default=1)
    context = fields.whole("context_parallel_size", default=1)
    model = model or megatron_model(fields, tensor)
    parallel = _parallel(fields, model, tensor, pipeline, context, world_size)
    micro_batch = fields.whole("micro_batch_size")
    whole_batch = fields.whole("global_batch_size", default=micro_batch * parallel.data)
    if fields.flag("bf16") and fields.flag("fp16"):
        raise PlanError("bf16 and fp16 are both set; Megatron-LM takes one of them at most")
    half = fields.flag("bf16") or fields.flag("fp16")
    gradients_32 = not half or fields.flag("bf16") or fields.flag("accumulate_allreduce_grads_in_fp32")
    if fields.flag("grad_reduce_in_bf16"):
        gradients_32 = False
    dropout = max(fields.real("hidden_dropout", default=0.1), fields.real("attention_dropout", default=0.1)) > 0
    return TrainingPlan(
        framework="megatron",
        model=model,
        micro_batch=micro_batch,
        sequence=fields.whole("seq_length", "encoder_seq_length", "max_position_embeddings"),
        accumulation=max(1, math.ceil(whole_batch / max(1, micro_batch * parallel.data))),
        parallel=parallel,
        weights=Precision.BF16 if half else Precision.FP32,
        compute=Precision.BF16 if half else Precision.FP32,
        gradient_bytes=4.0 if gradients_32 else 2.0,
        master_bytes=4.0 if half else 0.0,
        optimizer=_optimizer(fields),
        preallocated_gradients=True,
        recompute=_recompute(fields),
        recompute_layers=fields.whole("recompute_num_layers", default=1),
        again=_again(fields),
        attention=_attention(fields, half),
        style=Style.FUSED,
        input_bytes=1.0 if _eight_bits(fields) else 0.0,
        dropout=dropout,
        softmax_fp32=fields.flag("attention_softmax_in_fp32") and not half,
        logit_bytes=_logit_bytes(fields, half, pipeline),
        buffer_bytes=_generation_bytes(fields, model),
        beside_bytes=_beside_bytes(fields, model, parallel, 2.0 if half else 4.0),
        target_sequence=fields.whole("decoder_seq_length", default=0),
        workspace_bytes=_workspaces(fields),
        unknown=tuple(fields.unknown),
    )


def _eight_bits(fields: Fields) -> bool:
    return fields.has("fp8_format", "fp8")


def _beside_bytes(fields: Fields, model: ModelShape, parallel: Parallelism, each: float) -> float:
    """A teacher of the student's size, split as it is; 8-bit copies of layers' weights, for each pass one, that
    products are taken of, unless the weights themselves are held so."""
    teacher = model.parameters() / (parallel.tensor * parallel.pipeline) * each if distils(fields) else 0.0
    if not _eight_bits(fields) or fields.flag("fp8_param_gather", "fp8_param"):
        return teacher
    layers = [model.layer_parameters(layer) for layer in range(model.layers)]
    spread = max(1, parallel.expert * (parallel.expert_tensor or parallel.tensor))
    dense, experts = sum(own for own, _ in layers) / parallel.tensor, sum(routed for _, routed in layers) / spread
    return teacher + 2.0 * (dense + experts) / parallel.pipeline


def _workspaces(fields: Fields) -> float:
    local = fields.text("transformer_impl", default="transformer_engine") == "local"
    streams = _GROUPED_STREAMS if fields.flag("moe_grouped_gemm") else 0
    return _TORCH_WORKSPACES + (0 if local else _ENGINE_WORKSPACE * (1 + streams))


def _logit_bytes(fields: Fields, half: bool, pipeline: int) -> float:
    each = 2.0 if half else 4.0
    # Each further predicted token keeps a softmax of its own; deferred weight gradients keep those of the logits.
    kept = 4.0 * fields.whole("mtp_num_layers", default=0)
    if fields.flag("defer_embedding_wgrad_compute") and pipeline > 1:
        kept += each * max(1, fields.whole("wgrad_deferral_limit", default=0))
    return kept + _loss_bytes(fields, each)


def _loss_bytes(fields: Fields, each: float) -> float:
    """16-bit logits and their 32-bit copy, in which the softmax is taken in place; 32-bit ones need no copy.

    Fused by the compiler ("native") it is not in place: one more copy. Transformer Engine's kernel needs no other.
    """
    if distils(fields):
        return _distillation_bytes(fields, each)
    if fields.flag("perform_rl_step"):
        return _POLICY_COPIES * each
    plain = each + (4.0 if each < 4 else 0.0)
    native = fields.text("cross_entropy_fusion_impl", default="native") != "te"
    return plain + (4.0 if fields.flag("cross_entropy_loss_fusion") and native else 0.0)


def _distillation_bytes(fields: Fields, each: float) -> float:
    """The student's logits and the teacher's, and what their Kullback-Leibler divergence holds (LogitsKLLoss).

    Split over ranks, in 32 bits: both made relative to their maximum, the student's exponential, both
    log-probabilities, and the divergence's exponential, difference and product; whole, without the exponential.
    """
    split = fields.whole("tensor_model_parallel_size", default=1) > 1
    return 2 * each + 4.0 * (8 if split else 7)


def _generation_bytes(fields: Fields, model: ModelShape) -> float:
    """Reinforcement learning generates with a key-value buffer (40 GiB unless given), and with weights of its own
    where generation is split over the GPUs in another way than training."""
    if not fields.flag("perform_rl_step"):
        return 0.0
    fields.assume("perform_rl_step", "what generation needs beside its key-value buffer and weights is not counted")
    buffer = fields.real("inference_dynamic_batching_buffer_size_gb", default=40.0) * (1 << 30)
    names = ("rl_inference_tensor_model_parallel_size", "rl_inference_expert_model_parallel_size")
    if not fields.has(*names):
        return buffer
    tensor = max(1, fields.whole(names[0], "tensor_model_parallel_size", default=1))
    spread = max(1, fields.whole(names[1], "expert_model_parallel_size", default=1))
    spread *= max(1, fields.whole("rl_inference_expert_tensor_model_parallel_size", default=tensor))
    experts = sum(model.layer_parameters(layer)[1] for layer in range(model.layers))
    return buffer + 2.0 * ((model.parameters() - experts) / tensor + experts / spread)


def _parallel(
    fields: Fields, model: ModelShape, tensor: int, pipeline: int, context: int, world: int | None
) -> Parallelism:
    across = tensor * pipeline * context
    if world is None:
        world = across
        fields.assume("world_size", f"the number of GPUs is not given: {across}, the fewest these sizes need")
    if across == 0 or world % across:
        raise PlanError(
            f"{world} GPUs do not divide into tensor {tensor} x pipeline {pipeline} x context {context}; "
            f"give --world-size, a multiple of {tensor * pipeline * context}"
        )
    if model.heads % tensor:
        raise PlanError(f"{model.heads} attention heads do not divide by tensor parallel size {tensor}")
    sharding = Sharding.OPTIMIZER if fields.flag("use_distributed_optimizer") else Sharding.NONE
    if fields.flag("use_megatron_fsdp", "use_torch_fsdp2"):
        sharding = _SHARDING.get(fields.text("data_parallel_sharding_strategy"), Sharding.PARAMETERS)
    data = world // across
    instances = max(1, fields.whole("num_distributed_optimizer_instances", default=1))
    per_stage = model.layers // pipeline
    chunk = fields.whole("num_layers_per_virtual_pipeline_stage", default=0)
    stages = fields.whole("num_virtual_stages_per_pipeline_rank", default=per_stage // chunk if chunk else 1)
    layout = fields.text("pipeline_model_parallel_layout", "hybrid_layer_pattern", "hybrid_override_pattern")
    if "|" in layout:
        stages = layout_stages(layout) // pipeline
    return Parallelism(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=fields.whole("expert_model_parallel_size", default=1),
        expert_tensor=fields.whole("expert_tensor_parallel_size", default=tensor),
        virtual_stages=max(1, stages) if pipeline > 1 else 1,
        first_stage_layers=fields.whole("decoder_first_pipeline_num_layers", default=0),
        last_stage_layers=_last_stage_layers(fields, model, pipeline),
        sequence_parallel=fields.flag("sequence_parallel") and tensor > 1,
        sharding=sharding,
        shards=max(1, data * context // instances),
        offload_optimizer=fields.flag("optimizer_cpu_offload"),
    )


def _last_stage_layers(fields: Fields, model: ModelShape, pipeline: int) -> int:
    """Given, or one fewer than the rest where the loss counts as a layer of its own; and layers for further tokens."""
    further = fields.whole("mtp_num_layers", default=0) if pipeline > 1 else 0
    if further and not fields.has("decoder_last_pipeline_num_layers"):
        return max(1, (model.layers - further) // pipeline) + further
    if fields.flag("account_for_loss_in_pipeline_split") and pipeline > 1:
        slots = model.layers + 1 + fields.flag("account_for_embedding_in_pipeline_split")
        return max(1, slots // pipeline - 1)
    return fields.whole("decoder_last_pipeline_num_layers", default=0)


def _optimizer(fields: Fields) -> OptimizerKind:
    name = fields.text("optimizer", default="adam")
    kinds = {"sgd": OptimizerKind.MOMENTUM, "muon": OptimizerKind.MUON, "dist_muon": OptimizerKind.MUON}
    return kinds.get(name, OptimizerKind.ADAM)


def _recompute(fields: Fields) -> Recompute:
    kind = fields.text("recompute_granularity", default="full" if fields.flag("recompute_activations_full") else "")
    if kind == "full":
        return Recompute.FULL
    modules = fields.name_list("recompute_modules") or ["core_attn"]
    selective = kind == "selective" or fields.flag("recompute_activations")
    # What is moved to the host is not kept either.
    moved = fields.flag("fine_grained_activation_offloading") and "core_attn" in fields.name_list("offload_modules")
    return Recompute.SELECTIVE if moved or (selective and "core_attn" in modules) else Recompute.NONE


_AGAIN = {
    "layernorm": "norms",
    "mla_up_proj": "latent",
    "moe_act": "activation",
    "mlp": "mlp",
    "shared_experts": "shared",
    "moe": "experts",
}


def _again(fields: Fields) -> frozenset[str]:
    """Parts of layers that selective recomputation names beside attention's core."""
    if fields.text("recompute_granularity") != "selective":
        return frozenset()
    return frozenset(_AGAIN[name] for name in fields.name_list("recompute_modules") if name in _AGAIN)


def _attention(fields: Fields, half: bool) -> Attention:
    backend = fields.text("attention_backend", default="auto")
    local = fields.text("transformer_impl", default="transformer_engine") == "local" and not fields.flag(
        "use_flash_attn"
    )
    unfused = backend in ("unfused", "local") or local or not half
    return Attention.EAGER if unfused else Attention.FLASH


def _plan(inputs: PlanInputs) -> TrainingPlan:
    return megatron_plan(inputs.settings, world_size=inputs.world_size)


TRAINER = Trainer(
    "megatron",
    _plan,
    modules=("megatron.",),
    script=re.compile(r"(pretrain|train)_(gpt|bert|t5|llama|mamba|vlm|ict|vision\w*|retro|hybrid|mixtral|qwen)\w*\.py"),
    options=lambda names: len(names & _OPTIONS) >= 3,
    config_options=("--yaml-cfg", "--config"),
)
