"""litgpt's commands: fine-tuning and pre-training with model code of its own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.training_plan import ModelShape, PlanError, Precision, Sharding, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.models import model_of
from kopt.formats.trainers.names import adapter, precision
from kopt.formats.trainers.recipe import Recipe, length
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_TARGETS = (
    ("lora_query", "q_proj", True),
    ("lora_key", "k_proj", False),
    ("lora_value", "v_proj", True),
    ("lora_projection", "o_proj", False),
)
_DIMENSIONS = {
    "n_layer": "num_hidden_layers",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_query_groups": "num_key_value_heads",
    "head_size": "head_dim",
    "intermediate_size": "intermediate_size",
    "padded_vocab_size": "vocab_size",
    "n_expert": "num_local_experts",
    "n_expert_per_token": "num_experts_per_tok",
}
_CHUNKED_LOSS = 6.0
"""Logits in chunks: themselves, their log-softmax and its gradient, all in 16 bits."""


def litgpt_plan(
    settings: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None, world_size: int | None = None
) -> TrainingPlan:
    """litgpt's command and configuration: ``litgpt finetune_lora MODEL --precision bf16-true``.

    Raises:
        PlanError: the model is not known, or a value that cannot be.
    """
    fields = Fields(settings)
    positional = fields.positional()
    command = positional[0] if positional else "finetune_lora"
    named = fields.text("checkpoint_dir", "model_name", default=positional[1] if len(positional) > 1 else "")
    own = fields.raw("model_config")
    config = _transformers_config(own) if isinstance(own, Mapping) and own else None
    model = model_of(Fields({"model": named}), config=model_config or config)
    gpus = world_size or fields.whole("devices", default=1)
    return in_litgpt(_with_adapter(_recipe(fields, model, gpus, command), fields, command).plan())


def _transformers_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """litgpt's own names of dimensions as transformers calls them."""
    renamed = {theirs: config[name] for name, theirs in _DIMENSIONS.items() if config.get(name) is not None}
    gated = config.get("mlp_class_name") in ("LLaMAMLP", "GemmaMLP", "LLaMAMoE")
    return renamed | ({} if gated else {"model_type": "gpt_neox"})


def in_litgpt(plan: TrainingPlan) -> TrainingPlan:
    """litgpt never ties a head to its embedding, and has bitsandbytes quantise the head as any other layer.

    One linear layer makes queries, keys and values.
    """
    model = replace(plan.model, tied=False)
    return replace(plan, model=model, quantised_head=plan.weights.quantised, joint_qkv=True)


def _recipe(fields: Fields, model: ModelShape, gpus: int, command: str) -> Recipe:
    held = precision(fields.text("precision").replace("bf16-mixed", "fp32").replace("16-mixed", "fp32"), Precision.BF16)
    quantised = fields.text("quantize").replace("bnb.int8-training", "int8")
    return Recipe(
        framework="litgpt",
        model=model,
        micro_batch=fields.whole("train.micro_batch_size", default=1),
        sequence=length(fields, "train.max_seq_length"),
        accumulation=2,
        weights=precision(quantised, held) if quantised else held,
        compute=Precision.BF16 if "bf16" in fields.text("precision", default="bf16") else held,
        optimizer=_optimizer(fields),
        gpus=gpus,
        sharding=Sharding.PARAMETERS,
        checkpointing=gpus > 1,
        loads_whole=gpus > 1 and command != "pretrain",
        loss=_CHUNKED_LOSS,
        unknown=fields.unknown,
    )


def _optimizer(fields: Fields) -> str:
    """By name, or as jsonargparse has it: ``{class_path: torch.optim.AdamW, init_args: …}``."""
    if isinstance(fields.raw("optimizer"), Mapping):
        return fields.text("optimizer.class_path", default="AdamW")
    return fields.text("optimizer", default="AdamW")


def _with_adapter(recipe: Recipe, fields: Fields, command: str) -> Recipe:
    model = recipe.model
    if command.endswith("lora"):
        targets = [target for flag, target, default in _TARGETS if fields.flag(flag, default=default)]
        if fields.flag("lora_mlp"):
            targets += ["gate_proj", "up_proj", "down_proj"]
        return replace(recipe, adapter=adapter(model, fields.whole("lora_r", default=8), targets))
    if "adapter" in command:
        every = command.endswith("v2")
        low_rank = replace(adapter(model, 2, ["q_proj"], dropout=False), scales=every)
        if every:  # a bias and a scale for each number that a linear layer puts out
            low_rank = replace(low_rank, trainable=low_rank.trainable + 2 * model.layers * model.linear_outputs)
        return replace(recipe, adapter=low_rank)
    if command not in ("finetune", "finetune_full", "pretrain"):
        raise PlanError(
            f"litgpt {command[:40]} does not train; give finetune_full, finetune_lora, finetune_adapter or pretrain"
        )
    return recipe


def _plan(inputs: PlanInputs) -> TrainingPlan:
    return litgpt_plan(inputs.settings, model_config=inputs.model_config(), world_size=inputs.world_size)


def _processes(inputs: PlanInputs) -> int | None:
    """``--devices`` where it is a number; without it fine-tuning takes one GPU, and pre-training all there are."""
    fields = Fields(inputs.settings)
    devices = fields.text("devices")
    all_gpus = not devices.isdigit() if devices else fields.positional()[:1] == ["pretrain"]
    return None if all_gpus else fields.whole("devices", default=1)


TRAINER = Trainer(
    "litgpt",
    _plan,
    commands=("litgpt",),
    modules=("litgpt",),
    folders=("litgpt",),
    config_options=("--config",),
    processes=_processes,
)
