"""AnswerDotAI's fsdp_qlora: adapters on a 4-bit model whose layers FSDP shards (train.py's arguments)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.training_plan import Adapter, ModelShape, PlanError, Precision, Sharding, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.models import model_of
from kopt.formats.trainers.names import adapter
from kopt.formats.trainers.recipe import Recipe
from kopt.formats.trainers.trainer import PlanInputs, Trainer
from kopt.formats.trainers.transformers import LOGIT_BYTES

_OPTIONS = {"--train_type", "--context_length", "--sharding_strategy", "--use_cpu_offload"}
_RANK = 64
_KINDS = ("full", "lora", "qlora", "custom_lora", "custom_qlora", "hqq_lora", "hqq_dora", "bnb_dora")
_STRATEGIES = {
    "full_shard": Sharding.PARAMETERS,
    "hybrid_full_shard": Sharding.PARAMETERS,
    "shard_grad_op": Sharding.GRADIENTS,
    "hybrid_shard_grad_op": Sharding.GRADIENTS,
    "ddp": Sharding.NONE,
}
_STATE_BYTES = 1 / 64 + 4 / (64 * 256)
"""Scales of a doubly quantised number: no parameters, so FSDP leaves all of them on every rank."""


def fsdp_qlora_plan(
    settings: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None, world_size: int | None = None
) -> TrainingPlan:
    """``python train.py --train_type qlora --model_name MODEL --context_length 2048``.

    Raises:
        PlanError: the model is not known, or a value that cannot be.
    """
    fields = Fields(settings)
    kind = fields.text("train_type", default="qlora")
    if kind not in _KINDS:
        raise PlanError(f"train_type {kind[:40]!r} is none that formulas follow; give one of {', '.join(_KINDS)}")
    model = model_of(fields, "model_name", config=model_config)
    recipe = _recipe(fields, model, world_size or max(1, fields.whole("world_size", default=1)))
    if kind == "full":
        return recipe.plan()
    recipe = replace(recipe, adapter=_adapter(fields, model, recipe.weights))
    if kind in ("lora", "custom_lora"):
        return recipe.plan()
    plan = replace(recipe, weights=Precision.NF4_DOUBLE).plan()
    if plan.parallel.sharding is not Sharding.PARAMETERS:
        return plan
    layers = plan.model.parameters() - plan.model.embedding * (1 if plan.model.tied else 2)
    return replace(plan, beside_bytes=_STATE_BYTES * layers * (1 - 1 / plan.parallel.shard_ranks))


def _recipe(fields: Fields, model: ModelShape, gpus: int) -> Recipe:
    strategy = fields.text("sharding_strategy", default="full_shard")
    if strategy not in _STRATEGIES:
        raise PlanError(f"sharding_strategy must be one of {', '.join(_STRATEGIES)}, not {strategy[:40]!r}")
    offloads = fields.flag("use_cpu_offload")
    mixed = fields.text("precision", default="bf16")
    sequence = fields.whole("context_length", default=512)
    fields.assume("dataset", "batches of varying length are taken to reach the longest that is allowed")
    return Recipe(
        framework="fsdp-qlora",
        model=model,
        micro_batch=fields.whole("batch_size", default=1),
        sequence=sequence,
        accumulation=fields.whole("gradient_accumulation_steps", default=1),
        # With automatic casts parameters are held in 32 bits, but for "bf16_buffers_autocast".
        weights=Precision.FP32 if mixed in ("fp32", "fp16_autocast", "bf16_autocast") else Precision.BF16,
        compute={"fp32": Precision.FP32, "fp16_autocast": Precision.FP16}.get(mixed, Precision.BF16),
        optimizer=fields.text("optimizer", default="adamw"),
        gpus=gpus,
        sharding=_STRATEGIES[strategy],
        offload_parameters=offloads,
        offload_optimizer=offloads,
        checkpointing=fields.flag("use_gradient_checkpointing", default=True),
        offload_activations=fields.flag("use_activation_cpu_offload"),
        loss=LOGIT_BYTES,
        varying=True,
        unknown=fields.unknown,
    )


def _adapter(fields: Fields, model: ModelShape, held: Precision) -> Adapter:
    """FSDP needs one precision in a layer, so adapters are held as the rest is; "all" are the seven of a Llama."""
    dropout = fields.real("lora_dropout", default=0.1) > 0
    targets = fields.name_list("lora_target_modules") or ["all"]
    if targets == ["default"]:
        targets = ["q_proj", "v_proj"]
    made = adapter(model, fields.whole("lora_rank", default=_RANK), targets, dropout=dropout)
    return replace(made, held_bytes=held.bytes_each, copy_bytes=held.bytes_each + 1 if dropout else 0.0)


def _plan(inputs: PlanInputs) -> TrainingPlan:
    return fsdp_qlora_plan(inputs.settings, model_config=inputs.model_config(), world_size=inputs.world_size)


TRAINER = Trainer(
    "fsdp-qlora",
    _plan,
    folders=("fsdp_qlora",),
    options=lambda names: "--train_type" in names and len(names & _OPTIONS) >= 2,
)
