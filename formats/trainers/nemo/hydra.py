"""NeMo 1 and NeMo-Aligner: ``megatron_gpt_pretraining.py --config-name=X model.micro_batch_size=4 trainer.devices=8``.

Hydra's file by name, the command's own settings over it, references (``${model.hidden_size}``) followed. Defaults where
no file is at hand are those of the configurations in NVIDIA/NeMo 8cfedd7 and NVIDIA/NeMo-Aligner af2b3bd.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from kopt.core.workload.language_models import UnknownModelError, find_language_model
from kopt.core.workload.training_plan import ModelShape, PlanError, Precision, Sharding, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.nemo.common import nemo_plan, with_adapter
from kopt.formats.trainers.preferences import LOG_PROBABILITIES
from kopt.formats.trainers.trainer import PlanInputs

SCRIPTS = re.compile(
    r"(megatron_gpt_(pretraining|continue_training|finetuning|sft|peft_tuning)|train_gpt_\w+|train_reward_model)\.py"
)
_CONFIGS = {
    "megatron_gpt_pretraining": "megatron_gpt_config",
    "megatron_gpt_continue_training": "megatron_gpt_config",
    "megatron_gpt_finetuning": "megatron_gpt_finetuning_config",
    "megatron_gpt_sft": "megatron_gpt_sft",
    "megatron_gpt_peft_tuning": "megatron_gpt_peft_tuning_config",
    "train_gpt_sft": "gpt_sft",
    "train_gpt_dpo": "gpt_dpo",
    "train_gpt_kto": "gpt_kto",
    "train_reward_model": "training_rm",
}
"""Which file each script reads from ``conf`` beside it, unless another one is named."""
_SEQUENCES = {"train_gpt_dpo": 2, "train_reward_model": 2}
"""Sequences that one example of a batch makes."""
_HALF_WEIGHTS = {"train_gpt_dpo", "train_gpt_kto", "train_reward_model"}
"""Scripts whose own files set ``megatron_amp_O2``; all others' have it off (``examples/nlp`` of both repositories)."""
_SAME = [
    "micro_batch_size",
    "global_batch_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "kv_channels",
    "num_query_groups",
    "max_position_embeddings",
    "hidden_dropout",
    "attention_dropout",
    "make_vocab_size_divisible_by",
    "sequence_parallel",
    "position_embedding_type",
    "num_moe_experts",
    "moe_router_topk",
    "vocab_size",
    "override_vocab_size",
]
_OURS = {
    "encoder_seq_length": "seq_length",
    "num_moe_experts": "num_experts",
    "override_vocab_size": "vocab_size",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
}
_REFERENCE = re.compile(r"\$\{(\.*)([\w.]+)\}")
_PRODUCT = re.compile(r"\$\{multiply: *(.{1,200}?), *(.{1,200}?)\}")
_MOST_REFERENCES = 8


def hydra_plan(inputs: PlanInputs) -> TrainingPlan:
    """The plan of one script of NeMo 1 or NeMo-Aligner.

    Raises:
        PlanError: neither dimensions nor a known model is named, or a method without formulas.
    """
    script = PurePosixPath(inputs.script).stem
    settings = _settings(inputs, script)
    if script not in _CONFIGS:
        raise PlanError(
            f"{script[:60]} trains more than one model at once, which no formula here follows; run the script"
        )
    fields = Fields(settings)
    model = _model(fields)
    # Between what adapters are called and what is done with them NeMo knows only these two.
    scheme = fields.text("model.peft.peft_scheme", default="none").lower()
    if scheme not in ("none", "null", "lora", ""):
        raise PlanError(f"the tuning {scheme[:40]!r} of NeMo has no formulas; give model.peft.peft_scheme=lora or none")
    world = inputs.world_size or _gpus(fields)
    words = Fields(_megatron(fields, script, has_model=model is not None))
    plan = nemo_plan({name: words.raw(name) for name in words.names()}, model, world, words.unknown)
    if not fields.flag("model.megatron_amp_O2", default=script in _HALF_WEIGHTS) or fields.flag("model.fsdp"):
        plan = _casts_weights(plan)
    if script in _SEQUENCES:
        plan = replace(plan, micro_batch=plan.micro_batch * _SEQUENCES[script])
    if script in ("train_gpt_dpo", "train_gpt_kto"):
        plan = replace(plan, logit_bytes=LOG_PROBABILITIES)
    if script == "train_reward_model":
        plan = replace(plan, logit_bytes=0.0)
    if scheme != "lora":
        return plan
    own = "model.peft.lora_tuning"
    targets = fields.name_list(f"{own}.target_modules") or ["attention_qkv"]
    rank = fields.whole(f"{own}.adapter_dim", default=32)
    return with_adapter(plan, rank, targets, dropout=fields.real(f"{own}.adapter_dropout", default=0.0) > 0)


def _casts_weights(plan: TrainingPlan) -> TrainingPlan:
    """Without ``megatron_amp_O2``, and always under FSDP, weights stay in 32 bits and are cast for each product.

    So in ``nemo/collections/nlp/models/language_modeling`` (``enable_autocast``). Transformer Engine's layers keep the
    casts for the backward pass; recomputed layers may keep fewer than are counted.
    """
    if plan.weights is Precision.FP32:
        return plan
    of = plan.parallel
    casts = plan.compute.bytes_each * plan.model.parameters() / (of.tensor * of.pipeline)
    return replace(
        plan,
        weights=Precision.FP32,
        gradient_bytes=4.0,
        # The distributed optimizer keeps its part of the weights once more, whatever their precision.
        master_bytes=plan.master_bytes if of.sharding is Sharding.OPTIMIZER else 0.0,
        buffer_bytes=plan.buffer_bytes + (0.0 if of.sharding is Sharding.PARAMETERS else casts),
    )


def processes(inputs: PlanInputs) -> int | None:
    """Nodes times devices. Raises PlanError for values that cannot be."""
    return _gpus(Fields(_settings(inputs, PurePosixPath(inputs.script).stem)))


def _gpus(fields: Fields) -> int:
    devices = fields.text("trainer.devices", default="1")
    if devices in ("-1", "auto"):
        raise PlanError("trainer.devices is as many as the machine has; give their number")
    return max(1, fields.whole("trainer.devices", default=1)) * max(1, fields.whole("trainer.num_nodes", default=1))


def _settings(inputs: PlanInputs, script: str) -> dict[str, Any]:
    """The file's, then the command's own."""
    given = Fields(inputs.settings)
    folder = given.text("config_path", "cp") or f"{PurePosixPath(inputs.script).parent}/conf"
    name = given.text("config_name", "cn") or _CONFIGS.get(script, "")
    path = f"{folder.rstrip('/')}/{name}{'' if name.endswith(('.yaml', '.yml')) else '.yaml'}"
    content = inputs.load(path) if name else None
    if content is None and given.has("config_name", "cn"):
        raise PlanError(f"the configuration {path[:200]} cannot be read; give it beside the command")
    return _resolved(_merged(dict(content or {}), inputs.settings))


def _merged(document: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names of a command in the nested mappings that they name; only those on the way are copied."""
    result = dict(document)
    for name, value in settings.items():
        parts = name.split(".")
        if len(parts) < 2 or len(parts) > 20:
            result[name] = value
            continue
        inner = result
        for part in parts[:-1]:
            below = inner.get(part)
            inner[part] = dict(below) if isinstance(below, Mapping) else {}
            inner = inner[part]
        inner[parts[-1]] = value
    return result


def _resolved(document: dict[str, Any]) -> dict[str, Any]:
    """References in the sections that are read; one that leads nowhere is as good as not given."""
    root = Fields(document)
    for section in ("model", "trainer"):
        below = document.get(section)
        if isinstance(below, Mapping):
            document[section] = {
                name: _value(value, root, section, _MOST_REFERENCES) if isinstance(value, str) else value
                for name, value in below.items()
            }
    return document


def _value(text: str, root: Fields, section: str, most: int) -> Any:
    if most <= 0 or len(text) > 500:
        return None
    if (whole := _REFERENCE.fullmatch(text)) is not None:
        name = f"{section}.{whole[2]}" if whole[1] else whole[2]
        other = root.raw(name)
        return _value(other, root, section, most - 1) if isinstance(other, str) else other
    if (product := _PRODUCT.fullmatch(text)) is not None:
        factors = [str(_value(part.strip(), root, section, most - 1)) for part in product.groups()]
        return (
            int(factors[0]) * int(factors[1]) if all(each.isdecimal() and len(each) < 9 for each in factors) else None
        )
    return None if text == "???" or "${" in text else text


def _model(fields: Fields) -> ModelShape | None:
    """The model of a checkpoint, by its name; None where the settings have the dimensions themselves."""
    names = ("pretrained_checkpoint.restore_from_path", "model.restore_from_path", "model.resume_from_checkpoint")
    checkpoint = fields.text(*names)
    if not checkpoint or checkpoint in ("null", "None", "???"):
        if not fields.has("model.hidden_size"):
            raise PlanError(
                "the model stands in a checkpoint that is not named; give model.restore_from_path with the model's "
                "name, or model.hidden_size, model.num_layers and model.num_attention_heads"
            )
        return None
    try:
        return find_language_model(checkpoint.removesuffix(".nemo"))
    except UnknownModelError:
        if fields.has("model.hidden_size"):
            return None
        raise PlanError(
            f"the model stands in the checkpoint {checkpoint[:100]!r}, whose name says no model that is known here; "
            "give model.hidden_size, model.num_layers and model.num_attention_heads"
        ) from None


def _megatron(fields: Fields, script: str, *, has_model: bool) -> dict[str, Any]:
    """NeMo's ``model`` section in Megatron-LM's names."""
    result: dict[str, Any] = {}
    for name in (*_SAME, *_OURS):
        value = fields.raw(f"model.{name}")
        if value is not None and str(value) not in ("null", "None"):
            result[_OURS.get(name, name)] = value
    for name in ("micro_batch_size", "global_batch_size"):
        result.setdefault(name, fields.raw(f"model.data.train_ds.{name}") or 1)
    result.setdefault("seq_length", fields.raw("model.data.train_ds.max_seq_length") or (4096 if has_model else 512))
    activation = fields.text("model.activation", default="gelu")
    optimizer = fields.text("model.optim.name", default="fused_adam")
    precision = fields.text("trainer.precision", default="32")
    half = "bf16" if "bf16" in precision else "fp16" if precision.startswith("16") else "fp32"
    stages = fields.raw("model.virtual_pipeline_model_parallel_size")
    return result | {
        half: True,
        "num_virtual_stages_per_pipeline_rank": stages if str(stages) not in ("None", "null") else None,
        "swiglu": activation.removeprefix("fast-") in ("swiglu", "geglu", "reglu"),
        "group_query_attention": "num_query_groups" in result,
        "untie_embeddings_and_output_weights": not fields.flag(
            "model.share_embeddings_and_output_weights", default=True
        ),
        "disable_bias_linear": not fields.flag("model.bias", default=True),
        "use_distributed_optimizer": "distributed" in optimizer or optimizer == "mcore_distributed_optim",
        "use_torch_fsdp2": fields.flag("model.fsdp"),
        "optimizer": "sgd" if "sgd" in optimizer else "adam",
        "recompute_granularity": result.get("recompute_granularity", ""),
        "hidden_dropout": result.get("hidden_dropout", 0.0),
        "attention_dropout": result.get("attention_dropout", 0.0),
        "fp8": True if fields.flag("model.fp8") else None,
    }
