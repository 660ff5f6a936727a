"""OLMo and LLM Foundry: one YAML with the model's dimensions, and FSDP around 32-bit weights.

https://github.com/allenai/OLMo (``olmo/config.py``) and https://github.com/mosaicml/llm-foundry.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.training_plan import ModelShape, PlanError, Precision, Sharding, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.models import model_of
from kopt.formats.trainers.names import adapter
from kopt.formats.trainers.recipe import Recipe
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_OLMO_VOCABULARY, _FOUNDRY_VOCABULARY = 50304, 50368
_MICRO = "device_train_microbatch_size"
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_FUSED_LOSS, _PLAIN_LOSS = 8.0, 14.0
"""Bytes per logit: 16-bit logits, a 32-bit copy that the gradient is written into, its cast; or each of them apart."""


def olmo_plan(settings: Mapping[str, Any], *, world_size: int | None = None) -> TrainingPlan:
    """A configuration of OLMo's trainer. Raises PlanError where a dimension is missing or a value cannot be."""
    fields = Fields(settings)
    recipe = _recipe(
        "olmo", fields, _olmo_model(fields), fields.whole("model.max_sequence_length", default=1024), world_size
    )
    mode = fields.text("activation_checkpointing").lower()
    if mode not in ("", "none", "null", "whole_layer", "fine_grained"):
        fields.assume("activation_checkpointing", f"checkpointing {mode[:40]} is taken as none")
    recipe = replace(
        recipe,
        checkpointing=mode == "whole_layer",
        checkpoint_products=mode == "fine_grained",
        # Without the package of that name PyTorch's own kernel is used, which keeps no scores unless they have a bias.
        flash=not fields.flag("model.alibi"),
        loss=_FUSED_LOSS if fields.flag("fused_loss") else _PLAIN_LOSS,
        unknown=fields.unknown,
    )
    if fields.text("distributed_strategy") == "ddp":
        return replace(recipe, sharding=Sharding.NONE).plan()
    return _sharded(recipe, fields.part("fsdp"), "precision").plan()


def foundry_plan(
    settings: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None, world_size: int | None = None
) -> TrainingPlan:
    """A configuration of LLM Foundry's. Raises PlanError where the model is not known or a value cannot be."""
    fields = Fields(settings)
    length = _whole(fields, "max_seq_len", default=fields.whole("variables.max_seq_len", default=2048))
    recipe = _recipe("llm-foundry", fields, _foundry_model(fields, model_config), length, world_size)
    shards = fields.part("fsdp_config")
    recipe = replace(
        recipe,
        checkpointing=shards.flag("activation_checkpointing"),
        offload_activations=shards.flag("activation_cpu_offload"),
        flash=fields.text("model.attn_config.attn_impl", default="flash") != "torch",
        unknown=fields.unknown,
    )
    rank = fields.whole("model.peft_config.r", default=0)
    if rank:
        targets = fields.name_list("model.peft_config.target_modules") or ["all-linear"]
        recipe = replace(recipe, adapter=adapter(recipe.model, rank, targets))
    if not fields.has("fsdp_config"):
        return replace(recipe, sharding=Sharding.NONE).plan()
    return _sharded(recipe, shards, "mixed_precision").plan()


def _recipe(framework: str, fields: Fields, model: ModelShape, length: int, gpus: int | None) -> Recipe:
    precision = fields.text("precision", default="amp_bf16")
    gpus = gpus or 1
    micro = _whole(fields, _MICRO)
    whole = _whole(fields, "global_train_batch_size", default=micro * gpus)
    return Recipe(
        framework=framework,
        model=model,
        micro_batch=micro,
        sequence=length,
        accumulation=max(1, whole // max(1, micro * gpus)),
        weights=Precision.FP32,
        compute=Precision.FP32 if precision == "fp32" else Precision.FP16 if "fp16" in precision else Precision.BF16,
        optimizer=fields.text("optimizer.name", default="adamw"),
        gpus=gpus,
        sharding=Sharding.PARAMETERS,
        loss=_PLAIN_LOSS,
    )


def _whole(fields: Fields, name: str, default: int | None = None) -> int:
    """A number, or what it refers to by ``${…}``."""
    reference = _REFERENCE.fullmatch(str(fields.raw(name))[:200])
    number = fields.whole(*((reference[1], f"variables.{reference[1]}") if reference else (name,)), default=default)
    if not number:
        raise PlanError(f"{name} is zero; give the sequences that a GPU takes at once")
    return number


def _sharded(recipe: Recipe, shards: Fields, precision: str) -> Recipe:
    strategy = shards.text("sharding_strategy", default="FULL_SHARD").upper()
    if strategy == "NO_SHARD":
        return replace(recipe, sharding=Sharding.NONE)
    partly = "SHARD_GRAD_OP" in strategy or strategy == "_HYBRID_SHARD_ZERO2"
    pure = shards.text(precision, default="PURE").upper() == "PURE"
    return replace(
        recipe,
        sharding=Sharding.GRADIENTS if partly else Sharding.PARAMETERS,
        # Otherwise gradients are reduced in 32 bits, each layer's at once.
        buffers=recipe.buffers + (0.0 if pure else 4.0 * recipe.model.parameters() / max(1, recipe.model.layers)),
    )


def _olmo_model(fields: Fields) -> ModelShape:
    hidden, heads = fields.whole("model.d_model"), fields.whole("model.n_heads")
    inner = fields.whole("model.mlp_hidden_size", default=0) or fields.whole("model.mlp_ratio", default=4) * hidden
    gated = fields.text("model.activation_type", default="swiglu") == "swiglu"
    few = 1 if fields.flag("model.multi_query_attention") else heads
    vocabulary = fields.whole("model.vocab_size", default=_OLMO_VOCABULARY)
    return ModelShape(
        name="OLMo model",
        layers=fields.whole("model.n_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.whole("model.n_kv_heads", default=few),
        head_dim=max(1, hidden // max(1, heads)),
        # Half of what the first product makes gates the other half.
        ffn=inner // 2 if gated else inner,
        vocab=fields.whole("model.embedding_size", default=vocabulary),
        gated=gated,
        tied=fields.flag("model.weight_tying", default=True),
        bias=fields.flag("model.include_bias"),
    )


def _foundry_model(fields: Fields, config: Mapping[str, Any] | None) -> ModelShape:
    kind = fields.text("model.name")
    if kind.startswith("hf_") or not fields.has("model.d_model"):
        return model_of(fields, "model.pretrained_model_name_or_path", config=config)
    hidden, heads = fields.whole("model.d_model"), fields.whole("model.n_heads")
    return ModelShape(
        name="MPT model",
        layers=fields.whole("model.n_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.whole("model.attn_config.kv_n_heads", default=heads),
        head_dim=max(1, hidden // max(1, heads)),
        ffn=fields.whole(
            "model.ffn_config.ffn_hidden_size", default=fields.whole("model.expansion_ratio", default=4) * hidden
        ),
        vocab=fields.whole("model.vocab_size", default=_FOUNDRY_VOCABULARY),
        gated=fields.text("model.ffn_config.ffn_type") == "mptglu",
        tied=fields.flag("model.tie_word_embeddings", default=True),
        bias=not fields.flag("model.no_bias"),
    )


def _olmo(inputs: PlanInputs) -> TrainingPlan:
    return olmo_plan(inputs.settings, world_size=inputs.world_size)


def _foundry(inputs: PlanInputs) -> TrainingPlan:
    return foundry_plan(inputs.settings, model_config=inputs.model_config(), world_size=inputs.world_size)


def _is_olmo(content: Mapping[str, Any]) -> bool:
    return (
        _MICRO in content
        and isinstance(model := content.get("model"), Mapping)
        and "d_model" in model
        and ("train_loader" not in content)
    )


def _is_foundry(content: Mapping[str, Any]) -> bool:
    return "train_loader" in content and "model" in content and "max_duration" in content


OLMO = Trainer("olmo", _olmo, modules=("olmo.",), folders=("OLMo",), config_is_word=True, recognises=_is_olmo)
FOUNDRY = Trainer(
    "llm-foundry",
    _foundry,
    commands=("llmfoundry",),
    modules=("llmfoundry.",),
    folders=("llm-foundry",),
    config_is_word=True,
    recognises=_is_foundry,
)
