"""Splits in the words of frameworks: Megatron-LM's arguments, NeMo's overrides, torchtitan's options, DeepSpeed's JSON.

A plan is read back from these very settings by ``formats.trainers``, so that what is printed is what was sized.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.split import Framework, Matmul, Settings, Split, TrainingJob
from kopt.core.workload.training_plan import ModelShape, Recompute, Sharding, TrainingPlan
from kopt.formats.trainers.deepspeed import deepspeed_plan
from kopt.formats.trainers.megatron.trainer import megatron_plan
from kopt.formats.trainers.torchtitan import torchtitan_plan

_ZERO_STAGES = {Sharding.NONE: 0, Sharding.OPTIMIZER: 1, Sharding.GRADIENTS: 2, Sharding.PARAMETERS: 3}
_FSDP = "optim_grads_params"
_TORCHTITAN = "options of torchtitan 0.2; what follows it counts tokens instead of sequences"


def plan_of(job: TrainingJob, split: Split) -> TrainingPlan:
    """The plan that the framework's own settings describe. Raises PlanError for a split that they cannot."""
    if job.framework is Framework.TORCHTITAN:
        read = torchtitan_plan(_torchtitan(job, split), model_config=_config(job.model), world_size=job.gpus)
        read = replace(read, accumulation=_micro_batches(job, split), input_bytes=float(job.matmul is Matmul.FP8))
    elif job.framework is Framework.DEEPSPEED:
        recomputes = {"gradient_checkpointing": split.recompute is Recompute.FULL}
        settings = {"max_seq_len": job.sequence} | recomputes
        document, config = _deepspeed(job, split), _config(job.model)
        read = deepspeed_plan(settings, config=document, model_config=config, world_size=job.gpus)
    else:
        read = megatron_plan(_megatron(job, split), model=job.model, world_size=job.gpus)
    return replace(read, model=job.model)


def settings_of(job: TrainingJob, split: Split) -> tuple[Settings, ...]:
    """The split for every framework that can run it, the job's own first."""
    texts = [
        Settings(Framework.MEGATRON, _arguments(_megatron(job, split))),
        Settings(Framework.NEMO, _nemo(job, split)),
    ]
    if not split.outer_stages_less and split.expert == 1:
        whole = split.sharding in (Sharding.PARAMETERS, Sharding.NONE)
        remark = "" if whole else "; torchtitan shards weights too, so it needs less memory and sends more"
        texts.append(Settings(Framework.TORCHTITAN, _arguments(_torchtitan(job, split)), _TORCHTITAN + remark))
    if split.tensor == split.pipeline == split.context == split.expert == 1:
        remark = "the script turns on gradient checkpointing" if split.recompute is not Recompute.NONE else ""
        text = json.dumps(_deepspeed(job, split), indent=2)
        texts.append(Settings(Framework.DEEPSPEED, text, remark))
    return tuple(sorted(texts, key=lambda each: each.framework is not job.framework))


def _micro_batches(job: TrainingJob, split: Split) -> int:
    return job.global_batch // (split.data * split.micro_batch)


def _arguments(settings: Mapping[str, Any]) -> str:
    """One option on a line, as ``$(…)`` takes them."""
    return "\n".join(f"--{name}" if value is True else f"--{name} {value}" for name, value in settings.items())


def _megatron(job: TrainingJob, split: Split) -> dict[str, Any]:
    """Arguments by name without dashes: the model's, then the split's."""
    settings = _megatron_model(job) | {
        "seq-length": job.sequence,
        "max-position-embeddings": max(job.sequence, job.model.positions),
        "micro-batch-size": split.micro_batch,
        "global-batch-size": job.global_batch,
        "tensor-model-parallel-size": split.tensor,
        "pipeline-model-parallel-size": split.pipeline,
        "context-parallel-size": split.context,
    }
    if split.tensor > 1:
        settings["sequence-parallel"] = True
    if split.virtual_stages > 1:
        each = job.model.layers // split.pipeline // split.virtual_stages
        settings["num-layers-per-virtual-pipeline-stage"] = each
    if split.outer_stages_less:
        settings |= {"account-for-embedding-in-pipeline-split": True, "account-for-loss-in-pipeline-split": True}
    if job.model.experts is not None:
        settings |= {"expert-model-parallel-size": split.expert, "expert-tensor-parallel-size": 1}
    if split.sharding is Sharding.PARAMETERS:
        settings |= {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": _FSDP, "ckpt-format": "fsdp_dtensor"}
        settings["no-gradient-accumulation-fusion"] = True
    if split.sharding is not Sharding.NONE:
        settings |= {"use-distributed-optimizer": True, "overlap-grad-reduce": True, "overlap-param-gather": True}
    if split.recompute is Recompute.FULL:
        settings |= {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    return settings


def _megatron_model(job: TrainingJob) -> dict[str, Any]:
    model = job.model
    settings: dict[str, Any] = {
        "num-layers": model.layers,
        "hidden-size": model.hidden,
        "ffn-hidden-size": model.ffn,
        "num-attention-heads": model.heads,
        "kv-channels": model.head_dim,
        "vocab-size": model.vocab,
        "position-embedding-type": "learned_absolute" if model.positions else "rope",
        "hidden-dropout": 0.0,
        "attention-dropout": 0.0,
        "fp16" if job.matmul is Matmul.FP16 else "bf16": True,
    }
    if model.kv_heads != model.heads:
        settings |= {"group-query-attention": True, "num-query-groups": model.kv_heads}
    for name, used in (
        ("swiglu", model.gated),
        ("disable-bias-linear", not model.bias),
        ("add-qkv-bias", model.qkv_bias),
        ("untie-embeddings-and-output-weights", not model.tied),
    ):
        if used:
            settings[name] = True
    if not model.positions:
        settings["normalization"] = "RMSNorm"
    if job.matmul is Matmul.FP8:
        settings["fp8-format"] = "hybrid"
    return settings | _megatron_experts(model)


def _megatron_experts(model: ModelShape) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    experts, latent = model.experts, model.latent
    if experts is not None:
        settings |= {
            "num-experts": experts.count,
            "moe-router-topk": experts.per_token,
            "moe-ffn-hidden-size": experts.ffn,
            "moe-token-dispatcher-type": "alltoall",
            "moe-grouped-gemm": True,
        }
        if experts.shared_ffn:
            settings["moe-shared-expert-intermediate-size"] = experts.shared_ffn
        if experts.dense_layers:
            settings["moe-layer-freq"] = f"([0]*{experts.dense_layers}+[1]*{model.layers - experts.dense_layers})"
    if latent is not None:
        settings |= {
            "multi-latent-attention": True,
            "kv-lora-rank": latent.key_value_rank,
            "qk-head-dim": latent.nope,
            "qk-pos-emb-head-dim": latent.rope,
            "v-head-dim": latent.value,
        }
        if latent.query_rank:
            settings["q-lora-rank"] = latent.query_rank
    return settings


def _nemo(job: TrainingJob, split: Split) -> str:
    """Overrides of a Megatron-Bridge recipe, which NeMo trains language models with."""
    chunks = split.virtual_stages if split.virtual_stages > 1 else "null"
    overrides: dict[str, Any] = {
        "model.seq_length": job.sequence,
        "dataset.seq_length": job.sequence,
        "train.micro_batch_size": split.micro_batch,
        "train.global_batch_size": job.global_batch,
        "model.tensor_model_parallel_size": split.tensor,
        "model.pipeline_model_parallel_size": split.pipeline,
        "model.virtual_pipeline_model_parallel_size": chunks,
        "model.context_parallel_size": split.context,
        "model.sequence_parallel": str(split.tensor > 1).lower(),
        "ddp.use_distributed_optimizer": str(split.sharding is not Sharding.NONE).lower(),
        "ddp.use_megatron_fsdp": str(split.sharding is Sharding.PARAMETERS).lower(),
    }
    if split.sharding is Sharding.PARAMETERS:
        overrides["ddp.data_parallel_sharding_strategy"] = _FSDP
    if split.outer_stages_less:
        overrides["model.account_for_embedding_in_pipeline_split"] = "true"
        overrides["model.account_for_loss_in_pipeline_split"] = "true"
    if job.model.experts is not None:
        overrides |= {"model.expert_model_parallel_size": split.expert, "model.expert_tensor_parallel_size": 1}
    full = split.recompute is Recompute.FULL
    overrides["model.recompute_granularity"] = "full" if full else "null"
    if full:
        overrides |= {"model.recompute_method": "uniform", "model.recompute_num_layers": 1}
    return "\n".join(f"{name}={value}" for name, value in overrides.items())


def _torchtitan(job: TrainingJob, split: Split) -> dict[str, Any]:
    """Options by name without dashes; a pipeline takes the local batch in parts."""
    parts = split.pipeline > 1
    settings: dict[str, Any] = {
        "training.seq_len": job.sequence,
        "training.local_batch_size": job.global_batch // split.data if parts else split.micro_batch,
        "training.global_batch_size": job.global_batch,
        "parallelism.data_parallel_replicate_degree": 1,
        "parallelism.data_parallel_shard_degree": split.data,
        "parallelism.tensor_parallel_degree": split.tensor,
        "parallelism.context_parallel_degree": split.context,
        "parallelism.pipeline_parallel_degree": split.pipeline,
    }
    if parts:
        interleaved = split.virtual_stages > 1
        settings["parallelism.pipeline_parallel_microbatch_size"] = split.micro_batch
        settings["parallelism.pipeline_parallel_schedule"] = "Interleaved1F1B" if interleaved else "1F1B"
        if split.virtual_stages > 2:
            each = job.model.layers // split.pipeline // split.virtual_stages
            settings["parallelism.pipeline_parallel_layers_per_stage"] = each
    modes = {Recompute.FULL: "full", Recompute.PRODUCTS: "selective", Recompute.SELECTIVE: "selective"}
    settings["activation_checkpoint.mode"] = modes.get(split.recompute, "none")
    settings["compile.enable"] = True
    if job.matmul is Matmul.FP8:
        settings["model.converters"] = "quantize.linear.float8"
    return settings


def _deepspeed(job: TrainingJob, split: Split) -> dict[str, Any]:
    half = "fp16" if job.matmul is Matmul.FP16 else "bf16"
    return {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": split.micro_batch,
        "gradient_accumulation_steps": _micro_batches(job, split),
        half: {"enabled": True},
        "zero_optimization": {
            "stage": _ZERO_STAGES[split.sharding],
            "overlap_comm": True,
            "contiguous_gradients": True,
        },
    }


def _config(model: ModelShape) -> dict[str, Any]:
    """As much of a config.json as readers ask for; the shape itself replaces what they make of it."""
    return {
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "intermediate_size": model.ffn,
        "vocab_size": model.vocab,
    }
