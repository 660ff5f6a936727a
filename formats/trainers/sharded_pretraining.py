"""OLMo and LLM Foundry: one YAML with the model's dimensions, and FSDP around 32-bit weights.

Defaults are those of ``olmo/config.py`` and ``scripts/train.py`` (allenai/OLMo 00305eb, 016c431), of
``llmfoundry/models/mpt/configuration_mpt.py`` (mosaicml/llm-foundry) and of ``composer/utils/parallelism.py``
(mosaicml/composer), which builds Foundry's FSDP.
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
_GPUS_OF_A_NODE = 8
_EVERY = {"one_in_two": 2, "one_in_three": 3, "one_in_four": 4, "one_in_five": 5}
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
    # Before strategies had names it was on or off (``TrainConfig.update_legacy_settings``).
    mode = {"true": "whole_layer", "false": ""}.get(mode, mode)
    if mode not in ("", "none", "null", "whole_layer", "fine_grained"):
        fields.assume("activation_checkpointing", f"checkpointing {mode[:40]} is taken as none")
    recipe = replace(
        recipe,
        checkpointing=mode == "whole_layer",
        checkpoint_products=mode == "fine_grained",
        optimizer=fields.text("optimizer.name", default="lionw"),
        # Without the package of that name PyTorch's own kernel is used, which keeps no scores unless they have a bias.
        flash=not fields.flag("model.alibi"),
        loss=_FUSED_LOSS if fields.flag("fused_loss") else _PLAIN_LOSS,
        unknown=fields.unknown,
    )
    if fields.text("distributed_strategy") == "ddp":
        return replace(recipe, sharding=Sharding.NONE).plan()
    shards = fields.part("fsdp")
    recipe = _sharded(recipe, shards, shards.text("precision", default="pure"))
    return _as_units(_in_groups(recipe, _olmo_groups(shards, recipe), shards), shards, fields).plan()


def _olmo_groups(shards: Fields, recipe: Recipe) -> int | None:
    """How many GPUs share one copy of the model; None: those of a node."""
    copies = shards.whole("hybrid_sharding_num_model_replicas", default=0)
    return recipe.gpus // copies if copies else None


def _as_units(recipe: Recipe, shards: Fields, fields: Fields) -> Recipe:
    """What FSDP gathers at once where it does not go block by block (``OLMo.get_fsdp_wrap_policy``).

    Without a strategy it is the whole model, with "one_in_three" two of three blocks, with groups a group.
    """
    name = shards.text("wrapping_strategy").lower()
    model = recipe.model
    layers = sum(sum(model.layer_parameters(layer)) for layer in range(model.layers))
    if name in ("", "none", "null"):
        return _gathered(recipe, shards, model.parameters())
    if name in _EVERY:
        return _gathered(recipe, shards, model.parameters() - layers / _EVERY[name])
    if name.startswith("by_block_group"):
        size = max(1, fields.whole("model.block_group_size", default=1))
        return _gathered(recipe, shards, size * layers / model.layers, ahead=2)
    if name not in ("by_block", "by_block_and_size", "size_based"):
        note = f"fsdp.wrapping_strategy {name[:40]} is not known: taken as the whole model at once"
        fields.assume("fsdp.wrapping_strategy", note)
        return replace(_gathered(recipe, shards, model.parameters()), unknown=fields.unknown)
    return recipe


def _gathered(recipe: Recipe, shards: Fields, numbers: float, ahead: int = 1) -> Recipe:
    """A unit of ``numbers``: its weights are gathered, ``ahead`` of them at once, and its gradient exists whole."""
    layer = recipe.model.parameters() / max(1, recipe.model.layers)
    reduced = 0.0 if shards.text("precision", default="pure").lower() == "pure" else 4.0
    # One layer's are counted with every plan.
    whole = max(0.0, numbers - layer) * (recipe.compute.bytes_each + reduced)
    return replace(recipe, gather_numbers=max(recipe.gather_numbers, ahead * numbers), buffers=recipe.buffers + whole)


def foundry_plan(
    settings: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None, world_size: int | None = None
) -> TrainingPlan:
    """A configuration of LLM Foundry's. Raises PlanError where the model is not known or a value cannot be."""
    fields = Fields(settings)
    length = _whole(fields, "max_seq_len", default=fields.whole("variables.max_seq_len", default=2048))
    recipe = _recipe("llm-foundry", fields, _foundry_model(fields, model_config), length, world_size)
    shards = fields.part("fsdp_config")
    if shards.flag("cpu_offload"):
        raise PlanError("fsdp_config.cpu_offload is refused by Composer; give the configuration without it")
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
    mixed = shards.raw("mixed_precision")
    if isinstance(mixed, Mapping):
        fields.assume(
            "fsdp_config.mixed_precision", "fsdp_config.mixed_precision of several values is taken as DEFAULT"
        )
    precision = "DEFAULT" if isinstance(mixed, Mapping) else shards.text("mixed_precision", default="DEFAULT")
    recipe = replace(_sharded(recipe, shards, precision), unknown=fields.unknown)
    if not shards.flag("auto_wrap", default=True):
        recipe = _gathered(recipe, Fields({"precision": precision}), recipe.model.parameters())
    return _in_groups(recipe, _foundry_groups(shards, recipe), shards).plan()


def _foundry_groups(shards: Fields, recipe: Recipe) -> int | None:
    """How many GPUs share one copy of the model; 0: all of them; None: those of a node."""
    degree = shards.text("data_parallel_shard_degree", default="-1")
    if degree != "-1":
        return shards.whole("data_parallel_shard_degree")
    copies = shards.whole("data_parallel_replicate_degree", default=1)
    mesh = shards.raw("device_mesh")
    if isinstance(mesh, list) and len(mesh) == 2:
        return Fields({"device_mesh": mesh[1]}).whole("device_mesh")
    return recipe.gpus // max(1, copies) if copies > 1 else None


def _in_groups(recipe: Recipe, group: int | None, shards: Fields) -> Recipe:
    """Hybrid sharding: only a group of ranks holds parts of one copy of the model. ``group`` None: a node."""
    hybrid = "HYBRID" in shards.text("sharding_strategy").upper()
    if group is None and hybrid:
        group = min(recipe.gpus, _GPUS_OF_A_NODE)
        if recipe.gpus > group:
            note = f"hybrid sharding goes over the GPUs of a node, whose number is not given: {group}"
            shards.assume("sharding_strategy", note)
    if not group or group >= recipe.gpus:
        return recipe
    return replace(recipe, shards=group, unknown=(*recipe.unknown, *shards.unknown))


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
    """A number, or what it refers to by ``${…}``.

    Raises:
        PlanError: zero, not given, or "auto", for which Composer halves the batch until it fits into whatever GPU.
    """
    reference = _REFERENCE.fullmatch(str(fields.raw(name))[:200])
    names = (reference[1], f"variables.{reference[1]}") if reference else (name,)
    if name == _MICRO and fields.raw(*names) == "auto":
        raise PlanError(
            f"{name} is auto, which fills whatever GPU there is; give the sequences that a GPU takes at once"
        )
    number = fields.whole(*names, default=default)
    if not number:
        raise PlanError(f"{name} is zero; give the sequences that a GPU takes at once")
    return number


def _sharded(recipe: Recipe, shards: Fields, precision: str) -> Recipe:
    """FSDP in ``precision``: "pure" is all in 16 bits; "mixed" and "default" reduce gradients in 32, a layer's at once.

    "full" gathers weights in 32 bits, and PyTorch casts them: each layer's casts stay until its backward pass.
    """
    strategy = shards.text("sharding_strategy", default="FULL_SHARD").upper()
    if strategy == "NO_SHARD":
        return replace(recipe, sharding=Sharding.NONE)
    partly = "SHARD_GRAD_OP" in strategy or strategy == "_HYBRID_SHARD_ZERO2"
    numbers = recipe.model.parameters()
    layer = numbers / max(1, recipe.model.layers)
    buffers = 0.0 if precision.upper() == "PURE" else 4.0 * layer
    if precision.upper() == "FULL" and recipe.compute is not Precision.FP32:
        casts = layer if recipe.checkpointing else numbers
        buffers += 2 * layer * (4.0 - recipe.compute.bytes_each) + casts * recipe.compute.bytes_each
    return replace(
        recipe,
        # FSDP keeps 32-bit weights sharded in either: what stays whole until the backward pass is their casts.
        sharding=Sharding.PARAMETERS,
        gather_numbers=numbers if partly else 0.0,
        buffers=recipe.buffers + buffers,
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
        bias=fields.flag("model.include_bias", default=True),
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
        kv_heads=1
        if fields.text("model.attn_config.attn_type") == "multiquery_attention"
        else fields.whole("model.attn_config.kv_n_heads", default=heads),
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
