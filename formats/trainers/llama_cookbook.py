"""llama-cookbook, before llama-recipes (https://github.com/meta-llama/llama-cookbook): Meta's fine-tuning of Llama.

Defaults are those of ``src/llama_cookbook/configs`` and ``finetuning.py`` (meta-llama/llama-cookbook 0e00335, MIT).
"""

import difflib
import re
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from kopt.core.workload.training_plan import PlanError, Precision, Sharding, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.models import model_of
from kopt.formats.trainers.names import adapter
from kopt.formats.trainers.recipe import Recipe
from kopt.formats.trainers.trainer import PlanInputs, Trainer
from kopt.formats.trainers.transformers import LOGIT_BYTES

_OWN = frozenset(
    [
        "enable_fsdp",
        "low_cpu_fsdp",
        "peft_method",
        "batch_size_training",
        "batching_strategy",
        "use_fast_kernels",
        "run_validation",
        "dist_checkpoint_root_folder",
        "dist_checkpoint_folder",
        "freeze_LLM_only",
        "fsdp_config.pure_bf16",
        "fsdp_config.fsdp_activation_checkpointing",
        "fsdp_config.fsdp_cpu_offload",
        "fsdp_config.sharding_strategy",
        "fsdp_config.checkpoint_type",
        "fsdp_config.optimizer",
        "lora_config.r",
    ]
)
"""Names that few other trainers have: two of them, and none that its dataclasses do not have, are its command."""
_OTHERS = frozenset(
    [
        "gradient_clipping_threshold",
        "num_epochs",
        "max_train_step",
        "max_eval_step",
        "num_workers_dataloader",
        "lr",
        "weight_decay",
        "gamma",
        "seed",
        "val_batch_size",
        "dataset",
        "from_peft_checkpoint",
        "output_dir",
        "save_model",
        "dist_checkpoint_root_folder",
        "dist_checkpoint_folder",
        "save_optimizer",
        "use_wandb",
        "save_metrics",
        "flop_counter",
        "flop_counter_start",
        "use_profiler",
        "profiler_dir",
        "checkpoint_type",
        "lora_alpha",
        "bias",
        "task_type",
        "inference_mode",
        "compute_dtype",
        "quant_storage",
    ]
)
"""Fields of its dataclasses that do not decide memory."""
_BELOW = re.compile(r"(wandb_config|\w+_dataset)\.\w+")
_OLD = re.compile(r"llama[-_]recipes|llama_finetuning")
"""Before 2024-07-11 (808a3f7a) weights were loaded in 32 bits unless ``pure_bf16``: the command does not say which."""
_KNOWN = frozenset(
    [
        "model_name",
        "tokenizer_name",
        "enable_fsdp",
        "low_cpu_fsdp",
        "run_validation",
        "batch_size_training",
        "batching_strategy",
        "context_length",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "use_fp16",
        "mixed_precision",
        "use_peft",
        "peft_method",
        "quantization",
        "one_gpu",
        "use_fast_kernels",
        "sharding_strategy",
        "hsdp",
        "sharding_group_size",
        "replica_group_size",
        "fsdp_activation_checkpointing",
        "fsdp_cpu_offload",
        "pure_bf16",
        "optimizer",
        "r",
        "target_modules",
        "lora_dropout",
        "quant_type",
        "use_double_quant",
        "freeze_layers",
        "num_freeze_layers",
        "freeze_LLM_only",
    ]
)
_PARTS = ("fsdp_config", "lora_config", "quantization_config")
_NEAR = 0.8


def llama_cookbook_plan(
    settings: Mapping[str, Any],
    *,
    model_config: Mapping[str, Any] | None = None,
    world_size: int | None = None,
    nodes: int | None = 1,
    is_old: bool = False,
) -> TrainingPlan:
    """A command of ``finetuning.py``. Without ``--enable_fsdp`` every process trains by itself.

    ``is_old``: of llama-recipes, which loads 32 bits unless ``pure_bf16`` shards them in 16.

    Raises:
        PlanError: the model is not known, or a setting that decides memory has no formula or is misspelt.
    """
    fields = Fields(settings)
    _refuse_unread(fields)
    model = model_of(fields, "model_name", config=model_config)
    shards = fields.flag("enable_fsdp")
    packed = fields.text("batching_strategy", default="packing") == "packing"
    held = Precision.FP16 if fields.flag("use_fp16") else Precision.BF16
    quantised = _quantised(fields)
    if shards and quantised is Precision.INT8:
        raise PlanError("8 bits are not trained with FSDP, as the trainer says itself; give --quantization 4bit")
    if quantised is not None and not fields.flag("use_peft"):
        raise PlanError("quantised weights are trained with adapters alone; give --use_peft, or no --quantization")
    whole = is_old and not (shards and _flag(fields, "pure_bf16"))
    # Sharded in 32 bits, computed with in 16; by itself in 16 where automatic casts are asked for.
    cast = _flag(fields, "mixed_precision", default=True) if shards else fields.flag("use_fp16")
    recipe = Recipe(
        framework="llama-cookbook",
        model=model,
        micro_batch=fields.whole("batch_size_training", default=4),
        sequence=fields.whole("context_length", default=4096),
        accumulation=fields.whole("gradient_accumulation_steps", default=1),
        # "auto": as they are published, which is 16 bits for all of Llama's.
        weights=quantised or (Precision.FP32 if whole else held),
        compute=held if not whole or cast else Precision.FP32,
        optimizer="adamw",
        gpus=(world_size or 1) if shards else 1,
        sharding=Sharding.PARAMETERS,
        checkpointing=shards and _flag(fields, "fsdp_activation_checkpointing", default=True),
        loss=LOGIT_BYTES,
        varying=not packed,
        unknown=fields.unknown,
    )
    return (_sharded(_adapted(recipe, fields), fields, nodes) if shards else _adapted(recipe, fields)).plan()


def _flag(fields: Fields, name: str, *, default: bool = False) -> bool:
    return fields.flag(*_names(name), default=default)


def _names(name: str) -> list[str]:
    """A setting by itself or below its configuration, as ``update_config`` takes them."""
    return [name, *(f"{part}.{name}" for part in _PARTS)]


def _refuse_unread(fields: Fields) -> None:
    """The trainer warns of names that it does not know and goes on; memory would be another than what was meant."""
    for name in fields.names():
        own = name.rpartition(".")[2]
        in_part = name.rpartition(".")[0] in ("", *_PARTS)
        near = difflib.get_close_matches(own, _KNOWN, 1, _NEAR) if in_part and own not in _KNOWN else []
        if near:
            raise PlanError(f"{name[:80]} is no setting of llama-cookbook that is read; give {near[0]} if it is meant")
    for name in ("freeze_layers", "freeze_LLM_only"):
        if fields.flag(name):
            raise PlanError(f"{name} has no formula; give the command without it for an upper figure")


def _quantised(fields: Fields) -> Precision | None:
    bits = fields.text("quantization").lower()
    if bits in ("", "none", "false"):
        return None
    if bits in ("8bit", "true"):
        return Precision.INT8
    if bits != "4bit":
        raise PlanError(f"quantization {bits[:40]!r} is neither 4bit nor 8bit; give one of them")
    return Precision.NF4_DOUBLE if _flag(fields, "use_double_quant") else Precision.NF4


def _adapted(recipe: Recipe, fields: Fields) -> Recipe:
    if not fields.flag("use_peft"):
        return recipe
    method = fields.text("peft_method", default="lora")
    if method != "lora":
        raise PlanError(f"peft_method {method[:40]!r} has no formula; give lora, or run the script")
    rank = fields.whole(*_names("r"), default=8)
    targets = fields.name_list(*_names("target_modules")) or ["q_proj", "v_proj"]
    dropout = fields.real(*_names("lora_dropout"), default=0.05) > 0
    made = adapter(recipe.model, rank, targets, dropout=dropout)
    # PEFT casts adapters of 16-bit models to 32 bits; in FSDP all of a unit has the model's precision.
    held = recipe.compute.bytes_each if fields.flag("enable_fsdp") and _flag(fields, "pure_bf16") else 4.0
    return replace(recipe, adapter=replace(made, held_bytes=held, copy_bytes=2.0 + dropout))


def _each_node(gpus: int, nodes: int | None) -> int:
    """PyTorch's hybrid sharding without groups of its own: within a node. Raises PlanError: unknown how many."""
    if nodes is None:
        raise PlanError("HYBRID_SHARD shards within a node; give --hsdp and --sharding_group_size, or torchrun's nodes")
    return max(1, gpus // nodes)


def _sharded(recipe: Recipe, fields: Fields, nodes: int | None) -> Recipe:
    strategy = fields.text(*_names("sharding_strategy"), default="FULL_SHARD").rpartition(".")[2].upper()
    hybrid = _flag(fields, "hsdp")
    group = fields.whole(*_names("sharding_group_size"), default=0) if hybrid else 0
    if strategy == "NO_SHARD":
        return replace(recipe, sharding=Sharding.NONE)
    if strategy not in ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"):
        raise PlanError(f"sharding_strategy {strategy[:40]!r} is not known; give FULL_SHARD, SHARD_GRAD_OP or NO_SHARD")
    if strategy == "HYBRID_SHARD" and not hybrid:
        group = _each_node(recipe.gpus, nodes)
    off = _flag(fields, "fsdp_cpu_offload")
    return replace(
        recipe,
        gather_numbers=recipe.model.parameters() if strategy == "SHARD_GRAD_OP" else 0.0,
        shards=min(group, recipe.gpus),
        offload_optimizer=off,
        offload_parameters=off,
    )


def _plan(inputs: PlanInputs) -> TrainingPlan:
    return llama_cookbook_plan(
        inputs.settings,
        model_config=inputs.model_config(),
        world_size=inputs.world_size,
        nodes=inputs.nodes,
        is_old=_OLD.search(inputs.script) is not None,
    )


def _is_its(names: Set[str]) -> bool:
    """Whether these are options of its ``finetuning.py``, by whatever name it lies there."""
    words = {name.lstrip("-").replace("-", "_") for name in names if name.startswith("-")}
    foreign = {word for word in words if not _BELOW.fullmatch(word) and not _is_field(word)}
    return "model_name" in words and len(words & _OWN) >= 2 and not foreign


def _is_field(word: str) -> bool:
    part, _, own = word.rpartition(".")
    return part in ("", *_PARTS) and own in _KNOWN | _OTHERS


TRAINER = Trainer(
    "llama-cookbook",
    _plan,
    modules=("llama_cookbook.", "llama_recipes."),
    script=re.compile(r"llama_finetuning\.py"),
    folders=("llama_cookbook", "llama_recipes"),
    options=_is_its,
)
