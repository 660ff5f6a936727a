"""TrainingArguments of transformers and TRL, PEFT's LoRA and accelerate's configuration, as a plan.

LLaMA-Factory, axolotl and ms-swift build on the same trainer: ``hf_recipe`` reads what they share.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from kopt.core.workload.training_plan import Adapter, ModelShape, PlanError, Precision, Sharding, TrainingPlan
from kopt.formats.trainers.deepspeed import apply_deepspeed
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.models import NAMES, model_of
from kopt.formats.trainers.names import adapter, precision, quantisation
from kopt.formats.trainers.preferences import METHODS, with_method
from kopt.formats.trainers.recipe import Recipe
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_SEQUENCE_NAMES = (
    "max_seq_length",
    "max_length",
    "block_size",
    "model_max_length",
    "cutoff_len",
    "sequence_len",
    "max_source_length",
    "max_seq_len",
    "data_max_length",
)
_LOMO = "train_lomo.py"
"""LOMO's own trainer (OpenLMLab/LOMO 45d4bac), which has its optimizer without being told to. Another's
script of the name may have what its command says."""
COMPUTED = "kopt_computed"
"""Settings that only running the script would tell, as ``models.sizing`` gives them."""
STRANGE = "kopt_strange"
"""Sentences about words of the command that are no option of the script."""
_OPTIONS = {"--model_name_or_path", "--per_device_train_batch_size", "--output_dir"}
LOGIT_BYTES = 16.0
"""16-bit logits, their 32-bit copy, the log-softmax kept for the backward pass, and its gradient: 14; before
transformers 4.46 also a shifted copy: 18. The version is not known from arguments."""


@dataclass(frozen=True)
class Surroundings:
    """Files beside the arguments: DeepSpeed's and accelerate's configurations, the model's own."""

    deepspeed: Mapping[str, Any] | None = None
    accelerate: Mapping[str, Any] | None = None
    model: Mapping[str, Any] | None = None


def hf_plan(
    settings: Mapping[str, Any], *, around: Surroundings | None = None, world_size: int | None = None
) -> TrainingPlan:
    """The plan of a script whose arguments are TrainingArguments, model and LoRA settings.

    Raises:
        PlanError: the model is not named or not known, or a value that cannot be.
    """
    fields = Fields(settings)
    return hf_recipe("hf", fields, around or Surroundings(), world_size).plan()


def hf_recipe(framework: str, fields: Fields, around: Surroundings, world_size: int | None) -> Recipe:
    """What every trainer on top of ``transformers.Trainer`` shares."""
    model = model_of(fields, config=around.model)
    sequence = fields.whole(*_SEQUENCE_NAMES, default=0)
    if not sequence:
        sequence = 1024
        fields.assume("sequence", "the length of sequences is not given: 1024 tokens")
    if computed := ", ".join(fields.name_list(COMPUTED))[:200]:
        fields.assume("script", f"the script computes {computed}: taken as if they were not given")
    for sentence in fields.raw(STRANGE) or ():
        fields.assume("script", f"{sentence}; it is not counted")
    half = _half(fields)
    low_rank = _adapter(fields, model)
    # Plain scripts load 32-bit weights unless told otherwise; the trainers on top of it load the model's own 16 bits.
    default = Precision.FP32 if framework == "hf" and low_rank is None else half or Precision.FP32
    held = precision(fields.text("torch_dtype", "dtype", "model_dtype"), default)
    bits = _quantised(fields)
    if framework == "hf" and low_rank is None and bits in _BITSANDBYTES:
        raise PlanError("4- or 8-bit weights are trained with adapters alone; give their rank (--lora_r), or 16 bits")
    held = _published_as(fields) or bits or held
    full = fields.flag("packing", "sample_packing", "pad_to_max_length", "pad_to_sequence_len")
    if not full:
        fields.assume("packing", "batches of varying length are taken to reach the longest that is allowed")
    parts = max(1, fields.whole("sequence_parallel_size", "sequence_parallel_degree", default=1))
    optimizer = fields.text("optim", "optimizer", default="adamw_torch")
    recipe = Recipe(
        framework=framework,
        model=model,
        micro_batch=fields.whole("per_device_train_batch_size", "micro_batch_size", "batch_size", default=8),
        sequence=sequence,
        accumulation=fields.whole("gradient_accumulation_steps", default=1),
        weights=held,
        compute=half or (Precision.FP32 if held.quantised else held),
        optimizer="galore" if fields.flag("use_galore") else optimizer,
        step_in_backward="lomo" in optimizer.lower(),
        gpus=world_size or 1,
        checkpointing=fields.flag("gradient_checkpointing"),
        flash=fields.text("attn_implementation", "flash_attn", "attn_impl", default="sdpa")
        not in ("eager", "disabled"),
        loss=0.5 if _never_whole_logits(fields) else LOGIT_BYTES,
        context=parts,
        offload_activations=fields.flag("activation_offloading")
        or fields.text("gradient_checkpointing", "use_gradient_checkpointing") in ("offload", "unsloth"),
        adapter=low_rank,
        ends=_ends(framework, held, low_rank),
        varying=not full and fields.has(*_SEQUENCE_NAMES),
        unknown=fields.unknown,
    )
    if (
        not isinstance(fields.raw("device_map"), Mapping)
        and fields.text("device_map") in ("auto", "balanced", "sequential")
        and recipe.gpus > 1
    ):
        # Layers are spread over the GPUs, which work one after the other: no micro-batches overlap.
        recipe = replace(recipe, pipeline=recipe.gpus, accumulation=1)
    recipe = with_method(recipe, fields)
    if around.deepspeed is not None:
        if fields.text("fsdp").lower() not in ("", "false"):
            raise PlanError("fsdp and a DeepSpeed configuration are both set; the trainer takes one of them")
        return apply_deepspeed(recipe, around.deepspeed)
    if (document := _deepspeed_of_options(fields)) is not None:
        return apply_deepspeed(recipe, document)
    return _sharded(recipe, fields, around.accelerate)


def _deepspeed_of_options(fields: Fields) -> dict[str, Any] | None:
    """The configuration that scripts make of options of their own, as DeepSpeed-Chat's do (``--zero_stage 3``)."""
    if not fields.has("zero_stage"):
        return None
    half = fields.text("dtype", default="fp16")
    device = {"device": "cpu"} if fields.flag("offload") else {}
    stage = fields.whole("zero_stage", default=0)
    zero = {"stage": stage, "offload_optimizer": device, "offload_param": device if stage == 3 else {}}
    return {"zero_optimization": zero, half if half in ("bf16", "fp16") else "fp16": {"enabled": True}}


def _never_whole_logits(fields: Fields) -> bool:
    """Losses that are computed together with the head, in chunks, and never hold all logits (Liger, Apple's CCE)."""
    liger = fields.flag("use_liger_kernel", "enable_liger_kernel", "use_liger", "liger_fused_linear_cross_entropy")
    plugin = any("cut_cross_entropy" in name for name in fields.name_list("plugins"))
    return liger or plugin or fields.flag("cut_cross_entropy", "use_cce", "chunked_cross_entropy")


def brain_float_by_default(settings: Mapping[str, Any]) -> dict[str, Any]:
    """bf16 as the default of trainers that have it, where the other 16-bit format is not asked for."""
    return {} if Fields(settings).flag("fp16") else {"bf16": True}


def _half(fields: Fields) -> Precision | None:
    """The precision of automatic mixed precision, None where there is none. Raises PlanError where there are two."""
    brain, half = fields.flag("bf16") or fields.flag("pure_bf16"), fields.flag("fp16")
    if brain and half:
        raise PlanError("bf16 and fp16 are both set; the trainer takes one of them at most")
    return Precision.BF16 if brain else Precision.FP16 if half else None


_BITSANDBYTES = (Precision.NF4, Precision.NF4_DOUBLE, Precision.INT8)


def _quantised(fields: Fields) -> Precision | None:
    bits = fields.text("quantization_bit", "quant_bits", "load_in_bits")
    if fields.flag("load_in_4bit") and fields.flag("load_in_8bit"):
        raise PlanError("load_in_4bit and load_in_8bit are both set; weights are held in one of them")
    if fields.text("quant_method", "quantization_method") in ("gptq", "awq"):
        return Precision.GPTQ8 if bits == "8" else Precision.INT4
    if fields.flag("load_in_4bit") or bits == "4":
        double = fields.flag("bnb_4bit_use_double_quant", "double_quantization", "bnb_4bit_use_double_quantization")
        return Precision.NF4_DOUBLE if double else Precision.NF4
    if fields.flag("q_lora"):
        return Precision.NF4
    return Precision.INT8 if fields.flag("load_in_8bit") or bits == "8" else None


def _published_as(fields: Fields) -> Precision | None:
    """Integers that a model's own weights are, by its name; 8-bit floating point is cast where it is trained."""
    held = quantisation(fields.text(*NAMES))
    return held if held in (Precision.INT4, Precision.GPTQ8, Precision.NF4, Precision.INT8) else None


def _ends(framework: str, held: Precision, low_rank: Adapter | None) -> Precision | None:
    """PEFT's ``prepare_model_for_kbit_training`` casts all that bitsandbytes did not quantise to 32 bits."""
    casts = framework in ("hf", "ms-swift", "xtuner") and held in _BITSANDBYTES
    return Precision.FP32 if casts and low_rank is not None else None


_SWITCHED_ON, _SWITCHED_RANK = ("use_lora", "lora_enable"), 64
"""How scripts of their own that came with models switch adapters on (QwenLM/Qwen 2df8e8a and haotian-liu/LLaVA c121f04,
``finetune.py`` and ``train.py``), and the rank that both have by default."""


def _adapter(fields: Fields, model: ModelShape) -> Adapter | None:
    kind = fields.text("finetuning_type", "adapter", "peft_type", "tuner_type", "sft_type", "train_type").lower()
    rank = fields.whole("lora_rank", "lora_r", "r", "lora_dim", default=0)
    switched = fields.flag(*_SWITCHED_ON)
    if fields.has(*_SWITCHED_ON) and not switched and not fields.flag("use_peft"):
        return None
    if kind in ("full", "freeze", "none") or (
        not rank and kind not in ("lora", "qlora", "dora") and not fields.flag("use_peft") and not switched
    ):
        return None
    if switched and not rank:
        rank = _SWITCHED_RANK
        fields.assume("lora_r", f"the rank of adapters is not given: {rank}, on all linear layers")
    targets = fields.name_list("lora_target", "lora_target_modules", "target_modules", "lora_modules")
    if fields.flag("lora_target_linear") or fields.has("lora_dim") or (switched and not targets):
        targets = ["all-linear"]
    dropout = fields.real("lora_dropout", default=0.05) > 0
    made = adapter(model, rank or 8, targets or ["q_proj", "v_proj"], dropout=dropout)
    # PEFT casts what the adapter reads to its own 32 bits; automatic casts bring a copy back to 16.
    copy = (2.0 if _half(fields) else 4.0) + dropout
    modules = fields.name_list("modules_to_save", "additional_target", "lora_modules_to_save")
    return replace(made, copy_bytes=copy, saved=len(modules) * model.embedding)


def _sharded(recipe: Recipe, fields: Fields, accelerate: Mapping[str, Any] | None) -> Recipe:
    """FSDP as TrainingArguments or as accelerate's file set it."""
    launch = Fields(accelerate or {})
    settings = launch.part("fsdp_config")
    strategy = settings.text("fsdp_sharding_strategy", "fsdp_reshard_after_forward").upper()
    mode = fields.text("fsdp")
    if launch.part("deepspeed_config").raw("zero_stage") is not None:
        zero = launch.part("deepspeed_config")
        document = {
            "zero_optimization": {
                "stage": zero.raw("zero_stage"),
                "offload_optimizer": {"device": zero.text("offload_optimizer_device")},
                "offload_param": {"device": zero.text("offload_param_device")},
            },
            "bf16": {"enabled": launch.text("mixed_precision") == "bf16"},
        }
        return apply_deepspeed(recipe, document)
    if launch.text("distributed_type").upper() != "FSDP" and mode in ("", "False", "false"):
        return recipe
    partly = "SHARD_GRAD_OP" in strategy or strategy == "2" or "shard_grad_op" in mode
    off = settings.flag("fsdp_offload_params") or "offload" in mode
    return replace(
        recipe,
        # FSDP's weights are sharded in either: the whole of them is there from the forward to the backward pass.
        sharding=Sharding.PARAMETERS,
        gather_numbers=recipe.model.parameters() if partly else 0.0,
        offload_optimizer=off,
        offload_parameters=off,
        checkpointing=recipe.checkpointing or settings.flag("fsdp_activation_checkpointing"),
    )


def surroundings(inputs: PlanInputs) -> Surroundings:
    """The files beside the arguments. Raises PlanError."""
    model = inputs.model_config()
    return Surroundings(inputs.deepspeed(), inputs.accelerate(), model)


def _plan(inputs: PlanInputs) -> TrainingPlan:
    settings = {"trl_method": _method_of(inputs.script), **inputs.settings}
    if PurePosixPath(inputs.script).name == _LOMO and not Fields(settings).has("optim", "optimizer"):
        settings["optim"] = "lomo"
    return hf_plan(settings, around=surroundings(inputs), world_size=inputs.world_size)


def _method_of(script: str) -> str:
    """TRL's examples are named by what they do: ``dpo.py``, ``grpo_agent.py``."""
    stem = PurePosixPath(script).stem.lower()
    return next((name for name in METHODS if re.search(rf"(^|_){name}(_|$)", stem)), "")


TRAINER = Trainer(
    "hf",
    _plan,
    commands=("trl", "autotrain"),
    options=lambda names: len(names & _OPTIONS) >= 2,
    config_options=("--config",),
    config_is_word=True,
    config_is_first=True,
)
